"""``memprof export``: files made of profiles."""

from __future__ import annotations

import os
from collections import Counter

import click

from memprof.profiler.file.profile_file import profile_schema, write_profiles
from memprof.profiler.sources.snapshot.enrich import BARE, EAGER, Enriched, write_snapshot
from memprof.profiler.sources.snapshot.enrich import enrich as enrich_snapshot
from memprof.profiler.sources.snapshot.named import read_names, read_profiles_or_snapshot
from memprof.profiler.sources.snapshot.names import CodeNames
from memprof.profiler.sources.snapshot.reading import is_pickle, read_snapshot
from memprof.profiler.verbs import devices_in
from memprof.profiler.views.compare.ranks import world_size
from memprof.profiler.views.export import FORMATS, export_profile
from memprof.profiler.views.report.format import format_bytes, shorten_path

from ._common import (
    BadFile,
    calls_option,
    chosen_rank,
    keep_apart,
    no_such_calls,
    output_option,
    print_json,
    print_line,
    rank_option,
    read,
    says_that_it_works,
    shows_files,
)

_FORMATS = {
    **FORMATS,
    "mosaic": "of a snapshot: frames keep to name, file and line, as mosaic wants them",
    "memprof": "profiles of the ranks of a job in one file, for memprof report",
}


def _print_schema(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        print_json(profile_schema())
        context.exit()


@click.command()
@click.argument("files", type=click.Path(), nargs=-1, required=True)
@rank_option
@click.option(
    "--format",
    "-f",
    "format_",
    type=click.Choice(list(_FORMATS)),
    required=True,
    help="; ".join(f"{name}: {purpose}" for name, purpose in _FORMATS.items()) + ".",
)
@output_option("Where to; compressed if it ends in .gz.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    help="Whose memory, e.g. cuda:0; may be given again. Default: all.",
)
@calls_option("Default: all.")
@click.option(
    "--profile",
    "names",
    type=click.Path(),
    multiple=True,
    help="Of a run of the same code: names what generated code allocated in a snapshot. May be "
    "given again.",
)
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of profiles in the format json, and end.",
)
@shows_files
@says_that_it_works
def export(
    files: tuple[str, ...],
    format_: str,
    output: str,
    devices: tuple[str, ...],
    calls: tuple[int | None, int | None] | None,
    names: tuple[str, ...],
) -> None:
    """Write a profile in another tool's format, or those of several ranks into one file.

    FILES is a profile written by memprof; with -f memprof it is several, one a rank. What
    the formats contain, in which units: docs/exports.md.

    With --profile it is a snapshot that torch.cuda.memory._dump_snapshot wrote, in this run or
    another, of which nothing is executed. Each of its frames of Inductor's code gets its FX node,
    role, module and graph, in the places where memory_viz, mosaic and oomscope show them. Frames
    that no profile knows stay as they are.
    """
    keep_apart([output], [*files, *names], "--output")
    if (format_ == "memprof" or names) and devices:
        raise click.UsageError(f"--device chooses nothing in {format_}: leave it out")
    if format_ not in ("perfetto", "memory-viz") and calls is not None:
        raise click.UsageError(f"--calls is of perfetto and memory-viz: {format_} has all calls")
    if format_ == "memprof":
        _merge(files, output)
        return
    if len(files) > 1:
        raise click.UsageError(f"{format_} is of one file: -f memprof puts several into one")
    if names:
        _name(files[0], format_, names, output)
        return
    if format_ == "mosaic":
        raise click.UsageError(
            "mosaic is of a snapshot: memprof export SNAPSHOT -f mosaic --profile FILE -o OUT"
        )
    # One trace can show all ranks of a merged file; the other formats are of one process.
    several = format_ == "perfetto" and chosen_rank() is None
    profiles = read_profiles_or_snapshot(files[0]) if several else [read(files[0])]
    try:
        shown = devices_in(profiles, devices)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
    try:
        export_profile(profiles, format_, output, shown, *(calls or ()))
    except IndexError as e:
        raise no_such_calls(*profiles) from e
    print_line(f"{output}: {FORMATS[format_]}")


def _merge(files: tuple[str, ...], output: str) -> None:
    """Put the profiles of several ranks, or runs, into one file."""
    profiles = [profile for path in files for profile in read_profiles_or_snapshot(path)]
    profiles.sort(key=lambda p: p.process.rank if p.process else 0)
    ranks = Counter(p.process.rank for p in profiles if p.process)
    if twice := [r for r, n in ranks.items() if n > 1]:
        raise BadFile(f"rank {twice[0]} comes from {ranks[twice[0]]} files: give each rank once")
    write_profiles(profiles, output)
    world = world_size(profiles)
    of = f"of a job of {_count(world, 'rank')}" if world else "of runs that are no ranks of a job"
    print_line(f"{output}: {_count(len(profiles), 'profile')} {of}")


def _name(snapshot: str, format_: str, names: tuple[str, ...], output: str) -> None:
    """Write a snapshot whose frames have the names that profiles know."""
    if format_ not in ("memory-viz", "mosaic"):
        raise click.UsageError(
            f"--profile names the frames of a snapshot, which {format_} is not: -f memory-viz or "
            "-f mosaic"
        )
    _keep_other_files(output)
    found = read_snapshot(snapshot)
    done = enrich_snapshot(found, CodeNames(read_names(names)), fields=format_ == "memory-viz")
    write_snapshot(found, output)
    for line in _files_written(done):
        print_line(line)
    print_line(f"{output}: {os.path.getsize(output) / 1e6:.1f} MB, for memory_viz and others")


_FILES = 5
"""Files of generated code that no profile knows, named one by one."""


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


def _files_written(done: Enriched) -> list[str]:
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
