"""Looks of a program at values that nobody knows, and the pretended values that it finds.

What the program itself put on the device is known (Note [What the host knows]), and a look at that
is none at all here.

Note [Pretended values]
~~~~~~~~~~~~~~~~~~~~~~~
``--pretend train.py:42=0.5`` names the innermost line of the program outside of torch, as the
report does that counts looks at values. What the simulated device has copied to the host for that
line is overwritten before torch reads it, so that whatever torch does with it follows.

The bytes are of the tensor's type where the line reads a tensor (``item()``, ``tolist()``,
``cpu()``, ``bool(tensor)``): those go through two operators, which are wrapped for that. What an
operator reads for itself, such as the number of elements that ``nonzero()`` found, is an integer of
as many bytes as are copied. Every element of a copy gets the value.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memprof.profiler.model import HostRead, SourceFrame
from memprof.profiler.sources.allocator.where import line_of_caller

from .command_line import BadInput

Value = bool | int | float

_FORMATS = {
    "torch.float64": "d",
    "torch.float32": "f",
    "torch.float16": "e",
    "torch.int64": "q",
    "torch.int32": "i",
    "torch.int16": "h",
    "torch.int8": "b",
    "torch.uint64": "Q",
    "torch.uint32": "I",
    "torch.uint16": "H",
    "torch.uint8": "B",
    "torch.bool": "?",
}
_INTEGERS = {8: "q", 4: "i", 2: "h", 1: "b"}
_STORAGE = "a storage"
"""In place of the type of what is copied as bytes of which nobody knows what they are:
``torch.save``."""
_NO_INTEGERS = ("float", "complex", _STORAGE)
"""Are in the names of types that no size or branch is made of."""
_LINES_NAMED = 3
_READS = ("_local_scalar_dense", "copy_")
"""Operators that bring a tensor to the host, whose first argument has the type of the copy."""


@dataclass(frozen=True, slots=True)
class Pretence:
    """Values for a line of a file, which is named by the end of its path: one a look, and then
    again and again the last of them."""

    file: str
    line: int
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def means(self, file: str, line: int) -> bool:
        return line == self.line and f"/{file}".endswith(f"/{self.file}")

    def value(self, look: int) -> Value:
        """Value that a look finds; the first look is 0."""
        return self.values[min(look, len(self.values) - 1)]


def named(line: SourceFrame) -> str:
    """The line as ``--pretend`` names it."""
    return f"{os.path.basename(line.file)}:{line.line}"


def parse_pretence(text: str) -> Pretence:
    """``FILE:LINE=VALUE[,VALUE...]``.

    Raises:
        BadInput: it is something else.
    """
    match = re.fullmatch(r"(.+):(\d+)=(.+)", text)
    if match is None:
        raise BadInput(f"{text!r} is not FILE:LINE=VALUE[,VALUE...], such as train.py:42=0.5")
    file, line, values = match.groups()
    return Pretence(file.removeprefix("./"), int(line), tuple(map(_value, values.split(","))))


def _value(text: str) -> Value:
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    raise BadInput(f"{text!r} is no value: write 7, 0.5, 1e-3, nan, inf, true or false")


class HostReads:
    """Counts copies from devices to the host by line, and overwrites what the program is about to
    look at, where that was asked for; ``misfits`` says what could not be done."""

    def __init__(self, pretences: Sequence[Pretence]) -> None:
        self._pretences = list(pretences)
        self._looks = [0] * len(self._pretences)
        self._reading = threading.local()
        self._found: dict[SourceFrame | None, list[int]] = {}
        self._decides: dict[SourceFrame, str] = {}
        """Formats of what is no floating point number."""
        self.misfits: dict[str, None] = {}
        self._chose = False

    def install(self) -> None:
        """Learn of the types of tensors that are read, from here on."""
        import torch

        from memprof.simulated_cuda.overrides import wrap_kernels

        storages: Any = torch.UntypedStorage
        copied = storages.cpu

        def copy(storage: Any) -> Any:
            with self._reading_as(_STORAGE):
                return copied(storage)

        storages.cpu = copy
        wrap_kernels("aten", {**dict.fromkeys(_READS, self._typed), "topk": self._choosing})

    def _choosing(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def choose(*args: Any, **kwargs: Any) -> Any:
            self._chose = True
            return run(*args, **kwargs)

        return choose

    @contextlib.contextmanager
    def _reading_as(self, dtype: str) -> Iterator[None]:
        outer = getattr(self._reading, "dtype", None)
        self._reading.dtype = outer if outer == _STORAGE else dtype
        try:
            yield
        finally:
            self._reading.dtype = outer

    def _typed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def read(keys: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            with self._reading_as(str(tensor.dtype)):
                return run(keys, tensor, *args, **kwargs)

        return read

    def note(self, nbytes: int, address: int, known: bool) -> bool:
        """Overwrite a copy of ``nbytes`` to ``address`` if the calling line is pretended; count it
        if its value is unknown. Return whether it is known."""
        line = line_of_caller()
        if line is not None:
            known = self.apply(line.file, line.line, nbytes, address) or known
        if not known:
            counted = self._found.setdefault(line, [0, 0])
            counted[0] += 1
            counted[1] += nbytes
            dtype = getattr(self._reading, "dtype", None) or ""
            if line is not None and not any(kind in dtype for kind in _NO_INTEGERS):
                self._decides[line] = _FORMATS.get(dtype, "")
        return known

    def depends_on(self) -> list[str]:
        """Sentences about lines on whose branches or sizes the result may depend: they found whole
        numbers or truth values that nobody knows."""
        order = sorted(self._decides, key=lambda x: (self._decides[x], -self._found[x][0]))
        notes = []
        for line in order[:_LINES_NAMED]:
            found, other = ("false", "true") if self._decides[line] == "?" else ("0", "NUMBER")
            notes.append(
                f"the result may depend on {named(line)}, which looked at a value that nothing "
                f"had computed and found {found}: --pretend {named(line)}={other} shows the other "
                "way"
            )
        if notes and self._chose:
            notes[0] += (
                "; if it counts tokens of experts that topk chose, --balanced-experts gives each "
                "expert as many"
            )
        if len(order) > _LINES_NAMED:
            notes.append(
                f"and on {len(order) - _LINES_NAMED:,} more lines, which the account lists"
            )
        return notes

    def rows(self) -> list[HostRead]:
        """Counted reads by line, most frequent first."""
        rows = [HostRead(line, *counted) for line, counted in list(self._found.items())]
        return sorted(rows, key=lambda r: -r.count)

    def apply(self, file: str, line: int, nbytes: int, address: int) -> bool:
        """Overwrite what was copied for a line; returns whether that was asked for."""
        for i, pretence in enumerate(self._pretences):
            if not pretence.means(file, line):
                continue
            value = pretence.value(self._looks[i])
            self._looks[i] += 1
            dtype = getattr(self._reading, "dtype", None)
            try:
                element = _encode(value, dtype, nbytes)
            except (struct.error, OverflowError, ValueError) as e:
                what = dtype or f"a number of {nbytes} bytes that torch itself reads"
                self.misfits[f"--pretend {pretence}: {value} cannot be {what} ({e})"] = None
            else:
                ctypes.memmove(address, element * (nbytes // len(element)), nbytes)
            return True
        return False

    def unused(self) -> list[str]:
        """Sentences about those whose line never brought a value to the host."""
        return [
            f"--pretend {p}: that line never looked at a value of the device"
            for p, looks in zip(self._pretences, self._looks, strict=True)
            if not looks
        ]


def _encode(value: Value, dtype: str | None, nbytes: int) -> bytes:
    """Bytes of one element, little-endian."""
    if dtype == "torch.bfloat16":
        # The upper half of a float32, rounded to the nearest.
        bits = int.from_bytes(struct.pack("<f", value), "little")
        return (bits if value != value else bits + 0x8000).to_bytes(5, "little")[2:4]
    if dtype is None and value < 0:
        raise ValueError("it is negative")
    form = _INTEGERS.get(nbytes) if dtype is None else _FORMATS.get(dtype)
    if form is None:
        raise ValueError("a type that is not covered")
    if form == "?":
        return struct.pack("?", bool(value))
    if form not in "dfe":
        if value != int(value):
            raise ValueError("it is no integer")
        value = int(value)
    return struct.pack(f"<{form}", value)
