"""Operations of autograd that ran in a backward, and the lines of the forward that they belong to.

Note [The forward of an operation]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What autograd's C++ asks for has no Python on the stack. So before a backward begins its graph is
walked, and each operation notes when it runs: between two of these notes the allocator's history is
one operation's. Where in the forward it was made torch does not write down. But operations are
numbered in the order of the forward, as the allocator's history is, which has lines. An operation's
own result is known where somebody has saved it: the operation itself, or one that was given it.
Of the others, results lie in the history between those of their neighbours, and have the bytes that
the operation's result has: where all that is so was asked for by one line, it is that. Else the
line is not known.

*Logits* are what a log-softmax was given, and what is made of that with as many elements: a copy in
another type, the log-probabilities, the gradients of all of these.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch

from . import _torch_compat as compat
from .history import AutogradOrigin

LOSS = "LogSoftmaxBackward0"
"""The operation that is given logits."""

LEAST = 1 << 18
"""Elements that a tensor has, at least, to be called logits."""


@dataclass(slots=True)
class _Operation:
    """One operation: bytes of what its forward returned, where that lies, if it is known, and the
    shape of the logits that the forward returned, or was given and the backward returns a gradient
    of; empty where it is something else."""

    name: str
    nbytes: int
    returned: str
    given: str
    address: int | None = None


@dataclass(slots=True)
class Backward:
    """One run of autograd's engine.

    Attributes:
        begun, ended: how many blocks had been asked for by then, by device.
        operations: in the order of the forward.
        ran: which of them began, on which device, after how many blocks had been asked for there.
    """

    begun: Mapping[int, int]
    ended: Mapping[int, int] = field(default_factory=dict)
    operations: list[_Operation] = field(default_factory=list)
    ran: list[tuple[int, int, int]] = field(default_factory=list)

    def walk(self, outputs: Sequence[Any]) -> None:
        """Note the operations that these tensors lead to, and have each say when it runs."""
        below = compat.operations_below(outputs)
        results = {node: compat.result_of(node) for node in below}
        # Rows may be those of another shape of theirs: a batch of sequences.
        longest = {_kind(r): r for r in sorted(results.values(), key=lambda r: len(r.shape))}
        losses = {_kind(results[n]) for n in below if type(n).__name__ == LOSS}
        logits = {
            k: " x ".join(f"{n:,}" for n in longest[k].shape) for k in losses if k[0] >= LEAST
        }
        words = {node: logits.get(_kind(result), "") for node, result in results.items()}
        numbers = {node: i for i, node in enumerate(below)}
        for node, i in numbers.items():
            given = next((words[n] for n in below[node] if words.get(n)), "")
            operation = _Operation(type(node).__name__, results[node].nbytes, words[node], given)
            self.operations.append(operation)
            # It goes with the graph.
            node.register_prehook(lambda _, i=i: self._runs(i))
        for node in below:
            for maker, tensor in compat.makers_of_saved(node):
                for address, _ in compat.memory_of(tensor, "cuda") if maker in numbers else ():
                    self.operations[numbers[maker]].address = address

    def _runs(self, number: int) -> None:
        device = torch.cuda.current_device()
        if device in self.begun and not self.ended:
            self.ran.append((device, compat.allocation_counts(device)[0], number))


def _kind(result: compat.Result) -> tuple[int, int]:
    """Elements of a result, in all and in its last dimension."""
    return math.prod(result.shape), result.shape[-1] if result.shape else 1


def origins(
    backwards: Sequence[Backward], device: int, events: Sequence[Mapping[str, Any]], asked: int
) -> dict[int, AutogradOrigin]:
    """Origins (operations of autograd, in forward or backward) of blocks, by their number among the
    requests in these events of the allocator. ``asked`` had been asked for by their end."""
    allocs = [e for e in events if e["action"] == "alloc"]
    first = asked - len(allocs)
    found: dict[int, AutogradOrigin] = {}
    lies_at: dict[int, int] = {}
    done = 0
    for backward in backwards:
        begin = min(max(done, backward.begun.get(device, 0) - first), len(allocs))
        lies_at.update((allocs[i]["addr"], i) for i in range(done, begin))
        done = begin
        of = backward.operations
        places = _places(of, allocs[:begin], lies_at)
        frames = [() if at is None else allocs[at].get("frames", ()) for at in places]
        for o, at, raw in zip(of, places, frames, strict=True):
            if at is not None:
                found[at] = AutogradOrigin(o.name, raw, o.returned)
        ran = [(count - first, number) for d, count, number in backward.ran if d == device]
        end = backward.ended.get(device, asked) - first
        for (begins, i), (ends, _) in pairwise([*ran, (end, 0)]):
            origin = AutogradOrigin(of[i].name, frames[i], of[i].given)
            found.update((n, origin) for n in range(max(begins, 0), ends))
    return found


def _places(
    operations: Sequence[_Operation],
    allocs: Sequence[Mapping[str, Any]],
    lies_at: Mapping[int, int],
) -> list[int | None]:
    """Index of each operation's request among those of a forward, None if unknown."""
    sure = [None if o.address is None else lies_at.get(o.address) for o in operations]
    floors = accumulate((-1 if i is None else i for i in sure), max)
    ceilings = [*accumulate((len(allocs) if i is None else i for i in reversed(sure)), min)]
    by_size: dict[int, list[int]] = {}
    for i, alloc in enumerate(allocs):
        by_size.setdefault(alloc["size"], []).append(i)
    places: list[int | None] = []
    for o, at, floor, ceiling in zip(operations, sure, floors, reversed(ceilings), strict=True):
        alike = by_size.get(o.nbytes, [])
        begin, end = bisect.bisect_right(alike, floor), bisect.bisect_left(alike, ceiling)
        lines = {_program(allocs[i]) for i in alike[begin:end]}
        places.append(alike[begin] if at is None and len(lines) == 1 else at)
    return places


def _program(alloc: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple((f["filename"], f["line"]) for f in alloc.get("frames", ()))
