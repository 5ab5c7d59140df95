"""Stages compose like parentheses, and a failing one takes only itself out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from memprof.compile_backend.metadata.compile_state import CompileState
from memprof.compile_backend.metadata.stage import CompileStage, compile_through
from memprof.profiler.model import GraphKind

Compiled = Callable[[list[str]], list[str]]


def state() -> CompileState:
    gm = torch.fx.symbolic_trace(lambda x: x)
    return CompileState(GraphKind.INFERENCE, gm)


class Recorder(CompileStage[Compiled]):
    """Notes what it sees; fails in the half called ``fails``."""

    def __init__(self, name: str, log: list[str], fails: str = "") -> None:
        self.name = name
        self.log = log
        self.fails = fails

    def pre_compile(self, state: CompileState) -> CompileState:
        self.log.append(f"pre {self.name} sees {sorted(state.notes)}")
        if self.fails == "pre":
            raise ZeroDivisionError(self.name)
        return state.with_note(self.name, len(state.notes))

    def post_compile(self, compiled: Compiled, state: CompileState) -> Compiled:
        self.log.append(f"post {self.name} sees {sorted(state.notes)}")
        if self.fails == "post":
            raise ZeroDivisionError(self.name)

        def wrapped(calls: list[str]) -> list[str]:
            return compiled([*calls, self.name])

        return wrapped


def run(stages: list[CompileStage[Compiled]], **kw: Any) -> tuple[list[str], list[str]]:
    """What the compiler saw, and who is called in which order."""
    seen: list[str] = []

    def compiler(state: CompileState) -> Compiled:
        seen.extend(sorted(state.notes))
        return lambda calls: calls

    return seen, compile_through(stages, compiler, **kw)(state())([])


def test_first_to_see_the_graph_is_outermost_at_run_time() -> None:
    log: list[str] = []
    seen, called = run([Recorder("a", log), Recorder("b", log)])
    assert log == [
        "pre a sees []",
        "pre b sees ['a']",
        "post b sees ['a', 'b']",
        "post a sees ['a', 'b']",
    ]
    assert seen == ["a", "b"]
    assert called == ["a", "b"]


def test_without_stages_it_is_the_compiler() -> None:
    assert run([]) == ([], [])
    assert run([CompileStage()]) == ([], [])


@pytest.mark.parametrize(
    ("half", "seen", "called"),
    [
        ("pre", ["a", "c"], ["a", "c"]),  # neither prepares nor wraps
        ("post", ["a", "b", "c"], ["a", "c"]),  # prepared, does not wrap
    ],
)
def test_a_failing_stage_takes_only_itself_out(
    half: str, seen: list[str], called: list[str]
) -> None:
    log: list[str] = []
    failures: list[tuple[str, str, str]] = []
    stages: list[CompileStage[Compiled]] = [
        Recorder("a", log),
        Recorder("b", log, fails=half),
        Recorder("c", log),
    ]
    result = run(
        stages,
        on_failure=lambda stage, half, e: failures.append((stage.name, half, type(e).__name__)),
    )
    assert result == (seen, called)
    assert failures == [("b", f"{half}_compile", "ZeroDivisionError")]


@pytest.mark.parametrize("half", ["pre", "post"])
def test_a_failure_is_raised_unless_handled(half: str) -> None:
    with pytest.raises(ZeroDivisionError):
        run([Recorder("a", [], fails=half)])


def test_what_the_compiler_raises_is_the_users() -> None:
    log: list[str] = []
    failures: list[Any] = []

    def compiler(state: CompileState) -> Compiled:
        raise KeyError("user")

    with pytest.raises(KeyError, match="user"):
        compile_through([Recorder("a", log)], compiler, on_failure=lambda *a: failures.append(a))(
            state()
        )
    assert log == ["pre a sees []"]
    assert failures == []
