"""Which persistent memory exists when; see Note [What is live between calls] in ``timeline.py``.

The set changes with few calls only: the first ones of each graph, and those at which something was
released. The calls from one change to the next are an *epoch*.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ._programs import CarriedItem, Key, PreparedProgram
from .live import LiveItem
from .model import Profile

_NONE = -1


@dataclass(frozen=True, slots=True)
class _Life:
    """Persistent memory and its epochs, ``begin <= epoch < end``."""

    item: LiveItem
    begin: int
    end: int


class Persistent:
    """The persistent memory of one call log; ``starts`` has the first call of each epoch, the
    first of which is 0."""

    def __init__(
        self, profile: Profile, units: Sequence[PreparedProgram], unit_of_call: Sequence[int]
    ) -> None:
        dropped = profile.calls.dropped
        never = len(unit_of_call) + 1
        found: dict[Key, tuple[CarriedItem, int, int]] = {}
        seen: set[int] = {_NONE}
        for k, u in enumerate(unit_of_call):
            if u in seen:
                continue
            seen.add(u)
            for key, item in units[u].persistent.items():
                released = profile.released.get(key) if isinstance(key, int) else None
                end = never if released is None else released - dropped
                found.setdefault(key, (item, k, end))
        lives = {key: life for key, life in found.items() if life[1] < life[2]}
        ends = {end for _, _, end in lives.values()} - {never}
        self.starts = sorted({0, *(begin for _, begin, _ in lives.values()), *ends})
        number = {start: i for i, start in enumerate(self.starts)}
        number[never] = len(self.starts)
        self._lives = {
            key: _Life(item.live(), number[begin], number[end])
            for key, (item, begin, end) in lives.items()
        }
        changes = [0] * (len(self.starts) + 1)
        for life in self._lives.values():
            changes[life.begin] += life.item.storage.nbytes
            changes[life.end] -= life.item.storage.nbytes
        self._nbytes = list(accumulate(changes))

    def epoch(self, call: int) -> int:
        """The epoch of a call."""
        return bisect_right(self.starts, call) - 1

    def has(self, key: Key, epoch: int) -> bool:
        """Whether memory exists in an epoch."""
        life = self._lives.get(key)
        return life is not None and life.begin <= epoch < life.end

    def items(self, epoch: int, without: Collection[Key] = ()) -> list[LiveItem]:
        """What exists in an epoch, in order of first appearance, less what is in ``without``."""
        return [
            life.item
            for key, life in self._lives.items()
            if life.begin <= epoch < life.end and key not in without
        ]

    def nbytes(self, epoch: int, without: Collection[Key] = ()) -> int:
        """Bytes of ``items``, without looking at each."""
        less = (self._lives[k].item.storage.nbytes for k in without if self.has(k, epoch))
        return self._nbytes[epoch] - sum(less)
