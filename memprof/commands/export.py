"""``memprof export``, ``gantt``, ``merge`` and ``schema``: what else is made of profiles."""

from __future__ import annotations

from collections import Counter

import click

from memprof.profiler.devices import known_devices, no_such_device
from memprof.profiler.export import FORMATS, check_has_time, export_paths, export_profile
from memprof.profiler.export.walk import call_range
from memprof.profiler.file import profile_schema, read_profiles, write_profiles
from memprof.profiler.report.html import write_report

from ._common import (
    BadFile,
    calls_option,
    chosen_rank,
    file_argument,
    keep_apart,
    no_such_calls,
    output_option,
    print_json,
    print_line,
    print_page,
    read,
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
@output_option("Where to; compressed if it ends in .gz, a folder for parquet.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    help="Whose memory, e.g. cuda:0; may be given again. Default: all.",
)
@calls_option
@click.option(
    "--allocated",
    is_flag=True,
    help="collapsed: all bytes that calls allocate. Default: what is live at the peak.",
)
def export(
    file: str,
    format_: str,
    output: str,
    devices: tuple[str, ...],
    calls: tuple[int | None, int | None],
    allocated: bool,
) -> None:
    """Write a profile in another tool's format.

    FILE is a profile written by memprof. What the formats contain, in which units:
    docs/exports.md.
    """
    keep_apart(export_paths(format_, output), [file], "--output")
    # One trace can show all ranks of a merged file; the other formats are of one process.
    several = format_ == "perfetto" and chosen_rank() is None
    profiles = read_profiles(file) if several else [read(file)]
    known = sorted({device for profile in profiles for device in known_devices(profile)})
    for device in devices:
        if device not in known:
            raise click.BadParameter(str(no_such_device(device, known)), param_hint="--device")
    if allocated and format_ != "collapsed":
        raise click.BadParameter(
            "is for --format collapsed; speedscope has both in one file", param_hint="--allocated"
        )
    try:
        export_profile(profiles, format_, output, devices or known, *calls, allocated=allocated)
    except IndexError as e:
        raise no_such_calls(*profiles) from e
    except ImportError as e:
        raise click.ClickException(str(e)) from e
    print_line(f"{output}: {FORMATS[format_]}")


@click.command()
@file_argument
@output_option("The page: one file, no network.")
@calls_option
def gantt(file: str, output: str, calls: tuple[int | None, int | None]) -> None:
    """Write the page of a report, opened at operations and calls over time.

    FILE is a profile written by memprof. Lanes are threads and asyncio tasks; bars are the
    tracker's operations and calls of compiled code, replays of graphs among them. With --calls
    these are in sight first.
    """
    keep_apart([output], [file], "--output")
    profile = read(file)
    try:
        check_has_time([profile], "bars are over time")
        shown = call_range(profile, *calls)
        print_page(output, write_report(profile, output, source=file, calls=shown))
    except IndexError as e:
        raise no_such_calls(profile) from e


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


@click.command()
def schema() -> None:
    """Print the JSON Schema of exported profiles (memprof export -f json)."""
    print_json(profile_schema())
