"""What this package uses of torch: its profiler, its formulas of FLOPs, the capture of graphs."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from memprof.profiler.sources.allocator.replaced import before, replace as replace_function
from memprof.simulated_cuda.after_import import after_import

from .work import ATTENTION, CONVOLUTION, PRODUCT, Operation, TensorInput

_QUALIFIED = re.compile(r"\w+::\w+")
"""Names of operations; ranges that the user or torch names may hold anything."""

OF_MODULE = "memprof module "
"""Begin of the names of ranges around calls of modules; the path follows."""
_BACKWARD = "autograd::engine::evaluate_function"
"""Begin of the name of a function of the backward, whose number is that of its forward."""

_profiler: Any = torch._C._profiler

set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
"""Sets which function compiles frames of Python, None for none, and returns the one before."""


@functools.cache
def flop_formulas() -> dict[str, Callable[..., int]]:
    """Formulas of ``torch.utils.flop_counter`` by the operation's name, without ``aten.``; of
    matrix products the sizes that cuBLAS is given are better."""
    from torch.utils.flop_counter import flop_registry

    return {
        str(packet).removeprefix("aten."): formula
        for packet, formula in flop_registry.items()
        if "attention" in str(packet) or "convolution" in str(packet)
    }


def around_captures(before: Callable[[], bool], after: Callable[[], None]) -> None:
    """Call ``before`` as a graph's capture begins and, if that was true, ``after`` as it ends."""
    graph = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end
    begun: set[int] = set()

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        if before():
            begun.add(id(self))
        try:
            begin(self, *args, **kwargs)
        except BaseException:
            ended(self)
            raise

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        try:
            end(self)
        finally:
            ended(self)

    def ended(graph: object) -> None:
        if id(graph) in begun:
            begun.remove(id(graph))
            after()

    graph.capture_begin = capture_begin  # type: ignore[method-assign]
    graph.capture_end = capture_end  # type: ignore[method-assign]


def before_profilers(call: Callable[[], None]) -> None:
    """Call ``call`` before any profiler of torch's, ours too, is made ready or started."""
    for name in ("_prepare_profiler", "_enable_profiler"):
        replace_function([torch.autograd.profiler], name, before(lambda *_, **__: call()))


def before_swaps(call: Callable[[], None]) -> None:
    """Call ``call`` before two tensors are swapped, which nobody else may know weakly then, as the
    profiler knows the inputs of operations."""
    replace_function([torch._C], "_swap_tensor_impl", before(lambda *_, **__: call()))


def before_waits(call: Callable[[Any], None]) -> None:
    """Call ``call`` with each work of a process group before it is waited for; the work of groups
    whose other ranks are not there has a class of its own."""
    kinds: tuple[Any, Any] = torch._C._distributed_c10d.Work, torch._C._distributed_c10d.FakeWork
    for kind in kinds:
        replace_function([kind], "wait", before(lambda work, *_, **__: call(work)))


def before_compilations(call: Callable[[], None]) -> None:
    """Call ``call`` before Dynamo compiles something, which does not trace this package."""
    after_import("torch._dynamo.trace_rules", lambda m: m.add(__name__.rpartition(".")[0]))
    after_import("torch._dynamo.callback", lambda m: m.on_compile_start(lambda *_: call()))


def after_loads_of_generated(call: Callable[[ModuleType], None]) -> None:
    """Call ``call`` with each module of Inductor's generated code that has a ``call``, once."""

    def install(codecache: Any) -> None:
        load = codecache.PyCodeCache.load_by_key_path

        @functools.wraps(load)
        def load_by_key_path(*args: Any, **kwargs: Any) -> ModuleType:
            module: ModuleType = load(*args, **kwargs)
            function = vars(module).get("call")
            if callable(function) and not hasattr(function, "__wrapped__"):
                call(module)
            return module

        codecache.PyCodeCache.load_by_key_path = load_by_key_path

    after_import("torch._inductor.codecache", install)


def enter_range(name: str) -> Any:
    """Enter a range of the profiler and return its context. It is no operator, so that modes such
    as that of selective checkpointing do not see it."""
    entered: Any = _profiler._RecordFunctionFast(name)
    entered.__enter__()
    return entered


def in_backward() -> bool:
    """Tells whether this thread runs a backward."""
    return bool(torch._C._current_graph_task_id() != -1)


def start_profiler() -> Any | None:
    """Start torch's profiler of operations, with their tensors and what they allocate; None where
    one is running, which may be the program's."""
    if torch._C._autograd._profiler_enabled():
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    profiler: Any = torch.profiler._KinetoProfile(  # type: ignore[attr-defined]
        activities=activities, record_shapes=True, profile_memory=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that events go at the end of a cycle: there is one
        profiler.start()
    return profiler


def let_rest(rests: bool) -> None:
    """Have torch's profilers follow no operations that begin from now on in this thread, and in
    backwards that it calls, or follow them again."""
    torch._C._autograd._enable_record_function(not rests)


def stop_profiler(profiler: Any) -> Any:
    """Stop it, and return what Kineto recorded."""
    profiler.stop()
    return profiler.profiler.kineto_results


def drop_profiler() -> None:
    """Stop torch's profiler and drop its events. Unlike its own end this does not wait for the
    device, which may be capturing."""
    torch._C._autograd._disable_profiler()


def operations(recorded: Any, first: int, formulas: Mapping[str, object]) -> dict[int, Operation]:
    """The operations that Kineto recorded, not described yet, by the number that CUPTI was told,
    plus ``first``. One inside of an operation that has a formula is that operation: it is how torch
    computes it."""
    found: dict[int, Operation] = {}
    convolutions: dict[int, Operation] = {}
    modules: dict[tuple[int, int], str] = {}
    backwards: dict[int, int] = {}
    pending = [(root, _Inside()) for root in recorded.experimental_event_tree()]
    while pending:
        event, place = pending.pop()
        fields = event.extra_fields  # Their class is known sooner than the event's tag.
        if isinstance(fields, _profiler._ExtraFields_Allocation):
            around = place.operation
            if around is not None and fields.alloc_size > 0 and fields.device.type == "cuda":
                around.allocated += fields.alloc_size
            continue
        if isinstance(fields, _profiler._ExtraFields_TorchOp):
            number = event.correlation_id
            place = _within(event, number, fields, place, modules, backwards, formulas)
            operation = place.operation
            if operation is not None:
                found[first + number] = operation
                if place.whole and "convolution" in operation.name:
                    convolutions[number] = operation
        pending += [(child, place) for child in event.children]
    of_backwards = _modules_of_backwards(recorded, modules, backwards)
    for made in found.values():
        made.module = made.module or of_backwards.get(made.backward, "")
    # Their strides and masks are lists, which the trees leave out.
    for event in recorded.events() if convolutions else ():
        operation = convolutions.get(event.correlation_id())
        if operation is not None and event.name() == operation.name:
            operation.lists = event.concrete_inputs()
    return found


def _modules_of_backwards(
    recorded: Any, modules: Mapping[tuple[int, int], str], backwards: Mapping[int, int]
) -> dict[int, str]:
    """The modules of functions of the backward, by their correlation number: each thread that makes
    a graph (one of autograd's, for a checkpoint) counts for itself, and only the list of events,
    which takes long, tells them apart."""
    threads = {thread for thread, _ in modules}
    if len(threads) == 1:
        (thread,) = threads
        return {b: modules.get((thread, n), "") for b, n in backwards.items()}
    found = {}
    for event in recorded.events() if threads else ():
        number = event.correlation_id()
        if number in backwards:
            found[number] = modules.get((event.fwd_thread_id(), backwards[number]), "")
    return found


@dataclass(slots=True)  # Frozen it takes three times as long.
class _Inside:
    """What an event is inside of: an operation, ``whole`` if that has a formula; the call of a
    module; a function of the backward, by its correlation number."""

    operation: Operation | None = None
    whole: bool = False
    module: str = ""
    backward: int = -1


def _within(
    event: Any,
    number: int,
    fields: Any,
    place: _Inside,
    modules: dict[tuple[int, int], str],
    backwards: dict[int, int],
    formulas: Mapping[str, object],
) -> _Inside:
    """The place inside of an operation with this correlation ``number``. ``modules`` gets the
    module of a forward by its thread and autograd's number, which an operation that needs no
    gradient shares with the next that does: the last, which is met first; ``backwards`` those
    numbers of functions of the backward."""
    name: str = event.name
    if name.startswith(OF_MODULE):
        return replace(place, module=name.removeprefix(OF_MODULE))
    sequence = fields.sequence_number
    if sequence >= 0:
        if name.startswith(_BACKWARD):
            backwards[number] = sequence
            place = replace(place, backward=number)
        else:
            modules.setdefault((event.start_tid, sequence), place.module)
    # Memory that one asks for is its caller's result.
    if place.whole or name.startswith("aten::empty"):
        return place
    made = Operation(name, event=event, module=place.module, backward=place.backward)
    # A capture has thousands: ``replace`` takes five times as long.
    return _Inside(
        operation=made,
        whole=name.removeprefix("aten::") in formulas,
        module=place.module,
        backward=place.backward,
    )


def describe(operation: Operation) -> None:
    """Read the inputs of an operation of ``operations``, which takes time, and what its schema says
    of them."""
    if operation.event is None:
        return
    operation.inputs = [*map(_input, operation.event.extra_fields.inputs)]
    operation.event = None
    for place, given in enumerate(operation.lists):
        if operation.inputs[place] is None:
            operation.inputs[place] = given
    operation.names, operation.writes = _arguments(operation.name, len(operation.inputs))


def _input(given: Any) -> Any:
    if isinstance(given, list):
        return [*map(_input, given)]
    if not hasattr(given, "sizes"):
        return given
    if given.device.type != "cuda":
        return None
    dtype: torch.dtype = given.dtype
    name = str(dtype).removeprefix("torch.")
    return TensorInput(tuple(given.sizes), tuple(given.strides), dtype.itemsize, name)


@functools.cache
def _arguments(name: str, count: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names of an operation's arguments, and of those that it writes to, of the first overload that
    takes so many; empty where none does."""
    if not _QUALIFIED.fullmatch(name):
        return (), frozenset()
    for schema in torch._C._jit_get_schemas_for_operator(name):
        if len(schema.arguments) == count:
            written = (a for a in schema.arguments if a.alias_info and a.alias_info.is_write)
            return tuple(a.name for a in schema.arguments), frozenset(a.name for a in written)
    return (), frozenset()


def tf32_kinds() -> set[str]:
    """Kinds of work in float32 that torch may do in TF32, as it is set."""
    kinds = {CONVOLUTION} if torch.backends.cudnn.allow_tf32 else set()
    try:
        if torch.get_float32_matmul_precision() != "highest":
            kinds |= {PRODUCT, ATTENTION}
    except RuntimeError:  # of torch 2.9 on, where the newer settings contradict one another
        pass
    return kinds
