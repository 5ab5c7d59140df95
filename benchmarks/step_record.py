"""Cost of a step that ``memprof.profile(steps=...)`` records: processor time of the thread that
ends it, and of the whole process, whose other thread makes the record.

    python benchmarks/step_record.py

Processor time, since other work on the machine does not count into it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import memprof

ROUNDS, STEPS = 9, 300


def costs(step: Callable[[], object], end: Callable[[], object]) -> tuple[float, float]:
    """Microseconds to end a step, and of the process for all of a step, medians."""
    ended, whole = [], []
    for _ in range(ROUNDS):
        begin = time.process_time_ns()
        for _ in range(STEPS):
            step()
            before = time.thread_time_ns()
            end()
            ended.append(time.thread_time_ns() - before)
        whole.append((time.process_time_ns() - begin) / STEPS)
    return statistics.median(ended) / 1e3, statistics.median(whole) / 1e3


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    compiled = torch.compile(model, backend="memprof")
    x = torch.ones(32, 8, device=device)

    def step() -> None:
        compiled(x).sum().backward()

    for _ in range(10):
        step()
    print(f"torch {torch.__version__} on {device}: µs to end a step, µs of the process in a step")
    with memprof.profile() as session:
        print("without a record: {:8.1f} {:8.1f}".format(*costs(step, session.step)))
    with (
        tempfile.TemporaryDirectory() as folder,
        memprof.profile(steps=Path(folder) / "steps.jsonl") as session,
    ):
        print("with a record:    {:8.1f} {:8.1f}".format(*costs(step, session.step)))


if __name__ == "__main__":
    main()
