"""Parser of the command after ``memprof simulate … --``, and the job of which it is a rank."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import Literal

_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun", "horovodrun")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch")


class BadInput(ValueError):
    """Something that cannot be simulated, or judged; the message says what to do instead."""


@dataclass(frozen=True, slots=True)
class Command:
    """A Python program: ``SCRIPT ARGUMENT...`` or ``-m MODULE ARGUMENT...``, and the path and
    options of the interpreter that runs it."""

    interpreter: str
    options: tuple[str, ...]
    program: tuple[str, ...]

    @property
    def script(self) -> str | None:
        """The path of the script; None for a module."""
        return self.program[0] if self.program[0] != "-m" else None


def parse(words: tuple[str, ...]) -> Command:
    """Take ``python [OPTION...] train.py ARG...``, ``train.py ARG...``, ``-m MODULE ARG...`` or the
    name of a program that pip has installed (``vllm serve ...``) apart.

    Raises:
        BadInput: it is empty, starts other processes, or is no Python program.
    """
    if not words:
        raise BadInput(
            "there is no script: memprof simulate --gpu h100-80gb -- python train.py ARGUMENT ..."
        )
    name = os.path.basename(words[0])
    if name in _LAUNCHERS:
        raise _launcher(name)
    options: tuple[str, ...] = ()
    if not name.startswith("python"):
        program = words
        interpreter = sys.executable
        installed = shutil.which(words[0])
        if words[0] != "-m" and installed is not None and not os.path.isfile(words[0]):
            if not _is_python(installed):
                raise BadInput(
                    f"{words[0]} is a program, not a Python script: write python SCRIPT ARGUMENT "
                    "... or -m MODULE ARGUMENT ..."
                )
            program = (installed, *words[1:])
    else:
        # A bare `python` is the one that memprof runs in, as in a shell with that environment.
        interpreter = words[0] if os.sep in words[0] else sys.executable
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
            at += 2 if words[at] in _WITH_VALUE else 1
        options, program = words[1:at], words[at:]
    if not program or program == ("-m",):
        raise BadInput(f"{' '.join(words)} has no script and no -m MODULE")
    if program[0] == "-c" or program[0] == "-":
        raise BadInput("a program from the command line cannot be simulated: put it into a file")
    module = program[1] if program[0] == "-m" else ""
    if module in _LAUNCHER_MODULES or module.partition(".")[0] in _LAUNCHERS:
        raise _launcher(f"python -m {module}")
    if program[0].startswith("-") and program[0] != "-m":
        raise BadInput(f"{program[0]} is no script; before one only options of Python may stand")
    return Command(interpreter, options, program)


def _is_python(path: str) -> bool:
    """Tells whether an installed program is a script of Python's, as pip makes them."""
    with open(path, "rb") as f:
        first = f.readline(1_000)
    return first.startswith(b"#!") and b"python" in first


def _launcher(name: str) -> BadInput:
    return BadInput(
        f"{name} starts a process for each rank, and one is enough here: give the training script "
        "itself, with --world-size N --rank R where it is a job of several"
    )


RANKS_PER_HOST = 8
"""GPUs of the usual host, where nobody says how many."""


@dataclass(frozen=True, slots=True)
class Job:
    """The distributed job of which a rank is simulated; each rank has a device of its host."""

    world_size: int
    rank: int
    ranks_per_host: int

    @property
    def local_rank(self) -> int:
        """Number of the rank on its host."""
        return self.rank % self.ranks_per_host

    def environment(self) -> dict[str, str]:
        """Environment variables that torchrun would set for this rank."""
        hosts = -(-self.world_size // self.ranks_per_host)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_host),
            "GROUP_RANK": str(self.rank // self.ranks_per_host),
            "GROUP_WORLD_SIZE": str(hosts),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "memprof-simulate",
        }


Ranks = tuple[int, ...] | Literal["all"]
"""Ranks of a job by number, or all that it has."""


def jobs_of(
    world_size: int | None, ranks: Ranks, ranks_per_host: int | None
) -> tuple[Job | None, ...]:
    """One job for each rank to simulate, rank 0 if none is named; None alone for a process without
    a job. Of ranks a host has 8, or as many as there are, where nobody says.

    Raises:
        BadInput: there is no such rank, or ranks without a job.
    """
    if world_size is None:
        if ranks or ranks_per_host is not None:
            raise BadInput("ranks belong to a job: say of how many with --world-size")
        return (None,)
    if world_size < 1:
        raise BadInput(f"a job of {world_size} ranks: it is at least 1")
    per_host = min(world_size, RANKS_PER_HOST) if ranks_per_host is None else ranks_per_host
    if not 1 <= per_host <= world_size:
        raise BadInput(f"{per_host} ranks on a host, of {world_size}: it is 1 to {world_size}")
    numbers = range(world_size) if ranks == "all" else ranks or (0,)
    for rank in numbers:
        if not 0 <= rank < world_size:
            raise BadInput(
                f"there is no rank {rank} in a job of {world_size}: 0 to {world_size - 1}"
            )
    return tuple(Job(world_size, rank, per_host) for rank in dict.fromkeys(numbers))
