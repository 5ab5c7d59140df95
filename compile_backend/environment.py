"""The machine and the versions a profile was taken with."""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata

import torch
import torch.distributed

from memprof.profiler.model import Machine, Process


@functools.cache
def versions() -> tuple[str, str, str]:
    """Versions of torch, memprof and Python."""
    try:
        own = metadata.version("memprof")
    except metadata.PackageNotFoundError:
        own = "unknown"
    return str(torch.__version__), own, platform.python_version()


@functools.cache
def machine() -> Machine:
    """This machine, as far as it can be told without initialising a device."""
    names: tuple[str, ...] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        names = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Machine(
        system=f"{platform.system()}-{platform.release()}",
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 0,
        memory_bytes=_memory_bytes(),
        accelerators=names,
    )


def perf_origin_ns() -> int:
    """``time.time_ns()`` when ``time.perf_counter_ns()`` was 0."""
    return time.time_ns() - time.perf_counter_ns()


def process(environment: Mapping[str, str] = os.environ) -> Process:
    """This process, by ``torch.distributed`` where a process group exists, else by what
    ``torchrun`` and other launchers set: RANK, LOCAL_RANK, WORLD_SIZE. No communication."""
    rank, world = _number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    world = max(world, 1)
    rank = min(rank, world - 1)
    local = min(_number(environment, "LOCAL_RANK", rank), world - 1)
    return Process(rank, local, world, platform.node(), os.getpid())


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
