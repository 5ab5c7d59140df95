"""Runs random programs (``programs``) from seeds, and shrinks one that fails.

python -m trees.fuzz --help          # with test/ on PYTHONPATH; or make fuzz-trees
"""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .programs import Program, run
from .support import VALUES


def random_program(rng: random.Random, operations: int) -> Program:
    """Of that many operations."""
    return [(rng.randrange(1 << 10), rng.randrange(1 << 16)) for _ in range(operations)]


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A part of a failing program that still fails, from which no operation can be taken."""
    size = max(len(program) // 2, 1)
    while True:
        i = 0
        while i < len(program):
            less = [*program[:i], *program[i + size :]]
            if fails(less):
                program = less
            else:
                i += size
        if size == 1:
            return program
        size = max(size // 2, 1)


def main() -> None:
    """Run programs from seeds until so many operations are done; shrink one that fails."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--length", type=int, default=200, help="most operations in a program")
    options = parser.parse_args()
    values = options.device == "cpu" or VALUES
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    begin, done, replays, seed = time.monotonic(), 0, 0, options.seed
    while done < options.operations:
        rng = random.Random(seed)
        how = {
            "outputs": rng.choice(["error", "clone"]),
            "marks": rng.random() < 0.6,
            "values": values,
            "budget": 1 if rng.random() < 0.1 else 0,
        }
        program = random_program(rng, rng.randrange(10, options.length + 1))
        try:
            replays += run(program, options.device, **how)
        except AssertionError as e:
            traceback.print_exception(e.__cause__)
            sys.stderr.write(f"seed {seed}, {how}: {e}\n")
            e.__cause__ = None
            traceback.clear_frames(e.__traceback__)
            gc.collect()
            shortest = shrink(program, functools.partial(_fails, options.device, how))
            sys.stderr.write(f"run({shortest!r}, {options.device!r}, **{how!r})\n")
            raise
        if seed == options.seed:
            gc.freeze()  # imports are done: what programs leave behind is collected in no time
        done += len(program)
        seed += 1
        if seed % 100 == 0:
            print(f"{done} operations, {time.monotonic() - begin:.0f} s", flush=True)
    print(
        f"{options.device}, torch {torch.__version__}, values {values}: {done} operations, "
        f"{replays} replays in {seed - options.seed} programs from seed {options.seed}, "
        f"{time.monotonic() - begin:.0f} s: no overlap, no wrong value, no leak"
    )


def _fails(device: str, how: dict[str, Any], program: Program) -> bool:
    try:
        run(program, device, **how)
    except AssertionError as e:
        e.__cause__ = None
        traceback.clear_frames(e.__traceback__)
        failed = True
    else:
        failed = False
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    main()
