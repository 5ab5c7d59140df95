"""Tries that were made, in a file where there is one: what was interrupted goes on from there."""

from __future__ import annotations

import os

import msgspec

from memprof.profiler._json import to_json
from memprof.profiler.reading import read_file
from memprof.profiler.writing import check_writable, write_whole

FORMAT = 1


class BadStore(ValueError):
    """A file that holds something else than tries; the message says what to do."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of a try.

    Attributes:
        values: of the variables.
        gpu: key of the data sheet.
        memory: bytes of the device.
        fits: whether the script ran, as far as it was run, and never ran out of memory, caught or
            not.
        needed: bytes that it took of the device in all; where it did not fit, until then.
        reserved: bytes of that by torch's allocator.
        allocated: the most bytes that were allocated of it at once.
        parts: what was reserved at the peak, by name and in bytes, largest first.
        limit: the request that did not fit and who made it, empty where all did.
        short: bytes more that the device must have had free for that request.
        flops: of matrix products, convolutions and attention in what was partitioned for autograd;
            None where they were not counted.
        changed: what the changes that were tried have changed, in sentences.
        idle: changes that found nothing to change.
        notes: what was asked for and could not be done, in sentences.
        expected: bytes that changes should save, by key, see ``expected`` in ``tries.py``.
        seconds: that the try took.
    """

    values: dict[str, str]
    gpu: str
    memory: int
    fits: bool
    needed: int
    reserved: int
    allocated: int
    parts: list[tuple[str, int]]
    limit: str
    flops: int | None
    changed: list[str]
    idle: list[str]
    notes: list[str]
    seconds: float
    expected: dict[str, int] = {}
    short: int = 0


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    memprof_fit: int
    tries: dict[str, Tried]


class Store:
    """Tries by a key that says all that they depend on; kept in a JSON file, which is read if it is
    there and written whole after each try, or in memory alone.

    Raises:
        BadStore: the file is there and is something else.
        ProfileNotWritableError: it could not be written.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._tries: dict[str, Tried] = {}
        if path is None:
            return
        self._tries = _read(path)
        check_writable(path)

    def get(self, key: str) -> Tried | None:
        """What is known under a key."""
        return self._tries.get(key)

    def put(self, key: str, tried: Tried) -> None:
        """Keep a try, in the file as well.

        Raises:
            BadStore: the file has meanwhile become something else; it is left alone.
            ProfileNotWritableError: the file cannot be written; what it had is still there.
        """
        self._tries[key] = tried
        if self._path is not None:
            # Another run may have written to it meanwhile.
            self._tries = {**_read(self._path), **self._tries}
            whole = _File(memprof_fit=FORMAT, tries=self._tries)
            write_whole(self._path, to_json(whole), "the tries")


def _read(path: str) -> dict[str, Tried]:
    """The tries in a file; none where there is no file.

    Raises:
        BadStore: it is something else.
    """
    if not os.path.lexists(path):
        return {}
    try:
        found = msgspec.json.decode(read_file(path), type=_File)
    except msgspec.MsgspecError as e:
        raise BadStore(
            f"{path} is there and has no tries of memprof fit ({e}): give another path"
        ) from e
    if found.memprof_fit != FORMAT:
        raise BadStore(f"{path} was written by another memprof: give another path")
    return found.tries
