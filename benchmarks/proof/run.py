"""Runs every part of the proof on this machine's GPU: ``python -m proof.run OUT``, see run.sh.

Note [The order of cases]
~~~~~~~~~~~~~~~~~~~~~~~~~
Parts stand in the order of what they are worth, and their time is limited together, so that what
comes last is what is lost. Compiling takes most of it, on one core each: so the cases that only
look at values or at their own allocator run side by side at first, as many as there are cores for,
and then those that measure time or what the whole device has left, one after the other. A simulated
device is each process's own: there all run side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from shared import write_json

from proof.common import LACKING, Part, Rows

PARTS = ("values", "memory", "driver", "scripts", "times", "kernels", "gpu_tests", "faults")
"""Modules of this package, the most valuable first. Eight files: ``OUT`` may allow for no more."""
MINUTES = 8.0
LEAST_S = 10.0
"""With less time than this no case is begun."""
LOOK = "import json; from proof.common import machine; print(json.dumps(machine()))"


def run(
    parts: Sequence[Part],
    out: Path,
    machine: dict[str, Any],
    seconds: float,
    workers: int = 2,
    patience: float = 1.0,
) -> bool:
    """Run all cases of some parts, print a line for each and a table of the parts, and leave a file
    for each part, whatever becomes of it.

    Args:
        out: the folder of results.
        machine: as ``common.machine`` says.
        seconds: from now on, in which all must have ended.
        workers: cases at a time, of those that may run side by side.
        patience: by which the limits of cases are multiplied.

    Returns:
        Whether all ended as they should.
    """
    end = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        begin = {
            "part": part.name,
            "about": part.about,
            "simulated": machine["simulated"],
            "machine": machine,
            "settings": {"limit_s": part.limit_s, "side_by_side": workers},
            "cases": {c: {"ended": "not begun", "error": "", "rows": []} for c in part.cases},
        }
        write_json(out / f"{part.name}.json", begin)

    def run_case(part: Part, case: str, workers: int) -> None:
        rows = Rows(out, part.name, case)
        left = end - time.monotonic()
        if left < LEAST_S:
            rows.put(error="the time was up")
            return
        limit = min(part.limit_s * patience, left)
        rows.put(ended="running", side_by_side=workers)
        share = str(max(1, (os.cpu_count() or 1) // workers))
        computing = {"SIMGPU_VALUES": "1", "MEMPROF_REHEARSE_GPU": "1"}
        environment = {
            **os.environ,
            # No model library may wait for a hub that cannot be reached.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "OMP_NUM_THREADS": share,
            "TORCHINDUCTOR_COMPILE_THREADS": share,
            **(computing if part.values and machine["simulated"] else {}),
        }
        device = "simulated" if machine["simulated"] else "real"
        command = [sys.executable, "-m", "proof.common", part.module, case, str(out), device]
        began = time.monotonic()
        status, said = limited(command, limit, environment)
        ended = {0: "ok", LACKING: "skipped"}.get(status, "failed")
        why = "" if status == 0 else f"status {status}: {(said.splitlines() or [''])[-1]}"
        found = {"ended": ended, "error": why, "seconds": round(time.monotonic() - began, 1)}
        if status is None:
            cut = ", and the time was up" if limit == left else ""
            found["error"] = f"took more than {limit:.0f} s{cut}"
        rows.put(**found, output="" if status == 0 else said[-4000:])
        print(f"{part.name:9} {case:32} {ended:8}{found['seconds']:7.1f} s  {found['error'][:100]}")

    jobs = [(part, case) for part in parts for case in part.cases]
    alone = [(p, c) for p, c in jobs if p.alone(c) and not machine["simulated"]]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda job: run_case(*job, workers), [j for j in jobs if j not in alone]))
    for part, case in alone:
        run_case(part, case, 1)
    return table(parts, out)


def table(parts: Sequence[Part], out: Path) -> bool:
    """Print a line a part, and say whether every case ended as it should."""
    endings = ("ok", "skipped", "failed", "not begun")
    line = "{:10}{:>6}{:>9}{:>8}{:>11}{:>6}{:>7}".format
    print("\n" + line("part", *endings, "rows", "s"))
    fine = True
    for part in parts:
        cases = Rows(out, part.name, "").read()["cases"].values()
        counts = [sum(c["ended"] == e for c in cases) for e in endings]
        rows = sum(len(c["rows"]) for c in cases)
        print(line(part.name, *counts, rows, round(sum(c.get("seconds", 0) for c in cases))))
        fine = fine and rows > 0 and not any(counts[2:])
    return fine


def limited(
    command: list[str], limit: float, environment: dict[str, str]
) -> tuple[int | None, str]:
    """The exit status of a command and what it said; no status if it took too long and was ended,
    with all that it started."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        status = None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            # A case prints where it is; any other process ends of this signal.
            process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return status, said.read()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all (%(default)s)")
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, metavar="PART")
    args = parser.parse_args()
    # Ctrl+C ends it at once, and its cases with it; what they knew is in the files.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    began = time.monotonic()
    status, said = limited([sys.executable, "-c", LOOK], 120, {**os.environ})
    if status != 0:
        print(f"{said}\nnothing can be measured here: {LOOK!r} ended with {status}")
        return 2
    machine = json.loads(said.splitlines()[-1])
    print(f"{machine['gpu']}, driver {machine['driver']}, {machine['versions']}")
    name = re.sub(r"\W+", "-", f"{machine['gpu']}-{machine['date']}").lower()
    parts = [import_module(f"proof.{module}").PART for module in args.only]
    workers = max(2, min(8, (os.cpu_count() or 1) // 2))
    patience = max(1.0, args.minutes / MINUTES)
    left = began + 60 * args.minutes - time.monotonic()
    fine = run(parts, args.out / name, machine, left, workers, patience)
    archive = shutil.make_archive(str(args.out / name), "gztar", args.out, name)
    shutil.rmtree(args.out / name)
    print(f"{time.monotonic() - began:.0f} s in all: {archive}")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
