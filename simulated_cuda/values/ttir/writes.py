"""The pointers that a kernel writes through, by its TTIR."""

from __future__ import annotations

import re

from .translator import lines_of

__all__ = ["written_arguments"]

_NAME = r"%[\w$.\-]+"
_RESULT = re.compile(rf"({_NAME})(?::\d+)? = (.*)")
_CARRIES = re.compile(r"scf\.|\} (else|do) |\^bb")
"""Begins a line that hands values on to names which it does not tell from one another."""
_OF_FIRST = re.compile(r"tt\.(addptr|advance|make_tensor_ptr|store|atomic_\w+|descriptor_\w+)\b")
_READS = re.compile(r"tt\.(load|gather|descriptor_(load|gather))\b")
_WRITES = re.compile(
    r"tt\.(store|atomic_\w+|descriptor_(store|reduce|scatter)|call|elementwise_inline_asm)\b"
)


def written_arguments(text: str) -> list[int]:
    """Places of the arguments that a kernel may write through.

    A pointer is followed through all that is made of it, and what loops carry is taken for any of
    what loops carry. So none that is written through is missed, but for addresses that the kernel
    makes of integers.
    """
    head, *lines = lines_of(text[text.index("tt.func public") :])
    arguments = re.findall(rf"({_NAME}): (!tt\.ptr)?", head)
    made_of = {name: {i} for i, (name, is_pointer) in enumerate(arguments) if is_pointer}
    carried: set[int] = set()
    written: set[int] = set()
    while True:
        before = [len(carried), *map(len, made_of.values())]
        for line in lines:
            found = _RESULT.match(line)
            result, rest = found.groups() if found is not None else (None, line)
            used = re.findall(_NAME, rest)
            if _CARRIES.match(rest):
                names = re.findall(_NAME, line)
                carried.update(*(made_of.get(name, ()) for name in names))
                made_of.update((name, made_of.get(name, set()) | carried) for name in names)
                continue
            del used[1 if _OF_FIRST.match(rest) else len(used) :]
            pointers = set().union(*(made_of.get(name, ()) for name in used))
            if _WRITES.match(rest):
                written |= pointers
            if result is not None and not _READS.match(rest):
                made_of.setdefault(result, set()).update(pointers)
        if before == [len(carried), *map(len, made_of.values())]:
            return sorted(written)
