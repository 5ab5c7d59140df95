"""Composable wrapper stages around the compilation of one graph.

A stage has two halves: ``pre_compile`` sees the graph before the compiler does,
``post_compile`` wraps what the compiler returned. Stages compose like parentheses: the
first to see the graph is the last to wrap, so it stands outermost at run time.

Note [A failing stage]
~~~~~~~~~~~~~~~~~~~~~~
Stages observe; the compilation belongs to the user. An exception in a stage is handed
to ``on_failure`` and the stage taken out: if its first half fails, the second does not run;
if its second half fails, the callable stays as it was. What the compiler itself raises goes
to the caller untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule


@dataclass(eq=False)
class CompileState:
    """One graph on its way through the stages.

    Attributes:
        graph_module: the graph; Inductor rewrites it in place.
        flat_args: fake tensors and symbolic integers it was traced with.
        cudagraphs: box that tells Inductor whether it may capture the graph; a stage may put
            another one here.
        cleanup: closed when the compilation has ended, by whoever began it.
    """

    graph_module: GraphModule
    flat_args: tuple[Any, ...] = ()
    cudagraphs: Any = None
    cleanup: ExitStack = field(default_factory=ExitStack)


class CompileStage:
    """One stage of one compilation, which keeps what its first half learns for its second; each
    does nothing unless overridden."""

    name: str = "stage"

    def pre_compile(self, state: CompileState) -> None:
        """Look at the graph, or prepare it, before it is compiled."""

    def post_compile(self, compiled: Any, state: CompileState) -> Any:
        """Wrap what the compiler and the inner stages returned: a callable, or what holds one."""
        return compiled


def compile_through(
    stages: Sequence[CompileStage],
    compiler: Callable[[], Any],
    state: CompileState,
    on_failure: Callable[[CompileStage, str, Exception], None],
) -> Any:
    """Compile a graph with ``stages`` around it, the first outermost.

    Args:
        stages: all first halves run in this order, all second halves in reverse.
        compiler: compiles ``state.graph_module``; called once.
        state: closed when all is over, whatever was raised.
        on_failure: called with the stage, ``pre_compile`` or ``post_compile``, and the exception:
            Note [A failing stage].
    """
    with state.cleanup:
        entered: list[CompileStage] = []
        for stage in stages:
            try:
                stage.pre_compile(state)
            except Exception as e:
                on_failure(stage, "pre_compile", e)
            else:
                entered.append(stage)
        compiled = compiler()
        for stage in reversed(entered):
            try:
                compiled = stage.post_compile(compiled, state)
            except Exception as e:
                on_failure(stage, "post_compile", e)
    return compiled
