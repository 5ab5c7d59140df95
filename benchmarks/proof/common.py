"""What the parts of the proof share: files that are whole at any instant, the machine, the device.

``python -m proof.common MODULE CASE OUT simulated|real`` runs one case of one part.

Note [Files of results]
~~~~~~~~~~~~~~~~~~~~~~~
A part has one file, ``OUT/PART.json``, which is there before anything is measured and says of each
of its cases how it ended, or that it has not begun. A case is a process of its own and writes a row
as soon as it is known: the file is replaced as a whole, under a lock that other processes wait for.
So a case that fails, hangs or takes the device down costs its own rows that were not known yet.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import functools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from shared import write_json

BEGAN = time.monotonic()
LACKING = 77
"""Exit status of a case that a missing module keeps from being measured."""


@dataclass(frozen=True)
class Part:
    """One question that is asked of a GPU.

    Attributes:
        module: where it is the value of ``PART``, for the process of a case.
        about: what is measured, a sentence or two for readers of the file.
        cases: each is given where its rows go. One that lacks a module is skipped.
        limit_s: that one case may take.
        alone: whether a case must have the device to itself: it measures time, or free memory.
        values: whether a simulated device must compute for it.
    """

    name: str
    module: str
    about: str
    cases: Mapping[str, Callable[[Rows], None]]
    limit_s: float = 240.0
    alone: Callable[[str], bool] = lambda case: False
    values: bool = False


@dataclass
class Rows:
    """The rows of one case, which go to the file of its part.

    Attributes:
        simulated: whether the device is: sizes are small there.
    """

    out: Path
    part: str
    case: str
    simulated: bool = False

    def add(self, **row: Any) -> None:
        """Write one more row, and when it was known: ``at_s``, seconds since the case began."""
        self.put({**row, "at_s": round(time.monotonic() - BEGAN, 2)})

    def put(self, *rows: dict[str, Any], **found: Any) -> None:
        """Write rows, and what else is known of the case in the place of what was."""
        lock = os.open(self.out, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self.read()
            case = content["cases"][self.case]
            case.update(found)
            case["rows"] += rows
            write_json(self.out / f"{self.part}.json", content)
        finally:
            os.close(lock)

    def read(self) -> dict[str, Any]:
        """The file of the part."""
        return json.loads((self.out / f"{self.part}.json").read_text("utf-8"))


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Samples, two or more, with their median and quartiles."""
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return {"samples": list(samples), "low": low, "median": median, "high": high}


# The machine


PACKAGES = ("torch-memprof", "torch", "triton", "numpy", "transformers", "msgspec", "rich", "click")


def machine() -> dict[str, Any]:
    """The device, its driver and the versions of what runs on it."""
    from memprof.simulated_cuda.control import simulated

    # Of two copies of a package the one that comes first on the path is imported.
    installed = {d.name: d.version for d in reversed([*metadata.distributions()])}
    device = torch.cuda.get_device_properties(0)
    return {
        "gpu": device.name,
        "simulated": simulated(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "gpu_bytes": device.total_memory,
        "capability": f"{device.major}.{device.minor}",
        "multiprocessors": device.multi_processor_count,
        "l2_bytes": device.L2_cache_size,
        "driver": smi("driver_version"),
        "most_sm_mhz": smi("clocks.max.sm"),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "versions": {name: installed.get(name) for name in PACKAGES},
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "settings": {k: v for k, v in os.environ.items() if k.startswith(("PYTORCH_", "CUDA_"))},
    }


def smi(query: str) -> str | None:
    """An answer of nvidia-smi about this device, None where there is none."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i"]
    try:
        command.append(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None
    return done.stdout.strip()


GIVEN_UP = ("fallback", "not_graphed", "skip", "tree_failure", "eviction", "not_observed")


def ledger() -> dict[str, Any]:
    """What memprof's graph trees did in this process: replays, recordings, and what was not made a
    graph, with how often."""
    import memprof

    entries = [(e.kind.value, e) for e in memprof.current_profile().ledger]
    return {
        "replays": sum(e.count for kind, e in entries if kind == "replay"),
        "recordings": sum(e.count for kind, e in entries if kind in ("record", "rerecord")),
        "given_up": [
            f"{kind}: {e.reason[:200]} ({e.count})" for kind, e in entries if kind in GIVEN_UP
        ],
    }


# The device


def used() -> int:
    """Bytes of the whole device that are in use, by the driver."""
    free, total = torch.cuda.mem_get_info()
    return total - free


side_stream = functools.cache(torch.cuda.Stream)
"""One stream for all captures: cuBLAS keeps a workspace for each stream that it ever saw."""


def captured(act: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """What an act launches, as a CUDA graph. It runs once before, as libraries then make what they
    could not make in a capture."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    # Not torch.cuda.graph(), which collects garbage each time.
    with torch.cuda.stream(side_stream()):
        act()
        graph.capture_begin()
        try:
            act()
        finally:
            graph.capture_end()
    return graph


def device_us(act: Callable[[], Any]) -> float:
    """Microseconds that the device takes for what an act launches."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    act()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def host_us(act: Callable[[], Any]) -> float:
    """Microseconds until an act returns, with nothing before it in the queue."""
    torch.cuda.synchronize()
    began = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - began) / 1e3


if __name__ == "__main__":
    # The runner asks so where a case that took too long is.
    faulthandler.register(signal.SIGUSR1)
    # Linux ends this process when the runner ends, in whatever way.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    module, case, out, device = sys.argv[1:]
    part: Part = import_module(module).PART
    rows = Rows(Path(out), part.name, case, simulated=device == "simulated")
    try:
        part.cases[case](rows)
    except ImportError as lacking:
        print(lacking)
        sys.exit(LACKING)
