"""What the benchmarks share: a runner of fresh processes, peers that take turns, results, tables.

Every script has ``--quick`` (less than three minutes on an idle machine) and ``--save``, which
writes ``out/results/SCRIPT.json``: beside the sources and not among them, since docs have a table
of each.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WARMUP_ROUNDS = 2

Compiler = Callable[[Any], Any]
"""``torch.compile`` with the backend that is measured, or nothing for eager."""


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all scripts have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less than three minutes")
    parser.add_argument("--save", action="store_true", help="write out/results/SCRIPT.json")
    return parser


class Table:
    """A table in Markdown that is printed line by line, as its figures become known.

    Args:
        columns: names and widths; a width below zero aligns to the left.
    """

    def __init__(self, columns: Mapping[str, int]) -> None:
        self._widths = list(columns.values())
        self.row(list(columns))
        self.row(["-" * -w if w < 0 else "-" * (w - 1) + ":" for w in self._widths])

    def row(self, cells: Sequence[object]) -> None:
        """Print one line; floats have two digits after the point."""
        padded = []
        for cell, width in zip(cells, self._widths, strict=False):
            text = f"{cell:,.2f}" if isinstance(cell, float) else str(cell)
            padded.append(text.ljust(-width) if width < 0 else text.rjust(width))
        print(f"| {' | '.join(padded)} |", flush=True)


def machine() -> dict[str, Any]:
    """The system, its load, and the versions of Python and torch."""
    return {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def save(results: Any) -> None:
    """Write results of this script, with its arguments and the machine, whole or not at all."""
    path = ROOT / "out" / "results" / f"{Path(sys.argv[0]).stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"machine": machine(), "arguments": sys.argv[1:], "results": results})


def write_json(path: Path, content: Any) -> None:
    """Write JSON, all of it or nothing."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def fresh(*arguments: str, timeout_s: float = 900, **environment: str) -> dict[str, Any]:
    """What this script, run in a process of its own, prints last as JSON; what it said last is the
    ``error`` of a process that printed none, or took longer."""
    try:
        ran = subprocess.run(
            [sys.executable, sys.argv[0], *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {timeout_s:g} s"}
    for line in reversed(ran.stdout.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    messages = ran.stderr.strip().splitlines()
    return {"error": messages[-1][:200] if messages else f"status {ran.returncode}"}


def alternate(
    blocks: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, list[int]]:
    """Nanoseconds of each block in each round. Blocks take turns in an order that rotates, with the
    garbage collector off; the first rounds warm up and do not count."""
    taken: dict[str, list[int]] = {name: [] for name in blocks}
    order = list(blocks)
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds + WARMUP_ROUNDS):
            order.append(order.pop(0))
            for name in order:
                begin = clock()
                blocks[name]()
                if turn >= WARMUP_ROUNDS:
                    taken[name].append(clock() - begin)
    finally:
        gc.enable()
    return taken


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same, compiled apart: Dynamo keeps what it compiled by code."""
    code = function.__code__.replace(co_firstlineno=next(_numbers))
    return type(function)(code, function.__globals__, closure=function.__closure__)


_numbers = iter(range(1, 1 << 30))
