"""Composable wrapper stages around the compilation of one graph.

A stage has two halves: ``pre_compile`` comes before the compiler, ``post_compile`` wraps what
the compiler returned. Stages compose like parentheses: the first to prepare is the last to
wrap, so it stands outermost at run time. The compiler may be a cache that has the graph.

Note [A failing stage]
~~~~~~~~~~~~~~~~~~~~~~
The compilation belongs to the user, whatever a stage observes or replaces. An exception in a stage
is handed to ``on_failure`` and the stage taken out: if its first half fails, the second does not
run; if its second half fails, the callable stays as it was. What the compiler itself raises goes
to the caller untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any


class CompileStage:
    """One stage of one compilation, which keeps what its first half learns for its second; each
    does nothing unless overridden."""

    name: str = "stage"

    def pre_compile(self, cleanup: ExitStack) -> None:
        """Prepare the compilation; ``cleanup`` is closed when it has ended."""

    def post_compile(self, compiled: Any) -> Any:
        """Wrap what the compiler and the inner stages returned: a callable, or what holds one."""
        return compiled


def compile_through(
    stages: Sequence[CompileStage],
    compiler: Callable[[], Any],
    on_failure: Callable[[CompileStage, str, Exception], None],
) -> Any:
    """Compile a graph with ``stages`` around it, the first outermost.

    Args:
        stages: all first halves run in this order, all second halves in reverse.
        compiler: compiles the graph; called once.
        on_failure: called with the stage, ``pre_compile`` or ``post_compile``, and the exception:
            Note [A failing stage].
    """
    with ExitStack() as cleanup:
        entered: list[CompileStage] = []
        for stage in stages:
            try:
                stage.pre_compile(cleanup)
            except Exception as e:
                on_failure(stage, "pre_compile", e)
            else:
                entered.append(stage)
        compiled = compiler()
        for stage in reversed(entered):
            try:
                compiled = stage.post_compile(compiled)
            except Exception as e:
                on_failure(stage, "post_compile", e)
    return compiled
