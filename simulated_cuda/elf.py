"""Symbols that a 64-bit little-endian ELF file wants and has, read from its section headers.

Symbol tables are what this needs and no more; reading them here is quicker than ``nm`` on torch's
libraries of half a gigabyte, and works where there are no binutils. Layouts: System V ABI, chapter
4, and the LSB's chapter on symbol versions.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SYMTAB, _DYNAMIC, _DYNSYM, _VERNEED, _VERSYM = 2, 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
_NEEDED = 1
_WEAK = 2
_FUNCTION = 2


@dataclass
class Elf:
    """The symbols of one file."""

    wanted: dict[str, str | None] = field(default_factory=dict)
    """Undefined symbols, with the version that each asks for."""
    weakly_wanted: set[str] = field(default_factory=set)
    """Symbols of ``wanted`` that may stay undefined."""
    functions: set[str] = field(default_factory=set)
    """Functions that the file defines for others, weakly or not."""
    needed: list[str] = field(default_factory=list)
    """Libraries that the file names, by soname."""


@dataclass(frozen=True)
class _Section:
    name: int
    kind: int
    offset: int
    size: int
    link: int


def read_elf(path: Path) -> Elf:
    """Read a shared library's dynamic symbols, or an object file's symbols.

    Raises ValueError for a file that is not 64-bit little-endian ELF.
    """
    with _mapped(path) as data:
        return _read(data)


def read_only_data(path: Path) -> bytes:
    """A library's constants, where the names lie that it looks up at run time.

    Raises ValueError for a file that is not 64-bit little-endian ELF.
    """
    with _mapped(path) as data:
        sections = list(_sections(data))
        (names_at,) = struct.unpack_from("<H", data, 0x3E)
        names = _bytes(data, sections[names_at])
        found = [s for s in sections if _string(names, s.name) == ".rodata"]
        return b"".join(_bytes(data, section) for section in found)


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """The file's content; what goes wrong in reading its tables becomes a ValueError."""
    # An empty file cannot be mapped, which is a ValueError as well.
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no 64-bit little-endian ELF file")
        try:
            yield data
        except (struct.error, IndexError):
            raise ValueError(f"{path} ends before its section headers say") from None


def _read(data: mmap.mmap) -> Elf:
    sections = list(_sections(data))
    by_kind = {section.kind: section for section in sections}
    elf = Elf()
    symbols = by_kind.get(_DYNSYM) or by_kind.get(_SYMTAB)
    if symbols is not None:
        strings = _bytes(data, sections[symbols.link])
        versions = _versions(data, sections, by_kind)
        for index, (name, info, _, section, _, _) in enumerate(
            struct.iter_unpack("<IBBHQQ", _bytes(data, symbols))
        ):
            if not name or info >> 4 == 0:  # Local symbols are nobody else's.
                continue
            symbol = _string(strings, name)
            if section == 0:
                elf.wanted[symbol] = versions.get(index)
                if info >> 4 == _WEAK:
                    elf.weakly_wanted.add(symbol)
            elif info & 15 == _FUNCTION:
                elf.functions.add(symbol)
    if _DYNAMIC in by_kind:
        dynamic = by_kind[_DYNAMIC]
        strings = _bytes(data, sections[dynamic.link])
        entries = struct.iter_unpack("<QQ", _bytes(data, dynamic))
        elf.needed = [_string(strings, value) for tag, value in entries if tag == _NEEDED]
    return elf


def _sections(data: mmap.mmap) -> Iterator[_Section]:
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    for i in range(count):
        name, kind, _, _, offset, length, link, _ = struct.unpack_from(
            "<IIQQQQII", data, start + i * size
        )
        yield _Section(name, kind, offset, length, link)


def _versions(
    data: mmap.mmap, sections: list[_Section], by_kind: dict[int, _Section]
) -> dict[int, str]:
    """The version that each dynamic symbol asks for, by its index in the symbol table."""
    if _VERNEED not in by_kind or _VERSYM not in by_kind:
        return {}
    need = by_kind[_VERNEED]
    strings = _bytes(data, sections[need.link])
    names: dict[int, str] = {}
    at = need.offset
    while True:
        _, count, _, first, step = struct.unpack_from("<HHIII", data, at)
        entry = at + first
        for _ in range(count):
            _, _, other, name, following = struct.unpack_from("<IHHII", data, entry)
            names[other] = _string(strings, name)
            entry += following
        if not step:
            break
        at += step
    indices = struct.iter_unpack("<H", _bytes(data, by_kind[_VERSYM]))
    return {i: names[v & 0x7FFF] for i, (v,) in enumerate(indices) if v & 0x7FFF in names}


def _bytes(data: mmap.mmap, section: _Section) -> bytes:
    found = data[section.offset : section.offset + section.size]
    if len(found) != section.size:
        raise IndexError(section.offset)
    return found


def _string(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()
