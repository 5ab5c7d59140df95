"""Option ``compiled_autograd``: whole backwards, captured and compiled by memprof itself.

Note [When capturing begins]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A backend is asked to compile a forward; the backward comes later, from code that no backend
sees. So the first *call* of a function that was compiled with the option switches compiled
autograd on, for every backward of the process, until ``torch._dynamo.reset()``, but not inside
``memprof.compiled_autograd.disable()``. A backward may go through several functions, and the engine
has one compiler: the options of the first one called count. The ledger says which backward could
not be captured and runs in the normal engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from memprof import compiled_autograd
from memprof.compiled_autograd._torch_compat import trace_node_by_node
from memprof.compiled_autograd.nodes import LAYOUT, NAMES
from memprof.profiler.model import LedgerKind
from memprof.profiler.support.process_hooks import on_reset

from .captured_backward_io import CapturedBackwardIO
from .session.runtime import FORWARDS, RUNTIME

Backend = Callable[[GraphModule, Sequence[Any], CapturedBackwardIO], Callable[..., Any]]


Compiler = Callable[[GraphModule], Callable[..., Any]]


def switch_on(compile: Compiler) -> None:
    """Have backwards captured and compiled from here on, unless something else does or nothing
    shall."""
    switched = compiled_autograd.turn_on(compile, on_unsupported=_unsupported)
    if switched and _LISTENER not in _LISTENERS:
        _LISTENERS.append(_LISTENER)


def compiler_with(backend: Backend) -> Compiler:
    """A function that compiles a captured backward, with the options that ``backend`` has, into the
    callable that the engine runs for it.

    It raises ``CaptureError`` where an input or its gradient is sparse. Dynamo traces that, but
    fails when it has to trace it again: it asks for strides.
    """

    def compile(captured: GraphModule) -> Callable[..., Any]:
        for node in captured.graph.nodes:
            if LAYOUT in node.meta:
                raise compiled_autograd.CaptureError(
                    f"{node.name} is, or has a gradient, of layout {node.meta[LAYOUT]}, which "
                    f"Dynamo does not trace a second time"
                )
        io = CapturedBackwardIO(captured)

        def with_io(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            if any(isinstance(value, list) for value in example_inputs):
                trace_node_by_node(gm)
            return backend(gm, example_inputs, io)

        run: Callable[..., Any] = torch.compile(captured, backend=with_io)
        return run

    return compile


def _unsupported(error: compiled_autograd.CaptureError) -> None:
    RUNTIME.ledger.add(
        LedgerKind.FALLBACK, None, f"this backward runs in the normal engine: {error}"
    )


def without_own_option(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """``options`` for the captured backward, which is not to switch on anything itself."""
    return {
        name: value
        for name, value in (options or {}).items()
        if str(name).replace("-", "_") != "compiled_autograd"
    }


def _captured(capture: compiled_autograd.CapturedBackward) -> None:
    RUNTIME.ledger.add(
        LedgerKind.COMPILED,
        None,
        f"captured backward {capture.id}: {len(capture.calls)} autograd nodes, "
        f"{len(capture.graph.graph.nodes)} FX nodes",
    )
    for sentence in capture.disagreements:
        RUNTIME.ledger.add(LedgerKind.COMPILED, None, sentence)


def _ran(capture: compiled_autograd.CapturedBackward, hit: bool) -> None:
    if hit:
        RUNTIME.ledger.add(LedgerKind.CACHE_HIT, None, f"captured backward {capture.id}")


_LISTENER = compiled_autograd.Listener(_captured, _ran)
_LISTENERS = compiled_autograd.AutogradCompilerInstance.listeners


@on_reset
def switch_off() -> None:
    """Stop capturing backwards, and forget the forwards: ``torch._dynamo.reset()`` was called."""
    compiled_autograd.turn_off()
    FORWARDS.clear()
    NAMES.clear()
    if _LISTENER in _LISTENERS:
        _LISTENERS.remove(_LISTENER)
