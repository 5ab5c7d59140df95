"""``python -m memprof.simulated_cuda [--gpu NAME] [--devices N] [--values] COMMAND…``.

Runs a command that sees simulated devices; its exit status is this one's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .environment import MAX_DEVICES, simulated_environment
from .errors import SimulationError
from .gpus import DEFAULT_GPU, find_gpu, parse_size
from .torch_build import find_torch


def main(arguments: Sequence[str] | None = None) -> None:
    """Become the command; on what cannot be simulated, say why and exit with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m memprof.simulated_cuda",
        description="Run a command that sees simulated NVIDIA GPUs, by the CUDA build of torch.",
    )
    parser.add_argument(
        "--gpu",
        default=DEFAULT_GPU,
        metavar="NAME",
        help=f"one that `memprof simulate --list-gpus` names; {DEFAULT_GPU} without",
    )
    parser.add_argument("--memory", metavar="SIZE", help="another size of its memory: 40GiB")
    parser.add_argument(
        "--devices", type=int, default=1, metavar="N", help=f"how many, 1 to {MAX_DEVICES}"
    )
    parser.add_argument(
        "--values", action="store_true", help="kernels compute; without, they do nothing"
    )
    parser.add_argument(
        "--python", metavar="PATH", help="whose torch it is, if the command's is not this one's"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, and its arguments")
    options = parser.parse_args(arguments)
    command: list[str] = options.command
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        parser.error("there is no command to run")
    try:
        gpu = find_gpu(options.gpu)
        if options.memory is not None:
            gpu = gpu.with_memory(parse_size(options.memory))
        environment = simulated_environment(
            gpu, devices=options.devices, torch=find_torch(options.python), values=options.values
        )
    except (SimulationError, ValueError) as e:
        parser.error(str(e))
    try:
        os.execvpe(command[0], command, environment)
    except OSError as e:
        sys.exit(f"{parser.prog}: {command[0]}: {e.strerror}")


if __name__ == "__main__":
    main()
