"""The pointers that a kernel writes through, by its TTIR."""

from __future__ import annotations

import re
from collections import defaultdict

from .translator import lines_of

_NAME = r"%[\w$.\-]+"
_CARRIES = re.compile(r"scf\.|\} (else|do) |\^bb")
"""Beginnings of lines that hand values on to names not told from one another."""
_CARRIED, _WRITTEN = "what loops carry", "what is written through"
_OF_FIRST = re.compile(r"tt\.(addptr|advance|make_tensor_ptr|store|atomic_\w+|descriptor_\w+)\b")
_READS = re.compile(r"tt\.(load|gather|descriptor_(load|gather))\b")
_WRITES = re.compile(
    r"tt\.(store|atomic_\w+|descriptor_(store|reduce|scatter)|call|elementwise_inline_asm)\b"
)


def written_arguments(text: str) -> list[int]:
    """Places of the arguments that a kernel may write through.

    A pointer that is written through is followed back to all that it may be made of, and what loops
    carry is taken for any of what loops carry. So no argument is missed, but for addresses that the
    kernel makes of integers.
    """
    head, *lines = lines_of(text[text.index("tt.func public") :])
    made_of: defaultdict[str, set[str]] = defaultdict(set)
    for line in lines:
        result, _, operation = line.rpartition(" = ") if line.startswith("%") else ("", "", line)
        if " = scf" in line or _CARRIES.match(line):
            names = re.findall(_NAME, line)
            made_of[_CARRIED].update(names)
            for name in names:
                made_of[name].add(_CARRIED)
            continue
        names = re.findall(_NAME, operation)
        used = names[:1] if _OF_FIRST.match(operation) else names
        if _WRITES.match(operation):
            made_of[_WRITTEN].update(used)
        if not _READS.match(operation):
            made_of[result.partition(":")[0]].update(used)
    reached, todo = set(), [_WRITTEN]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += made_of[name]
    arguments = re.findall(rf"({_NAME}): (!tt\.ptr)?", head)
    return [i for i, (name, points) in enumerate(arguments) if points and name in reached]
