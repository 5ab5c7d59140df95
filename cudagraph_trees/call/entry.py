"""``cudagraphify``: the function that a compiler calls.

Note [Graphs in parts]
~~~~~~~~~~~~~~~~~~~~~~
Inductor cuts a graph that cannot be captured whole: the trees run its partitions, and generated
code runs what is between them. So the call that begins a step is one of a partition, and what only
a later part of the graph reads is not among its inputs. It may lie in an output of the step that
ends all the same (``g(a, f(x))``), and nobody could replace it there.

So whoever calls such a graph says before what it was given, and what lies in a live output moves
out of the pool, see Note [The end of a step]. It is referred to weakly, so that it can die as soon
as the graph has read it.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from .. import _torch_compat as compat
from ..device.protocol import Input, Model, Output
from ..record.policy import IN_A_CAPTURE
from ..replay.spec import CompilationMode, GraphSpec
from .container import Family, family, get_container, get_manager
from .manager import CUDAGraphTreeManager, ManagerGone

Runner = Callable[[list[Input]], "list[Output]"]

_NOT_PREPARED = object()
"""Key under which calls go before it is known which inputs are integers."""


class ShapeDispatcher:
    """Hands each call of a compiled graph to the function for its integers, which it wraps when
    they first come, once per thread family.

    Args:
        model, device: of ``cudagraphify_impl``.
        static: inputs whose address is expected to stay, by Inductor's account.
        keywords: those as well; read when it is first called, or ``prepare``d.
    """

    def __init__(
        self,
        model: Model,
        static: Sequence[int],
        device: int | torch.device,
        keywords: Mapping[str, Any],
    ) -> None:
        self.model = model
        self._static = static
        self._device = device
        self._keywords = keywords
        self._get_ints: Callable[[list[Input]], Any] | None = lambda inputs: _NOT_PREPARED
        # Runners by family, by integers. A family is known by its ``id`` while it lives.
        self._runners: dict[int, dict[Any, Runner]] = {}
        self._warned = self._limited = False

    def prepare(self, inputs: list[Input]) -> None:
        """Find out from inputs of any call which are integers."""
        self.spec = GraphSpec.of(self.model, inputs, self._static, self._keywords)
        self._static = self.spec.description.static
        # The code was compiled for inputs like these; later ones may be aligned otherwise.
        self._checked = set(compat.alignment_checked_inputs(inputs, self._static))
        ints = [i for i, x in enumerate(inputs) if isinstance(x, int)]
        # Last: from here on other threads find all there is to know.
        self._get_ints = operator.itemgetter(*ints) if ints else None

    def __call__(self, inputs: list[Input]) -> list[Output]:
        key = None if self._get_ints is None else self._get_ints(inputs)
        try:
            runner = self._runners[id(family())][key]
        except KeyError:
            # Called below: its errors do not come from this one and should not say so.
            runner = functools.partial(self._first_call, key)
        try:
            return runner(inputs)
        except ManagerGone:
            # A reset in a thread that works for this one, say in a hook of a backward.
            self._runners.get(id(family()), {}).pop(key, None)
        return self._first_call(key, inputs)

    def _first_call(self, key: Any, inputs: list[Input]) -> list[Output]:
        if key is _NOT_PREPARED:
            self.prepare(inputs)
            return self(inputs)
        spec, options = self.spec, self.spec.options
        if torch.cuda.is_current_stream_capturing():
            return self._plainly(inputs, IN_A_CAPTURE)
        sizes = options["cudagraph_capture_sizes"]
        if key is not None and sizes is not None and key not in sizes:
            return self._plainly(inputs, "its sizes are not among cudagraph_capture_sizes")
        runners = self._of_family(family())
        limit = options["cudagraph_dynamic_shape_rerecord_limit"]
        if limit is not None and len(runners) >= limit:
            if not self._limited:
                self._limited = True
                compat.graphs_log.warning(
                    "[%s] %s graph hit cudagraph_dynamic_shape_rerecord_limit=%s; "
                    "already-recorded shapes still replay, new shapes run eager.",
                    spec.compile_id,
                    spec.mode.name.lower(),
                    limit,
                )
            why = f"it has graphs for {limit} sizes, cudagraph_dynamic_shape_rerecord_limit"
            return self._plainly(inputs, why)
        what = "graph without symints" if key is None else f"symint key {key}"
        compat.graphs_log.info("[%s] Recording cudagraph tree for %s", spec.compile_id, what)
        if not self._warned:
            warn = options["cudagraph_dynamic_shape_warn_limit"]
            self._warned = compat.warn_many_shapes(runners, key, warn)
        backward = spec.mode is CompilationMode.BACKWARD
        try:
            with compat.timed("cudagraphify.get_container", spec.compile_id, backward=backward):
                get_container(self._device).get_tree_manager(options.pool_initial)
        except Exception as e:
            if options.or_error:
                raise
            # Making a pool takes memory and a capture; without one there are no graphs yet.
            compat.log.warning("no pool for CUDA graphs: %s: %s", type(e).__name__, str(e))
            return self._plainly(inputs, "there is no pool")
        # Kept before it is called: when that raises, the next call finds what is known of it.
        runner = runners[key] = self._wrap(inputs)
        return runner(inputs)

    def _wrap(self, inputs: list[Input]) -> Runner:
        """The function for the integers among ``inputs``. It goes, with what is known of it, when
        nobody holds the result."""
        checked = self._checked.union(compat.alignment_checked_inputs(inputs, self._static))
        static = compat.aligned_static_inputs(inputs, self._static)
        # What is written to must not be a copy: it runs without a graph where it is misaligned.
        compat.align_inputs(inputs, sorted(checked.difference(self.spec.mutated)))
        return get_container(self._device).wrap(self.spec, inputs, static, sorted(checked))

    def _of_family(self, of: Family) -> dict[Any, Runner]:
        runners = self._runners.get(id(of))
        if runners is None:
            runners = self._runners[id(of)] = {}
            weakref.finalize(of, _forget_family, weakref.ref(self), id(of)).atexit = False
        return runners

    def _plainly(self, inputs: list[Input], reason: str) -> list[Output]:
        """Run without a graph. A manager is told if there is one; none is made for it."""
        manager = get_manager(self._device, create_if_none_exists=False)
        if manager is not None:
            manager.ran_unwrapped(self.spec.function(-1, inputs, ()), reason)
        # What torch's trees leave out.
        model = compat.with_aligned_inputs(self.model, sorted(self._checked), self.spec.mutated)
        return list(model(inputs))


def _forget_family(dispatcher: weakref.ref[ShapeDispatcher], id: int) -> None:
    living = dispatcher()
    if living is not None:
        living._runners.pop(id, None)


def cudagraphify_impl(
    model: Model,
    inputs: list[Input],
    static_input_idxs: Sequence[int] = (),
    *,
    device_index: int | torch.device,
    **keywords: Any,
) -> ShapeDispatcher:
    """Wrap ``model``; recording begins when the result is called.

    Args:
        model: boxed callable, see Note [Who does what: manager and device].
        inputs: of any call: they tell which inputs are integers. Not run.
        static_input_idxs: inputs whose address is expected to stay.
        device_index: number of a CUDA device, or a ``torch.device``.
        **keywords: see ``GraphSpec.of``.
    """
    wrapped = ShapeDispatcher(model, static_input_idxs, device_index, keywords)
    wrapped.prepare(inputs)
    return wrapped


def cudagraphify(
    model: Model, inputs: list[Input], static_input_idxs: Sequence[int] = (), **options: Any
) -> tuple[Runner, list[Output]]:
    """Wrap ``model`` as ``cudagraphify_impl`` does and call it for the first time, with ``inputs``,
    which are emptied. Returns the wrapped function, and what the call returned."""
    wrapped = cudagraphify_impl(model, inputs, static_input_idxs, **options)
    return wrapped, wrapped(inputs)


def tell_what_is_given(call: Callable[[list[Input]], Any]) -> Callable[[list[Input]], Any]:
    """The callable of a graph in parts, which tells the managers what each call was given."""

    def telling(inputs: list[Input]) -> Any:
        before = []
        for container in family().containers.values():
            manager = container.tree_manager
            if manager is not None:
                before.append((manager, manager.given))
                manager.given = _in_outputs(manager, inputs)
        try:
            return call(inputs)
        finally:
            for manager, given in before:
                manager.given = given

    return telling


def _in_outputs(manager: CUDAGraphTreeManager, inputs: Sequence[Input]) -> list[TensorWeakRef]:
    """Inputs that lie in live outputs of the last step, if another one may begin."""
    node = manager.path.node
    if node is None or not manager.path.step_may_begin():
        return []
    live = {r.pointer for r in node.path_refs if not r.expired()}
    if not live:
        return []
    return [
        TensorWeakRef(x)
        for x in inputs
        if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata in live
    ]
