"""How much of the device's memory the report of real models can name, and whether it adds up.

    make bench-account                                # every model, both ways, half an hour
    make bench-account ARGS=--quick                   # under three minutes: few, with two layers
    make bench-account ARGS='--workloads gpt2-training,resnet50-inference'

Each model of ``memory_zoo.py`` and ``account_zoo.py`` is built and run inside of a session, on the
simulated device (simulated_cuda/README.md), whose kernels compute nothing: everything that decides
about memory is torch's own. Each run is a process of its own.

* ``plain``: ``backend="memprof"`` and ``memprof.profile()``: the peak is composed at the end of the
  session, from what compiled code had and what the process holds.
* ``eager=True``: the same with ``memprof.profile(eager=True)``: the allocator's history.
* ``uncompiled``: the model as it is, ``memprof.profile(eager=True)``.

*Adds up* is whether the rows of the report's first table come to the allocator's own counter of
the most reserved, to the byte. *Named* is the share of the bytes that were allocated at the peak
whose row says what they are for; *eager* the share that is one row of eager tensors, of which
``plain`` knows no more; *line* the share of all whose row has a line of the program.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lines import results, write_json

sys.path.insert(0, str(Path(__file__).parent))

HERE = Path(__file__).parent
RESULTS = results("account_models.json")
WAYS = ("plain", "eager=True", "uncompiled")
WORKLOADS = (
    "gpt2-training",
    "gpt2-inference",
    "gpt2-loss-outside",
    "llama-training",
    "llama-checkpointed",
    "llama-inference",
    "llama-generation",
    "static-cache-generation",
    "resnet50-training",
    "resnet50-inference",
    "bert-training",
    "bert-inference",
    "unet-training",
    "unet-inference",
)
QUICK = ("gpt2-training", "llama-generation")


@dataclass
class Outcome:
    """What the report of one run says, in bytes.

    Attributes:
        workload, way: what was run; see above.
        layers: at most so many; None for as many as published.
        counter: the most that the allocator had reserved, by itself.
        total: the rows of the account, added up.
        allocated: that was handed out at the peak.
        unnamed: of ``allocated``, what has no name.
        one_row: of ``allocated``, what is one row of eager tensors.
        lineless: of ``allocated``, what has no line; None where lines are not asked for.
        rows: the account in words.
        largest_unnamed: what has no name, or no line, most first.
        notes: of the account.
        error: why there is nothing of this; empty if there is.
    """

    workload: str
    way: str
    layers: int | None = None
    counter: int = 0
    total: int = 0
    allocated: int = 0
    unnamed: int = 0
    one_row: int = 0
    lineless: int | None = None
    rows: dict[str, int] | None = None
    largest_unnamed: list[str] | None = None
    notes: list[str] | None = None
    error: str = ""

    @property
    def cells(self) -> list[str]:
        if self.error:
            return [self.workload, self.way, self.error]
        line = "" if self.lineless is None else share(self.allocated - self.lineless, self)
        return [
            self.workload,
            self.way,
            f"{self.counter:,}",
            "exactly" if self.total == self.counter else f"off by {self.total - self.counter:,}",
            share(self.allocated - self.unnamed, self),
            share(self.one_row, self) if self.one_row else "",
            line,
        ]


def share(nbytes: int, outcome: Outcome) -> str:
    """Per cent of what was allocated, never rounded up to all of it."""
    return f"{int(10_000 * nbytes / max(1, outcome.allocated)) / 100:.2f} %"


def run(name: str, way: str, most_layers: int | None, page: str = "") -> Outcome:
    """Run a workload in this process, with all of it inside of a session."""
    import account_zoo  # noqa: F401, registers workloads
    import torch
    from memory_zoo import WORKLOADS as known
    from memory_zoo import limit_layers

    import memprof

    # cuDNN is not simulated, and its attention would be the default.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.enabled = False
    if most_layers is not None:
        limit_layers(most_layers)
    workload = known[name]

    def compiler(function: Any) -> Any:
        if way == "uncompiled":
            return function
        return torch.compile(function, dynamic=workload.dynamic, backend="memprof")

    with memprof.profile(eager=way != "plain") as session:
        step = workload.build(compiler)
        for i in range(workload.steps):
            step(i)
    outcome = Outcome(name, way, most_layers, torch.cuda.max_memory_reserved())
    if page:
        session.report(top=30)
        session.to_html(page)
    describe(outcome, session.profile())
    return outcome


def describe(outcome: Outcome, profile: Any) -> None:
    """Fill in what the report's first table says."""
    from memprof.profiler.model import Category
    from memprof.profiler.report.parts import EAGER, FREE, ROUNDING
    from memprof.profiler.report.summary import summarize

    if not profile.accounts:
        outcome.error = "no account"
        return
    account = profile.accounts[0]
    outcome.notes = account.notes
    if account.present:
        peaks = summarize(profile).at_peak
        if not peaks:
            outcome.error = "no table of the peak"
            return
        peak = peaks[0]
        rest = {EAGER: peak.eager, ROUNDING: peak.rounding, FREE: peak.free}
        outcome.rows = dict(peak.parts) | {what: n for what, n in rest.items() if n}
        outcome.rows["not attributed"] = peak.unattributed
        outcome.total = sum(outcome.rows.values())
        outcome.allocated = outcome.total - peak.free
        outcome.unnamed, outcome.one_row = peak.unattributed, peak.eager
        return
    outcome.rows = dict(account.parts())
    outcome.total = sum(outcome.rows.values())
    outcome.allocated = account.allocated
    unnamed = [r for r in account.rows if r.category is Category.UNKNOWN]
    lineless = [r for r in account.rows if r.frame is None]
    outcome.unnamed = sum(r.nbytes for r in unnamed) + max(0, account.unexplained)
    outcome.lineless = sum(r.nbytes for r in lineless)
    outcome.largest_unnamed = [
        f"{r.nbytes:,} B {r.what} in {r.count} blocks" for r in [*unnamed, *lineless][:8]
    ]


def main() -> None:
    args = parse_args()
    if args.worker:
        print(json.dumps(asdict(run(args.workloads[0], args.ways[0], args.layers, args.page))))
        return
    if args.quick and args.layers is None:
        args.layers = 2
    names = args.workloads or (QUICK if args.quick else WORKLOADS)
    from backend_overhead import machine

    about = machine()
    del about["load_average"]  # bytes do not depend on it
    print(f"torch {about['torch']}, simulated device without values")
    found: list[Outcome] = []
    for name in names:
        for way in args.ways:
            outcome = in_process(name, way, args)
            found.append(outcome)
            print("  ".join(f"{c:<24}" if i < 1 else f"{c:>16}" for i, c in
                  enumerate(outcome.cells)), flush=True)  # fmt: skip
            if args.rows:
                for what, n in sorted((outcome.rows or {}).items(), key=lambda p: -p[1]):
                    print(f"    {n:16,}  {what}")
                for text in [*(outcome.largest_unnamed or ()), *(outcome.notes or ())]:
                    print(f"    ! {text}")
            if args.save:
                save(found, about)


def in_process(name: str, way: str, args: argparse.Namespace) -> Outcome:
    command = [sys.executable, __file__, "--worker", "--workloads", name, "--ways", way]
    if args.layers is not None:
        command += ["--layers", str(args.layers)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        return Outcome(name, way, args.layers, error=f"not done after {args.timeout:g} s")
    try:
        return Outcome(**json.loads(result.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = (result.stderr.strip().splitlines() or [f"exit {result.returncode}"])[-1]
        return Outcome(name, way, args.layers, error=last[:200])


def save(found: list[Outcome], about: dict[str, Any]) -> None:
    """Put outcomes into the file, in the place of those that it has of the same runs."""
    content: dict[str, Any] = {"benchmark": "account_models", "machine": about, "results": []}
    if RESULTS.exists():
        before = json.loads(RESULTS.read_text(encoding="utf-8"))
        if before["machine"] == about:
            content = before
    every = {(r["workload"], r["way"], r["layers"]): r for r in content["results"]}
    every |= {(o.workload, o.way, o.layers): asdict(o) for o in found}
    order = {key: i for i, key in enumerate((w, way) for w in WORKLOADS for way in WAYS)}
    content["results"] = [
        every[key] for key in sorted(every, key=lambda k: (order[k[:2]], k[2] is not None))
    ]
    write_json(content, RESULTS)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def names(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--quick", action="store_true", help="two workloads, two layers")
    parser.add_argument("--workloads", type=names, help="comma-separated (all)")
    parser.add_argument("--ways", type=names, default=list(WAYS), help=", ".join(WAYS))
    parser.add_argument("--layers", type=int, help="at most so many layers (all)")
    parser.add_argument("--rows", action="store_true", help="print the accounts as well")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one run (900)")
    parser.add_argument("--save", action="store_true", help=f"write out/results/{RESULTS.name}")
    parser.add_argument("--page", default="", help="of a worker: print the report, write the page")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
