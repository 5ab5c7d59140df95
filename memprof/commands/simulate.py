"""``memprof simulate -- python SCRIPT``."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from memprof.profiler.file.profile_file import check_name
from memprof.profiler.support.text import visible
from memprof.profiler.support.writing import check_writable
from memprof.profiler.views.report.format import format_bytes
from memprof.profiler.views.report.text_page import style_of
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import DEFAULT_GPU, Gpu, find_gpu, known_gpus, parse_size
from memprof.what_if.fit.tries import ScriptFailed
from memprof.what_if.simulate.command_line import BadInput, Ranks, jobs_of, parse
from memprof.what_if.simulate.many_ranks import simulate_ranks
from memprof.what_if.simulate.parent import Settings, Simulation
from memprof.what_if.simulate.pretend import parse_pretence
from memprof.what_if.simulate.result import render, result_of, write_profile_of
from memprof.what_if.simulate.serving import ready_sign

from ._common import (
    BadFile,
    Command,
    exact_option,
    json_option,
    keep_apart,
    output_option,
    print_json,
    print_result,
    read_by,
    seconds,
)

FAILED = 3
"""Exit status: the script failed."""

UNDECIDED = 4
"""Exit status: too little was seen of the script to say whether it fits."""


def timeout_option(help: str) -> Callable[[Command], Command]:
    kind, checks = click.FloatRange(0, 1e7, min_open=True), read_by(seconds)
    return click.option("--timeout", type=kind, callback=checks, metavar="SECONDS", help=help)


def steps_option(help: str) -> Callable[[Command], Command]:
    default = "[3, or up to 10 while the peak rises]"
    return click.option("--steps", type=click.IntRange(1), help=f"{help} {default}")


def _print_error(text: str) -> None:
    for line in text.splitlines():
        click.echo(visible(line), err=True)


@contextmanager
def failures_in_words(name: str) -> Iterator[None]:
    """End with a line on standard error where a subcommand cannot go on."""
    try:
        yield
    except KeyboardInterrupt:
        _print_error(f"memprof {name}: interrupted")
        raise SystemExit(130) from None
    except BadInput as e:
        raise click.UsageError(visible(str(e))) from e
    except SimulationError as e:
        _print_error(f"memprof {name}: {e}")
        raise SystemExit(BadFile.exit_code) from e
    except ScriptFailed as e:
        _print_error(e.trace)
        _print_error(f"memprof {name}: {'undecided' if e.undecided else 'the script failed'}: {e}")
        raise SystemExit(UNDECIDED if e.undecided else FAILED) from e


TOO_MUCH = 1
"""Exit status: it does not fit, or takes more than --fail-above."""


def print_gpus(as_json: bool) -> None:
    """Print the GPUs that can be simulated, a line each or as JSON."""
    if as_json:
        print_json(known_gpus())
        return
    width = max(len(gpu.key) for gpu in known_gpus())
    for gpu in known_gpus():
        major, minor = gpu.capability
        size = format_bytes(gpu.memory)
        click.echo(f"{gpu.key:{width}} {size:>9}  {major:2}.{minor}  {gpu.name}")


list_gpus = click.option("--list-gpus", "listing", is_flag=True, help="And exit.")


def _size(value: str) -> int:
    if value.strip().isdigit():
        raise click.BadParameter(f"{value} of what? Write {value}GiB, {value}GB or {value}MiB")
    return parse_size(value)


size_option = read_by(_size, SimulationError)


def _ranks(value: str) -> Ranks:
    try:
        if value == "all":
            return "all"
        return tuple(int(part) for part in value.split(","))
    except ValueError as e:
        raise click.BadParameter(f"{value!r} is no list of ranks: write 0,7 or all") from e


def _named(value: str) -> Callable[[], Any]:
    sys.path.append(os.getcwd())  # Also where pip's script runs, in whose folder Python looks.
    try:
        found: Callable[[], Any] = pkgutil.resolve_name(value)
    except Exception as e:  # A module may raise anything.
        raise click.BadParameter(f"{visible(value)!r}: {type(e).__name__}: {e}") from e
    if not callable(found):
        raise click.BadParameter(f"{visible(value)!r} is nothing that can be called")
    return found


def _pretences(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        parse_pretence(text)
    return texts


def executor_option(help: str) -> Callable[[Command], Command]:
    """``--executor``, None where it was not given."""
    return click.option(
        "--executor",
        callback=read_by(_named),
        metavar="MODULE:FACTORY",
        help=f"{help}, of the kind of concurrent.futures. [this machine]",
    )


other_memory = click.option(
    "--memory", callback=size_option, metavar="SIZE", help="Another total: 80GiB, 24GB."
)


_RATE = click.FloatRange(min=0, min_open=True)
SCRIPT_COMMAND = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings of a command whose arguments are a script's command, with options of its own."""


@click.command(context_settings=SCRIPT_COMMAND)
@click.option(
    "--gpu",
    default=DEFAULT_GPU,
    show_default=True,
    callback=read_by(find_gpu, SimulationError),
    help="Which GPU, by a name like a100-40gb.",
)
@list_gpus
@other_memory
@click.option(
    "--world-size", type=int, metavar="N", help="Ranks of the job; the others are not there."
)
@click.option(
    "--rank",
    "--ranks",
    "ranks",
    callback=read_by(_ranks),
    metavar="R[,R...]|all",
    help="Which of them. [0]",
)
@executor_option("What runs the ranks")
@click.option(
    "--ranks-per-host", type=int, metavar="N", help="Ranks and GPUs of a host. [8, or all]"
)
@click.option(
    "--link", type=_RATE, metavar="GB/S", help="Speed to a host's other GPUs, one way. [the GPU's]"
)
@click.option(
    "--network", type=_RATE, metavar="GB/S", help="A GPU's speed to other hosts. [the GPU's usual]"
)
@click.option(
    "--devices",
    type=click.IntRange(1, 32),
    help="GPUs that the process sees. [1, or those of a host]",
)
@steps_option("End after so many optimizer steps.")
@click.option("--to-the-end", is_flag=True, help="Let the script end by itself.")
@click.option(
    "--until",
    metavar="TEXT",
    help="Leave it when its output has this. [what vllm and sglang print when they serve]",
)
@timeout_option("End it then.")
@click.option(
    "--pretend",
    multiple=True,
    callback=read_by(_pretences, BadInput),
    metavar="FILE:LINE=VALUE[,...]",
    help="What a line that looks at a value finds; the last value stays.",
)
@click.option(
    "--balanced-experts", is_flag=True, help="Routers send as many tokens to each expert."
)
@output_option("Write a profile for other commands.", required=False)
@click.option(
    "--fail-above", "limit", callback=size_option, metavar="SIZE", help="Exit 1 if it needs more."
)
@json_option("The result as JSON, in bytes and ns.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Rows a table.")
@exact_option
@click.option("-q", "--quiet", is_flag=True, help="Without progress and the script's output.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def simulate(
    command: tuple[str, ...],
    gpu: Gpu,
    memory: int | None,
    world_size: int | None,
    ranks: Ranks | None,
    executor: Callable[[], Any] | None,
    ranks_per_host: int | None,
    link: float | None,
    network: float | None,
    devices: int | None,
    steps: int | None,
    to_the_end: bool,
    until: str | None,
    timeout: float | None,
    pretend: tuple[str, ...],
    balanced_experts: bool,
    output: str | None,
    limit: int | None,
    as_json: bool,
    top: int,
    exact: bool,
    quiet: bool,
    listing: bool,
) -> None:
    """Tell how much device memory a CUDA script takes, without a GPU.

    COMMAND is what would run on the GPU, unchanged: python train.py ARGUMENT ...,
    -m MODULE ARGUMENT ..., or a program of pip's such as vllm serve .... It runs on a simulated
    device whose kernels compute nothing; torch's own allocator, autograd and compiler decide what
    is allocated. It ends after some optimizer steps, when its peak has stood still, or when it
    says that it serves (docs/simulate.md).

    Exit status: 0 if it fits, 1 if it does not or needs more than --fail-above, 2 if it cannot be
    simulated here, 3 if the script failed, 4 if too little was seen of it to say.
    """
    if listing:
        print_gpus(as_json)
        return
    with failures_in_words("simulate"):
        parsed = parse(command)
        if parsed.script is not None and not os.path.exists(parsed.script):
            raise BadInput(f"there is no {parsed.script}")
        jobs = jobs_of(world_size, ranks or (), ranks_per_host)
        if world_size is None and (link or network):
            raise BadInput("--link and --network are of a job of several ranks: --world-size N")
    if output is not None:
        if parsed.script is not None:
            keep_apart(output, [parsed.script])
        check_name(output)
        check_writable(output)
    if memory is not None:
        gpu = gpu.with_memory(memory)
    each = [
        Settings(
            gpu=gpu,
            steps=sys.maxsize if to_the_end else steps,
            until_still=not to_the_end,
            job=job,
            devices=devices or (job.ranks_per_host if job is not None else 1),
            timeout_s=timeout,
            quiet=quiet,
            pretend=pretend,
            balanced_experts=balanced_experts,
            link=link,
            network=network,
            until=until or ready_sign(parsed),
            directory=os.getcwd(),
        )
        for job in jobs
    ]
    with failures_in_words("simulate"):
        pool = executor() if executor is not None else None
        found = simulate_ranks(parsed, each, dict(os.environ), pool)
    if output is not None:
        write_profile_of(found, output)
    style = replace(style_of(sys.stdout), top=top, exact=exact)
    print_result(as_json, result_of(found, limit), lambda: render(found, style, limit))
    raise SystemExit(_status(found, limit))


def _status(found: list[Simulation], limit: int | None) -> int:
    if any(s.fits is False for s in found):
        return TOO_MUCH
    for s in found:
        failure, status = s.outcome.failure, s.outcome.status
        if failure is not None and not failure.out_of_memory:
            _print_error(failure.trace)
            first = failure.message.partition("\n")[0]
            _print_error(f"memprof simulate: the script failed: {failure.kind}: {visible(first)}")
            return FAILED
        if status:
            _print_error(f"memprof simulate: exit status {status}")
        if status or (s.account is None and not s.outcome.undecided):
            return FAILED
    needed = max(s.needed for s in found)
    if limit is not None and needed > limit:
        _print_error(
            f"memprof simulate: needs {format_bytes(needed)}, more than {format_bytes(limit)}"
        )
        return TOO_MUCH
    for s in found:
        if s.outcome.undecided:
            _print_error(f"memprof simulate: undecided: {s.outcome.undecided}")
            return UNDECIDED
    return 0
