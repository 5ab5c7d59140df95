"""Simulates the training runs whose device memory somebody published, and says how far off it is.

The cases are those of ``benchmarks/simulate/cases.toml``: a published figure, its counter and
settings, and a script that knows nothing of the simulation. Each runs in a process of its own on
the simulated device, by ``memprof simulate``. Packages that a case needs are looked for where this
Python finds them (and on PYTHONPATH).
"""

from __future__ import annotations

import importlib.metadata
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import Table, options, save

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCRIPTS = Path(__file__).parent / "simulate"
UNITS = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9}


@dataclass(frozen=True)
class Case:
    """Describes a published measurement and the script that repeats it, as ``cases.toml`` does."""

    id: str
    about: str
    source: str
    figure: float
    unit: str
    counter: str
    gpu: str
    then: str
    script: str
    args: str
    needs: tuple[str, ...] = ()
    quick: bool = False
    resets: bool = False


def cases() -> list[Case]:
    """All cases, in the order of the file."""
    found = []
    for group in tomllib.loads((SCRIPTS / "cases.toml").read_text())["group"]:
        shared = {name: value for name, value in group.items() if name != "case"}
        for case in group["case"]:
            found.append(Case(**{**shared, **case, "id": group["id"] + case["id"]}))
    return found


class SimulationError(Exception):
    """A case that could not be simulated, and why."""


def missing(case: Case) -> list[str]:
    """What the case needs and is not here, in the version that it needs."""
    absent = []
    for need in case.needs:
        name, _, version = need.partition("==")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            absent.append(need)
            continue
        if version and found != version:
            absent.append(f"{need} (there is {found})")
    return absent


def simulate(case: Case, limit: float) -> float:
    """Runs a case in a process of its own and returns its peak, in the case's unit.

    Raises:
        SimulationError: it failed, or took longer than ``limit`` seconds.
    """
    command = [sys.executable, "-m", "memprof", "simulate", "--json", "-q", "--to-the-end"]
    command += ["--gpu", *case.gpu.split(), "--timeout", str(limit)]
    command += ["--", "python", str(SCRIPTS / case.script), *case.args.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
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
    if case.resets:  # after the figure that was published
        found = {name: rank[f"{name}_bytes"] for name in ("allocated", "reserved")}
    else:  # As the script itself would have read it: what came before may not count.
        found = rank["counters"]
    peak: float = found[case.counter] / UNITS[case.unit]
    return peak


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", help="these cases, or their beginnings")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one case (900)")
    args = parser.parse_args()
    table = Table(
        {"case": -34, "settings": -80, "counter": -9, "published": 15, "simulated": 9, "off": 9}
    )
    results: dict[str, dict[str, Any]] = {}
    for case in cases():
        if args.only and not case.id.startswith(tuple(args.only)):
            continue
        if args.quick and not case.quick:
            continue
        published = f"{case.figure:.3f} {case.unit}"
        about = [f"`{case.id}`", case.about, case.counter, published]
        try:
            if absent := missing(case):
                raise SimulationError(f"needs {', '.join(absent)}")
            simulated = simulate(case, args.limit)
        except SimulationError as problem:
            table.row([*about, "not run", str(problem)])
            continue
        off = 100 * (simulated / case.figure - 1)
        results[case.id] = {"published": case.figure, "simulated": simulated, "off": off}
        table.row([*about, f"{simulated:.3f}", f"{off:+.3f} %"])
        if args.save:
            save(results)
    if results:
        off = statistics.median(abs(found["off"]) for found in results.values())
        print(f"{len(results)} cases, half of them within {off:.2f} % of what was published")
    return 0 if results else 1


if __name__ == "__main__":
    raise SystemExit(main())
