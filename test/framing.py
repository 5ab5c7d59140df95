"""Profile files by hand, of documents and payloads that need not be right."""

from __future__ import annotations

import dataclasses
import json
import sys
import zlib
from itertools import pairwise
from operator import sub
from typing import Any

from memprof.profiler.file.frames import Frame, Kind, frames, pack
from memprof.profiler.file.profile_file import decode_profiles, encode_profile, single_profile
from memprof.profiler.model import SCHEMA_VERSION, Profile
from memprof.profiler.support.errors import ProfileInvalidError

Record = tuple[int, bytes]
"""Kind and payload of a frame."""

_ELSEWHERE = {"format", "schema_version", "graphs", "calls", "ledger", "complete"}


_DEEPEST = 20_000
"""Levels of the deepest document that mutations make; one nested into itself doubles its depth."""


def decode_profile(data: bytes, path: str | None = None) -> Profile:
    """The profile that the content of a file holds."""
    return single_profile(decode_profiles(data, path), path)


def encoded(value: Any) -> bytes:
    """JSON as profiles have it, with numbers of any size."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        text = json.dumps(value, separators=(",", ":"))
    finally:
        sys.setrecursionlimit(limit)
    return text.encode("utf-8", "surrogatepass")


def packed(records: list[Record], process: int = 1, first: int = 0) -> bytes:
    """Frames of one process."""
    return b"".join(
        pack(kind, process, first + i, payload)  # type: ignore[arg-type]
        for i, (kind, payload) in enumerate(records)
    )


def header(
    version: Any = SCHEMA_VERSION, memprof: Any = "9.9", format: Any = "memprof-profile"
) -> Record:
    """The frame that begins a profile."""
    given = {"format": format, "schema_version": version, "memprof": memprof}
    return Kind.HEADER, encoded(given)


def records_of(data: bytes) -> list[Record]:
    """What the whole frames of a file hold."""
    found = [f for f in frames(data, None) if isinstance(f, Frame)]
    return [(f.kind, f.payload) for f in found]


def split(data: bytes) -> list[bytes]:
    """The frames of a file, each as it is there."""
    found = [f for f in frames(data, None) if isinstance(f, Frame)]
    ends = [f.start for f in found[1:]] + [len(data)]
    return [data[f.start : end] for f, end in zip(found, ends, strict=True)]


def broken(data: bytes) -> bytes:
    """Frames with one bit of each turned over."""
    out = []
    for frame in split(data):
        changed = bytearray(frame)
        changed[len(changed) // 2] ^= 0x10
        out.append(bytes(changed))
    return b"".join(out)


def framed(document: dict[str, Any]) -> bytes:
    """A document as one file, as the encoder would write it."""
    records = [header(document.get("schema_version"), document.get("memprof"), document["format"])]
    fields = {name: value for name, value in document.items() if name not in _ELSEWHERE}
    records.append((Kind.FIELDS, encoded(fields)))
    for graph in document.get("graphs") or ():
        change = graph
        if isinstance(graph, dict) and isinstance(graph.get("programs"), list):
            change = {**graph, "programs": {"from": 0, "items": graph["programs"]}}
        records.append((Kind.GRAPH, encoded(change)))
    ledger = document.get("ledger")
    if isinstance(ledger, list):
        change = {"length": len(ledger), "entries": [*enumerate(ledger)]}
        records.append((Kind.LEDGER, encoded(change)))
    if "calls" in document:
        records.append((Kind.CALLS, encoded(_differences(document["calls"]))))
    if document.get("complete", True):
        records.append((Kind.END, b"{}"))
    process = zlib.crc32(b"".join(payload for _, payload in records))
    return packed(records, process)


def _differences(calls: Any) -> Any:
    try:
        starts, ends = calls["start_ns"], calls["end_ns"]
        return {
            **{name: calls[name] for name in ("graph", "program", "thread", "dropped")},
            "start_ns": [*starts[:1], *map(sub, starts[1:], starts)],
            "duration_ns": [end - start for start, end in zip(starts, ends, strict=True)],
        }
    except (TypeError, LookupError, ValueError):  # It is not what it should be.
        return calls


def findings(profile: Profile) -> list[str]:
    """Parts of this profile that a reader, once it is written, would leave out, and sums in it that
    differ from their parts."""
    written = dataclasses.replace(profile, left_out=[])
    try:
        found = decode_profile(encode_profile(written)).left_out
    except ProfileInvalidError as e:
        return [str(e)]
    sums = [(a.device, a.reserved, a.explained + a.unexplained) for a in profile.accounts]
    for pool in profile.graph_pools:
        grew = pool.grew_outside + sum(g.grew for g in pool.graphs)
        used = pool.other_shares + sum(s.nbytes for s in pool.shares)
        sums += [(pool.name, pool.reserved, grew)]
        sums += [(pool.name, pool.reserved, used + pool.live_outside + pool.unused)]
        for g in pool.graphs:
            sums.append((f"#{g.number}", g.peak, g.rounding + sum(r.nbytes for r in g.at_peak)))
    for flow in profile.dataflow.devices if profile.dataflow is not None else ():
        assert all(a < b for a, b in pairwise(flow.time_ns))
        if flow.peak is not None:
            sums.append((flow.device, flow.bytes_at(flow.peak), sum(s.nbytes for s in flow.live)))
    return found + [f"{what}: {whole} and {parts}" for what, whole, parts in sums if whole != parts]
