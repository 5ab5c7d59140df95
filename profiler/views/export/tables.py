"""A profile as pandas tables: what a row and a column of each is, docs/exports.md says.

A tracker's record is a row a snapshot in its JSON already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from memprof.profiler.live.attribution import Attribution
from memprof.profiler.live.trees import call_modes
from memprof.profiler.model import Profile, SourceFrame

from .walk import AFTER, Walk, walks

_COLUMNS = {
    "calls": "call:int device graph:int label kind program:int mode thread:int start_ns:int "
    "end_ns:int entry_bytes:int peak_bytes:int exit_bytes:int between_bytes:int",
    "events": "device time_ns:int call:int instant:int action block:int delta_bytes:int "
    "live_bytes:int",
    "blocks": "device block:int memory:int nbytes:int category graph:int label buffer "
    "generated_line:int node op module file line:int code fqn outside unattributed",
    "account": "device category detail nbytes:int blocks:int compiled:bool modules nodes file "
    "line:int code",
}
"""Columns of each table, each with its type; text where none is named."""

Rows = Iterator[tuple[Any, ...]]


def to_pandas(profile: Profile) -> dict[str, Any]:
    """Tables of a profile by name, each a ``pandas.DataFrame``, those without rows too.

    Integers are ``Int64`` and truth values ``boolean``, so that an unknown one is ``NA``.

    Raises:
        ImportError: pandas is not installed.
        OverflowError: a sum of the profile's figures does not fit 64 bits.
    """
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise ImportError("tables need pandas: pip install pandas") from error
    found = walks(profile)
    # Blocks come after the events, when all are known.
    tables = {
        "calls": _calls(profile, found),
        "events": _events(found),
        "blocks": _blocks(profile, found),
        "account": _account(profile),
    }
    return {name: _frame(pandas, _COLUMNS[name].split(), rows) for name, rows in tables.items()}


_TYPES = {"int": "Int64", "bool": "boolean", "": "object"}


def _frame(module: Any, columns: Sequence[str], rows: Rows) -> Any:
    described = [name.partition(":") for name in columns]
    frame = module.DataFrame(list(rows), columns=[name for name, _, _ in described], dtype=object)
    return frame.astype({name: _TYPES[kind] for name, _, kind in described})


def _calls(profile: Profile, walks: dict[str, Walk]) -> Rows:
    calls, modes = profile.calls, call_modes(profile)
    graphs = {g.id: g for g in profile.graphs}
    for device, walk in walks.items():
        b = walk.timeline.bytes_over_time()
        for k in range(len(calls)):
            g = graphs[calls.graph[k]]
            yield (
                k, device, g.id, g.label, g.kind.value, calls.program[k], modes[k].value,
                calls.thread[k], calls.start_ns[k], calls.end_ns[k], b["entry"][k],
                b["peak"][k], b["exit"][k], b["between"][k],
            )  # fmt: skip


def _events(walks: dict[str, Walk]) -> Rows:
    for device, walk in walks.items():
        live = 0
        # Memory goes in the description in which it came, so that sums by block are right.
        came: dict[int, list[int]] = {}
        for moment in walk:
            at = (device, moment.time_ns, moment.call, moment.instant)
            edge = moment.instant in (0, AFTER)
            freed, allocated = ("leave", "enter") if edge else ("free", "alloc")
            if moment.change.reuse:
                freed, allocated = "reuse_from", "reuse_as"
            for block in moment.change.freed:
                live -= block.nbytes
                yield (*at, freed, came[block.memory].pop(), -block.nbytes, live)
            for block in moment.change.allocated:
                live += block.nbytes
                came.setdefault(block.memory, []).append(block.number)
                yield (*at, allocated, block.number, block.nbytes, live)


def _blocks(profile: Profile, walks: dict[str, Walk]) -> Rows:
    attribution = Attribution(profile)
    graphs = {g.id: g for g in profile.graphs}
    for device, walk in walks.items():
        for block in walk.blocks:
            item = block.item
            site = attribution.site_of(item)
            yield (
                device, block.number, block.memory, block.nbytes, site.category.value,
                site.graph, graphs[site.graph].label, item.owner, item.line, site.node, site.op,
                site.module, *_source(site.frame), site.fqn, site.outside,
                "; ".join(f"{v.value}: {why}" for v, why in site.why.items()) or None,
            )  # fmt: skip


def _account(profile: Profile) -> Rows:
    for a in profile.accounts:
        for r in a.rows:
            yield (
                a.device, r.category.value, r.detail or None, r.nbytes, r.count, r.compiled,
                r.modules or None, r.nodes or None, *_source(r.frame),
            )  # fmt: skip
        for name, _, nbytes in a.other_parts():
            yield (a.device, name, None, nbytes, *(None,) * 7)


def _source(frame: SourceFrame | None) -> tuple[str | None, int | None, str | None]:
    return (frame.file, frame.line, frame.code) if frame else (None, None, None)
