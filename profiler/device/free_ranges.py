"""Free ranges of addresses, found by either end, or by their size."""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterator


class FreeRanges:
    """Ranges of addresses that are free, none of which touch unless the allocator says so."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        """Of ranges by the address after them."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(first address, bytes) of each."""
        return iter(self._sizes.items())

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, address: int, size: int) -> None:
        """Note a range as it is."""
        self._sizes[address] = size
        self._begins[address + size] = address

    def take(self, address: int) -> int | None:
        """Forget the range that begins at an address, and return its bytes; None if none does."""
        size = self._sizes.pop(address, None)
        if size is not None and self._begins.get(address + size) == address:
            del self._begins[address + size]
        return size

    def give(self, address: int, size: int, borders: Container[int] = ()) -> None:
        """Note a range, as one with those that it touches but at ``borders``."""
        if address + size not in borders:
            size += self.take(address + size) or 0
        before = None if address in borders else self._begins.get(address)
        if before is not None:
            size += self.take(before) or 0
            address = before
        self.add(address, size)

    def begins(self, address: int, end: int) -> bool:
        """Whether a range begins at an address that reaches to ``end`` or further."""
        size = self._sizes.get(address)
        return size is not None and end <= address + size

    def around(self, address: int, end: int) -> int | None:
        """Where a range begins that has all of another one; None if none has. It looks at all."""
        return next((a for a, n in self if a <= address and end <= a + n), None)


class BestFit(FreeRanges):
    """Free ranges of which the smallest that is large enough is handed out."""

    def __init__(self) -> None:
        super().__init__()
        self._ordered: list[tuple[int, int]] = []

    def best(self, size: int) -> int | None:
        """Where the smallest range of at least so many bytes begins, the lowest address first;
        None if there is none."""
        at = bisect.bisect_left(self._ordered, (size, 0))
        return self._ordered[at][1] if at < len(self._ordered) else None

    def add(self, address: int, size: int) -> None:
        super().add(address, size)
        bisect.insort(self._ordered, (size, address))

    def take(self, address: int) -> int | None:
        size = super().take(address)
        if size is not None:
            del self._ordered[bisect.bisect_left(self._ordered, (size, address))]
        return size
