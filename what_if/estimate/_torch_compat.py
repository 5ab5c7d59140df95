"""What this package uses of torch: its profiler, its formulas of FLOPs, the capture of graphs."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .work import Operation, TensorInput

_QUALIFIED = re.compile(r"\w+::\w+")
"""Names of operations; ranges that the user or torch names may hold anything."""


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
    begun: list[bool] = []

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        begun.append(before())
        begin(self, *args, **kwargs)

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        try:
            end(self)
        finally:
            if begun and begun.pop():
                after()

    graph.capture_begin = capture_begin  # type: ignore[method-assign]
    graph.capture_end = capture_end  # type: ignore[method-assign]


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


def stop_profiler(profiler: Any) -> list[Any]:
    """Stop it, and return the roots of its trees of events."""
    profiler.stop()
    roots: list[Any] = profiler.profiler.kineto_results.experimental_event_tree()
    return roots


def operations(
    roots: list[Any], first: int, formulas: Mapping[str, object]
) -> dict[int, Operation]:
    """The operations of these trees, not described yet, by the number that CUPTI was told, plus
    ``first``. One inside of an operation that has a formula is that operation: it is how torch
    computes it."""
    found: dict[int, Operation] = {}
    pending: list[tuple[Any, Operation | None, bool]] = [(root, None, False) for root in roots]
    while pending:
        event, around, whole = pending.pop()
        kind = event.tag.name
        if kind == "Allocation":
            size = event.extra_fields.alloc_size
            if around is not None and size > 0 and event.extra_fields.device.type == "cuda":
                around.allocated += size
            continue
        operation = around
        if kind == "TorchOp":
            if not whole:
                made = Operation(event.name)
                # Memory that one asks for is its caller's result.
                if not event.name.startswith("aten::empty"):
                    operation = made
                    made.event = event
                    whole = event.name.removeprefix("aten::") in formulas
            if operation is not None:
                found[first + event.correlation_id] = operation
        pending += [(child, operation, whole) for child in event.children]
    return found


def describe(operation: Operation) -> None:
    """Read the inputs of an operation of ``operations``, which takes time, and what its schema says
    of them."""
    if operation.event is None:
        return
    operation.inputs = [*map(_input, operation.event.extra_fields.inputs)]
    operation.event = None
    schema = _schema(operation.name, len(operation.inputs))
    if schema is not None:
        operation.names = tuple(a.name for a in schema.arguments)
        operation.writes = frozenset(
            a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
        )


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
def _schema(name: str, count: int) -> Any:
    """The overload of an operation that takes so many arguments: the first, if several do."""
    if not _QUALIFIED.fullmatch(name):
        return None
    schemas: list[Any] = torch._C._jit_get_schemas_for_operator(name)
    return next((s for s in schemas if len(s.arguments) == count), None)


def allows_tf32() -> bool:
    """Tells whether products in float32 may be made in TF32."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # of torch 2.9 on, where the newer settings contradict one another
        return False
