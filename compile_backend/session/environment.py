"""The machine and the versions a profile was taken with."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed

from memprof.profiler.support.host import installed_version, physical_memory

# Who makes a profile imports its classes, which takes longer than to import all that compiles.
if TYPE_CHECKING:
    from memprof.profiler.model import Machine, Process, Profile


@functools.cache
def machine() -> Machine:
    """This machine, as far as it can be told without initialising a device."""
    from memprof.profiler.model import Machine

    names: tuple[str, ...] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        names = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    has_affinity = hasattr(os, "sched_getaffinity")
    return Machine(
        system=f"{platform.system()}-{platform.release()}",
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 0,
        memory_bytes=physical_memory() or 0,
        accelerators=names,
    )


def new_profile() -> Profile:
    """A profile of this process, here and now, with nothing in it yet."""
    from memprof.profiler.model import Profile

    return Profile(
        created_ns=time.time_ns(),
        memprof=installed_version(),
        torch=str(torch.__version__),
        python=platform.python_version(),
        machine=machine(),
        process=process(),
    )


def perf_origin_ns() -> int:
    """``time.time_ns()`` when ``time.perf_counter_ns()`` was 0."""
    return time.time_ns() - time.perf_counter_ns()


_LAUNCHERS = (
    ("RANK", ("WORLD_SIZE",), ("LOCAL_RANK",)),  # torchrun, and scripts in its manner
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",)),
    ("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",), ("MV2_COMM_WORLD_LOCAL_RANK",)),
    # MPICH, Intel MPI, Cray PALS, srun --mpi=pmi2
    ("PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID")),
    ("PALS_RANKID", ("PMI_SIZE",), ("PALS_LOCAL_RANKID",)),
    ("JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",), ("JSM_NAMESPACE_LOCAL_RANK",)),
    ("FLUX_TASK_RANK", ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",)),
    # Says no size itself.
    ("PMIX_RANK", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("PMIX_LOCAL_RANK",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), ("SLURM_LOCALID",)),
)
"""Variables that launchers set for each process: rank, number of processes, rank on the host; of
several variables the first that is set counts.

The innermost first: ``torchrun`` is started by ``srun`` and not the other way round, ``mpirun``
within an allocation of Slurm's inherits variables of Slurm's."""


def process(environment: Mapping[str, str] = os.environ) -> Process:
    """This process and its rank, without communication.

    By what its launcher has set or ``torch.distributed`` where it is initialized; where both speak,
    by the one that knows of more processes: a process group can be a part of a job. Files are named
    by the rank, so a launcher that says no number of processes, or one too small, is believed in
    it.
    """
    from memprof.profiler.model import Process

    rank, world, local = _launched(environment)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        if size >= world:
            rank, world = torch.distributed.get_rank(), size
    if local is None:
        local = rank
    return Process(rank, min(local, world - 1), world, platform.node(), os.getpid())


def _launched(environment: Mapping[str, str]) -> tuple[int, int, int | None]:
    """Rank, number of processes, and rank on this host if it is known."""
    for of_rank, of_world, of_local in _LAUNCHERS:
        rank = _number(environment, (of_rank,))
        if rank is not None:
            world = _number(environment, of_world) or 1
            return rank, max(world, rank + 1), _number(environment, of_local)
    world = _number(environment, ("WORLD_SIZE",)) or 1
    return 0, world, _number(environment, ("LOCAL_RANK",))


def _number(environment: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The value of the first of ``names`` that is a number, of at most nine digits."""
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
    return None


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
