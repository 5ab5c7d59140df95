"""``memprof advise -- python SCRIPT``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click

from memprof.fit.advice import Trial, render_advice, trials_of
from memprof.fit.advice import advise as try_changes
from memprof.fit.store import Tried
from memprof.fit.tries import Plan, Tries
from memprof.profiler._text import visible
from memprof.profiler.advice import Finding
from memprof.profiler.advice import advise as find
from memprof.profiler.frames import MAGIC
from memprof.profiler.model import Profile
from memprof.profiler.report.format import format_bytes
from memprof.profiler.report.page import style_of
from memprof.simulate.changes import CHANGES, GENERAL, BadChange, change_of
from memprof.simulate.parent import Settings, StandardInput
from memprof.simulate.torch_config import WITHOUT_TIMING
from memprof.simulated_cuda.gpus import Gpu

from ._common import BadFile, print_json, print_text, read, read_by
from .simulate import (
    failures_in_words,
    list_gpus,
    one_gpu,
    other_memory,
    refused_before,
    script_command,
    store_at,
    tries_options,
)

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
    callback=read_by(_changes, BadChange),
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

        memprof advise run.memprof --try -- python train.py

    tries what the report of a profile finds: the estimate of each finding stands beside what it
    saved. Without COMMAND it is what the run-time tracker has recorded in the profile.

    Exit status: 0 if it was tried, 2 if it cannot be simulated here, 3 if the script failed as it
    is.
    """
    settings = Settings(
        gpu=gpu, steps=steps, timeout_s=timeout, quiet=True, count_flops=True, input=StandardInput()
    )
    wanted = [Trial(text) for text in changes or ()]
    untried: list[Finding] = []
    path = click.get_current_context().meta.get("profile")
    if path is not None:
        profile = read(path)
        command = command or _recorded(path, profile)
        of_findings, untried = trials_of(find(profile))
        wanted = [
            *of_findings,
            *(t for t in wanted if all(t.change != f.change for f in of_findings)),
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

    with failures_in_words("advise", output):
        found = try_changes(gpu, wanted or [Trial(k) for k in GENERAL], tries, said, untried)
    if as_data:
        rows = [
            {
                "changes": r.changes,
                "finding": r.title,
                "estimate": r.estimate,
                "at_most": r.at_most,
                "saved": found.saved(r),
                "saved_allocated": found.saved_allocated(r),
                "recomputed": found.more_flops(r),
                "idle": r.idle,
                "problem": r.problem,
                "tried": r.tried,
            }
            for r in found.results
        ]
        print_json({"gpu": gpu, "before": found.before, "results": rows, "untried": found.untried})
    else:
        style = replace(style_of(sys.stdout), exact=exact)
        print_text(render_advice(found, tries.made, tries.known, style))


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
