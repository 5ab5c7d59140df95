"""``memprof advise -- python SCRIPT``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click

from memprof.fit.advice import advise as try_changes
from memprof.fit.advice import render_advice
from memprof.fit.store import Tried
from memprof.fit.tries import Plan, Tries
from memprof.profiler._text import visible
from memprof.profiler.report.format import format_bytes
from memprof.profiler.report.terminal import style_of
from memprof.simulate.changes import CHANGES
from memprof.simulate.parent import Settings
from memprof.simulated_cuda.gpus import Gpu

from ._common import print_json, print_text
from ._tries import failures_in_words, refused_before, store_at, tries_options
from .simulate import list_gpus, one_gpu, other_memory, script_command


def _changes(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    keys = tuple(CHANGES) if value is None else tuple(dict.fromkeys(value.split(",")))
    for key in keys:
        if key not in CHANGES:
            raise click.BadParameter(f"{visible(key)!r} is none of {', '.join(CHANGES)}")
    return keys


@script_command
@one_gpu
@list_gpus
@other_memory
@click.option(
    "--try",
    "changes",
    callback=_changes,
    metavar="CHANGE[,CHANGE...]",
    help=f"Some of them: {', '.join(CHANGES)}.",
)
@tries_options("results")
def advise(
    command: tuple[str, ...],
    gpu: Gpu,
    memory: int | None,
    changes: tuple[str, ...],
    steps: int,
    timeout: float | None,
    output: str | None,
    as_data: bool,
    exact: bool,
    quiet: bool,
) -> None:
    """Try what could save memory, and say what did.

    COMMAND is as for memprof simulate. The script runs as it is, then once with each change, made
    from outside by hooks and settings, then with all that helped together.

    Exit status: 0 if it was tried, 2 if it cannot be simulated here, 3 if the script failed as it
    is.
    """
    settings = Settings(gpu=gpu, steps=steps, timeout_s=timeout, quiet=True, count_flops=True)
    plan = Plan(command, {}, {}, "", None, settings, whole=True)
    with refused_before(command, "memprof advise -- python train.py"):
        tries = Tries(plan, store_at(output, command), os.environ)
    if memory is not None:
        gpu = gpu.with_memory(memory)

    def said(name: str, tried: Tried | None) -> None:
        if not quiet:
            what = "failed" if tried is None else f"needs {format_bytes(tried.needed)}"
            click.echo(visible(f"memprof advise: {name}: {what}"), err=True)

    with failures_in_words("advise", output):
        found = try_changes(gpu, changes, tries, said)
    if as_data:
        rows = [
            {
                "changes": r.changes,
                "saved": found.saved(r),
                "recomputed": found.more_flops(r),
                "idle": r.idle,
                "problem": r.problem,
                "tried": r.tried,
            }
            for r in found.results
        ]
        print_json({"gpu": gpu, "before": found.before, "results": rows})
    else:
        style = replace(style_of(sys.stdout), exact=exact)
        print_text(render_advice(found, tries.made, tries.known, style))
