"""``memprof fit -- python SCRIPT``, and ``memprof advise -- python SCRIPT``."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import replace

import click

from memprof.fit.advice import Trial, render_advice, trials_of
from memprof.fit.advice import advise as try_changes
from memprof.fit.table import (
    BUDGET,
    BUDGET_SETTING,
    Row,
    budget_row,
    combinations,
    progress,
    render,
    render_budget,
)
from memprof.fit.table import rows as search_rows
from memprof.fit.tries import Plan, Tried, Tries
from memprof.fit.variables import Variable, check_places, parse_variable
from memprof.profiler._text import visible
from memprof.profiler.advice import Finding
from memprof.profiler.advice import advise as find
from memprof.profiler.frames import MAGIC
from memprof.profiler.model import Profile
from memprof.profiler.report.format import format_bytes
from memprof.profiler.report.page import style_of
from memprof.simulate.changes import (
    CHANGES,
    GENERAL,
    WITHOUT_TIMING,
    change_of,
    parse_setting,
)
from memprof.simulate.command_line import BadInput
from memprof.simulate.parent import Settings, StandardInput, exits_on_signals
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import DEFAULT_GPU, Gpu, find_gpu

from ._common import BadFile, print_json, print_text, read, read_by
from .simulate import (
    TOO_MUCH,
    failures_in_words,
    list_gpus,
    one_gpu,
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
    steps: int | None,
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
    be simulated here, 3 if the script failed, 4 if too little was seen of it to say.
    """
    settings = Settings(
        gpu=gpus[0],
        steps=steps,
        timeout_s=timeout,
        quiet=True,
        count_flops=budget or BUDGET_SETTING in torch_config,
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

    def said(row: Row, tried: Tried) -> None:
        if not quiet:
            click.echo(visible(progress(row, tried)), err=True)

    with failures_in_words("fit", output):
        if budget:
            rows = itertools.product(gpus, combinations(variables))
            found = [budget_row(gpu, values, tries, said) for gpu, values in rows]
        else:
            found = search_rows(variables, gpus, tries, said)
    style = replace(style_of(sys.stdout), exact=exact)
    counts = tries.made, tries.known
    if as_data:
        print_json({"rows": [_row(row, budget) for row in found]})
    elif budget:
        print_text("\n".join(render_budget(row, *counts, style) for row in found))
    else:
        print_text(render(found, variables, *counts, style))
    raise SystemExit(0 if all(row.best is not None for row in found) else TOO_MUCH)


def _row(row: Row, budget: bool) -> dict[str, object]:
    shown: dict[str, object] = {
        "gpu": row.gpu.key,
        "memory_bytes": row.gpu.memory,
        "values": row.values,
        "best": row.best,
        "failed": row.failed,
        "tries": row.tries,
    }
    if budget:
        shown["monotonic"] = row.monotonic
        shown["recomputed"] = {t.values[BUDGET]: row.recomputed(t) for t in row.curve}
    return shown


_FINDINGS = "findings"
"""What ``--try`` alone means with a profile; without one, every general change."""


class _WithProfile(click.Command):
    """``advise [OPTION...] [PROFILE [OPTION...]] -- COMMAND``: the first word may be a profile."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        rest = values.get("command")
        # Where there is no word, click has a value of its own.
        if isinstance(rest, (tuple, list)) and rest and _is_profile(rest[0]):
            ctx.meta["profile"] = rest[0]
            args = [*args[: len(args) - len(rest)], *rest[1:]]
        return super().parse_args(ctx, args)


def _is_profile(word: str) -> bool:
    try:
        with open(word, "rb") as f:
            return f.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _changes(value: str) -> tuple[str, ...]:
    texts = () if value == _FINDINGS else tuple(dict.fromkeys(value.split(",")))
    for text in texts:
        change_of(text)
    return texts


@script_command(_WithProfile)
@one_gpu
@list_gpus
@other_memory
@click.option(
    "--try",
    "changes",
    callback=read_by(_changes, BadInput),
    is_flag=False,
    flag_value=_FINDINGS,
    metavar="[CHANGE,...]",
    help=f"Some of them: {', '.join(CHANGES)}. With a profile, alone: its findings.",
)
@tries_options("results")
def advise(
    command: tuple[str, ...],
    gpu: Gpu,
    memory: int | None,
    changes: tuple[str, ...] | None,
    steps: int | None,
    timeout: float | None,
    output: str | None,
    as_data: bool,
    exact: bool,
    quiet: bool,
) -> None:
    """Try what could save memory, and say what did.

    COMMAND is as for memprof simulate. The script runs as it is, then once with each change, made
    from outside by hooks and settings, then with all that helped together.

        memprof advise run.memprof --try -- python train.py

    tries what the report of a profile finds: the estimate of each finding stands beside what it
    saved. Without COMMAND it is what the run-time tracker has recorded in the profile.

    Exit status: 0 if it was tried, 2 if it cannot be simulated here, 3 if the script failed as it
    is, 4 if too little was seen of it. Ended by a signal, it prints what it has.
    """
    settings = Settings(
        gpu=gpu, steps=steps, timeout_s=timeout, quiet=True, count_flops=True, input=StandardInput()
    )
    wanted = [Trial((text,)) for text in changes or ()]
    untried: list[Finding] = []
    path = click.get_current_context().meta.get("profile")
    if path is not None:
        profile = read(path)
        command = command or _recorded(path, profile)
        of_findings, untried = trials_of(find(profile))
        wanted = [
            *of_findings,
            *(t for t in wanted if all(t.changes != f.changes for f in of_findings)),
        ]
        if not wanted:
            for finding in untried:
                click.echo(visible(f"not to be tried from outside: {finding.title}"), err=True)
            raise BadFile(f"{path}: its report finds nothing that memprof could try")
    plan = Plan(command, {}, WITHOUT_TIMING, "", None, settings, whole=True)
    with refused_before(command, "memprof advise -- python train.py"):
        tries = Tries(plan, store_at(output, command), os.environ)
    if memory is not None:
        gpu = gpu.with_memory(memory)

    def said(name: str, tried: Tried | None) -> None:
        if not quiet:
            what = "failed" if tried is None else f"needs {format_bytes(tried.needed)}"
            click.echo(visible(f"memprof advise: {name}: {what}"), err=True)

    wanted = wanted or [Trial((key,)) for key in GENERAL]
    runs = try_changes(gpu, wanted, tries, said)
    ended = 0
    with exits_on_signals():
        with failures_in_words("advise", output):
            before, trials = next(runs)
        try:
            with failures_in_words("advise", output):
                for _ in runs:
                    pass
        except SystemExit as e:
            ended = int(e.code or 0)
            click.echo("memprof advise: it ended early; this is what was tried", err=True)
    if as_data:
        rows = [
            {
                "changes": r.changes,
                "finding": r.title,
                "estimate": r.estimate,
                "at_most": r.at_most,
                "saved": r.saved,
                "saved_allocated": r.saved_allocated,
                "recomputed": r.recomputed,
                "idle": r.idle,
                "problem": r.problem,
                "tried": r.tried,
            }
            for r in trials
        ]
        print_json({"gpu": gpu, "before": before, "results": rows, "untried": untried})
    else:
        style = replace(style_of(sys.stdout), exact=exact)
        print_text(render_advice(gpu, before, trials, untried, tries, style))
    raise SystemExit(ended)


def _recorded(path: str, profile: Profile) -> tuple[str, ...]:
    """The command of a profile.

    Raises:
        click.UsageError: it has none.
    """
    recorded = profile.tracker.metadata.command if profile.tracker is not None else ()
    if not recorded:
        raise click.UsageError(
            visible(f"{path} has no command: memprof advise {path} --try -- python train.py")
        )
    return recorded
