"""``memprof export``, ``gantt``, ``merge``, ``schema``, ``enrich``: files made of profiles."""

from __future__ import annotations

import os
from collections import Counter

import click

from memprof.profiler.export import FORMATS, check_has_time, export_profile
from memprof.profiler.export.walk import Part
from memprof.profiler.file import profile_schema, read_profiles, write_profiles
from memprof.profiler.ranks import world_size
from memprof.profiler.report.format import format_bytes, shorten_path
from memprof.profiler.report.html import write_report
from memprof.profiler.snapshot.enrich import BARE, EAGER, Enriched, write_snapshot
from memprof.profiler.snapshot.enrich import enrich as enrich_snapshot
from memprof.profiler.snapshot.named import read_names, replayed
from memprof.profiler.snapshot.names import CodeNames
from memprof.profiler.snapshot.reading import is_pickle, read_snapshot
from memprof.views import devices_in

from ._common import (
    BadFile,
    calls_option,
    chosen_rank,
    file_argument,
    keep_apart,
    no_such_calls,
    output_option,
    page_option,
    page_path,
    print_json,
    print_line,
    print_page,
    read,
    shows_files,
)


@click.command()
@file_argument
@click.option(
    "--format",
    "-f",
    "format_",
    type=click.Choice(list(FORMATS)),
    required=True,
    help="; ".join(f"{name}: {says}" for name, says in FORMATS.items()) + ".",
)
@output_option("Where to; compressed if it ends in .gz.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    help="Whose memory, e.g. cuda:0; may be given again. Default: all.",
)
@calls_option
def export(
    file: str,
    format_: str,
    output: str,
    devices: tuple[str, ...],
    calls: tuple[int | None, int | None],
) -> None:
    """Write a profile in another tool's format.

    FILE is a profile written by memprof. What the formats contain, in which units:
    docs/exports.md.
    """
    keep_apart([output], [file], "--output")
    # One trace can show all ranks of a merged file; the other formats are of one process.
    several = format_ == "perfetto" and chosen_rank() is None
    profiles = read_profiles(file) if several else [read(file)]
    try:
        shown = devices_in(profiles, devices)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
    try:
        export_profile(profiles, format_, output, shown, *calls)
    except IndexError as e:
        raise no_such_calls(*profiles) from e
    print_line(f"{output}: {FORMATS[format_]}")


@click.command()
@file_argument
@page_option
@calls_option
def gantt(file: str, output: str | None, calls: tuple[int | None, int | None]) -> None:
    """Write the page of a report, opened at operations and calls over time.

    FILE is a profile written by memprof. Lanes are threads and asyncio tasks; bars are the
    tracker's operations and calls of compiled code, replays of graphs among them. With --calls
    these are in sight first.
    """
    page = page_path(output or "", file)
    keep_apart([page], [file], "--output")
    profile = read(file)
    try:
        check_has_time([profile], "bars are over time")
        shown = Part((), *calls).calls(profile)
        print_page(page, write_report(profile, page, source=file, calls=shown))
    except IndexError as e:
        raise no_such_calls(profile) from e


@click.command()
@click.argument("files", type=click.Path(), nargs=-1, required=True)
@output_option("Where to, e.g. job.memprof.")
def merge(files: tuple[str, ...], output: str) -> None:
    """Put the profiles of several ranks, or runs, into one file.

    `memprof report` then compares them; with --rank N it and the other commands look at one.
    """
    keep_apart([output], files, "--output")
    profiles = [profile for path in files for profile in read_profiles(path)]
    profiles.sort(key=lambda p: p.process.rank if p.process else 0)
    ranks = Counter(p.process.rank for p in profiles if p.process)
    if twice := [r for r, n in ranks.items() if n > 1]:
        raise BadFile(f"rank {twice[0]} comes from {ranks[twice[0]]} files: give each rank once")
    write_profiles(profiles, output)
    world = world_size(profiles)
    of = f"of a job of {_count(world, 'rank')}" if world else "of runs that are no ranks of a job"
    print_line(f"{output}: {_count(len(profiles), 'profile')} {of}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of exported profiles (memprof export -f json)."""
    print_json(profile_schema())


_FILES = 5
"""Files of generated code that no profile knows, named one by one."""


@click.command()
@click.argument("snapshot", type=click.Path())
@click.option(
    "--profile",
    "profiles",
    type=click.Path(),
    multiple=True,
    required=True,
    help="Of a run of the same code, by backend memprof; may be given again.",
)
@output_option("Where to, e.g. named.pickle; compressed if it ends in .gz.")
@click.option(
    "--mosaic",
    is_flag=True,
    help="Frames keep to name, file and line: mosaic's profiles take no other fields.",
)
@shows_files
def enrich(snapshot: str, profiles: tuple[str, ...], output: str, mosaic: bool) -> None:
    """Name what generated code allocated in a snapshot of torch's allocator.

    SNAPSHOT is what torch.cuda.memory._dump_snapshot wrote, in this run or another; nothing of it
    is executed. In OUT each frame of Inductor's code has its FX node, role, module and graph, in
    the places where memory_viz, mosaic and oomscope show them. Frames that no profile knows stay
    as they are.
    """
    keep_apart([output], [snapshot, *profiles], "--output")
    _keep_other_files(output)
    found = read_snapshot(snapshot)
    known = read_names(profiles)
    done = enrich_snapshot(found, CodeNames(known), fields=not mosaic)
    write_snapshot(found, output)
    for line in [*_said(done), *(said for _, said in replayed(found, known))]:
        print_line(line)
    print_line(f"{output}: {os.path.getsize(output) / 1e6:.1f} MB, for memory_viz and others")


def _keep_other_files(output: str) -> None:
    """Refuse to replace what is no snapshot: a program, a profile."""
    try:
        if not os.path.isfile(output):
            return
        with open(output, "rb") as file:
            begin = file.read(4096)
    except (OSError, ValueError):  # Writing it will say why.
        return
    if begin and not is_pickle(begin):
        raise click.BadParameter(
            f"{output} is there and is no snapshot: remove it, or give another path",
            param_hint="--output",
        )


def _said(done: Enriched) -> list[str]:
    lines = []
    graphs = dict.fromkeys([*done.frames, *done.events])
    for graph in sorted(graphs, key=lambda g: (-done.nbytes[g], -done.events[g])):
        frames, events = _count(done.frames[graph], "frame"), _count(done.events[graph], "event")
        lines.append(f"{graph}: {frames} named, in {_blocks(done, graph)} and {events}")
    if not lines:
        lines.append("Nothing was named: the profiles know none of its generated code")
    files = sorted(done.unnamed, key=lambda f: -done.nbytes[f])
    for file in files[:_FILES]:
        frames = _count(done.unnamed[file], "frame")
        lines.append(f"not known: {frames} of {shorten_path(file)}, in {_blocks(done, file)}")
    if rest := files[_FILES:]:
        lines.append(f"not known: {len(rest)} more files, in {_blocks(done, *rest)}")
    return [*lines, "; ".join(f"{whose}: {_blocks(done, whose)}" for whose in (EAGER, BARE))]


def _blocks(done: Enriched, *whose: str) -> str:
    count, nbytes = (sum(of[w] for w in whose) for of in (done.blocks, done.nbytes))
    return f"{_count(count, 'block')} of {format_bytes(nbytes)}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
