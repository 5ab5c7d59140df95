"""Describes what was captured, why no earlier graph could be used, and how often each graph ran."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from torch.fx import GraphModule

from .passes import PassResult

KEPT = 64
"""Signatures of captures that are kept to explain later ones."""


@dataclass(slots=True)
class Signature:
    """Enough of a capture to say how another one differs.

    Attributes:
        id: number of the capture; Dynamo's compile ids of it begin with ``!<id>/``.
        calls: names of the autograd nodes, in the engine's order; of AOTAutograd's with the
            number of the graph, since a forward that is compiled anew has a node of its own.
        shapes, sizes: of the lifted tensors; lifted sizes.
    """

    id: int
    calls: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


@dataclass(slots=True)
class Capture(Signature):
    """One captured backward.

    Attributes:
        graph: after the passes.
        capture_ns: time from the engine's first call to the finished graph, compiler excluded.
        reason: why no earlier graph could be used.
    """

    graph: GraphModule
    capture_ns: int
    passes: PassResult
    reason: str = ""
    runs: itertools.count[int] = field(default_factory=itertools.count)


@dataclass(frozen=True, slots=True)
class Listener:
    """Functions that are told of captures and of runs of captured graphs.

    Attributes:
        captured: a graph was captured (a miss of the engine's cache).
        ran: a captured graph is about to run; True if it was captured for an earlier backward
            (a hit of the cache).
    """

    captured: Callable[[Capture], None]
    ran: Callable[[Capture, bool], None]


class CaptureLog:
    def __init__(self) -> None:
        self._signatures: deque[Signature] = deque(maxlen=KEPT)
        self.listeners: list[Listener] = []

    def captured(self, capture: Capture) -> Capture:
        """Note a capture, give it its reason and tell the listeners."""
        capture.reason = why_captured(capture, tuple(self._signatures))
        # Without the graph, which would be kept alive.
        self._signatures.append(Signature(capture.id, capture.calls, capture.shapes, capture.sizes))
        for listener in tuple(self.listeners):
            listener.captured(capture)
        return capture

    def ran(self, capture: Capture) -> None:
        hit = next(capture.runs) > 0
        for listener in tuple(self.listeners):
            listener.ran(capture, hit)

    def clear(self) -> None:
        self._signatures.clear()


def why_captured(new: Signature, earlier: tuple[Signature, ...]) -> str:
    """In what ``new`` differs from the most similar earlier capture, in words.

    Most of what C++ keys its cache by is visible here; where nothing visible differs, it says so.
    """
    if not earlier:
        return "the first capture"
    same_calls = [s for s in earlier if s.calls == new.calls]
    if not same_calls:
        nearest = max(earlier, key=lambda s: _common(s.calls, new.calls))
        at = _common(nearest.calls, new.calls)
        ours, theirs = ([*s.calls, "the end"][at] for s in (new, nearest))
        return (
            f"other autograd nodes: at call {at} {ours} instead of {theirs} in capture {nearest.id}"
        )
    last = max(same_calls, key=lambda s: (_alike(s, new), s.id))
    if len(last.shapes) != len(new.shapes):
        return (
            f"{len(new.shapes)} lifted tensors instead of {len(last.shapes)} in capture {last.id}: "
            f"gradients to accumulate into, or saved tensors, came or went"
        )
    if len(last.sizes) != len(new.sizes):
        return (
            f"{len(new.sizes)} dynamic sizes instead of {len(last.sizes)} in capture {last.id}: "
            f"sizes that changed are lifted from now on"
        )
    for i, (shape, before) in enumerate(zip(new.shapes, last.shapes, strict=True)):
        if shape != before:
            return f"lifted tensor {i} has shape {shape} instead of {before} in capture {last.id}"
    return (
        f"the same nodes and shapes as capture {last.id}: hooks, constants or grad modes differ, "
        f"or the cache was cleared"
    )


def _alike(a: Signature, b: Signature) -> tuple[bool, int, bool]:
    return (
        len(a.shapes) == len(b.shapes),
        sum(x == y for x, y in zip(a.shapes, b.shapes, strict=False)),
        len(a.sizes) == len(b.sizes),
    )


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    pairs = zip(a, b, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
