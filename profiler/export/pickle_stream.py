"""Pickles that are written as they are made.

``pickle`` keeps every object of one ``dump`` in its memo until the end, and an object per event
must exist before the first byte is written: a gigabyte for a million events. A list of small
dictionaries needs ten opcodes, so they are written here, in protocol 4 (the standard library's
``pickletools`` has their definitions). Only opcodes that the unpickler of torch's MemoryViz.js
knows are used: no POP, no GLOBAL, no REDUCE; lists grow by 1,000 entries at a time, as ``pickle``
does it, because that reader passes each batch as arguments of one call."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

START = b"\x80\x04"
STOP = b"."
MARK, DICT, SET_ITEMS, LIST, APPENDS = b"(", b"}", b"u", b"]", b"e"
_BATCH = 1000


def encode(value: Any) -> bytes:
    """Opcodes that push a value made of dicts, lists, tuples, strings, numbers and None."""
    file = BytesIO()
    # Protocol 2: no frames. fast: no memo, so that the pieces of a stream do not know each other.
    pickler = pickle.Pickler(file, 2)
    pickler.fast = True
    pickler.dump(value)
    return file.getvalue()[2:-1]


def encode_int(value: int) -> bytes:
    """``encode`` of an integer, without a pickler."""
    if 0 <= value < 0x100:
        return b"K" + value.to_bytes(1, "little")
    if -0x80000000 <= value < 0x80000000:
        return b"J" + value.to_bytes(4, "little", signed=True)
    size = value.bit_length() // 8 + 1
    return b"\x8a" + size.to_bytes(1, "little") + value.to_bytes(size, "little", signed=True)


def put(index: int) -> bytes:
    """Remember what is on top of the stack under a number of our choice."""
    return b"r" + index.to_bytes(4, "little")


def get(index: int) -> bytes:
    """Push what was remembered under a number."""
    return b"j" + index.to_bytes(4, "little")


class Names(dict[str, bytes]):
    """Opcodes that push short strings which stand again and again, two bytes each: at most 256 of
    them. ``definition``, which pushes the list of all, must be written before they are used."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__((name, b"h" + bytes([i])) for i, name in enumerate(names))
        items = (encode(name) + b"q" + push[1:] for name, push in self.items())
        self.definition = LIST + MARK + b"".join(items) + APPENDS


def write_list(write: Callable[[bytes], object], items: Iterable[bytes]) -> None:
    """Write a list whose items are given as opcodes."""
    write(LIST)
    batch: list[bytes] = []
    for item in items:
        batch.append(item)
        if len(batch) == _BATCH:
            write(MARK + b"".join(batch) + APPENDS)
            batch.clear()
    if batch:
        write(MARK + b"".join(batch) + APPENDS)
