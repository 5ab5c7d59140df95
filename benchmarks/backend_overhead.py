"""What memprof costs, measured beside the inductor backend in the same run.

    make bench                              # ten minutes
    make bench ARGS=--quick                 # one model, few rounds

The same work is compiled three times in one process: by inductor, by memprof, and
by inductor again as a control, whose ratio to the first is 1 up to noise. Short blocks of calls of
the three alternate; each block is compared with the inductor block of its own round, and the
medians over rounds are printed. What drifts slower than a round (frequency, neighbours on the
machine) falls out of the comparison, and the control says what is left.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from shared import ROOT, Table, alternate, options, own_code, save

sys.path.insert(0, str(ROOT / "test"))
from models import zoo

CONTENDERS = {"inductor": "inductor", "memprof": "memprof", "control": "inductor"}
MODELS = ("resnet", "gpt2", "llama")

Call = Callable[[], object]


# Each of these compiles for one backend and returns what one call is.


def one_op(backend: str) -> Call:
    """``x + 1`` on 16 elements, no autograd."""
    compiled = torch.compile(own_code(lambda x: x + 1), backend=backend)
    x = torch.zeros(16)
    return lambda: compiled(x)


def one_op_training(backend: str) -> Call:
    """``x * 2`` forward and backward: two compiled calls."""
    compiled = torch.compile(own_code(lambda x: x * 2), backend=backend)
    x = torch.zeros(16, requires_grad=True)
    gradient = torch.ones(16)
    return lambda: torch.autograd.grad(compiled(x), x, gradient)


def training_step(name: str, backend: str) -> Call:
    """Forward and backward of a model of the test zoo."""
    case = zoo.build(name)
    compiled = torch.compile(case.model, backend=backend)

    def step() -> None:
        case.loss(compiled(**case.inputs)).backward()
        case.model.zero_grad(set_to_none=True)

    return step


def measure(work: str, build: Callable[[str], Call], rounds: int) -> list[dict[str, Any]]:
    """Medians over rounds; a ratio is to inductor's block of the same round."""
    calls = {name: build(backend) for name, backend in CONTENDERS.items()}
    for call in calls.values():
        # Enough for Dynamo to settle and for memprof to finish observing.
        for _ in range(10):
            call()
    begin = time.perf_counter()
    calls["inductor"]()
    # Blocks of about 20 ms: long against the clock, short against the machine's moods.
    length = max(5, int(0.02 / (time.perf_counter() - begin)))

    def block(call: Call) -> None:
        for _ in range(length):
            call()

    taken = alternate({name: partial(block, call) for name, call in calls.items()}, rounds)
    rows = []
    for name, ns in taken.items():
        peers = list(zip(ns, taken["inductor"], strict=True))
        rows.append(
            {
                "work": work,
                "backend": name,
                "us": statistics.median(ns) / length / 1e3,
                "added": statistics.median(a - b for a, b in peers) / length / 1e3,
                "ratio": statistics.median(a / b for a, b in peers),
            }
        )
    return rows


def main() -> None:
    args = options(__doc__).parse_args()
    torch.set_num_threads(1)
    works: dict[str, Callable[[str], Call]] = {
        "one op": one_op,
        "one op, training": one_op_training,
    }
    for name in ("gpt2",) if args.quick else MODELS:
        works[f"{name}, training"] = partial(training_step, name)
    table = Table({"work": -18, "backend": -8, "µs": 10, "added µs": 10, "ratio": 6})
    results = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for work, build in works.items():
            rows = measure(work, build, 30 if args.quick else 200)
            for row in rows:
                table.row(list(row.values()))
            results += rows
    if args.save:
        save(results)


if __name__ == "__main__":
    main()
