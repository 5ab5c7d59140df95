"""``memprof top [PID | FILE | FOLDER]``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from memprof.profiler.model.running_job import Present, Writer
from memprof.profiler.running_job import JobFile
from memprof.profiler.support.writing import is_locked
from memprof.profiler.views.report.page import style_of
from memprof.profiler.views.report.sections.processes import of_present
from memprof.profiler.views.report.text import render

from ._common import BadFile, print_text, read_by, seconds, shows_files

_SUFFIX = ".memprof"
_TOP = 6
"""Rows of a table: a frame is to fit a small terminal."""


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
@shows_files
def top(target: str, once: bool, interval: float) -> None:
    """Show what a running job does: its devices now and at most, what grows, steps a second.

    TARGET is the file that memprof.profile(PATH) or a tracker writes, a folder (of the files in it
    those that are being written; several ranks stand side by side), or the number of a process of
    yours. It reads that file alone, so the job does no more than without: what is shown is as old
    as the last that was written, which the first line says. It ends with the job: with 0, or with
    1 if the job died without an end; Ctrl+C ends it with 130.
    """
    watches = [JobFile(path) for path in files_of(target)]
    try:
        if once:
            print_text(_frame([watch.look() for watch in watches]))
            return
        show = _live if sys.stdout.isatty() else _plain
        found = show(_looks(watches, interval))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    if any(p.writer is Writer.DIED for p in found):
        raise click.exceptions.Exit(1)


def files_of(target: str) -> list[str]:
    """The profile files that ``target`` means; raises ``BadFile`` if there are none."""
    if target.isdecimal() and not os.path.exists(target):
        found = sorted(_written_by(int(target)))
        if not found:
            raise BadFile(
                f"process {target} writes no profile: memprof.profile(PATH), memprof.track() or "
                "memprof run makes one; of another user's process it cannot be seen"
            )
        return found
    if not os.path.isdir(target):
        return [target]
    every = sorted(str(p) for p in Path(target).glob(f"*{_SUFFIX}") if p.is_file())
    if not every:
        raise BadFile(f"{target}: no {_SUFFIX} file is in this folder")
    written = [path for path in every if is_locked(path)]
    return written or [max(every, key=lambda path: os.stat(path).st_mtime)]


def _written_by(pid: int) -> Iterator[str]:
    """Profiles that a process has open, as the system tells."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError as e:
        raise BadFile(f"process {pid}: {e.strerror or e}") from e
    for name in names:
        try:
            path = os.readlink(os.path.join(folder, name))
        except OSError:  # It has been closed meanwhile.
            continue
        if path.endswith(_SUFFIX) and os.path.isfile(path):
            yield path


def _frame(found: list[Present]) -> str:
    style = replace(style_of(sys.stdout), top=_TOP)
    return render(of_present(found, style.show), style)


def _looks(watches: list[JobFile], interval: float) -> Iterator[list[Present]]:
    """Yields what there is to see, until all have ended."""
    while True:
        found = [watch.look() for watch in watches]
        yield found
        if all(p.writer in (Writer.ENDED, Writer.DIED) for p in found):
            return
        time.sleep(interval)


def _plain(looks: Iterator[list[Present]]) -> list[Present]:
    """A frame after the other, for what is no terminal."""
    found = next(looks)
    print_text(_frame(found))
    sys.stdout.flush()
    for found in looks:
        print_text("\n" + _frame(found))
        sys.stdout.flush()
    return found


def _live(looks: Iterator[list[Present]]) -> list[Present]:
    """One frame that changes in its place."""
    found = next(looks)
    text = Text.from_ansi(_frame(found))
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(text, console=console, auto_refresh=False, transient=False) as live:
        for found in looks:
            live.update(Text.from_ansi(_frame(found)), refresh=True)
    return found
