"""A description beside Inductor's lists.

Note [What Inductor says]
~~~~~~~~~~~~~~~~~~~~~~~~~
Inductor has lists of its own of inputs that stay where they are and of inputs that its code writes
to. Both are compared with the description when a graph has been compiled. Where they differ, an
input is written to if either says so, and stays only if both do: the worst that follows is a copy,
or a graph that is not recorded. What a forward saved is left out of the comparison one way: where
the forward is run in parts, Inductor from 2.13 on takes what is made between them for moving.
A field of AOTAutograd's metadata that cannot be read leaves Inductor's word alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from memprof.profiler.model import GraphDescription, GraphKind, GraphValue, Role


def compared(
    description: GraphDescription,
    kind: GraphKind,
    stays: Collection[int],
    written: Collection[int],
) -> tuple[GraphDescription, list[str]]:
    """The description, with the safe word of both where Inductor's lists say otherwise, and a
    sentence about each disagreement: Note [What Inductor says].

    Args:
        stays, written: Inductor's lists.
    """
    told = []
    inputs = []
    knows_static = description.metadata.knows("static_input_indices")
    for v in description.inputs:
        static, mutated = v.index in stays, v.index in written
        if kind is GraphKind.BACKWARD or v.info is not None:
            if knows_static:
                if v.dtype is not None and _differ(v, static):
                    told.append(f"{_who(v.static)} says that {v.label} stays where it is")
                static = static and v.static
            if mutated != v.mutated:
                told.append(f"{_who(v.mutated)} says that {v.label} is written to")
            mutated = mutated or v.mutated
        inputs.append(replace(v, static=static, mutated=mutated))
    return replace(description, inputs=tuple(inputs)), told


def _differ(value: GraphValue, static: bool) -> bool:
    return value.static != static and not (value.static and value.role is Role.SAVED_FOR_BACKWARD)


def _who(ours: bool) -> str:
    return "AOTAutograd alone" if ours else "Inductor alone"
