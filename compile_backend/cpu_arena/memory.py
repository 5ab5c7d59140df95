"""Memory for compiled CPU code: segments from the system, cut into blocks. No torch here.

Note [Ownership on the CPU]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
A CUDA graph writes to addresses, whoever owns them, and so trees of CUDA graphs must watch
which outputs are alive. On the CPU a replay is handed its memory. So a tensor that leaves a
call owns its block as any tensor owns its memory: the block is a Python buffer object, the
tensor's storage holds a reference to it (what ``torch.frombuffer`` does), and the block comes
back when that reference is gone, in whatever way and thread. What such a *lease* saves over
``malloc`` is the system: a block that comes back is kept, mapped and paged in, where glibc returns
large blocks to the system at once and has them zeroed page by page when they are needed again.

Note [What is kept]
~~~~~~~~~~~~~~~~~~~
Free segments are kept for the next call, with two limits. What one call site can have out
at a time is limited (``Tokens``); beyond that its callers get ordinary memory, so whoever
keeps a thousand outputs and then drops them does not leave a thousand blocks behind. And
before the pool asks the system for more it gives back free segments as far as it would
otherwise hold more bytes than were ever in use at once, so a change of sizes does not
pile up segments of the old sizes. All free segments go back when the last function that
uses the pool dies, and on ``trim``.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from memprof.cudagraph_trees.device.protocol import Block, Segment
from memprof.profiler.process_hooks import Lease, ReplayMemory, on_fork

from .plan import ALIGNMENT

PAGE = 4096
MIN_SEGMENT = 2 << 20
"""Bytes; smaller requests share a segment."""

HUGE = 4 << 20
"""Bytes from which a segment asks for huge pages; it has at least one whole one then."""

KEPT_LEASES = 1 << 15
"""Leases that are over and still known, for whoever wants to know what was live when."""

Budget = Callable[[], "int | None"]


class OverBudget(MemoryError):
    """The arena may not grow as far as a request needs."""


class _Mapping:
    """One piece of memory from the system. It is unmapped when nobody refers to it."""

    __slots__ = ("address", "memory", "nbytes", "used")

    def __init__(self, nbytes: int) -> None:
        self.memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            # Kept and used again and again: 3 to 7 % of a memory-bound call in page walks.
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.nbytes = nbytes
        self.used = 0


@dataclass(slots=True)
class _Block:
    mapping: _Mapping
    nbytes: int
    requested: int
    live: bool


class Arena:
    """A deterministic best-fit allocator over mappings. Not thread-safe.

    Attributes:
        budget: says how many bytes it may reserve, None for no limit; asked when it grows.
        reserved_bytes: bytes that it has from the system.
        live_bytes: bytes in live blocks, rounding included.
        peak_live_bytes: the most ``live_bytes`` so far.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget
        self.reserved_bytes = self.live_bytes = self.peak_live_bytes = 0
        self._mappings: dict[int, _Mapping] = {}  # by address, oldest first
        self._blocks: dict[int, _Block] = {}
        self._ends: dict[int, int] = {}  # end of a block → its address
        self._free: list[tuple[int, int]] = []  # (bytes, address), sorted

    def allocate(self, nbytes: int) -> int:
        """The address of a block of at least ``nbytes``, aligned to ``ALIGNMENT``.

        Raises:
            OverBudget: the arena would have to grow beyond its budget.
            OSError: the system has no memory.
        """
        size = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        at = bisect_left(self._free, (size, 0))
        if at == len(self._free):
            self.grow(size)
            at = bisect_left(self._free, (size, 0))
        _, address = self._free.pop(at)
        block = self._blocks[address]
        if block.nbytes > size:
            self._add(address + size, _Block(block.mapping, block.nbytes - size, 0, False))
            block.nbytes = size
            self._ends[address + size] = address
        block.live, block.requested = True, nbytes
        block.mapping.used += size
        self.live_bytes += size
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)
        return address

    def free(self, address: int) -> None:
        """Take a block back.

        Raises:
            KeyError: no live block begins there.
        """
        block = self._blocks[address]
        if not block.live:
            raise KeyError(address)
        block.live, block.requested = False, 0
        block.mapping.used -= block.nbytes
        self.live_bytes -= block.nbytes
        self._remove(address, block)
        for neighbour in (self._ends.get(address, 0), address + block.nbytes):
            other = self._blocks.get(neighbour)
            if other is not None and not other.live and other.mapping is block.mapping:
                self._remove(neighbour, other, free=True)
                block.nbytes += other.nbytes
                address = min(address, neighbour)
        self._add(address, block)

    def _add(self, address: int, block: _Block) -> None:
        self._blocks[address] = block
        self._ends[address + block.nbytes] = address
        insort(self._free, (block.nbytes, address))

    def _remove(self, address: int, block: _Block, free: bool = False) -> None:
        del self._blocks[address]
        del self._ends[address + block.nbytes]
        if free:
            self._free.pop(bisect_left(self._free, (block.nbytes, address)))

    def grow(self, nbytes: int) -> None:
        """Get one more segment with at least ``nbytes``, and give back free ones first as
        Note [What is kept] says.

        Raises:
            OverBudget, OSError: see ``allocate``.
        """
        nbytes = -(-max(nbytes, MIN_SEGMENT) // PAGE) * PAGE
        most = max(self.peak_live_bytes, self.live_bytes + nbytes)
        budget = self.budget() if self.budget is not None else None
        if budget is not None:
            most = min(most, budget)
        for mapping in list(self._mappings.values()):
            if self.reserved_bytes + nbytes <= most:
                break
            if not mapping.used:
                self._unmap(mapping)
        if budget is not None and self.reserved_bytes + nbytes > budget:
            raise OverBudget(
                f"{nbytes} more bytes would exceed the budget of {budget} bytes; "
                f"{self.reserved_bytes} are reserved and {self.live_bytes} in use"
            )
        mapping = _Mapping(nbytes)
        self._mappings[mapping.address] = mapping
        self.reserved_bytes += nbytes
        self._add(mapping.address, _Block(mapping, nbytes, 0, False))

    def trim(self) -> None:
        """Give all free segments back to the system."""
        for mapping in list(self._mappings.values()):
            if not mapping.used:
                self._unmap(mapping)

    def _unmap(self, mapping: _Mapping) -> None:
        self._remove(mapping.address, self._blocks[mapping.address], free=True)
        del self._mappings[mapping.address]
        self.reserved_bytes -= mapping.nbytes

    def view(self, address: int, nbytes: int) -> memoryview:
        """The bytes of a live block. Whoever holds the view keeps the mapping."""
        mapping = self._blocks[address].mapping
        offset = address - mapping.address
        return memoryview(mapping.memory)[offset : offset + nbytes]

    def live_addresses(self) -> set[int]:
        """Addresses of all live blocks."""
        return {a for a, b in self._blocks.items() if b.live}

    def segments(self) -> list[Segment]:
        """Everything it has from the system, by address."""
        blocks: dict[int, list[Block]] = {a: [] for a in self._mappings}
        for address, b in sorted(self._blocks.items()):
            blocks[b.mapping.address].append(Block(address, b.nbytes, b.requested, b.live))
        return [Segment(a, self._mappings[a].nbytes, tuple(blocks[a])) for a in sorted(blocks)]


class Tokens(list[None]):
    """How many blocks one call site may still have out: one element for each.

    A list, since taking one off and putting one back are atomic.
    """

    def __init__(self, count: int) -> None:
        super().__init__([None] * count)


class _Lease(weakref.ref[memoryview]):
    """A weak reference to a block that somebody holds; its callback takes the block back."""

    __slots__ = ("address", "arena", "born_ns", "label", "nbytes", "tokens")
    address: int
    arena: Arena
    born_ns: int
    label: str
    nbytes: int
    tokens: Tokens


class LeasePool:
    """Blocks that own themselves, see Note [Ownership on the CPU]. Thread-safe.

    Attributes:
        ended: the last leases that are over, oldest first.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.ended: deque[Lease] = deque(maxlen=KEPT_LEASES)
        # One element for each function: appending and popping are atomic, counting is not.
        self._users: list[None] = []
        self._budget = budget
        self._on_trim: list[Callable[[], None]] = []
        self._start()
        _pools.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._arena = Arena(self._budget)
        self._leases: dict[tuple[int, int], _Lease] = {}
        self._returned: deque[_Lease] = deque()

    def lease(self, nbytes: int, tokens: Tokens, label: str = "") -> memoryview | None:
        """A block of exactly ``nbytes``; it comes back when the object returned dies.

        Args:
            tokens: of the call site; one is taken, and put back with the block.
            label: what it is for, shown by ``leased``.

        Returns:
            None if there is no token left, or no memory within the budget.
        """
        try:
            tokens.pop()
        except IndexError:
            return None
        try:
            with self._lock:
                if self._returned:
                    self._take_back()
                arena = self._arena
                address = arena.allocate(nbytes)
                view = arena.view(address, nbytes)
        except (MemoryError, OSError):
            tokens.append(None)
            return None
        lease = _Lease(view, self._died)
        lease.address, lease.arena, lease.tokens, lease.label = address, arena, tokens, label
        lease.nbytes, lease.born_ns = nbytes, time.time_ns()
        self._leases[id(arena), address] = lease
        return view

    def _died(self, lease: _Lease, now: Callable[[], int] = time.time_ns) -> None:
        # In any thread, at any time, perhaps in the middle of ``lease``: no lock here.
        self._leases.pop((id(lease.arena), lease.address), None)
        self.ended.append(
            Lease(lease.label, lease.nbytes, lease.address, lease.born_ns, died_ns=now())
        )
        if lease.arena is self._arena:  # not one from before a fork
            self._returned.append(lease)
        lease.tokens.append(None)
        if not self._users:
            self.trim()

    def _take_back(self) -> None:
        while self._returned:
            lease = self._returned.popleft()
            lease.arena.free(lease.address)

    @property
    def users(self) -> int:
        """How many functions use the pool."""
        return len(self._users)

    def add_user(self, function: object) -> None:
        """The pool keeps free memory for as long as ``function`` lives."""
        self._users.append(None)
        weakref.finalize(function, self._user_died).atexit = False

    def _user_died(self) -> None:
        self._users.pop()
        if not self._users:
            self.trim()

    def on_trim(self, action: Callable[[], None]) -> None:
        """Call ``action`` before memory is given back, so that it can let go of blocks."""
        self._on_trim.append(action)

    def trim(self) -> None:
        """Give everything that is free back to the system."""
        for action in self._on_trim:
            action()
        # Somebody who has the lock may be this very thread, further down the stack.
        while self._lock.acquire(blocking=False):
            try:
                self._take_back()
                self._arena.trim()
            finally:
                self._lock.release()
            if not self._returned:
                return

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the pool has from the system."""
        return self._arena.reserved_bytes

    def segments(self) -> list[Segment]:
        """Everything the pool holds, by address; blocks that just came back are free."""
        with self._lock:
            self._take_back()
            return self._arena.segments()

    def leased(self) -> dict[int, str]:
        """Labels of the blocks that are out, by address."""
        arena = self._arena
        return {x.address: x.label for x in list(self._leases.values()) if x.arena is arena}

    def replay_memory(self) -> ReplayMemory:
        """Where the pool lies, and who had which block of it when."""
        segments = self.segments()
        live = [Lease(x.label, x.nbytes, x.address, x.born_ns) for x in list(self._leases.values())]
        return ReplayMemory(
            device="cpu",
            reserved=sum(s.nbytes for s in segments),
            ranges=[(s.address, s.address + s.nbytes) for s in segments],
            leases=[*self.ended, *live],
        )


_abandoned: list[object] = []
_pools: weakref.WeakSet[LeasePool] = weakref.WeakSet()


@on_fork
def _after_fork() -> None:
    """In a child: new books, since the lock may have been held, and the books half written. Blocks
    that are out stay valid, and nobody takes them back."""
    for pool in list(_pools):
        _abandoned.append((pool._arena, pool._leases))
        pool._start()
