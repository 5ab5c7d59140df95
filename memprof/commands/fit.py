"""``memprof fit -- python SCRIPT``."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from memprof.profiler.support.text import visible
from memprof.profiler.views.report.format import format_bytes
from memprof.profiler.views.report.text_page import style_of
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import DEFAULT_GPU, Gpu, find_gpu
from memprof.what_if.fit.table import (
    Row,
    progress,
    render,
    rows as search_rows,
)
from memprof.what_if.fit.trials import Trial, render_trials, try_changes
from memprof.what_if.fit.tries import Tried, Tries
from memprof.what_if.fit.variables import Variable, check_places, parse_variable
from memprof.what_if.simulate.changes import (
    BUDGET_SETTING,
    CHANGES,
    WITHOUT_TIMING,
    change_of,
    parse_setting,
)
from memprof.what_if.simulate.command_line import BadInput
from memprof.what_if.simulate.parent import Settings, exits_on_signals

from ._common import (
    exact_option,
    json_option,
    print_result,
    read_by,
)
from .simulate import (
    SCRIPT_COMMAND,
    TOO_MUCH,
    executor_option,
    failures_in_words,
    list_gpus,
    other_memory,
    print_gpus,
    steps_option,
    timeout_option,
)

_NAME_AND_VALUE = "NAME=VALUE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Output of ``memprof fit --json``."""

    rows: list[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Output of ``memprof fit --try --json``; ``before`` is the program as it is."""

    gpu: Gpu
    before: Tried
    results: list[Trial]


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, what = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{visible(text)!r} is no {_NAME_AND_VALUE}")
        found[name] = what
    return found


def _torch_config(texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts:
        parse_setting(text)
    return _pairs(texts)


def _prices(value: str) -> dict[str, float]:
    pairs = _pairs(tuple(value.split(",")) if value else ())
    try:
        prices = {find_gpu(name).key: float(amount) for name, amount in pairs.items()}
    except ValueError as e:
        raise click.BadParameter(f"{visible(value)!r}: an amount is a number") from e
    if not all(0 < price < math.inf for price in prices.values()):
        raise click.BadParameter(f"{visible(value)!r}: an amount is more than 0")
    return prices


def _changes(value: str) -> tuple[str, ...]:
    texts = tuple(dict.fromkeys(value.split(",")))
    for text in texts:
        change_of(text)
    return texts


@click.command(context_settings=SCRIPT_COMMAND)
@click.option(
    "--gpu",
    "gpus",
    default=DEFAULT_GPU,
    show_default=True,
    callback=read_by(
        lambda names: tuple(find_gpu(n.strip()) for n in dict.fromkeys(names.split(","))),
        SimulationError,
    ),
    metavar="GPU[,GPU...]",
    help="Which GPUs, by names like a100-40gb.",
)
@list_gpus
@other_memory
@click.option(
    "--vary",
    "variables",
    multiple=True,
    callback=read_by(lambda texts: tuple(map(parse_variable, texts)), BadInput),
    metavar="NAME=VALUES",
    help="BATCH=1..256, BATCH=8..256:8 (the largest that fits is found) or SEQ=512,1024.",
)
@click.option(
    "--env",
    multiple=True,
    callback=read_by(_pairs),
    metavar=_NAME_AND_VALUE,
    help="An environment variable of the script.",
)
@click.option(
    "--torch-config",
    multiple=True,
    callback=read_by(_torch_config, BadInput),
    metavar="torch.….config.NAME=VALUE",
    help="A setting of torch.",
)
@click.option("--world-size", default="", metavar="N", help="Ranks of the job; rank 0 is run.")
@click.option(
    "--ranks-per-host", type=int, metavar="N", help="Ranks and GPUs of a host. [8, or all]"
)
@click.option("--devices", default="1", metavar="N", help="GPUs that a process alone sees. [1]")
@click.option(
    "--at-least-tokens",
    "tokens",
    type=click.IntRange(1),
    metavar="N",
    help="What a serving engine's cache must hold to fit.",
)
@click.option(
    "--best",
    type=click.Choice(["largest", "throughput"]),
    default="largest",
    show_default=True,
    help="Which value of a range: the largest that fits, or of those that were run the fastest.",
)
@click.option(
    "--price",
    "prices",
    default="",
    callback=read_by(_prices, SimulationError),
    metavar="GPU=AMOUNT[,...]",
    help="$ an hour, for what a million of the varied number costs.",
)
@click.option(
    "--try",
    "changes",
    callback=read_by(_changes, BadInput),
    is_flag=False,
    flag_value=",".join(CHANGES),
    metavar="[CHANGE,...]",
    help=f"Measure what saves memory: {', '.join(CHANGES)}, or those that are given, also "
    "checkpoint=CLASS and torch.….config.NAME=VALUE.",
)
@executor_option("What runs the tries, all rows at once")
@steps_option("End a try after so many optimizer steps.")
@timeout_option("Give up on a try then.")
@json_option("The rows as JSON, in bytes.")
@exact_option
@click.option("-q", "--quiet", is_flag=True, help="Without progress.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def fit(
    command: tuple[str, ...],
    gpus: tuple[Gpu, ...],
    memory: int | None,
    variables: tuple[Variable, ...],
    env: dict[str, str],
    torch_config: dict[str, str],
    world_size: str,
    ranks_per_host: int | None,
    devices: str,
    tokens: int | None,
    best: str,
    prices: dict[str, float],
    changes: tuple[str, ...] | None,
    executor: Callable[[], Any] | None,
    steps: int | None,
    timeout: float | None,
    as_json: bool,
    exact: bool,
    quiet: bool,
    listing: bool,
) -> None:
    """Find what fits: the largest batch, the smallest GPU.

    COMMAND is as for memprof simulate, with {NAME} where the value of a variable goes:

        memprof fit --gpu h100-80gb --vary BATCH=1..256 -- python train.py --batch-size {BATCH}

    One range is searched, in a few tries; each combination of lists and GPUs is a row. {NAME} may
    also stand in --env, --torch-config, --world-size and --devices. No value is reported that was
    not run on the simulated device, and the next larger one was seen not to fit.

        memprof fit --try -- python train.py

    runs the script as it is, then once with each change that could save memory, then with all that
    helped together, and says what each saved. Ended by a signal, it prints the rows that it has.

    Exit status: 0 if there is an answer in every row, or changes were tried, 1 if in some row
    nothing fits, 2 if it cannot be simulated here, 3 if the script failed, 4 if too little was seen
    of it to say.
    """
    if listing:
        print_gpus(as_json)
        return
    settings = Settings(
        gpu=gpus[0],
        steps=steps,
        timeout_s=timeout,
        quiet=True,
        count_flops=changes is not None or BUDGET_SETTING in torch_config,
    )
    if changes is not None:
        _check_try(gpus, variables)
        torch_config = {**WITHOUT_TIMING, **torch_config}
    unknown = prices.keys() - {gpu.key for gpu in gpus}
    if unknown or (prices and not any(v.is_range for v in variables)):
        raise click.UsageError("--price is of GPUs of --gpu, for --vary with a range: BATCH=1..256")
    if best == "throughput" and not any(v.is_range for v in variables):
        raise click.UsageError("--best throughput is for --vary with a range: BATCH=1..256")
    whole = changes is not None
    if whole and tokens is not None:
        raise click.UsageError("--at-least-tokens is for --vary, or for GPUs alone")
    tries = Tries(
        words=command,
        env=env,
        torch_config=torch_config,
        world_size=world_size,
        ranks_per_host=ranks_per_host,
        devices=devices,
        settings=settings,
        environment=os.environ,
        whole=whole,
    )
    if executor is not None:
        with failures_in_words("fit"):
            tries.executor = executor()
    example = "memprof fit --vary BATCH=1..256 -- python train.py --batch-size {BATCH}"
    if changes is not None:
        example = "memprof fit --try -- python train.py"
    if not command:
        raise click.UsageError(f"there is no script: {example}")
    with failures_in_words("fit"):
        check_places(variables, tries.texts)
    if memory is not None:
        gpus = tuple(gpu.with_memory(memory) for gpu in gpus)
    style = replace(style_of(sys.stdout), exact=exact)
    if changes is not None:
        before, trials, ended = _tried(gpus[0], changes, tries, quiet)
        measured = Trials(gpu=gpus[0], before=before, results=trials)
        print_result(
            as_json, measured, lambda: render_trials(gpus[0], before, trials, tries, style)
        )
        raise SystemExit(ended)

    def on_try(row: Row, tried: Tried) -> None:
        if not quiet:
            click.echo(visible(progress(row, tried)), err=True)

    with failures_in_words("fit"):
        found = search_rows(variables, gpus, tries, on_try, tokens, throughput=best == "throughput")
    print_result(
        as_json, Rows(rows=found), lambda: render(found, variables, tries.made, style, prices)
    )
    raise SystemExit(0 if all(row.best is not None for row in found) else TOO_MUCH)


def _check_try(gpus: tuple[Gpu, ...], variables: tuple[Variable, ...]) -> None:
    if variables:
        name = variables[0].name
        raise click.UsageError(
            f"--try is of one program: write a value into the command in place of {{{name}}}, and "
            "leave --vary out"
        )
    if len(gpus) > 1:
        keys = ", ".join(gpu.key for gpu in gpus)
        raise click.UsageError(f"--try is on one GPU: give one of {keys}")


def _tried(
    gpu: Gpu, changes: tuple[str, ...], tries: Tries, quiet: bool
) -> tuple[Tried, list[Trial], int]:
    """The program as it is, what came of each change, and the exit status: where a signal or a
    failure ended it early, these are the trials until then."""

    def on_try(name: str, tried: Tried | None) -> None:
        if not quiet:
            what = "failed" if tried is None else f"needs {format_bytes(tried.needed)}"
            click.echo(visible(f"memprof fit: {name}: {what}"), err=True)

    runs = try_changes(gpu, changes, tries, on_try)
    ended = 0
    with exits_on_signals():
        with failures_in_words("fit"):
            before, trials = next(runs)
        try:
            with failures_in_words("fit"):
                for _ in runs:
                    pass
        except SystemExit as e:
            ended = int(e.code or 0)
            click.echo("memprof fit: it ended early; this is what was tried", err=True)
    return before, trials, ended
