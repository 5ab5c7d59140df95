"""Runs random programs (``programs``) from seeds until one fails.

Hypothesis shrinks those that ``test_model.py`` draws; here a failing program is printed whole.

python -m cudagraph_trees.fuzz --help          # in test/; or make fuzz-trees
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .programs import Machine, Program, compare, run
from .support import VALUES

REPORT_EVERY = 30
"""Seconds between lines of counts."""


@dataclass
class Counts:
    """What was done."""

    operations: int = 0
    replays: int = 0
    programs: int = 0
    oracles: int = 0

    def add(self, machine: Machine, operations: int) -> None:
        self.operations += operations
        self.replays += machine.replays
        self.oracles += machine.oracles
        self.programs += 1

    def __str__(self) -> str:
        return (
            f"{self.operations} operations, {self.replays} replays in {self.programs} programs, "
            f"{self.oracles} comparisons"
        )


def random_program(rng: random.Random, operations: int) -> Program:
    """Of that many operations."""
    return [(rng.randrange(1 << 10), rng.randrange(1 << 16)) for _ in range(operations)]


def run_all(program: Program, *, again: str, **how: Any) -> tuple[Machine, int]:
    """Run a program, and perhaps once more, which must come to the same.

    Args:
        program, **how: of ``programs.run``.
        again: "" for no, "graphs" for a second run like the first, "plain" for one without graphs.

    Returns:
        The first run's machine, and how often it was run.

    Raises:
        AssertionError: something was not as it must be.
    """
    if not again:
        return run(program, **how), 1
    # Only graphs are interrupted.
    how["without"] = [*how.get("without", ()), "an interrupt"]
    first = run(program, **how)
    compare(first.notes, run(program, graphs=again == "graphs", **how).notes)
    return first, 2


def one(seed: int, length: int, without: Sequence[str]) -> tuple[Program, dict[str, Any]]:
    """The program of a seed, and how it is run."""
    rng = random.Random(seed)
    how = {
        "outputs": rng.choice(["error", "clone"]),
        "marks": rng.random() < 0.6,
        "values": VALUES,
        "without": without,
        "again": rng.choice(["", "", "", "", "", "", "graphs", "plain", "plain"]),
    }
    return random_program(rng, rng.randrange(10, length + 1)), how


def fuzz(operations: int, seed: int = 0, length: int = 200, without: Sequence[str] = ()) -> Counts:
    """Run programs until so many operations are done.

    Raises:
        AssertionError: one failed.
    """
    counts = Counts()
    begin = last = time.monotonic()
    first = seed
    while counts.operations < operations:
        program, how = one(seed, length, without)
        try:
            machine, times = run_all(program, **how)
        except AssertionError as e:
            traceback.print_exception(e.__cause__)
            sys.stderr.write(f"after {counts}: seed {seed}, {how}: {e}\n")
            sys.stderr.write(f"run_all({program!r}, **{how!r})\n")
            raise
        if seed == first:
            gc.freeze()  # imports are done: what programs leave behind is collected in no time
        counts.add(machine, times * len(program))
        seed += 1
        now = time.monotonic()
        if now - last > REPORT_EVERY:
            last = now
            print(f"{counts}, {now - begin:.0f} s, next seed {seed}", flush=True)
    return counts


def quiet() -> None:
    """Failures on purpose need no warnings."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def main() -> None:
    """Run random programs on graph trees until so many operations are done."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--length", type=int, default=200, help="most operations in a program")
    parser.add_argument(
        "--without",
        default="",
        metavar="NAME,...",
        help="functions, pairs, operations and faults to leave out",
    )
    options = parser.parse_args()
    quiet()
    begin = time.monotonic()
    without = [w for w in options.without.split(",") if w]
    counts = fuzz(options.operations, options.seed, options.length, without)
    print(
        f"torch {torch.__version__}, values {VALUES}: {counts} from seed {options.seed}, "
        f"{time.monotonic() - begin:.0f} s: no overlap, no wrong value, no leak"
    )


if __name__ == "__main__":
    main()
