"""What stands after ``memprof simulate … --``, taken apart."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass

_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun", "horovodrun")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch")


class BadCommand(ValueError):
    """A command that cannot be simulated; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Command:
    """A Python program.

    Attributes:
        interpreter: path of the Python that runs it.
        options: of the interpreter.
        program: ``SCRIPT ARGUMENT...`` or ``-m MODULE ARGUMENT...``.
    """

    interpreter: str
    options: tuple[str, ...]
    program: tuple[str, ...]

    @property
    def script(self) -> str | None:
        """The path of the script; None for a module."""
        return self.program[0] if self.program[0] != "-m" else None


def parse(words: tuple[str, ...]) -> Command:
    """Take a command apart: ``python [OPTION...] train.py ARG...``, ``train.py ARG...`` or
    ``-m MODULE ARG...``.

    Raises:
        BadCommand: it is empty, starts other processes, or is no Python program.
    """
    if not words:
        raise BadCommand(
            "there is no script: memprof simulate --gpu h100-80gb -- python train.py ARGUMENT ..."
        )
    name = os.path.basename(words[0])
    if name in _LAUNCHERS:
        raise _launcher(name)
    options: tuple[str, ...] = ()
    if not name.startswith("python"):
        program = words
        interpreter = sys.executable
        if words[0] != "-m" and shutil.which(words[0]) and not os.path.isfile(words[0]):
            raise BadCommand(
                f"{words[0]} is a program, not a Python script: write python SCRIPT ARGUMENT ... "
                "or -m MODULE ARGUMENT ..."
            )
    else:
        interpreter = _interpreter(words[0])
        options, program = _split(words[1:])
    if not program or program == ("-m",):
        raise BadCommand(f"{' '.join(words)} has no script and no -m MODULE")
    if program[0] == "-c" or program[0] == "-":
        raise BadCommand("a program from the command line cannot be simulated: put it into a file")
    if program[0] == "-m" and program[1] in _LAUNCHER_MODULES:
        raise _launcher(f"python -m {program[1]}")
    if program[0] == "-m" and program[1].partition(".")[0] in _LAUNCHERS:
        raise _launcher(f"python -m {program[1]}")
    if program[0].startswith("-") and program[0] != "-m":
        raise BadCommand(f"{program[0]} is no script; before one only options of Python may stand")
    return Command(interpreter, options, program)


def _interpreter(word: str) -> str:
    if os.sep in word:
        return word
    # A bare `python` is the one that memprof runs in, as in a shell with that environment active.
    return sys.executable


def _split(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        at += 2 if words[at] in _WITH_VALUE else 1
    return words[:at], words[at:]


def _launcher(name: str) -> BadCommand:
    return BadCommand(
        f"{name} starts a process for each rank, and one is enough here: give the training script "
        "itself, with --world-size N --rank R where it is a job of several"
    )
