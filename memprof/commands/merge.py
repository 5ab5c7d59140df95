"""``memprof merge OUT FILES...``."""

from __future__ import annotations

from collections import Counter

import click

from memprof.profiler.errors import ProfileError
from memprof.profiler.file import read_profiles, streams, write_profiles
from memprof.profiler.model import Profile
from memprof.profiler.ranks import ranks_of

from ._common import BadFile, keep_apart, print_line, read_all


@click.command()
@click.argument("out", type=click.Path())
@click.argument("files", type=click.Path(), nargs=-1, required=True)
def merge(out: str, files: tuple[str, ...]) -> None:
    """Put the profiles of several ranks into one file, OUT, which ends in .memprof.

    `memprof report OUT` compares the ranks; with --rank N it and the other commands look at one.
    """
    if not streams(out):
        raise click.BadParameter(
            f"{out}: a merged file is a stream, so its name ends in .memprof", param_hint="OUT"
        )
    keep_apart([out], files, "OUT")
    profiles = [profile for path in files for profile in read_all(path)]
    profiles.sort(key=lambda p: p.process.rank if p.process else 0)
    ranks = Counter(p.process.rank for p in profiles if p.process)
    if twice := [r for r, n in ranks.items() if n > 1]:
        raise BadFile(f"rank {twice[0]} comes from {ranks[twice[0]]} files: give each rank once")
    _check_kept(out, profiles)
    try:
        write_profiles(profiles, out)
    except ProfileError as e:
        raise BadFile(str(e)) from e
    world = max((p.process.world_size for p in profiles if p.process), default=len(profiles))
    print_line(f"{out}: {len(profiles)} profiles, of {world} ranks")


def _check_kept(out: str, profiles: list[Profile]) -> None:
    """Whoever forgets OUT has the first rank's own file in its place.

    Raises:
        BadFile: ``out`` is there and has a rank that none of ``profiles`` is of.
    """
    try:
        there = ranks_of(read_profiles(out))
    except ProfileError:
        return
    if lost := sorted({*there} - {*ranks_of(profiles)}):
        raise BadFile(
            f"{out}: it holds rank {lost[0]}, which no FILE has, and would be overwritten: "
            "give the file to write first"
        )
