"""Stages compose like parentheses, and a failing one takes only itself out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from memprof.compile_backend.stages.pipeline import CompileStage, compile_through

Compiled = Callable[[list[str]], list[str]]


class Recorder(CompileStage):
    """Notes what it sees; fails in the half called ``fails``."""

    def __init__(self, name: str, log: list[str], fails: str = "") -> None:
        self.name = name
        self.log = log
        self.fails = fails

    def pre_compile(self, cleanup: ExitStack) -> None:
        cleanup.callback(self.log.append, f"end {self.name}")
        self.log.append(f"pre {self.name}")
        if self.fails == "pre":
            raise ZeroDivisionError(self.name)

    def post_compile(self, compiled: Compiled) -> Compiled:
        self.log.append(f"post {self.name}")
        if self.fails == "post":
            raise ZeroDivisionError(self.name)

        def wrapped(calls: list[str]) -> list[str]:
            return compiled([*calls, self.name])

        return wrapped


def run(
    stages: list[CompileStage], log: list[str], failures: list[tuple[str, str, str]]
) -> list[str]:
    """Who is called, in which order, when what was compiled runs."""

    def compiler() -> Compiled:
        log.append("compile")
        return lambda calls: calls

    def failed(stage: CompileStage, half: str, error: Exception) -> None:
        failures.append((stage.name, half, type(error).__name__))

    return compile_through(stages, compiler, failed)([])


def test_first_to_see_the_graph_is_outermost_at_run_time() -> None:
    log: list[str] = []
    assert run([Recorder("a", log), Recorder("b", log)], log, []) == ["a", "b"]
    assert log == ["pre a", "pre b", "compile", "post b", "post a", "end b", "end a"]


@pytest.mark.parametrize("half", ["pre", "post"])
def test_a_failing_stage_takes_only_itself_out(half: str) -> None:
    log: list[str] = []
    failures: list[tuple[str, str, str]] = []
    stages: list[CompileStage] = [
        Recorder("a", log),
        Recorder("b", log, fails=half),
        Recorder("c", log),
    ]
    assert run(stages, log, failures) == ["a", "c"]
    assert failures == [("b", f"{half}_compile", "ZeroDivisionError")]
    assert ("post b" in log) is (half == "post")


def test_what_the_compiler_raises_is_the_users() -> None:
    log: list[str] = []
    failures: list[Any] = []

    def compiler() -> Compiled:
        raise KeyError("user")

    with pytest.raises(KeyError, match="user"):
        compile_through([Recorder("a", log)], compiler, lambda *a: failures.append(a))
    assert log == ["pre a", "end a"]
    assert failures == []
