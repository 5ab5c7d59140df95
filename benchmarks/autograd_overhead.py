"""memprof's compiled autograd beside torch's own, in one run: `make bench-autograd [ARGS=--quick]`.

For each model and forward (plain, compiled), medians of

* capture: from the beginning of a backward to the graph that the compiler gets, whose nodes are
  counted;
* steady: a backward with the graph compiled by "aot_eager", as a compiled forward is.

The two take turns, each with a capture of its own in each round: the engine keeps one. Ratios are
memprof / torch; lower is better. --cpu-time counts the CPU time of the thread that runs the
backward, which on a busy machine and with OMP_NUM_THREADS=1 says more than the clock on the wall.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
import torch._dynamo.compiled_autograd as torchs
from shared import ROOT, Table, options, save

from memprof import compiled_autograd as ours

sys.path.insert(0, str(ROOT / "test"))
from models import zoo

ENABLE: dict[str, Any] = {"torch": torchs._enable, "memprof": ours.enable}
BACKEND = "aot_eager"
STEPS = 10

Samples = dict[str, dict[str, list[float]]]
"""By measure and by whose."""


def measure(name: str, compiled: bool, rounds: int, clock: Any) -> Samples:
    """Capture and run the backward of a model of the zoo with both, by turns."""
    torch._dynamo.reset()
    case = zoo.build(name)
    forward: Any = torch.compile(case.model, backend=BACKEND) if compiled else case.model
    samples: Samples = {
        what: {who: [] for who in ENABLE} for what in ("nodes", "capture (ms)", "steady (ms)")
    }
    for _ in range(rounds):
        for who, enable in ENABLE.items():
            torch._C._dynamo.compiled_autograd.clear_cache()
            begin = 0

            def compiler(graph: Any, who: str = who) -> Any:
                samples["capture (ms)"][who].append((clock() - begin) / 1e6)  # noqa: B023
                samples["nodes"][who].append(len(graph.graph.nodes))
                return torch.compile(graph, backend=BACKEND)

            taken = []
            with enable(compiler, dynamic=False), torch.autograd.set_multithreading_enabled(False):
                for _ in range(STEPS):
                    case.model.zero_grad(set_to_none=True)
                    loss = case.loss(forward(**case.inputs))
                    begin = clock()
                    loss.backward()
                    taken.append((clock() - begin) / 1e6)
            samples["steady (ms)"][who].append(statistics.median(taken))
    return samples


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    clock = time.thread_time_ns if args.cpu_time else time.perf_counter_ns
    models, rounds = (("gpt2",), 3) if args.quick else (("gpt2", "bert", "resnet"), 9)
    table = Table(
        {"model": -8, "forward": -9, "measure": -22, "torch": 14, "memprof": 14, "ratio": 7}
    )
    results = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for name in models:
            for forward in ("plain", "compiled"):
                samples = measure(name, forward == "compiled", rounds, clock)
                for what, by_whom in samples.items():
                    both = {who: statistics.median(values) for who, values in by_whom.items()}
                    row = {"model": name, "forward": forward, "measure": what, **both}
                    table.row([*row.values(), both["memprof"] / both["torch"]])
                    results.append(row)
    if args.save:
        save(results)


if __name__ == "__main__":
    main()
