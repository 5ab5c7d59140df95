"""``memprof enrich SNAPSHOT --profile PROFILE -o OUT``."""

from __future__ import annotations

import os

import click

from memprof.profiler.report.format import format_bytes, shorten_path
from memprof.profiler.snapshot.enrich import Enriched, write_snapshot
from memprof.profiler.snapshot.enrich import enrich as enrich_snapshot
from memprof.profiler.snapshot.named import read_names, replayed
from memprof.profiler.snapshot.names import CodeNames
from memprof.profiler.snapshot.reading import is_pickle, read_snapshot

from ._common import keep_apart, output_option, print_line

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
    """Refuse to replace what is no snapshot: a program, a profile.

    Raises:
        click.BadParameter: there is such a file.
    """
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
    """What was named and what was not, a line each."""
    lines = []
    graphs = dict.fromkeys([*done.nbytes, *done.events, *done.frames])
    for graph in sorted(graphs, key=lambda g: (-done.nbytes[g], -done.events[g])):
        lines.append(
            f"{graph}: {_count(done.frames[graph], 'frame')} named, in "
            f"{_blocks(done.blocks[graph], done.nbytes[graph])} and "
            f"{_count(done.events[graph], 'event')}"
        )
    if not lines:
        lines.append("Nothing was named: the profiles know none of its generated code")
    files = sorted(done.unnamed_frames, key=lambda f: -done.unnamed_bytes[f])
    for file in files[:_FILES]:
        lines.append(
            f"not known: {_count(done.unnamed_frames[file], 'frame')} of {shorten_path(file)}, in "
            f"{_blocks(done.unnamed_blocks[file], done.unnamed_bytes[file])}"
        )
    if len(files) > _FILES:
        rest = files[_FILES:]
        blocks = sum(done.unnamed_blocks[f] for f in rest)
        nbytes = sum(done.unnamed_bytes[f] for f in rest)
        lines.append(f"not known: {len(rest)} more files, in {_blocks(blocks, nbytes)}")
    lines.append(
        f"no generated code: {_blocks(done.eager_blocks, done.eager_bytes)}; no stack: "
        f"{_blocks(done.bare_blocks, done.bare_bytes)}"
    )
    return lines


def _blocks(count: int, nbytes: int) -> str:
    return f"{_count(count, 'block')} of {format_bytes(nbytes)}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
