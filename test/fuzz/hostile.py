"""Files that nobody should hand to a reader, by name. Each once stood for a hang, a traceback, an
escape sequence in a terminal or memory without end, or could.

``CORPUS`` is what the tests show with every command.
"""

from __future__ import annotations

import functools
import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

from framing import framed, header, packed, records_of
from profile_builder import training

from memprof.profiler.file.frames import MAGIC, Kind
from memprof.profiler.file.profile_file import encode_profile
from memprof.profiler.model import Profile
from memprof.profiler.support.json_text import to_json

from .documents import everything

CONTROLS = "".join(
    chr(c)
    for c in (
        *range(0x20), *range(0x7F, 0xA0), 0xAD, 0x61C, *range(0x200B, 0x2010),
        *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF, 0xE0001, 0xE0041,
    )
)  # fmt: skip
"""What a terminal obeys, or does not show."""
ESCAPES = "\x1b[2J\x1b]0;title\x07\x1b]52;c;aGk=\x1b\\\x9b31m\r\n\u202eevil\u2066" + CONTROLS


def document(profile: Profile | None = None) -> dict[str, Any]:
    """A profile as JSON values."""
    found: dict[str, Any] = json.loads(to_json(profile or everything()))
    return found


def with_every_text(text: str) -> bytes:
    """A whole profile in which every free text is ``text``, told apart by a number where names must
    differ."""
    kinds = {
        *("kind", "role", "category", "origin", "evidence", "format", "state"),
        *("fate", "why", "cause", "source"),
    }
    count = iter(range(1_000_000))

    def change(value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return value if key in kinds else f"{next(count)}{text}"
        if isinstance(value, list):
            return [change(v, "" if isinstance(v, dict) else key) for v in value]
        if isinstance(value, dict) and key in ("nodes", "buffers"):
            out = {}
            for v in value.values():
                new = change(v)
                out[new["name"]] = new
            return out
        if isinstance(value, dict) and key in ("bytes",):
            return value
        if isinstance(value, dict) and key in ("options", "settings", "devices", "memory"):
            return {f"{k}{text}": change(v, k) for k, v in value.items()}
        if isinstance(value, dict):
            return {k: change(v, k) for k, v in value.items()}
        return value

    changed = change(document())
    changed["format"] = "memprof-profile"
    return framed(changed)


def _edited(edit: Callable[[dict[str, Any]], Any]) -> bytes:
    found = document()
    edit(found)
    return framed(found)


def _replaced(old: bytes, new: bytes) -> bytes:
    """A whole profile, with other bytes in its JSON."""
    records = records_of(encode_profile(everything()))
    return packed([(kind, payload.replace(old, new)) for kind, payload in records])


def _deep(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


def _storages(d: dict[str, Any], nbytes: int) -> None:
    for g in d["graphs"]:
        for p in g["programs"]:
            for s in p["storages"]:
                s["nbytes"] = nbytes


def _modules(d: dict[str, Any]) -> None:
    for g in d["graphs"]:
        for i, node in enumerate(g["nodes"].values()):
            node["module_path"] = ".".join([f"m{i}"] * 5_000)


def _staggered(d: dict[str, Any], n: int = 3_000) -> None:
    """Calls that all overlap and none of which contains another."""
    d["calls"] |= {
        "graph": [2] * n, "program": [0] * n, "start_ns": [*range(n)],
        "end_ns": [*range(n, 2 * n)], "thread": [0] * n,
    }  # fmt: skip


def _chain(d: dict[str, Any], n: int = 3_000) -> None:
    """Operations nested as deep as there are operations."""
    d["tracker"]["operation_summary"] = [
        {"name": "operation", "parent": i - 1, "count": 1, "total_ns": 1} for i in range(n)
    ]


def _waiting(d: dict[str, Any], n: int = 300) -> None:
    """Forwards that all wait for backwards that all come later."""
    d["calls"] |= {
        "graph": [0] * n + [1] * n, "program": [0] * 2 * n, "start_ns": [*range(2 * n)],
        "end_ns": [*range(1, 2 * n + 1)], "thread": [0] * 2 * n,
    }  # fmt: skip


def _begin(length: int) -> bytes:
    """The header of a frame of so many bytes, whose checksum is of others."""
    return MAGIC + struct.pack("<B3xIIII", Kind.FIELDS, 1, 1, length, 0)


def _nested(depth: int = 20_000) -> bytes:
    """Beginnings of frames inside of frames, each of which reaches to the end."""
    size = len(_begin(0))
    return _head() + b"".join(_begin((depth - i - 1) * size) for i in range(depth))


def _head() -> bytes:
    return packed([header()])


@functools.cache
def _bomb(nbytes: int = 200 << 20) -> bytes:
    """A frame that unpacks to a thousand times its size."""
    packer = zlib.compressobj(9)
    zeros = b"0" * (1 << 20)
    payload = b"".join(packer.compress(zeros) for _ in range(nbytes >> 20)) + packer.flush()
    numbers = (Kind.FIELDS, 1, 1, len(payload))
    check = zlib.crc32(payload, zlib.crc32(struct.pack("<BIII", *numbers)))
    return _head() + MAGIC + struct.pack("<B3xIIII", *numbers, check) + payload


def _many_bombs() -> bytes:
    """Frames that unpack to too much only all together."""
    payload = b'{"x":"' + b"0" * (1 << 20) + b'"}'
    return packed([header(), *[(Kind.FIELDS, payload)] * 100])


def _more(kind: Kind, *payloads: bytes) -> bytes:
    records = records_of(encode_profile(training()))
    return packed([*records, *((kind, payload) for payload in payloads)])


CORPUS: dict[str, Callable[[], bytes]] = {
    "control characters in every text": lambda: with_every_text(ESCAPES),
    "line breaks in every text": lambda: with_every_text("\nforged row\n"),
    "markup in every text": lambda: with_every_text("[red]x[/red][link=http://x]y[/link]"),
    "long texts": lambda: with_every_text("x" * 10_000),
    "no texts": lambda: with_every_text(""),
    "a text of many megabytes": lambda: _edited(
        lambda d: d["graphs"][0]["nodes"]["mm"]["stack"][0].update(code="x" * (2 << 20))
    ),
    "deep JSON": lambda: packed(
        [(Kind.HEADER, b'{"format":"memprof-profile",' + b'"a":[' * 50_000)]
    ),
    "a deep field that nobody knows": lambda: _edited(
        lambda d: d["graphs"][0].update(metadata={"a": _deep(900)})
    ),
    "a deeper unknown field": lambda: _more(
        Kind.GRAPH, b'{"id":0,"x":{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}}"
    ),
    "a deep version": lambda: packed([header(_deep(900))]),
    "a version of thousands of digits": lambda: packed([header(int("9" * 4_000))]),
    "a version that is an escape": lambda: packed([header(7, ESCAPES)]),
    "a format that is an escape": lambda: packed([header(format=ESCAPES)]),
    "module paths of 5,000 parts": lambda: _edited(_modules),
    "bytes above 2^63": lambda: _edited(lambda d: _storages(d, 1 << 63)),
    "bytes that add up to more than 2^63": lambda: _edited(lambda d: _storages(d, (1 << 63) - 1)),
    "numbers of thousands of digits": lambda: _edited(
        lambda d: d.update(created_ns=int("9" * 4_000), released={"1": int("8" * 4_000)})
    ),
    "times at the ends": lambda: _edited(
        lambda d: d["calls"].update(start_ns=[-(1 << 63) + 1] * 9, end_ns=[(1 << 63) - 1] * 9)
    ),
    "a world of 2^62 ranks": lambda: _edited(
        lambda d: d["process"].update(world_size=1 << 62, rank=1 << 40)
    ),
    "a device of a large number": lambda: _replaced(b'"cpu"', b'"cuda:999999999"'),
    "a device of no number": lambda: _replaced(b'"cpu"', '"cuda:\u00b2"'.encode()),
    "threads of large numbers": lambda: _edited(
        lambda d: d["calls"].update(thread=[(1 << 62) + i for i in range(9)])
    ),
    "calls that overlap": lambda: _edited(_staggered),
    "operations nested thousands deep": lambda: _edited(_chain),
    "operations in a circle": lambda: _edited(
        lambda d: d["tracker"].update(
            operation_summary=[{"name": "a", "parent": 1}, {"name": "b", "parent": 0}]
        )
    ),
    "forwards that wait": lambda: _edited(_waiting),
    "graphs of one id": lambda: _edited(lambda d: [g.update(id=0) for g in d["graphs"]]),
    "nulls": lambda: _edited(
        lambda d: d.update(dict.fromkeys(("graphs", "calls", "ledger", "process", "tracker")))
    ),
    "only a header": _head,
    "a file of memprof 0.1.0": lambda: gzip.compress(b'{"format":"memprof-stream"}', mtime=0),
    "a bomb": _bomb,
    "many bombs": _many_bombs,
    "beginnings of frames without end": _nested,
    "a million magic numbers": lambda: _head() + MAGIC * 300_000,
    "nothing but magic numbers": lambda: MAGIC * 300_000,
    "frames of no payload": lambda: _more(Kind.FIELDS, *[b""] * 5_000),
    "frames of nothing": lambda: _more(Kind.FIELDS, *[b"{}"] * 20_000),
    "frames of many processes": lambda: b"".join(
        packed([(Kind.FIELDS, b"{}")], process) for process in range(100)
    ),
    "headers of one process": lambda: packed([header()]) * 20,
    "a number that comes late": lambda: packed([header()]) + packed([header()], 1, (1 << 32) - 1),
    "frames of deep JSON": lambda: _more(Kind.FIELDS, b"[" * 100_000),
    "values that are deep": lambda: _more(
        Kind.FIELDS, b'{"options":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    ),
    "a ledger of 10^12 entries": lambda: _more(
        Kind.LEDGER, b'{"length":1000000000000,"entries":[]}'
    ),
    "gaps again and again": lambda: _more(
        Kind.LEDGER, *[b'{"length":99999,"entries":[]}', b'{"length":0,"entries":[]}'] * 2_000
    ),
    "gaps of programs": lambda: _more(
        Kind.GRAPH,
        *(
            b'{"id":%d,"kind":"forward","programs":{"from":90000,"items":[]}}' % i
            for i in range(3_000)
        ),
    ),
    "programs from behind": lambda: _more(
        Kind.GRAPH, b'{"id":0,"programs":{"from":-5,"items":[1,2]}}'
    ),
    "calls of a number of thousands of digits": lambda: _more(
        Kind.CALLS,
        b'{"graph":[0],"program":[0],"start_ns":[%s],"duration_ns":[0],"thread":[0]}'
        % (b"9" * 4_000),
    ),
    "text that is no UTF-8": lambda: _replaced(b"aten", b"at\xff\xfen"),
    "noise": lambda: random.Random(0).randbytes(100_000),
    "noise in gzip": lambda: gzip.compress(random.Random(1).randbytes(100_000), mtime=0),
}
