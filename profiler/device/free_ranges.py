"""Free ranges of a segment, found by either end."""

from __future__ import annotations

from collections.abc import Iterator


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

    def give(self, address: int, size: int) -> None:
        """Note a range, as one with those that it touches."""
        size += self.take(address + size) or 0
        before = self._begins.get(address)
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
