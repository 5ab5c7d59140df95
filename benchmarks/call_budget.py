"""The host's time of one compiled call, beside torch's own backend.

    make bench-call                         # inference and training
    make bench-trees                        # inference alone, results held and dropped
    make bench                              # the same on the CPU, where there are no graphs
    make bench-call ARGS=--quick            # two sizes, few rounds

A chain of multiplications with N parameters (the gradients of a chain of additions are one tensor,
which autograd copies for each parameter) is compiled by memprof and by Inductor with torch's graph
trees, as ``mode="reduce-overhead"`` does, and called in blocks that alternate; a figure is the
least over rounds of a block's microseconds a call, which other work on the machine disturbs least.
The control is the peer once more, compiled apart.

The result of a call is held while the next one runs, as ``out = model(x)`` in a loop does, but in
"inference, dropped". On the simulated device a launch costs what its driver's entry point costs
here, and kernels nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from shared import Table, alternate, options, own_code, save
from torch._inductor.compile_fx import compile_fx

from memprof.compile_backend.backend import memprof
from memprof.cudagraph_trees.replay import native

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (1, 10, 50, 200)
CALLS = 50
INFERENCE, DROPPED, TRAINING = "inference", "inference, dropped", "training"
WAYS = ("reduce-overhead", "control", "memprof")


class Model(torch.nn.Module):
    """``n`` parameters, two inputs, one kernel."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.ones(8) for _ in range(n))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for w in self.weights:
            x = x * w
        return x * y


def torchs_trees(gm: Any, inputs: Any) -> Any:
    """A backend: Inductor with torch's graph trees."""
    return compile_fx(gm, list(inputs), config_patches={"triton.cudagraphs": True})


class Contender:
    """One function, compiled in one way; ``block`` is what is measured."""

    def __init__(self, n: int, what: str, backend: Callable[..., Any]) -> None:
        model = Model(n).to(DEVICE)
        self.parameters = list(model.parameters())
        self.inputs = torch.ones(8, device=DEVICE), torch.ones(8, device=DEVICE)
        self.what = what
        # Not dynamic=False, which torch 2.13 patches its configuration for at each call: 12 us.
        self.call = torch.compile(own_code(lambda x, y: model(x, y)), backend=backend)
        for _ in range(6):
            self.block(1)

    def block(self, calls: int = CALLS) -> None:
        """So many calls, or training steps."""
        call, (x, y) = self.call, self.inputs
        if self.what == TRAINING:
            for _ in range(calls):
                loss = call(x, y).sum()
                loss.backward()
                for p in self.parameters:
                    p.grad = None
            return
        with torch.no_grad():
            for _ in range(calls):
                if self.what == DROPPED:
                    call(x, y)
                else:
                    out = call(x, y)  # noqa: F841


def least(ns: list[int]) -> float:
    """Microseconds a call, from nanoseconds of blocks."""
    return min(ns) / CALLS / 1e3


def measure(n: int, what: str, rounds: int) -> list[dict[str, Any]]:
    """Whole calls, a row for each way."""
    backends = {"memprof": memprof}
    contenders = {way: Contender(n, what, backends.get(way, torchs_trees)) for way in WAYS}
    taken = alternate({way: c.block for way, c in contenders.items()}, rounds)
    rows = []
    for way, ns in taken.items():
        ratio = least(ns) / least(taken["reduce-overhead"])
        rows.append({"what": what, "parameters": n, "way": way, "whole": least(ns), "ratio": ratio})
    torch._dynamo.reset()
    return rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--trees", action="store_true", help="inference, results held and dropped")
    args = parser.parse_args()
    sizes, rounds = (SIZES[::2], 15) if args.quick else (SIZES, 61)
    torch.set_num_threads(1)
    with contextlib.suppress(RuntimeError):  # Without a compiler, Python is what is measured.
        native.build()
    print(f"torch {torch.__version__}, {DEVICE}; microseconds a call, least of {rounds} rounds")
    columns = {"what": -18, "parameters": 10, "way": -15, "whole": 8, "ratio": 5}
    table = Table(columns)
    results = []
    for what in (INFERENCE, DROPPED if args.trees else TRAINING):
        for n in sizes:
            rows = measure(n, what, rounds)
            for row in rows:
                table.row(list(row.values()))
            results += rows
    if args.save:
        save(results)


if __name__ == "__main__":
    main()
