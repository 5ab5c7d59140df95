"""``memprof top [FILE | FOLDER]``."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import click

from memprof.profiler.running_job import JobFile, Present, Writer
from memprof.profiler.support.writing import is_locked
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.section import EVERY, Section, Table
from memprof.profiler.views.report.sections.about import of_growth
from memprof.profiler.views.report.text import render
from memprof.profiler.views.report.text_page import style_of

from ._common import (
    BadFile,
    json_option,
    print_json,
    print_text,
    read_by,
    seconds,
    shows_files,
)

_SUFFIX = ".memprof"
_MOST_GROWTH = 3


@click.command()
@click.argument("target", default=".")
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 1e7),
    callback=read_by(seconds),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@json_option()
@shows_files
def top(target: str, once: bool, interval: float, as_json: bool) -> None:
    """Show what a running job does: its devices now and at most, what grows, steps a second.

    TARGET is the file that memprof.profile(PATH) or a tracker writes, or a folder: of the files in
    it those that are being written, several ranks below each other. It reads these files alone, so
    the job does no more than without: what is shown is as old as the last that was written, which a
    column says. It ends with the job: with 0, or with 1 if the job died without an end; Ctrl+C ends
    it with 130. With --json each look is a line.
    """
    watches = [JobFile(path) for path in files_of(target)]
    try:
        while True:
            found = [watch.look() for watch in watches]
            if as_json:
                print_json(found, indent=0)
            else:
                if not once:
                    click.clear()
                print_text(_frame(found))
            sys.stdout.flush()
            if once:
                return
            if all(p.writer in (Writer.ENDED, Writer.DIED) for p in found):
                break
            time.sleep(interval)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    if any(p.writer is Writer.DIED for p in found):
        raise click.exceptions.Exit(1)


def _frame(found: list[Present]) -> str:
    style = replace(style_of(sys.stdout), short=True)
    columns = (
        col.Code("file"),
        col.Text("state"),
        col.Ns("age"),
        col.Figure("steps/s"),
        col.Text("device"),
        *col.alike(col.Bytes, "reserved", "most", "allocated", "most"),
    )
    rows: list[col.Row] = []
    for p in found:
        state = "stalled?" if p.stalled else p.writer.value
        rate = f"{p.rate:.3g}" if p.rate is not None else None
        about: col.Row = (os.path.basename(p.path), state, p.age_ns, rate)
        for d in p.devices:
            memory = (d.device, d.reserved, d.most_reserved, d.allocated, d.most_allocated)
            rows.append((*about, *memory))
            about = ("",) * len(about)
        if not p.devices:
            rows.append((*about, "-", *(None,) * 4))
    sections = [Section("", "", tables=(Table(columns, rows, least=EVERY, brief=EVERY),))]
    for p in found:
        grows = of_growth(p.grows, style.show, _MOST_GROWTH)
        if grows:
            sections.append(replace(grows, title=f"{os.path.basename(p.path)}: {grows.title}"))
    return render(sections, style)


def files_of(target: str) -> list[str]:
    """The profile files that ``target`` means; raises ``BadFile`` if there are none."""
    if not os.path.isdir(target):
        return [target]
    every = sorted(str(p) for p in Path(target).glob(f"*{_SUFFIX}") if p.is_file())
    if not every:
        raise BadFile(f"{target}: no {_SUFFIX} file is in this folder")
    written = [path for path in every if is_locked(path)]
    return written or [max(every, key=lambda path: os.stat(path).st_mtime)]
