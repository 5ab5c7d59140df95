"""Which outputs of a path are live, and what a node expects of that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from .. import native
from .storage_ref import StorageWeakRefWrapper

_refs = sys.getrefcount

OutputRefs: TypeAlias = "list[StorageWeakRefWrapper | None]"
"""One entry an output of a node; None if its memory is none of the pool's business."""
PathOutputIndex: TypeAlias = tuple[int, int]
"""``(depth, output)``: an output of the node ``depth`` steps below the root."""
Liveness: TypeAlias = list[list[bool]]


def is_live(ref: StorageWeakRefWrapper | None) -> bool:
    """Whether someone outside the trees holds the output."""
    return ref is not None and not ref.expired()


def liveness_of(path: Sequence[OutputRefs]) -> Liveness:
    """Liveness of every output of every node of a path."""
    return [[is_live(r) for r in refs] for refs in path]


def died(before: Liveness, now: Liveness) -> list[PathOutputIndex]:
    """Outputs whose liveness differs. Nothing comes back to life, so these have died."""
    return [
        (d, i)
        for d, (a, b) in enumerate(zip(before, now, strict=False))
        for i, (x, y) in enumerate(zip(a, b, strict=True))
        if x != y
    ]


FindLive: TypeAlias = Callable[[list[StorageWeakRefWrapper]], Sequence[int]]
"""Indices of those that somebody holds, if only by a stale autograd graph: see ``held``. Hot."""


def find_live() -> FindLive:
    """Such a function, as fast as this machine can: in C++ of our own where that was built."""
    built = native.load()
    if built is not None:
        live: FindLive = built.Liveness(StorageWeakRefWrapper).live
        return live
    return slowly


def slowly(refs: list[StorageWeakRefWrapper]) -> Sequence[int]:
    """The same in Python."""
    return [i for i, r in enumerate(refs) if not r.expired()]


def detach_in_place(t: torch.Tensor) -> None:
    """Take ``t`` out of its graph, in inference mode too, where ``detach_`` alone does nothing."""
    with torch.inference_mode(False):
        t.detach_()


def let_go_of_stale_graphs(refs: Sequence[StorageWeakRefWrapper]) -> bool:
    """Detach cached outputs that only the trees hold; whether there were any.

    See Note [When an output is dead].
    """
    found = False
    for r in refs:
        if r.cache is None or _refs(r.cache[r.slot]) != 2:
            continue
        t = r.cache[r.slot]
        if t is not None and t.grad_fn is not None:
            detach_in_place(t)
            t._backward_hooks = None
            if t.retains_grad:
                t.requires_grad_()  # it cannot be told to forget that: it is not handed out again
            found |= t.grad_fn is None  # or nothing was gained by looking again
    return found


def held(
    refs: Sequence[StorageWeakRefWrapper],
    siblings: Sequence[StorageWeakRefWrapper] | None = None,
) -> list[StorageWeakRefWrapper]:
    """Those of ``refs`` that are really held.

    Args:
        refs: outputs in question.
        siblings: outputs whose stale autograd graphs may hold them; ``refs`` by default.
    """
    live = [r for r in refs if not r.expired()]
    while live and let_go_of_stale_graphs(siblings if siblings is not None else refs):
        live = [r for r in live if not r.expired()]
    return live


def path_refs(path: Sequence[OutputRefs]) -> list[StorageWeakRefWrapper]:
    """All outputs of a path: a stale autograd graph of one may hold another."""
    return [r for refs in path for r in refs if r is not None]


def refs_at(
    path: Sequence[OutputRefs], indices: Sequence[PathOutputIndex]
) -> list[StorageWeakRefWrapper]:
    """The outputs of a path at these indices, none of which lies outside of the pool."""
    out = []
    for depth, i in indices:
        r = path[depth][i]
        assert r is not None
        out.append(r)
    return out


def live_path_outputs(path: Sequence[OutputRefs]) -> dict[int, PathOutputIndex]:
    """The first live output of a path at each address."""
    out: dict[int, PathOutputIndex] = {}
    for depth, refs in enumerate(path):
        for i, r in enumerate(refs):
            if r is not None and r.address not in out and not r.expired():
                out[r.address] = (depth, i)
    return out
