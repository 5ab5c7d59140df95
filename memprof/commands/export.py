"""``memprof export``: files made of profiles."""

from __future__ import annotations

from collections import Counter

import click

from memprof.profiler.file.profile_file import read_profiles, write_profiles
from memprof.profiler.file.torch_trace import read_kernels
from memprof.profiler.live.launches import launched
from memprof.profiler.views.compare.ranks import world_size
from memprof.profiler.views.export import FORMATS, export_profile

from ._common import (
    BadFile,
    chosen_rank,
    keep_apart,
    output_option,
    print_json,
    print_line,
    rank_option,
    read,
    shows_files,
)

_FORMATS = {
    **FORMATS,
    "memprof": "profiles of the ranks of a job in one file, for memprof report",
}


def _print_schema(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        from .outputs import OUTPUTS, PROFILE, schema_of

        if value not in (PROFILE, *OUTPUTS):
            names = ", ".join((PROFILE, *OUTPUTS))
            raise click.BadParameter(f"{value!r} is no output of memprof: {names}")
        print_json(schema_of(value))
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
    "--kernels",
    type=click.Path(),
    help="A trace of torch.profiler, taken meanwhile: its kernels, with module, line and bytes, "
    "beside the memory of -f perfetto.",
)
@click.option(
    "--schema",
    is_flag=False,
    flag_value="profile",
    metavar="[OUTPUT]",
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of an output of memprof, and end; by default that of -f json.",
)
@shows_files
def export(files: tuple[str, ...], format_: str, output: str, kernels: str | None) -> None:
    """Write a profile in another tool's format, or those of several ranks into one file.

    FILES is a profile written by memprof; with -f memprof it is several, one a rank. What
    the formats contain, in which units: docs/exports.md.
    """
    keep_apart(output, [*files, *([kernels] if kernels else [])])
    if kernels is not None and format_ != "perfetto":
        raise click.UsageError("--kernels goes with -f perfetto")
    if format_ == "memprof":
        _merge(files, output)
        return
    if len(files) > 1:
        raise click.UsageError(f"{format_} is of one file: -f memprof puts several into one")
    # One trace can show all ranks of a merged file; the other formats are of one process.
    several = format_ == "perfetto" and chosen_rank() is None and kernels is None
    profiles = read_profiles(files[0]) if several else [read(files[0])]
    traced = [] if kernels is None else read_kernels(kernels)
    export_profile(profiles, format_, output, traced)
    print_line(f"{output}: {FORMATS[format_]}")
    if kernels is not None:
        known = sum(found.launch is not None for found in launched(profiles[0], traced))
        print_line(f"{known:,} of {len(traced):,} kernels have their line of compiled code")


def _merge(files: tuple[str, ...], output: str) -> None:
    """Put the profiles of several ranks, or runs, into one file."""
    profiles = [profile for path in files for profile in read_profiles(path)]
    profiles.sort(key=lambda p: p.process.rank if p.process else 0)
    ranks = Counter(p.process.rank for p in profiles if p.process)
    if twice := [r for r, n in ranks.items() if n > 1]:
        raise BadFile(f"rank {twice[0]} comes from {ranks[twice[0]]} files: give each rank once")
    write_profiles(profiles, output)
    world = world_size(profiles)
    of = f"of a job of {_count(world, 'rank')}" if world else "of runs that are no ranks of a job"
    print_line(f"{output}: {_count(len(profiles), 'profile')} {of}")


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
