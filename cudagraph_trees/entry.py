"""``cudagraphify``: the function that a compiler calls."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memprof.profiler.model import LedgerKind

from . import _torch_compat as compat
from . import torch_logs
from .container import Family, family, get_container, get_manager
from .device.protocol import Input, Model, Output
from .function import CompilationMode, Function, FunctionID
from .manager import ManagerGone
from .torch_options import AT_COMPILATION, TreeOptions

Runner = Callable[[list[Input]], "list[Output]"]


class GraphedFunction:
    """A compiled function that is wrapped when it is first called, once per thread family
    and per combination of integer inputs.

    Attributes:
        model: what is wrapped.
        keys: how many combinations of integers have a graph, in all families.
    """

    def __init__(
        self,
        model: Model,
        inputs: Sequence[Input],
        static_input_idxs: Sequence[int],
        options: dict[str, Any],
    ) -> None:
        self.model = model
        self._static = static_input_idxs
        self._torchs: TreeOptions = options.pop("torch_options", None) or _torch_options(options)
        self._options = options
        # The code was compiled for inputs like these; later ones may be aligned otherwise.
        self._checked = set(compat.alignment_checked_inputs(inputs, static_input_idxs))
        ints = [i for i, x in enumerate(inputs) if isinstance(x, int)]
        self._ints = ints
        self._get_ints: Callable[[list[Input]], Any] | None = (
            operator.itemgetter(*ints) if ints else None
        )
        # Runners by family, by integers. A family is known by its ``id`` while it lives.
        self._runners: dict[int, dict[Any, Runner]] = {}
        self._warned = self._limited = False

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
        sizes = self._torchs.capture_sizes
        if key is not None and sizes is not None and key not in sizes:
            return self._plainly(inputs, "its sizes are not among cudagraph_capture_sizes")
        runners = self._of_family(family())
        compile_id = self._options.get("compile_id")
        mode = _mode(self._options["is_backward"], self._options["is_inference"])
        limit = self._torchs.dynamic_shape_rerecord_limit
        if limit is not None and len(runners) >= limit:
            if not self._limited:
                self._limited = True
                torch_logs.sizes_limit(compile_id, mode, limit)
            why = f"it has graphs for {limit} sizes, cudagraph_dynamic_shape_rerecord_limit"
            return self._plainly(inputs, why)
        torch_logs.wrapped(compile_id, key)
        if not self._warned:
            warn = self._torchs.dynamic_shape_warn_limit
            self._warned = compat.warn_many_shapes(runners, key, warn)
        try:
            with compat.timed(
                "cudagraphify.get_container", compile_id, backward=mode is CompilationMode.BACKWARD
            ):
                container = get_container(self._options["device_index"])
                container.get_tree_manager(self._torchs.pool_initial)
        except Exception as e:
            if self._torchs.or_error:
                raise
            # Making a pool takes memory and a capture; without one there are no graphs yet.
            compat.log.warning("no pool for CUDA graphs: %s: %s", type(e).__name__, str(e))
            return self._plainly(inputs, "there is no pool")
        checked = self._checked.union(compat.alignment_checked_inputs(inputs, self._static))
        static = tuple(compat.aligned_static_inputs(inputs, self._static))
        # What is written to must not be a copy: it runs without a graph where it is misaligned.
        mutated = self._options.get("mutated_input_idxs", ())
        compat.align_inputs(inputs, sorted(checked.difference(mutated)))
        # Kept before it is called: when that raises, the next call finds what is known of it.
        runner = runners[key] = wrap(
            self.model,
            inputs,
            static,
            alignment_checked=sorted(checked),
            key=tuple(inputs[i] for i in self._ints),
            torch_options=self._torchs,
            **self._options,
        )
        return runner(inputs)

    def _of_family(self, of: Family) -> dict[Any, Runner]:
        runners = self._runners.get(id(of))
        if runners is None:
            runners = self._runners[id(of)] = {}
            weakref.finalize(of, _forget_family, weakref.ref(self), id(of)).atexit = False
        return runners

    def _plainly(self, inputs: list[Input], reason: str) -> list[Output]:
        """Without a graph; a manager that there is hears of it."""
        options = self._options
        manager = get_manager(options["device_index"], create_if_none_exists=False)
        if manager is not None:
            manager.ran_outside()
            if options.get("is_backward"):
                manager.set_to_running_backward()
            function = self._unwrapped(inputs)
            if function.mode is CompilationMode.FORWARD:
                manager.plain_forwards.ran_plainly(function)
            manager.note(LedgerKind.SKIP, function, reason)
        # What torch's trees leave out.
        mutated = options.get("mutated_input_idxs", ())
        model = compat.with_aligned_inputs(self.model, sorted(self._checked), mutated)
        return list(model(inputs))

    def _unwrapped(self, inputs: list[Input]) -> Function:
        """What the ledger knows sizes by that have no graph."""
        options = self._options
        mode = _mode(options["is_backward"], options["is_inference"])
        compile_id = options.get("compile_id")
        return Function(
            FunctionID(-1),
            self.model,
            mode,
            compile_id=compile_id,
            key=tuple(inputs[i] for i in self._ints),
            record=options.get("record"),
            partition=options.get("partition"),
            label="" if compile_id else f"{mode.name.lower()} function",
        )


def _torch_options(options: dict[str, Any]) -> TreeOptions:
    """Those of now, and what later versions of torch pass for the compilation."""
    passed = {f"triton.{n}": v for n in AT_COMPILATION if (v := options.get(n)) is not None}
    return TreeOptions.of_this_compilation(passed)


def _mode(is_backward: bool, is_inference: bool) -> CompilationMode:
    if is_backward and is_inference:
        raise ValueError("a graph is a backward or an inference graph, not both")
    if is_backward:
        return CompilationMode.BACKWARD
    return CompilationMode.INFERENCE if is_inference else CompilationMode.FORWARD


def _forget_family(function: weakref.ref[GraphedFunction], id: int) -> None:
    living = function()
    if living is not None:
        living._runners.pop(id, None)


def cudagraphify_impl(
    model: Model, inputs: list[Input], static_input_idxs: Sequence[int] = (), **options: Any
) -> GraphedFunction:
    """Wrap ``model``; recording begins when the result is called.

    Args:
        model: boxed callable, see Note [Who does what: manager and device].
        inputs: of any call: they tell which inputs are integers. Not run.
        static_input_idxs: inputs whose address is expected to stay.
        **options: those of ``cudagraphify``.
    """
    return GraphedFunction(model, inputs, static_input_idxs, options)


def cudagraphify(
    model: Model,
    inputs: list[Input],
    static_input_idxs: Sequence[int] = (),
    **options: Any,
) -> tuple[Runner, list[Output]]:
    """Wrap ``model`` for the integers in ``inputs`` and call it for the first time.

    Args:
        model: boxed callable, see Note [Who does what: manager and device].
        inputs: of the first call. Emptied.
        static_input_idxs: inputs whose address is expected to stay.
        **options: those of ``wrap``.

    Returns:
        The wrapped function, and what the first call returned.
    """
    runner = wrap(model, inputs, static_input_idxs, **options)
    return runner, runner(inputs)


def wrap(
    model: Model,
    inputs: list[Input],
    static_input_idxs: Sequence[int] = (),
    *,
    device_index: int | torch.device,
    is_backward: bool,
    is_inference: bool,
    stack_traces: Sequence[str | None] | None = None,
    constants: tuple[torch.Tensor, ...] = (),
    placeholders: Sequence[Any] = (),
    mutated_input_idxs: tuple[int, ...] = (),
    kernel_free_cudagraph: bool = False,
    user_visible_output_idxs: Sequence[int] | None = None,
    compile_id: object = None,
    alignment_checked: Sequence[int] = (),
    key: tuple[int, ...] = (),
    record: Any = None,
    partition: int | None = None,
    graph_inputs: tuple[int | None, ...] | None = None,
    graph_outputs: tuple[int | None, ...] | None = None,
    clone_outputs: bool = False,
    torch_options: TreeOptions | None = None,
    **unused: Any,
) -> Runner:
    """Wrap ``model`` for the integers in ``inputs``.

    Args:
        model: boxed callable, see Note [Who does what: manager and device].
        inputs: those that it will be called with first.
        static_input_idxs: inputs whose address is expected to stay.
        device_index: number of a CUDA device, or a ``torch.device``.
        is_backward, is_inference: which part of AOTAutograd's output it is; a forward if
            neither.
        stack_traces: user code that made each output.
        constants: tensors baked into the code.
        placeholders: torch's ``PlaceholderInfo`` of each input.
        mutated_input_idxs: inputs that the code writes to.
        kernel_free_cudagraph: the code launches nothing.
        user_visible_output_idxs: outputs that a user can hold, if that is known.
        compile_id: Dynamo's.
        alignment_checked: inputs that the code takes for aligned and that may not be.
        key: the integers among ``inputs``.
        record: ``profiler.model.GraphRecord`` of the graph, for messages and the ledger.
        partition: number of the partition, None if ``model`` is the whole graph.
        graph_inputs: for each input of a partition, which input of the graph it is.
        graph_outputs: for each output of a partition, which output of the graph it is.
        clone_outputs: outputs that are held beyond their step get memory of their own.
        torch_options: torch's options; by default those of now.
        **unused: what later versions of torch pass of their options, see ``_torch_options``.

    Returns:
        The wrapped function, which goes, with what is known of it, when nobody holds it.

    Raises:
        ValueError: it cannot be a backward and an inference graph.
    """
    mode = _mode(is_backward, is_inference)
    options = _torch_options(unused) if torch_options is None else torch_options
    container = get_container(device_index)
    with container.in_use() as manager:
        runner = manager.wrap(
            model,
            inputs,
            static_input_idxs,
            stack_traces,
            mode,
            constants,
            placeholders,
            mutated_input_idxs,
            user_outputs=frozenset(user_visible_output_idxs) if user_visible_output_idxs else None,
            kernel_free=kernel_free_cudagraph,
            compile_id=compile_id,
            key=key,
            record=record,
            partition=partition,
            graph_inputs=graph_inputs,
            graph_outputs=graph_outputs,
            alignment_checked=alignment_checked,
            clone_outputs=clone_outputs,
            options=options,
        )
        container.add_strong_reference(runner, runner.args[0])
    return runner
