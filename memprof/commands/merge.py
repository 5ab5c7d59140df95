"""``memprof merge FILES... -o OUT``."""

from __future__ import annotations

from collections import Counter

import click

from memprof.profiler.file import read_profiles, write_profiles

from ._common import BadFile, keep_apart, output_option, print_line


@click.command()
@click.argument("files", type=click.Path(), nargs=-1, required=True)
@output_option("Where to, e.g. job.memprof.")
def merge(files: tuple[str, ...], output: str) -> None:
    """Put the profiles of several ranks into one file.

    `memprof report` then compares the ranks; with --rank N it and the other commands look at one.
    """
    keep_apart([output], files, "--output")
    profiles = [profile for path in files for profile in read_profiles(path)]
    profiles.sort(key=lambda p: p.process.rank if p.process else 0)
    ranks = Counter(p.process.rank for p in profiles if p.process)
    if twice := [r for r, n in ranks.items() if n > 1]:
        raise BadFile(f"rank {twice[0]} comes from {ranks[twice[0]]} files: give each rank once")
    write_profiles(profiles, output)
    world = max((p.process.world_size for p in profiles if p.process), default=len(profiles))
    print_line(f"{output}: {len(profiles)} profiles, of {world} ranks")
