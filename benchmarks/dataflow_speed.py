"""The data-flow memory profile beside torch's: time, memory, growth, compilation in the window.

    make bench-profile [ARGS=--quick]

Note [How the figures are made]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
*Time*: one training run is recorded; then torch's analysis and memprof's are run on that same
recording by turns, several rounds, categories and timeline included, one thread. CPU time of the
process is taken and the ratio is that of the medians. memprof's corrections are on.

*Memory*: each analysis runs once more in a forked child, which reports how much its resident set
grew at most, and how much of it is still there while it holds the result.

*Growth*: recordings of the same training, longer and longer. memprof only: torch's would take a
minute and ten gigabytes.

*Compilation*: two training steps whose model compiles in the window, beside the same two steps of
the compiled model. It has been compiled before, so that the window holds Dynamo and AOTAutograd,
and Inductor's code comes from its cache: a recording of all of Inductor takes 20 GB of the host.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import select
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))
sys.path.insert(0, str(Path(__file__).parent))
from dataflow import models  # type: ignore[import-not-found]
from lines import Lines

from memprof.profiler import profile_memory
from memprof.profiler.dataflow.live import by_category


def analyse_torch(prof: Any) -> Any:
    profile = prof._memory_profile()
    return profile, torch.profiler._memory_profiler.MemoryProfileTimeline(
        profile
    )._coalesce_timeline("cpu")


def analyse_memprof(prof: Any) -> Any:
    profile = profile_memory(prof)
    return profile, by_category(profile, "cpu")


def record(steps: int, backend: str | None = None, warmup: int = 1) -> Any:
    """A recording of training steps of the transformer with Adam."""
    torch.manual_seed(0)
    case = models.transformer()
    opt = models.optimizer("adam", case.model)
    model = case.model
    if backend is not None:
        torch._dynamo.reset()
        model = torch.compile(case.model, backend=backend)
    models.train(case, opt, warmup, model)
    with models.profiled() as prof:
        models.train(case, opt, steps, model)
    return prof


def cpu_seconds(work: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    result = work()
    took = time.process_time() - start
    del result
    return took


def _anonymous(pid: int | str) -> int:
    """Resident bytes of a process that no file backs; 0 once it has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def added_memory(work: Callable[[], Any]) -> tuple[int, int]:
    """(most, held at the end) bytes by which ``work`` grows the resident set, in a fork.

    The parent samples the child every millisecond. Pages of libraries, which a fork maps
    anew as it touches them, do not count.
    """
    begin_read, begin_write = os.pipe()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        gc.collect()
        # What the recording has freed would otherwise be used again without being counted.
        ctypes.CDLL(None).malloc_trim(0)
        before = _anonymous("self")
        os.write(begin_write, b".")
        result = work()
        gc.collect()
        os.write(write, json.dumps([before, _anonymous("self") - before]).encode())
        del result
        os._exit(0)
    os.read(begin_read, 1)
    most = 0
    while not select.select([read], [], [], 0.001)[0]:
        most = max(most, _anonymous(pid))
    before, held = json.loads(os.read(read, 1000))
    os.waitpid(pid, 0)
    for fd in (begin_read, begin_write, read, write):
        os.close(fd)
    return max(most - before, held), held


def side_by_side(steps: int, rounds: int) -> dict[str, Any]:
    contenders = {"torch": analyse_torch, "memprof": analyse_memprof}
    small = record(1)
    for work in contenders.values():  # imports and caches
        work(small)
    del small
    gc.collect()  # else it is freed in the fork, where both would fill the holes that it leaves
    prof = record(steps)
    # Memory first: later, analyses would reuse what earlier ones have left to the allocator.
    memory = {n: added_memory(partial(w, prof)) for n, w in contenders.items()}
    times: dict[str, list[float]] = {n: [] for n in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            times[name].append(cpu_seconds(partial(work, prof)))
    events = analyse_memprof(prof)[0].columns.events
    out: dict[str, Any] = {"events": events, "steps": steps}
    for name in contenders:
        most, held = memory[name]
        seconds = statistics.median(times[name])
        out[name] = {
            "seconds": seconds,
            "us_per_event": seconds / events * 1e6,
            "peak_bytes": most,
            "held_bytes": held,
            "bytes_per_event": most / events,
        }
    out["times_faster"] = out["torch"]["seconds"] / out["memprof"]["seconds"]
    out["memory_ratio"] = out["torch"]["peak_bytes"] / max(out["memprof"]["peak_bytes"], 1)
    return out


def growth(targets: list[int], per_step: float) -> Iterator[dict[str, float]]:
    for target in targets:
        prof = record(max(1, round(target / per_step)))
        seconds = min(cpu_seconds(partial(analyse_memprof, prof)) for _ in range(2))
        events = analyse_memprof(prof)[0].columns.events
        del prof
        gc.collect()
        yield {"events": events, "seconds": seconds, "us_per_event": seconds / events * 1e6}


def compilation(backend: str, rounds: int) -> dict[str, Any]:
    # The second window is of a model compiled before it. What matters are frames of the compiler.
    case = models.transformer()
    torch._dynamo.reset()
    models.train(
        case, models.optimizer("adam", case.model), 1, torch.compile(case.model, backend=backend)
    )
    cold = record(2, backend, warmup=0)
    warm = record(2, backend, warmup=3)
    out: dict[str, Any] = {"backend": backend}
    for name, prof in (("cold", cold), ("warm", warm)):
        seconds = statistics.median(
            cpu_seconds(partial(analyse_memprof, prof)) for _ in range(rounds)
        )
        columns = analyse_memprof(prof)[0].columns
        out[name] = {
            "seconds": seconds,
            "events": columns.events,
            "skipped_s": columns.skipped_ns / 1e9,
        }
    out["ratio"] = out["cold"]["seconds"] / out["warm"]["seconds"]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter recordings, fewer of them")
    parser.add_argument("--steps", type=int, help="of the side-by-side recording (32)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", type=int, nargs="*", help="events of longer recordings")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    steps = args.steps or (8 if args.quick else 32)
    events = [125_000] if args.quick else [125_000, 250_000, 500_000, 1_000_000]
    events = events if args.growth is None else args.growth
    torch.set_num_threads(1)

    print(f"analysis, timeline and coalescing of a recording of {steps} steps", flush=True)
    both = side_by_side(steps, args.rounds)
    print(f"{both['events']:,} events")
    table = Lines(("", -8), ("CPU s", 7), ("µs / event", 10), ("added memory", 12), ("held", 10))
    table.header()
    for name in ("torch", "memprof"):
        r = both[name]
        memory = (f"{r[k] / 2**20:.1f} MiB" for k in ("peak_bytes", "held_bytes"))
        table.row([name, f"{r['seconds']:.3f}", f"{r['us_per_event']:.2f}", *memory])
    print(
        f"{both['times_faster']:.1f} times faster, 1/{both['memory_ratio']:.1f} of the memory",
        flush=True,
    )
    rows = []
    for row in growth(events, both["events"] / steps):
        rows.append(row)
        print(
            f"{row['events']:>9,.0f} events: {row['seconds']:.2f} s, "
            f"{row['us_per_event']:.2f} µs an event",
            flush=True,
        )
    windows = []
    for backend in ("inductor", "memprof"):
        w = compilation(backend, args.rounds)
        windows.append(w)
        print(
            f"{w['backend']}: compilation in the window {w['cold']['seconds'] * 1e3:.0f} ms "
            f"({w['cold']['events']:,} events, {w['cold']['skipped_s']:.1f} s skipped), without "
            f"{w['warm']['seconds'] * 1e3:.0f} ms ({w['warm']['events']:,} events): "
            f"{w['ratio']:.2f} times",
            flush=True,
        )
    if args.json:
        figures = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "side_by_side": both,
            "growth": rows,
            "compilation": windows,
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
