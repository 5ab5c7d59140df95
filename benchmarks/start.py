"""What a process costs until its first training steps are done, beside torch's own backend.

    make bench-start                        # GPT-2 with 6 layers on the CPU
    make bench-start TORCH=2.11.0           # GPT-2 124M on the simulated device
    make bench-start ARGS=--quick           # one round

Each run is a process of its own; memprof and Inductor take turns, first with empty caches (cold)
and then with the caches that each has filled (warm). A figure is the CPU time of the process, in
seconds, from ``torch.compile`` on: what is compiled and called, and what is imported for it, which
is memprof too; ``gc`` counts full collections of Python's collector in it. Processes that Inductor
starts to compile in are not counted. The median of the rounds is printed; Python writes and reads
.pyc files as after an installation.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
from shared import Table, fresh, options, save
from torch import nn

BACKENDS = ("inductor", "memprof")


def model(device: str) -> tuple[nn.Module, torch.Tensor]:
    """GPT-2 by transformers with random weights, and its input; small on the CPU."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 6, "n_embd": 128, "n_head": 4, "vocab_size": 1000, "n_positions": 64}
    config = GPT2Config(**(small if device == "cpu" else {}), use_cache=False)
    shape = (2, 64) if device == "cpu" else (1, 1024)
    with torch.device(device):
        return GPT2LMHeadModel(config), torch.randint(0, config.vocab_size, shape)


def child(backend: str) -> None:
    """Train two steps; print the CPU time of each and what there is of memprof."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network, tokens = model(device)
    mode = "reduce-overhead" if backend == "inductor" and device == "cuda" else None
    full = gc.get_stats()[2]["collections"]
    begin = time.process_time()
    compiled = torch.compile(network, backend=backend, mode=mode)
    ends = []
    for _ in range(2):
        compiled(input_ids=tokens, labels=tokens).loss.backward()
        ends.append(time.process_time())
        # Else the next step adds to gradients that torch's trees have overwritten, which raises.
        network.zero_grad()
    modules = sum(name.partition(".")[0] == "memprof" for name in sys.modules)
    found = {"first": ends[0] - begin, "second": ends[1] - ends[0], "modules": modules}
    print(json.dumps({**found, "gc": gc.get_stats()[2]["collections"] - full}))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--child", choices=BACKENDS, help="one run, in this process")
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    taken: dict[str, list[dict[str, Any]]] = {}
    for number in range(1 if args.quick else 5):
        # Who comes first finds colder disks and a cooler processor.
        order = BACKENDS if number % 2 == 0 else BACKENDS[::-1]
        with tempfile.TemporaryDirectory() as folder:
            for caches in ("cold", "warm"):
                for backend in order:
                    # One of its own: C++ kernels that the other has compiled would be there.
                    found = fresh("--child", backend, TORCHINDUCTOR_CACHE_DIR=f"{folder}/{backend}")
                    if "error" in found:
                        raise SystemExit(f"{caches}, {backend}: {found['error']}")
                    taken.setdefault(f"{caches}, {backend}", []).append(found)
    table = Table(
        {"": -14, "first step, s": 13, "second step, s": 14, "modules": 8, "gc": 3, "ratio": 6}
    )
    medians = {
        way: {name: statistics.median(r[name] for r in runs) for name in runs[0]}
        for way, runs in taken.items()
    }
    for way, found in sorted(medians.items()):
        peer = medians[way.replace("memprof", "inductor")]
        ratio = (found["first"] + found["second"]) / (peer["first"] + peer["second"])
        counts = (int(found["modules"]), int(found["gc"]))
        table.row([way, found["first"], found["second"], *counts, ratio])
    if args.save:
        save(taken)


if __name__ == "__main__":
    main()
