"""Composable wrapper stages around the compilation of one graph.

A stage has two halves: ``pre_compile`` sees the graph before the compiler does,
``post_compile`` wraps what the compiler returned. Stages compose like parentheses: the
first to see the graph is the last to wrap, so it stands outermost at run time.

Note [A failing stage]
~~~~~~~~~~~~~~~~~~~~~~
Stages observe; the compilation belongs to the user. An exception in a stage is handed
to ``on_failure`` and the stage taken out: if its first half fails, the graph goes on
as it was before and the second half does not run; if its second half fails, the
callable stays as it was. What the compiler itself raises goes to the caller untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from .compile_state import CompileState

Compiled = TypeVar("Compiled")
"""What the compiler returns: a callable, or an object that holds one."""

FailureHandler = Callable[["CompileStage[Any]", str, Exception], None]
"""Called with the stage, ``pre_compile`` or ``post_compile``, and the exception."""


class CompileStage(Generic[Compiled]):
    """One stage; each half does nothing unless overridden.

    A stage object that serves one compilation may keep what its first half learns for its
    second; what later stages need goes into the state.
    """

    name: str = "stage"

    def pre_compile(self, state: CompileState) -> CompileState:
        """Look at the graph, or prepare it, before it is compiled.

        Returns:
            the state that the next stage and the compiler see.
        """
        return state

    def post_compile(self, compiled: Compiled, state: CompileState) -> Compiled:
        """Wrap what the compiler returned.

        Args:
            compiled: with the wrappings of the inner stages.
            state: as the last ``pre_compile`` left it.
        """
        return compiled


def _raise(stage: CompileStage[Any], half: str, error: Exception) -> None:
    raise error


def compile_through(
    stages: Sequence[CompileStage[Compiled]],
    compiler: Callable[[CompileState], Compiled],
    *,
    on_failure: FailureHandler = _raise,
) -> Callable[[CompileState], Compiled]:
    """The compiler with ``stages`` around it, first outermost.

    Args:
        stages: all first halves run in this order, all second halves in reverse.
        compiler: compiles ``state.graph_module``.
        on_failure: see Note [A failing stage]; by default the exception is raised.
    """

    def run(state: CompileState) -> Compiled:
        entered: list[CompileStage[Compiled]] = []
        for stage in stages:
            try:
                state = stage.pre_compile(state)
            except Exception as e:
                on_failure(stage, "pre_compile", e)
            else:
                entered.append(stage)
        compiled = compiler(state)
        for stage in reversed(entered):
            try:
                compiled = stage.post_compile(compiled, state)
            except Exception as e:
                on_failure(stage, "post_compile", e)
        return compiled

    return run
