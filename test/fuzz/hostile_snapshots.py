"""Snapshots that nobody should load, by name, and one that torch could have written.

Each of the hostile ones would execute something, or take memory or time without end, in a reader
that does what a pickle says.
"""

from __future__ import annotations

import gzip
import os
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
CODE = f"/tmp/torchinductor_me/ab/c{'a' * 50}.py"
"""A file of generated code."""
OTHER_CODE = f"/tmp/torchinductor_me/cd/c{'b' * 50}.py"

Json = dict[str, Any]


def frame(name: str, filename: str, line: int, **more: str) -> Json:
    """A frame as torch has it."""
    return {"name": name, "filename": filename, "line": line, **more}


def event(action: str, addr: int, size: int, frames: list[Json] | None = None) -> Json:
    """An event as torch 2.15 has it."""
    found: Json = {
        "action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000,
        "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0),
    }  # fmt: skip
    if frames is not None:
        found["frames"] = frames
    return found


def block(address: int, size: int, frames: list[Json] | None = None, **more: Any) -> Json:
    """A block; inactive without frames."""
    found: Json = {
        "address": address, "size": size, "requested_size": size if frames is not None else 0,
        "state": "active_allocated" if frames is not None else "inactive",
        "frames": frames if frames is not None else [],
    }  # fmt: skip
    return found | more


def segment(address: int, blocks: list[Json], **more: Any) -> Json:
    """A segment of its blocks."""
    size = sum(b["size"] for b in blocks)
    used = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
    found: Json = {
        "device": 0, "address": address, "total_size": size, "allocated_size": used,
        "active_size": used, "requested_size": used, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip
    return found | more


def settings() -> Json:
    """As torch has them."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
    }  # fmt: skip


def snapshot() -> Json:
    """A small snapshot of two devices: eager and generated code, a private pool, a request that
    failed, a block that a stream uses still."""
    cpp = [
        frame("torch::unwind::unwind()", "??", 0),
        frame("malloc", "CUDACachingAllocator.cpp", (1 << 64) - 1),
    ]
    eager = [
        *cpp,
        frame("forward", "/home/me/model.py", 7),
        frame("<module>", "/home/me/run.py", 3),
    ]
    made = [*cpp, frame("call", CODE, 10), *eager[2:]]
    scratch = [*cpp, frame("call", CODE, 13), *eager[2:]]
    foreign = [*cpp, frame("call", OTHER_CODE, 9), *eager[2:]]
    gone = event("alloc", 12 * MIB, MIB, scratch)
    return {
        "segments": [
            segment(
                8 * MIB,
                [
                    block(8 * MIB, 2 * MIB, eager),
                    block(10 * MIB, 2 * MIB, made, requested_size=2 * MIB - 100),
                    block(12 * MIB, 4 * MIB),
                    block(16 * MIB, 4 * MIB, eager, state="active_awaiting_free"),
                ],
            ),
            segment(64 * MIB, [block(64 * MIB, 2 * MIB, foreign)], segment_pool_id=(0, 7)),
            segment(8 * MIB, [block(8 * MIB, 2 * MIB, [])], device=1),
        ],
        "device_traces": [
            [
                event("alloc", 10 * MIB, 2 * MIB - 100, made),
                gone,
                {**event("oom", 0, 1 << 33, eager), "device_free": 5 * MIB},
                event("free_requested", 12 * MIB, MIB, scratch),
                event("free_completed", 12 * MIB, MIB, scratch),
                event("segment_alloc", 64 * MIB, 2 * MIB, foreign),
                event("alloc", 64 * MIB, 2 * MIB, foreign),
                event("snapshot", 0, 0),
            ],
            [],
        ],
        "allocator_settings": settings(),
        "external_annotations": [
            {"stage": "START", "name": "Optimizer.step#AdamW", "device": 0, "time_us": 1}
        ],
    }


def edited(edit: Callable[[Json], Any]) -> bytes:
    """That snapshot with a change, as a pickle."""
    found = snapshot()
    edit(found)
    return pickle.dumps(found, 4)


class _Runs:
    """Runs a program where a pickle is done as it says."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._done = function, arguments

    def __reduce__(self) -> Any:
        return self._done


def _proto(body: bytes) -> bytes:
    return b"\x80\x04" + body


def _deep_tuples(n: int) -> bytes:
    return b")" + b"\x85" * n


def _laughs(levels: int, op: bytes = b"\x86") -> bytes:
    """Pairs of pairs of pairs, each of which stands twice: 2**levels in all."""
    body = b"K\x00K\x00\x86"
    for i in range(levels):
        body += b"q" + bytes([i]) + b"h" + bytes([i]) + op
    return body


def _list_laughs(levels: int = 200) -> bytes:
    """Lists of lists, each of which stands ten times in the next."""
    body = b"}(\x8c\x01x]q\x00"
    for i in range(levels):
        made = b"](" + (b"h" + bytes([i])) * 10 + b"e" + b"q" + bytes([i + 1])
        body += b"\x8c\x01" + (b"x" if i < levels - 1 else b"y") + made
    return _proto(body + b"\x8c\x08segmentsh" + bytes([levels]) + b"u.")


def _many_times() -> bytes:
    """A segment that stands 100,000 times, of a block that stands 100,000 times."""
    small = segment(MIB, [block(MIB, MIB, [])])
    small["blocks"] = small["blocks"] * 100_000
    return pickle.dumps({"segments": [small] * 100_000, "device_traces": []}, 4)


def _cyclic(d: Json) -> None:
    d["segments"][0]["blocks"][0]["frames"] = d["segments"][0]["blocks"]
    d["x"] = d


def _deep(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _deep_pickle(depth: int = 200_000) -> bytes:
    filler = b"X" + struct.pack("<I", 8 * depth) + b"x" * 8 * depth  # Else it has too many lists.
    lists = b"]" * depth + b"a" * (depth - 1)
    return _proto(b"}(\x8c\x08segments]\x8c\x01y" + filler + b"\x8c\x01x" + lists + b"u.")


def _holes(n: int = 5_000) -> bytes:
    """Free ranges and events that fit none of them."""
    blocks = []
    for i in range(n):
        blocks += [block(2 * i * 512, 512, []), block((2 * i + 1) * 512, 512)]
    events = [event("segment_unmap", 512 + i, 100) for i in range(n)]
    return pickle.dumps({"segments": [segment(0, blocks)], "device_traces": [events]}, 4)


def _sawtooth(n: int = 4_000) -> bytes:
    """A history that is at its highest after every other event."""
    events = [event("segment_alloc", 0, 1 << 34)]
    for i in range(n):
        events += [event("alloc", 2 * i * 512, 512), event("alloc", (2 * i + 1) * 512, 512)]
        events += [event("free_requested", (2 * i + 1) * 512, 512)]
        events += [event("free_completed", (2 * i + 1) * 512, 512)]
    return pickle.dumps({"segments": [], "device_traces": [events]}, 4)


def _with_every_text(text: str) -> bytes:
    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return text
        if isinstance(value, list):
            return [changed(v) for v in value]
        if isinstance(value, dict):
            kept = ("action", "state")
            return {k: v if k in kept else changed(v) for k, v in value.items()}
        return value

    return pickle.dumps(changed(snapshot()), 4)


ESCAPES = "\x1b[2J\x1b]0;title\x07\n\u202eevil"

REFUSED: dict[str, Callable[[], bytes]] = {
    "os.system by REDUCE": lambda: pickle.dumps(_Runs(os.system, "touch /tmp/x"), 4),
    "eval by STACK_GLOBAL": lambda: pickle.dumps({"segments": [_Runs(eval, "1")]}, 5),
    "a class by GLOBAL": lambda: _proto(b"cbuiltins\nlist\n."),
    "a class by name": lambda: _proto(b"\x8c\x08builtins\x8c\x04list\x93."),
    "os.system in the text protocol": lambda: b"\x80\x02cos\nsystem\n(S'touch /tmp/x'\ntR.",
    "an object by INST": lambda: _proto(b"(S'x'\nios\nsystem\n."),
    "an object by OBJ": lambda: _proto(b"(cos\nsystem\no."),
    "an object by NEWOBJ": lambda: _proto(b"cbuiltins\nobject\n)\x81."),
    "an object by NEWOBJ_EX": lambda: _proto(b"cbuiltins\nobject\n)}\x92."),
    "a state by BUILD": lambda: _proto(b"}}b."),
    "extension 1": lambda: _proto(b"\x82\x01."),
    "extension 4": lambda: _proto(b"\x84\x01\x00\x00\x00."),
    "a persistent id": lambda: b"\x80\x02Pfile\n.",
    "a binary persistent id": lambda: _proto(b"K\x01Q."),
    "a buffer out of band": lambda: b"\x80\x05\x97.",
    "a memo index of 2**32 - 1": lambda: _proto(b"]r\xff\xff\xff\xff."),
    "a memo index of 10**9 as text": lambda: b"\x80\x02]p1000000000\n.",
    "memo indices far apart": lambda: _proto(
        b"]" + b"".join(b"r" + struct.pack("<I", i * 5_000_000) for i in range(80)) + b"."
    ),
    "bytes of 2**63": lambda: _proto(b"\x8e" + struct.pack("<Q", (1 << 63) - 1) + b"x."),
    "bytes of 4 GiB": lambda: _proto(b"B\xff\xff\xff\xffx."),
    "a text of 2**62": lambda: _proto(b"\x8d" + struct.pack("<Q", 1 << 62) + b"x."),
    "a text of 4 GiB": lambda: _proto(b"X\xff\xff\xff\xffx."),
    "a frame of 2**62": lambda: _proto(b"\x95" + struct.pack("<Q", 1 << 62) + b"}."),
    "a number of 2 GiB": lambda: _proto(b"\x8b\xff\xff\xff\x7fx."),
    "a number of a million digits": lambda: b"\x80\x02L" + b"9" * 1_000_000 + b"L\n.",
    "tuples nested a million deep as a key": lambda: _proto(
        b"}" + _deep_tuples(1_000_000) + b"K\x00s."
    ),
    "tuples of 2**80 as a key": lambda: _proto(b"}" + _laughs(80) + b"K\x00s."),
    "tuples of 3**80 as a key": lambda: _proto(
        b"}" + _laughs(80).replace(b"\x86", b"\x87") + b"K\x00s."
    ),
    "no end": lambda: pickle.dumps(snapshot(), 4)[:-1],
    "half a file": lambda: pickle.dumps(snapshot(), 4)[:900],
    "nothing but a protocol": lambda: b"\x80\x04",
    "a protocol of the future": lambda: b"\x80\x09}.",
    "a stack that is empty": lambda: _proto(b"a."),
    "no mark": lambda: _proto(b"]K\x01e."),
    "a memo that is empty": lambda: _proto(b"h\x00."),
    "append to a number": lambda: _proto(b"K\x01K\x02a."),
    "an item of a number": lambda: _proto(b"K\x01K\x02K\x03s."),
    "a list as a key": lambda: _proto(b"}]K\x01s."),
    "text that is no UTF-8": lambda: _proto(b"\x8c\x02\xff\xfe."),
    "half a gzip file": lambda: gzip.compress(pickle.dumps(snapshot(), 4), mtime=0)[:-9],
    "noise after a protocol": lambda: _proto(random.Random(3).randbytes(50_000)),
}
"""Pickles that are not loaded at all."""

INVALID: dict[str, Callable[[], bytes]] = {
    "a set": lambda: pickle.dumps({"segments": {1, 2}}, 4),
    "a frozen set": lambda: pickle.dumps({"segments": frozenset({1})}, 4),
    "a byte array": lambda: pickle.dumps({"segments": bytearray(9)}, 5),
    "a number of 255 bytes": lambda: _proto(b"\x8a\xff" + b"x" * 255 + b"."),
    "a million empty dictionaries": lambda: _proto(b"}" * 1_000_000 + b"."),
    "a number": lambda: pickle.dumps(7, 4),
    "a dictionary of something else": lambda: pickle.dumps({"state_dict": [1, 2]}, 4),
    "lists of 10**200": _list_laughs,
    "a segment 100,000 times": _many_times,
    "an object that contains itself": lambda: edited(_cyclic),
    "a list that contains itself": lambda: _proto(b"}\x8c\x08segments]\x94h\x00as."),
    "segments that are text": lambda: pickle.dumps({"segments": ["x"]}, 4),
    "a size below 0": lambda: edited(lambda d: d["segments"][0].update(total_size=-1)),
    "a size that is True": lambda: edited(lambda d: d["segments"][0].update(total_size=True)),
    "a size of 2**64 - 1": lambda: edited(
        lambda d: d["segments"][0].update(total_size=(1 << 64) - 1)
    ),
    "an address that is text": lambda: edited(
        lambda d: d["device_traces"][0][0].update(addr=ESCAPES)
    ),
    "a frame that is a number": lambda: edited(
        lambda d: d["segments"][0]["blocks"][0].update(frames=[7])
    ),
    "a line that is text": lambda: edited(
        lambda d: d["segments"][0]["blocks"][0]["frames"][0].update(line=ESCAPES)
    ),
    "a name that is nothing": lambda: edited(
        lambda d: d["segments"][0]["blocks"][0]["frames"][0].update(name=None)
    ),
    "a node that is a list": lambda: edited(
        lambda d: d["segments"][0]["blocks"][0]["frames"][0].update(fx_node_name=[1])
    ),
    "blocks beyond their segment": lambda: edited(
        lambda d: d["segments"][0]["blocks"][3].update(size=1 << 40)
    ),
    "blocks over each other": lambda: edited(
        lambda d: d["segments"][0]["blocks"][1].update(address=8 * MIB)
    ),
    "segments over each other": lambda: edited(lambda d: d["segments"][1].update(address=9 * MIB)),
    "a request larger than its block": lambda: edited(
        lambda d: d["segments"][0]["blocks"][0].update(requested_size=1 << 50)
    ),
    "a device of a large number": lambda: edited(
        lambda d: d["segments"][0].update(device=(1 << 62))
    ),
    "a pool of three numbers": lambda: edited(
        lambda d: d["segments"][0].update(segment_pool_id=[1, 2, 3])
    ),
    "a history that is text": lambda: edited(lambda d: d.update(device_traces="x")),
    "events that are text": lambda: edited(lambda d: d.update(device_traces=["x"])),
    "histories of 10**6 devices": lambda: edited(
        lambda d: d.update(device_traces=[[] for _ in range(5_000)])
    ),
}
"""Pickles of plain data that are no snapshot, or contradict themselves."""

SHOWN: dict[str, Callable[[], bytes]] = {
    "a million lists of marks": lambda: _proto(b"(l" * 1_000_000 + b"."),
    "bytes after the end": lambda: pickle.dumps(snapshot(), 4) + b"\0\0\0",
    "two pickles": lambda: pickle.dumps(snapshot(), 4) * 2,
    "a snapshot": lambda: pickle.dumps(snapshot(), 4),
    "a snapshot of protocol 2": lambda: pickle.dumps(snapshot(), 2),
    "a snapshot of protocol 5": lambda: pickle.dumps(snapshot(), 5),
    "a snapshot in gzip": lambda: gzip.compress(pickle.dumps(snapshot(), 4), mtime=0),
    "segments alone": lambda: pickle.dumps(snapshot()["segments"], 4),
    "no segment": lambda: pickle.dumps({"segments": []}, 4),
    "no history": lambda: edited(lambda d: d.pop("device_traces")),
    "control characters in every text of a snapshot": lambda: _with_every_text(ESCAPES),
    "a field that is deep": lambda: edited(lambda d: d.update(x=_deep(300))),
    "a field nested 200,000 deep": _deep_pickle,
    "settings of another type": lambda: edited(lambda d: d.update(allocator_settings=[1])),
    "settings that are no numbers": lambda: edited(
        lambda d: d["allocator_settings"].update(
            max_split_size="x", roundup_power2_divisions={"x": "y", "1": -5, "2": 1 << 62}
        )
    ),
    "annotations of another type": lambda: edited(lambda d: d.update(external_annotations=7)),
    "events that contradict each other": lambda: edited(
        lambda d: d["device_traces"][0].extend(
            event(action, 5, 100)
            for action in ("free_completed", "segment_free", "alloc", "alloc", "free_requested")
        )
    ),
    "an action that nobody knows": lambda: edited(
        lambda d: d["device_traces"][0].append(event(ESCAPES, 5, 100))
    ),
    "files that must not be read": lambda: edited(
        lambda d: d["segments"][0]["blocks"][0]["frames"].insert(0, frame("x", "/dev/zero", 1))
    ),
    "free ranges that no event fits": _holes,
    "a history that rises and rises": _sawtooth,
    "sizes of 2**63 in the history": lambda: edited(
        lambda d: d["device_traces"][0].append(event("segment_alloc", 0, 1 << 62))
    ),
}
"""Snapshots that can be shown, some of them of nobody's making."""

SNAPSHOT_FILES = {
    **{f"pickle: {name}": make for name, make in (REFUSED | INVALID | SHOWN).items()},
}
SNAPSHOT_ENDS = {
    **{f"pickle: {name}": "SnapshotRefusedError" for name in REFUSED},
    **{f"pickle: {name}": "SnapshotInvalidError" for name in INVALID},
}
