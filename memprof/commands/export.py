"""``memprof export FILE``."""

from __future__ import annotations

import click

from memprof.profiler.devices import known_devices, no_such_device
from memprof.profiler.export import FORMATS, export_paths, export_profile
from memprof.profiler.file import read_profiles

from ._common import (
    calls_option,
    chosen_rank,
    file_argument,
    keep_apart,
    no_such_calls,
    output_option,
    print_line,
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
