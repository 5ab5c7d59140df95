"""``memprof fit -- python SCRIPT``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import click

from memprof.fit.store import Tried
from memprof.fit.table import (
    BUDGET,
    BUDGET_SETTING,
    Budget,
    Row,
    budget_row,
    combinations,
    progress,
    render,
    render_budget,
)
from memprof.fit.table import rows as search_rows
from memprof.fit.tries import Plan, Tries
from memprof.fit.variables import BadVariable, Variable, check_places, parse_variable
from memprof.profiler._text import visible
from memprof.profiler.report.page import style_of
from memprof.simulate.parent import Settings, StandardInput
from memprof.simulate.torch_config import BadSetting, parse_setting
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import DEFAULT_GPU, Gpu, find_gpu

from ._common import print_json, print_text, read_by
from .simulate import (
    TOO_MUCH,
    failures_in_words,
    list_gpus,
    other_memory,
    refused_before,
    script_command,
    size_option,
    store_at,
    tries_options,
)

_NAME_AND_VALUE = "NAME=VALUE"


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


@script_command()
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
    "--keep-free", callback=size_option, metavar="SIZE", help="Take so much less for full."
)
@click.option(
    "--vary",
    "variables",
    multiple=True,
    callback=read_by(lambda texts: tuple(map(parse_variable, texts)), BadVariable),
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
    callback=read_by(_torch_config, BadSetting),
    metavar="torch.….config.NAME=VALUE",
    help="A setting of torch.",
)
@click.option("--world-size", default="", metavar="N", help="Ranks of the job; rank 0 is run.")
@click.option(
    "--ranks-per-host", type=int, metavar="N", help="Ranks and GPUs of a host. [8, or all]"
)
@click.option("--budget", is_flag=True, help="Find the largest activation memory budget that fits.")
@tries_options("rows")
def fit(
    command: tuple[str, ...],
    gpus: tuple[Gpu, ...],
    memory: int | None,
    keep_free: int | None,
    variables: tuple[Variable, ...],
    env: dict[str, str],
    torch_config: dict[str, str],
    world_size: str,
    ranks_per_host: int | None,
    budget: bool,
    steps: int,
    timeout: float | None,
    output: str | None,
    as_data: bool,
    exact: bool,
    quiet: bool,
) -> None:
    """Find what fits: the largest batch, the smallest GPU, the cheapest recomputation.

    COMMAND is as for memprof simulate, with {NAME} where the value of a variable goes:

        memprof fit --gpu h100-80gb --vary BATCH=1..256 -- python train.py --batch-size {BATCH}

    One range is searched, in a few tries; each combination of lists and GPUs is a row. {NAME} may
    also stand in --env, --torch-config and --world-size. No value is reported that was not run on
    the simulated device, and the next larger one was seen not to fit.

    Exit status: 0 if there is an answer in every row, 1 if in some row nothing fits, 2 if it cannot
    be simulated here, 3 if the script failed.
    """
    settings = Settings(
        gpu=gpus[0],
        steps=steps,
        timeout_s=timeout,
        quiet=True,
        count_flops=budget,
        input=StandardInput(),
    )
    if budget:
        if any(v.is_range or v.name == BUDGET for v in variables):
            raise click.UsageError("--budget is a range already: give other variables as lists")
        torch_config = {**torch_config, BUDGET_SETTING: f"{{{BUDGET}}}"}
    plan = Plan(command, env, torch_config, world_size, ranks_per_host, settings, whole=budget)
    example = "memprof fit --vary BATCH=1..256 -- python train.py --batch-size {BATCH}"
    with refused_before(command, example):
        check_places(variables, plan.texts)
        store = store_at(output, command)
    less = keep_free or 0
    if any((memory or gpu.memory) <= less for gpu in gpus):
        raise click.UsageError("--keep-free leaves nothing of the memory")
    gpus = tuple(gpu.with_memory((memory or gpu.memory) - less) for gpu in gpus)
    tries = Tries(plan, store, os.environ)
    found: list[Row] = []
    budgets: list[Budget] = []

    def said(row: Row, tried: Tried) -> None:
        if not quiet:
            click.echo(visible(progress(row, tried)), err=True)

    with failures_in_words("fit", output):
        if budget:
            budgets = [
                budget_row(gpu, values, tries, said)
                for gpu in gpus
                for values in combinations(variables)
            ]
            found = [b.row for b in budgets]
        else:
            found = search_rows(variables, gpus, tries, said)
    if as_data:
        print_json(_data(found, budgets))
    else:
        style = replace(style_of(sys.stdout), exact=exact)
        text = "\n".join(render_budget(b, tries.made, tries.known, style) for b in budgets)
        print_text(text or render(found, variables, tries.made, tries.known, style))
    raise SystemExit(0 if all(row.best is not None for row in found) else TOO_MUCH)


def _data(found: Sequence[Row], budgets: Sequence[Budget]) -> dict[str, object]:
    rows: list[dict[str, object]] = [
        {
            "gpu": row.gpu.key,
            "memory_bytes": row.gpu.memory,
            "values": row.values,
            "best": row.best,
            "failed": row.failed,
            "tries": row.tries,
        }
        for row in found
    ]
    for shown, of in zip(rows, budgets, strict=False):
        shown["monotonic"] = of.monotonic
        shown["recomputed"] = {t.values[BUDGET]: of.recomputed(t) for t in of.curve}
    return {"rows": rows}
