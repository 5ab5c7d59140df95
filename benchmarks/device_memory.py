"""Device memory of models at real sizes under memprof, inductor and ``mode="reduce-overhead"``.

    make bench-memory                                # all of memory_zoo.py
    make bench-memory ARGS=--quick                   # under three minutes: few, with two layers
    make bench-memory ARGS='--workloads gpt2-training,unet-inference --no-devices'

Needs the simulated device (simulated_cuda/README.md), whose kernels compute nothing here: what is
left of a step is its allocations, by torch's own allocator. One line is printed as each is known.

Note [How the figures are made]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Every run is a fresh process, ``memory_worker.py``; all share a compile cache. The first run of a
workload and backend has a device of 80 GiB. Of it are

* *reserved* and *allocated*: the most that the caching allocator had from the device, and had
  handed out, at any time from the first call on: compilation, warm-up, observation, recording;
* *steady*: the most reserved within the last two steps.

*Runs on* is the smallest device on which all steps end without an out-of-memory error; *with
graphs* the smallest on which, besides, the last two steps launch as many CUDA graphs as on 80 GiB.
Both are found by bisection to 1 %, and include the 512 MiB that a CUDA context takes. The search
begins between what was allocated and what was reserved, and goes beyond where a run says that it
must. That larger devices do as well as smaller ones is assumed.

Where the same step is smaller under another version of torch or with cuDNN, which is not simulated,
it is so for all backends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent))
from lines import Lines, results, write_json

HERE = Path(__file__).parent
RESULTS = results("device_memory.json")
BACKENDS = ("inductor", "reduce-overhead", "memprof")
AMPLE_MIB = 81920
CONTEXT_MIB = 512
MIB = 1 << 20


@dataclass(frozen=True)
class Probe:
    """How a run on a device of some size ended, and the graphs launched in its last two steps."""

    ended: str
    launches: tuple[int, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether all steps ended."""
        return self.ended == "ok"


@dataclass
class Devices:
    """Devices that were tried.

    Attributes:
        probe: runs on a device of so many MiB.
        tried: what became of it, by size in MiB.
        tolerance: how close to the smallest to come, relative.
    """

    probe: Callable[[int], Probe]
    tolerance: float = 0.01
    tried: dict[int, Probe] = field(default_factory=dict)

    def smallest(self, good: Callable[[Probe], bool], low: int, high: int) -> int | None:
        """MiB of the smallest device whose run is ``good``, which is verified, and that no run on
        one smaller by ``tolerance`` is.

        Args:
            good: once true, true for all larger devices.
            low, high: where the answer is expected, MiB; each is tried before it is believed.

        Returns:
            None if not even ``AMPLE_MIB`` is enough.
        """
        bad = max((s for s, p in self.tried.items() if not good(p)), default=0)
        enough = min((s for s, p in self.tried.items() if good(p)), default=AMPLE_MIB + 1)
        low, high = min(low, high, AMPLE_MIB), min(max(low, high), AMPLE_MIB)
        margin = 0.04  # by which to look beyond a guess that was wrong; grows
        while bad < AMPLE_MIB:
            if bad >= high:
                high, margin = min(AMPLE_MIB, int(bad * (1 + margin)) + 1), 2 * margin
            if enough <= low:
                low, margin = int(enough / (1 + margin)), 2 * margin
            lower, upper = max(low, bad), min(high, enough)
            if upper - lower > max(1, self.tolerance * lower):
                size = (lower + upper) // 2
            elif enough > upper:
                size = upper
            elif bad < lower:
                size = lower
            else:
                return upper
            if good(self._try(size)):
                enough = size
            else:
                bad = size
        return None

    def _try(self, size: int) -> Probe:
        if size not in self.tried:
            self.tried[size] = self.probe(size)
        return self.tried[size]


@dataclass
class Result:
    """One workload under one backend.

    Attributes:
        outcome: of the ample device, ``memory_worker.Outcome`` as a dict.
        runs_on_mib, with_graphs_mib: None if not looked for or if none is large enough.
        tried: how the run on a device of so many MiB ended.
    """

    workload: str
    backend: str
    outcome: dict[str, Any]
    runs_on_mib: int | None = None
    with_graphs_mib: int | None = None
    tried: dict[int, str] = field(default_factory=dict)

    def mib(self, what: str) -> int:
        """A figure of the outcome, rounded up to MiB."""
        return -(-int(self.outcome[what]) // MIB)


class Runner:
    """Starts workers, and ends those that take too long or too much of the host's memory.

    Args:
        layers: at most so many in a model; None for all.
        timeout_s: of one run.
        host_mib: resident memory of one worker. Simulated device memory is the host's where it is
            written, and compiling takes what it takes.
    """

    def __init__(self, layers: int | None, timeout_s: float, host_mib: int = 6144) -> None:
        self.layers, self.timeout_s, self.host_mib = layers, timeout_s, host_mib

    def run(self, workload: str, backend: str, mib: int = AMPLE_MIB) -> dict[str, Any]:
        """The outcome of a run on a device of so many MiB. A worker that dies, or prints nothing,
        has ended with its status and the last line that it wrote."""
        command = [sys.executable, str(HERE / "memory_worker.py"), workload, backend]
        if self.layers is not None:
            command += ["--layers", str(self.layers)]
        with (
            tempfile.TemporaryFile("w+", errors="replace") as out,
            tempfile.TemporaryFile("w+", errors="replace") as err,
            subprocess.Popen(command, env=environment(mib), stdout=out, stderr=err) as process,
        ):
            why = self._watch(process)
            printed, said = (_lines(f) for f in (out, err))
        if why is not None:
            return {"ended": "stopped", "message": why}
        for line in reversed(printed):
            if line.startswith("{"):
                outcome: dict[str, Any] = json.loads(line)
                return outcome
        return {"ended": f"status {process.returncode}", "message": said[-1] if said else ""}

    def _watch(self, process: subprocess.Popen[bytes]) -> str | None:
        """Wait for the end; why it was killed, if it was."""
        end = time.monotonic() + self.timeout_s
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
                return None
            resident = resident_mib(process.pid)
            if resident > self.host_mib:
                why = f"took {resident:,} MiB of the host"
            elif time.monotonic() > end:
                why = f"took more than {self.timeout_s:.0f} s"
            else:
                continue
            process.kill()
            return why


def _lines(file: IO[str]) -> list[str]:
    file.seek(0)
    return file.read().strip().splitlines()


def resident_mib(pid: int) -> int:
    """Of a process, 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) >> 10 if found else 0


def environment(mib: int) -> dict[str, str]:
    """Of a worker: a device of this size that computes nothing, one core."""
    values = {
        **os.environ,
        "SIMGPU_MEM_MB": str(mib),
        "SIMGPU_CONTEXT_MB": str(CONTEXT_MIB),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    for name in ("SIMGPU_VALUES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        values.pop(name, None)
    return values


def measure(runner: Runner, workload: str, backend: str, devices: bool, tolerance: float) -> Result:
    """Run it on an ample device, then look for the smallest."""
    outcome = runner.run(workload, backend)
    result = Result(workload, backend, outcome)
    if outcome["ended"] != "ok" or not devices:
        return result
    ample = probe_of(outcome)
    search = Devices(
        lambda mib: probe_of(runner.run(workload, backend, mib)), tolerance, {AMPLE_MIB: ample}
    )
    low, high = (result.mib(f"{w}_peak") + CONTEXT_MIB for w in ("allocated", "reserved"))
    if any(ample.launches):
        result.with_graphs_mib = search.smallest(
            lambda p: p.ran and p.launches == ample.launches, low, high
        )
        high = result.with_graphs_mib or high
    result.runs_on_mib = search.smallest(lambda p: p.ran, low, high)
    result.tried = {mib: _ending(p, ample) for mib, p in sorted(search.tried.items())}
    return result


def probe_of(outcome: Mapping[str, Any]) -> Probe:
    """What the search needs of an outcome."""
    steps = outcome.get("steps", [])
    return Probe(str(outcome["ended"]), tuple(s["launches"] for s in steps[-2:]))


def _ending(probe: Probe, ample: Probe) -> str:
    graphs = probe.launches == ample.launches
    return probe.ended if not probe.ran or graphs else "ok, fewer graphs"


# Showing

TABLE = Lines(
    ("workload", -24),
    ("backend", -15),
    ("allocated", 9),
    ("reserved", 8),
    ("ratio", 5),
    ("steady", 6),
    ("runs on", 7),
    ("ratio", 5),
    ("with graphs", 11),
)


def cells(result: Result, others: list[Result]) -> list[str]:
    """Of one line, sizes in MiB. memprof's has ratios to ``others``: of what is reserved to
    reduce-overhead's, since inductor keeps nothing between steps, or to inductor's where that
    fails; of devices to the smallest."""
    begin = [result.workload, result.backend]
    if result.outcome["ended"] != "ok":
        return [*begin, f"{result.outcome['ended']}: {result.outcome.get('message', '')}"[:90]]
    fine = [o for o in others if o.outcome["ended"] == "ok" and result.backend == "memprof"]
    trees = [o for o in fine if o.backend == "reduce-overhead"]

    def ratio(mine: int | None, theirs: list[int | None]) -> str:
        known = [t for t in theirs if t is not None]
        return f"{mine / min(known):.3f}" if mine is not None and known else ""

    def size(mib: int | None) -> str:
        return f"{mib:,}" if mib is not None else "-"

    reserved = result.mib("reserved_peak")
    return [
        *begin,
        size(result.mib("allocated_peak")),
        size(reserved),
        ratio(reserved, [o.mib("reserved_peak") for o in trees or fine]),
        size(result.mib("steady_reserved")),
        size(result.runs_on_mib),
        ratio(result.runs_on_mib, [o.runs_on_mib for o in fine]),
        size(result.with_graphs_mib),
    ]


def remarks(result: Result) -> list[str]:
    """What did not become a graph, on the ample device."""
    given_up = result.outcome.get("given_up", [])
    return [f"    {result.workload}, {result.backend}: {line}"[:160] for line in given_up]


def run_all(
    args: argparse.Namespace, names: list[str], done: Callable[[list[Result]], None]
) -> None:
    """Measure and print; workloads side by side, the backends of one in turn. ``done`` is told
    the results of one workload, by one thread at a time."""
    runner = Runner(args.layers, args.timeout)
    printing = threading.Lock()
    results: dict[str, list[Result]] = {name: [] for name in names}

    def of_workload(name: str) -> None:
        for backend in args.backends:
            result = measure(runner, name, backend, args.devices, args.tolerance)
            with printing:
                TABLE.row(cells(result, [o for o in results[name] if o.backend != "eager"]))
                for line in remarks(result) if args.remarks else []:
                    print(line, flush=True)
            results[name].append(result)
        with printing:
            done(results[name])

    TABLE.header()
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(of_workload, names))


def save(results: list[Result], about: dict[str, Any], settings: dict[str, Any]) -> None:
    """Put one workload's results into the file, in the place of those that it has of it: the whole
    takes hours on a busy machine, and what is known is not lost if it ends before. A file of
    another machine, torch or setting is begun anew."""
    from memory_zoo import WORKLOADS

    content: dict[str, Any] = {
        "benchmark": "device_memory", "machine": about, "settings": settings,
        "workloads": {}, "results": [],
    }  # fmt: skip
    if RESULTS.exists():
        known = json.loads(RESULTS.read_text(encoding="utf-8"))
        if (known["machine"], known["settings"]) == (about, settings):
            content = known
    name = results[0].workload
    content["workloads"][name] = WORKLOADS[name].about
    others = [r for r in content["results"] if r["workload"] != name]
    every = [*others, *(asdict(r) for r in results)]
    content["results"] = sorted(every, key=lambda r: list(WORKLOADS).index(r["workload"]))
    write_json(content, RESULTS)


def main() -> None:
    from memory_zoo import WORKLOADS

    args = parse_args()
    names = args.workloads or [n for n, w in WORKLOADS.items() if w.quick or not args.quick]
    unknown = [n for n in names if n not in WORKLOADS]
    if unknown:
        sys.exit(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if args.quick and args.layers is None:
        args.layers = 2
    from backend_overhead import machine

    about = machine()
    del about["load_average"]  # bytes do not depend on it
    print(
        f"torch {about['torch']}, simulated device without values, MiB"
        + (f", at most {args.layers} layers" if args.layers else "")
    )
    for name in names:
        print(f"  {name}: {WORKLOADS[name].about}")
    settings = {
        "ample_mib": AMPLE_MIB,
        "context_mib": CONTEXT_MIB,
        "tolerance": args.tolerance,
        "layers": args.layers,
    }

    def done(results: list[Result]) -> None:
        if args.save:
            save(results, about, settings)

    run_all(args, names, done)
    if args.save:
        print(f"written to {RESULTS}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def names(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--quick", action="store_true", help="few workloads, two layers")
    parser.add_argument("--workloads", type=names, help="comma-separated (all)")
    parser.add_argument("--backends", type=names, default=list(BACKENDS), help="also: eager")
    parser.add_argument("--layers", type=int, help="at most so many layers (all)")
    parser.add_argument(
        "--devices",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="look for the smallest device",
    )
    parser.add_argument("--tolerance", type=float, default=0.01, help="of that search (0.01)")
    parser.add_argument("--remarks", action="store_true", help="print what was given up, and why")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="workers at a time (2)"
    )
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one run (900)")
    parser.add_argument("--save", action="store_true", help=f"write out/results/{RESULTS.name}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
