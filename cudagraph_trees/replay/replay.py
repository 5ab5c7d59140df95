"""The replays of one recording: the hot path.

Note [What is decided when]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
A replay should do no more than: compare addresses, look whether what was dead when the
node was recorded is dead now, copy inputs, launch, hand out. So everything a replay needs
is laid out when the node is recorded: ``same_addresses`` for one comparison in C++,
``dead_before`` and ``dead_after`` as flat lists of references rather than of indices, the
buffers of the grouped copy in order, the outputs in slots. What is left out of a list then
costs nothing at a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .. import _torch_compat as compat
from ..device.cuda import CapturedRun, CudaPool
from ..device.protocol import Input, Output, TensorSpec
from .inputs import Copies, InputPlan, inputs_again, same_addresses
from .liveness import OutputRefs, PathOutputIndex, find_live, held, path_refs, refs_at
from .outputs import OutputCache

_foreach_copy = compat.foreach_copy


class CalledOff(Exception):
    """A recording turned out not to fit when its replay had begun. Nothing was launched; ``inputs``
    are those of the call, rebuilt."""

    def __init__(self, inputs: list[Input]) -> None:
        super().__init__("an input has other sizes, or died in the recording and is still held")
        self.inputs = inputs


class Replay:
    """What one recording does when it is called again, see Note [What is decided when].

    Attributes:
        keep_inputs: inputs that an output is an alias of: they live until it is made.
        find_live: which of some outputs are held.
    """

    def __init__(
        self,
        run: CapturedRun,
        inputs: InputPlan,
        buffers: Sequence[Input],
        specs: dict[int, TensorSpec],
        path: Sequence[OutputRefs],
        dead_before: list[PathOutputIndex],
        dead_after: list[PathOutputIndex],
        keep_inputs: list[int],
        output_cache: OutputCache,
        pool: CudaPool,
    ) -> None:
        """Lay it out.

        Args:
            run, inputs, specs, output_cache, pool: see ``CUDAGraphNode``.
            buffers: by input: a tensor over what it reads, if that is in the pool.
            path: outputs of the nodes on its path, its own last.
            dead_before: outputs of the path that must be dead when it is replayed.
            dead_after: those that must die when it takes its inputs.
            keep_inputs: see above.
        """
        self.plan = inputs
        self.specs = specs
        self.pool = pool
        self.path = path
        self.keep_inputs = keep_inputs
        self.output_cache = output_cache
        self.captured = run
        self.launch = run.launch
        self.same_addresses = (
            same_addresses(inputs.pointers, inputs.checked) if inputs.checked else None
        )
        self.find_live = find_live()
        self.dead_before = refs_at(path, dead_before)
        self.dead_after = refs_at(path, dead_after)
        self.copies = Copies(inputs, buffers) if inputs.copied else None

    def fits(self, inputs: list[Input]) -> bool:
        """Whether the recording is right for this call. Hot."""
        return (self.same_addresses is None or self.same_addresses(inputs)) and (
            not self.dead_before
            or not self.find_live(self.dead_before)
            or not held(self.dead_before, path_refs(self.path))
        )

    def run(self, inputs: list[Input]) -> list[Output]:
        """Run it on inputs that it fits. ``inputs`` is emptied. Hot.

        Raises:
            CalledOff: someone holds an input that died in the recording, or one that is copied
                has other sizes; see Note [Kinds of inputs].
        """
        copies = self.copies
        if copies is not None:
            try:
                if copies.odd:
                    copies.copy_odd(inputs)
                if copies.buffers:
                    _foreach_copy(copies.buffers, copies.sources(inputs))
            except RuntimeError:
                if copies.fit(inputs):
                    raise
                raise CalledOff(list(inputs)) from None
        kept = [inputs[i] for i in self.keep_inputs] if self.keep_inputs else None
        if self.dead_after:
            self._let_die(inputs)
        self.launch()
        inputs.clear()
        outputs = self.output_cache.outputs()
        del kept
        return outputs

    def wait_with(self, synchronize: Callable[[], None]) -> None:
        """Each replay ends with ``synchronize()``: ``force_cudagraph_sync``."""
        launch = self.launch

        def launch_and_wait() -> None:
            launch()
            synchronize()

        self.launch = launch_and_wait

    def release(self) -> None:
        """The device has dropped its recording: a launch raises from here on."""
        self.launch = self.captured.launch

    def _let_die(self, inputs: list[Input]) -> None:
        """Let go of inputs that died in the recording; nobody else may hold them, or it is called
        off."""
        # The launch does not read them through Python.
        for i in self.plan.managed:
            inputs[i] = None
        for i in self.plan.copied:
            inputs[i] = None
        if self.find_live(self.dead_after) and held(self.dead_after, path_refs(self.path)):
            raise CalledOff(self._rebuild_inputs(inputs))

    def _rebuild_inputs(self, inputs: list[Input]) -> list[Input]:
        """Inputs of a call that was called off by ``_let_die``. Nothing was launched.

        Copied values are in the buffers, which the next recording may reuse: clones.
        """
        out = list(inputs)
        plan, live = self.plan, self.plan.live_outputs
        refs = {i: refs_at(self.path, [w])[0] for i in plan.managed if (w := live[i]) is not None}
        for i, t in inputs_again(self.pool, self.specs, refs).items():
            out[i] = t
        return out
