"""``memprof advise -- python SCRIPT``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click

from memprof.fit.advice import advise as try_changes
from memprof.fit.advice import render_advice
from memprof.fit.store import Store, Tried
from memprof.fit.tries import Plan, Tries
from memprof.profiler._text import visible
from memprof.profiler.report.format import format_bytes
from memprof.profiler.report.terminal import style_of
from memprof.simulate.changes import CHANGES
from memprof.simulate.parent import Settings
from memprof.simulated_cuda.gpus import DEFAULT_GPU, Gpu

from ._common import OutputPath, keep_apart, print_json, print_text
from ._tries import failures_in_words, refused_before
from .simulate import gpu_option, list_gpus, size_option


def _changes(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    keys = tuple(CHANGES) if value is None else tuple(dict.fromkeys(value.split(",")))
    for key in keys:
        if key not in CHANGES:
            raise click.BadParameter(f"{visible(key)!r} is none of {', '.join(CHANGES)}")
    return keys


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--gpu",
    default=DEFAULT_GPU,
    show_default=True,
    callback=gpu_option,
    help="Which GPU, by a name like a100-40gb.",
)
@list_gpus
@click.option("--memory", callback=size_option, metavar="SIZE", help="Another total: 80GiB, 24GB.")
@click.option(
    "--try",
    "changes",
    callback=_changes,
    metavar="CHANGE[,CHANGE...]",
    help=f"Some of them: {', '.join(CHANGES)}.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="End a try after so many optimizer steps.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, 1e7, min_open=True),
    metavar="SECONDS",
    help="Give up on a try then.",
)
@click.option(
    "-o", "--output", type=OutputPath(), help="Keep tries there, as JSON, and go on from them."
)
@click.option("--json", "as_data", is_flag=True, help="The results as JSON, in bytes.")
@click.option("--bytes", "exact", is_flag=True, help="Bytes with all digits.")
@click.option("-q", "--quiet", is_flag=True, help="Without progress.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
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
    # Of what comes from that cache, nobody counts operations.
    environment = {"TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    plan = Plan(command, environment, {}, "", None, settings, whole=True)
    with refused_before(command, "memprof advise -- python train.py"):
        if output is not None:
            keep_apart([output], [word for word in command if os.path.isfile(word)], "--output")
        tries = Tries(plan, Store(output), os.environ)
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
