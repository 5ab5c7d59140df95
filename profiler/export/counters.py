"""Live bytes by category at every instant, as constants of the kinds of calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..live import LiveItem
from ..model import Category
from ..timeline import Timeline


@dataclass(frozen=True, slots=True)
class CategoryBytes:
    """Live bytes by category during calls of one kind; what is 0 is left out.

    Attributes:
        entry: at instant 0.
        events: for each event, the categories that it changes with their new bytes.
        after: between this call and the next.
    """

    entry: dict[Category, int]
    events: tuple[dict[Category, int], ...]
    after: dict[Category, int]


class Counters:
    """``CategoryBytes`` of a timeline's calls, each kind of call looked at once."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._known: dict[int, CategoryBytes] = {}

    def of(self, call: int) -> CategoryBytes:
        """Those of a call."""
        kind = self.timeline.kind(call)
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = self._count(call)
        return found

    def _count(self, call: int) -> CategoryBytes:
        entry = _sums(self.timeline.live_at(call, 0).items)
        now = dict(entry)
        events: list[dict[Category, int]] = []
        for before, after in self.timeline.changes(call):
            changed: dict[Category, int] = {}
            for item, sign in ((before, -1), (after, 1)):
                if item is not None and item.nbytes:
                    category = item.storage.category
                    now[category] = changed[category] = (
                        now.get(category, 0) + sign * item.storage.nbytes
                    )
            events.append(changed)
        return CategoryBytes(entry, tuple(events), _sums(self.timeline.live_after(call)))


def _sums(items: Iterable[LiveItem]) -> dict[Category, int]:
    sums: Counter[Category] = Counter()
    for item in items:
        if item.nbytes:
            sums[item.storage.category] += item.nbytes
    return dict(sums)
