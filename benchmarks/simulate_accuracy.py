"""Simulates the training runs whose device memory somebody published, and says how far off it is.

The cases are those of ``benchmarks/simulate_cases.py``: a published figure, its counter and
settings, and a script that knows nothing of the simulation. Each runs in a process of its own on
the simulated device, by ``memprof simulate``. Packages that a case needs are looked for where this
Python finds them (and on PYTHONPATH).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lines import results, write_json
from simulate_cases import CASES, Case

HERE = Path(__file__).parent
RESULTS = results("simulate_accuracy.json")
UNITS = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9, "MB": 10**6}


GPUS = {
    "a10g": ("--gpu", "a10g"),
    "a100-40gb": ("--gpu", "a100-40gb"),
    "a100-80gb": ("--gpu", "a100-80gb"),
    "h100-80gb": ("--gpu", "h100-80gb"),
    # What torchtitan's logs say of the machines of its tables.
    "h100-96gb": ("--gpu", "h100-80gb", "--memory", "95.04GiB"),
}
"""Options of ``memprof simulate``."""


@dataclass(frozen=True)
class Outcome:
    """One case as it was simulated.

    Attributes:
        simulated: in the case's unit.
        difference: of the published figure, in percent.
        seconds: of the whole process.
    """

    id: str
    published: float
    simulated: float
    unit: str
    counter: str
    difference: float
    seconds: float


class SimulationError(Exception):
    """A case that gave no figure, and the end of what it said."""


def missing(case: Case) -> list[str]:
    """The packages a case needs that are not here, or in another version."""
    absent = []
    for need in case.needs:
        name, _, wanted = need.partition("==")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            absent.append(need)
        else:
            if wanted and found != wanted:
                absent.append(f"{need} (there is {found})")
    return absent


def simulate(case: Case, limit: float) -> Outcome:
    """Runs a case in a process of its own.

    Raises:
        SimulationError: it failed, or took longer than ``limit`` seconds.
    """
    ranks = ("--world-size", str(case.world_size)) if case.world_size > 1 else ()
    script = str(HERE / "simulate" / case.script)
    command = [sys.executable, "-m", "memprof", "simulate", "--json", "-q", "--to-the-end"]
    command += [*GPUS[case.gpu], *ranks, "--timeout", str(limit)]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, "--", "python", script, *case.args.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 2:
        raise SimulationError(done.stderr.strip().rpartition("\n")[2])
    found = json.loads(done.stdout)
    (rank,) = found["ranks"]
    if found["fits"] is False:
        raise SimulationError(f"out of memory on {case.gpu}")
    if rank["failure"] is not None:
        raise SimulationError(f"{rank['failure']['kind']}: {rank['failure']['message'][:200]}")
    if rank["ended"] != "the script ended":  # --timeout came first
        raise SimulationError(rank["undecided"])
    # As the script itself would have read it: it may have set the counters back.
    peak = rank["counters"][case.counter] / UNITS[case.unit]
    return Outcome(
        id=case.id,
        published=case.figure,
        simulated=peak,
        unit=case.unit,
        counter=case.counter,
        difference=100 * (peak / case.figure - 1),
        seconds=time.monotonic() - begun,
    )


def machine() -> dict[str, str | int | None]:
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": os.environ.get("TORCH", "2.11.0"),
    }


def versions() -> dict[str, str]:
    """Of the packages that any case needs and that are here."""
    names = {need.partition("==")[0] for case in CASES for need in case.needs}
    found = {}
    for name in sorted(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run(chosen: list[Case], limit: float) -> list[Outcome]:
    """Simulates one after the other and prints a line for each."""
    outcomes = []
    print(f"{'case':32} {'published':>12} {'simulated':>12}      {'off':>8} {'time':>7}")
    for case in chosen:
        if absent := missing(case):
            print(f"{case.id:32} skipped: needs {', '.join(absent)}", flush=True)
            continue
        try:
            outcome = simulate(case, limit)
        except SimulationError as problem:
            print(f"{case.id:32} failed: {problem}", flush=True)
            continue
        outcomes.append(outcome)
        print(
            f"{case.id:32} {outcome.published:12.3f} {outcome.simulated:12.3f} {case.unit:4}"
            f" {outcome.difference:+7.2f}% {outcome.seconds:5.0f} s",
            flush=True,
        )
    if outcomes:
        off = statistics.median(abs(outcome.difference) for outcome in outcomes)
        print(f"{len(outcomes)} cases, half of them within {off:.2f} % of what was published")
    return outcomes


def save(outcomes: list[Outcome]) -> None:
    """Writes the outcomes beside those of other cases that the file has."""
    known = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else {}
    known |= {outcome.id: asdict(outcome) for outcome in outcomes}
    data = {"machine": machine(), "versions": versions(), "cases": known}
    write_json(data, RESULTS)


def table() -> str:
    """The saved outcomes as a table in Markdown, cases without one included."""
    saved = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else {}
    lines = [
        "| case | settings | counter | published | simulated | difference |",
        "|---|---|---|--:|--:|--:|",
    ]
    for case in CASES:
        result = "not run |"
        if outcome := saved.get(case.id):
            result = f"{outcome['simulated']:.2f} | {outcome['difference']:+.2f} %"
        published = f"{case.figure:.2f} {case.unit}"
        lines.append(f"| `{case.id}` | {case.about} | {case.counter} | {published} | {result} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cases, under three minutes")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these cases, or their beginnings")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one case")
    parser.add_argument("--save", action="store_true", help=f"write out/results/{RESULTS.name}")
    parser.add_argument("--table", action="store_true", help="print what is saved, run nothing")
    args = parser.parse_args()
    if args.table:
        print(table())
        return 0
    chosen = [case for case in CASES if case.quick or not args.quick]
    if args.only:
        chosen = [case for case in chosen if case.id.startswith(tuple(args.only))]
    outcomes = run(chosen, args.limit)
    if args.save:
        save(outcomes)
    return 0 if outcomes else 1


if __name__ == "__main__":
    raise SystemExit(main())
