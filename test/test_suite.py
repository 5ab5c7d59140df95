"""No test judges the machine: see Note [Tests and the clock] in conftest.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
CLOCKS = {
    f"{name}{unit}"
    for name in ("monotonic", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
}
# These put the code's own time stamps beside others.
MAY_READ_A_CLOCK = {
    "profiler/sources/trace/ground_truth.py",
    "profiler/sources/trace/test_plain.py",
}
LIMITS = {"deadline", "timeout"}
# Commands that run for as long as they are told to, or print how far they are.
TOOLS = {"fuzz"}


def judged_by_the_clock(path: Path) -> Iterator[str]:
    """Where a test may depend on how fast the machine is, and by what."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS:
            if path.relative_to(HERE).as_posix() not in MAY_READ_A_CLOCK:
                yield f"{path}:{node.lineno}: {node.attr}"
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in LIMITS:
                    yield f"{path}:{keyword.value.lineno}: {keyword.arg}"
        elif isinstance(node, ast.Constant) and "performance.now" in str(node.value):
            yield f"{path}:{node.lineno}: performance.now"


def test_nothing_depends_on_the_clock() -> None:
    others = {*TOOLS, "conftest.py", "test_suite.py"}
    files = [p for p in HERE.rglob("*.py") if not others & {p.name, p.parent.name}]
    assert len(files) > 100
    assert [where for path in files for where in judged_by_the_clock(path)] == []
