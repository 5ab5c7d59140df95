"""Memory for compiled CPU code: blocks from the system that are used again. No torch here.

Note [Ownership on the CPU]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
A tensor that leaves a call owns its block as any tensor owns its memory: the block is a Python
buffer object, the tensor's storage holds a reference to it (what ``torch.frombuffer`` does), and
the block comes back when that reference is gone, in whatever way and thread. What such a *lease*
saves over ``malloc`` is the system: a block that comes back is kept, mapped and paged in, where
glibc returns large blocks to the system at once and has them zeroed page by page when they are
needed again.

Note [What is kept]
~~~~~~~~~~~~~~~~~~~
Each block is a piece of memory of its own from the system, whole pages, and a free one serves any
lease that needs at least half of it. Free blocks are kept for the next call, with two limits. What
one call site can have out at a time is limited by its tokens; beyond that its callers get ordinary
memory, so whoever keeps a thousand outputs and then drops them does not leave a thousand blocks
behind. And the pool does not hold more bytes than were ever in use at once: where it would, a lease
gets a free block that is larger than twice what it needs, and where none is large enough, free
blocks go back to the system. So sizes that take turns share a block, and blocks of old sizes do not
pile up. All free blocks go back when the last function that uses the pool dies, and on ``trim``.
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

from memprof.cudagraph_trees.device.protocol import Block, Segment
from memprof.profiler.process_hooks import Lease, ReplayMemory, on_fork

PAGE = 4096
HUGE = 4 << 20
"""Bytes from which a block asks for huge pages; it has at least one whole one then."""

KEPT_LEASES = 1 << 15
"""Leases that are over and still known, for whoever wants to know what was live when."""

Tokens = list[None]
"""How many blocks one call site may still have out: one element for each. A list, since taking one
off and putting one back are atomic."""


class _Memory:
    """One block from the system. It is unmapped when nobody refers to it."""

    __slots__ = ("address", "memory", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            # Kept and used again and again: 3 to 7 % of a memory-bound call in page walks.
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.nbytes = nbytes


class _Lease(weakref.ref[memoryview]):
    """A weak reference to a block that somebody holds; its callback gives the block back, to
    ``home``."""

    __slots__ = ("about", "home", "tokens")
    about: Lease
    home: deque[int]
    tokens: Tokens


class LeasePool:
    """Blocks that own themselves, see Note [Ownership on the CPU]. Thread-safe.

    Args:
        budget: says how many bytes it may reserve, None for no limit; asked when it grows.

    Attributes:
        ended: the last leases that are over, oldest first.
        reserved_bytes: bytes that the pool has from the system.
    """

    def __init__(self, budget: Callable[[], int | None] = lambda: None) -> None:
        self.ended: deque[Lease] = deque(maxlen=KEPT_LEASES)
        # One element for each function: appending and popping are atomic, counting is not.
        self._users: list[None] = []
        self._budget = budget
        self._on_trim: list[Callable[[], None]] = []
        self._start()
        _pools.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[int, _Memory] = {}  # by address
        self._free: list[tuple[int, int]] = []  # (bytes, address), sorted
        self._leases: dict[int, _Lease] = {}  # by address
        self._returned: deque[int] = deque()  # addresses
        self.reserved_bytes = self._used = self._most_used = 0

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
        block = None
        with self._lock, contextlib.suppress(MemoryError, OSError):
            self._take_back()
            block = self._allocate(max(1, nbytes))
        if block is None:
            tokens.append(None)
            return None
        view = memoryview(block.memory)[:nbytes]
        lease = _Lease(view, self._died)
        lease.about = Lease(label, nbytes, block.address, time.time_ns())
        lease.home, lease.tokens = self._returned, tokens
        self._leases[block.address] = lease
        return view

    def _allocate(self, nbytes: int) -> _Memory | None:
        """A block of at least so many bytes, None if it is over the budget; see
        Note [What is kept]."""
        size = -(-nbytes // PAGE) * PAGE
        at = bisect_left(self._free, (size, 0))
        fits = at < len(self._free)
        if not fits or self._free[at][0] > 2 * size:
            budget = self._budget()
            most = max(self._most_used, self._used + size)
            if budget is not None:
                most = min(most, budget)
            fits = fits and self.reserved_bytes + size > most
        if fits:
            block = self._blocks[self._free.pop(at)[1]]
        else:
            while self._free and self.reserved_bytes + size > most:
                self._release()
            if budget is not None and self.reserved_bytes + size > budget:
                return None
            block = _Memory(size)
            self._blocks[block.address] = block
            self.reserved_bytes += size
        self._used += block.nbytes
        self._most_used = max(self._most_used, self._used)
        return block

    def _release(self) -> None:
        """Give the largest free block back to the system."""
        nbytes, address = self._free.pop()
        del self._blocks[address]
        self.reserved_bytes -= nbytes

    def _died(self, lease: _Lease, now: Callable[[], int] = time.time_ns) -> None:
        # In any thread, at any time, perhaps in the middle of ``lease``: no lock here.
        x = lease.about
        address = x.address
        self._leases.pop(address, None)
        # Not replace(), which takes longer than all the rest.
        self.ended.append(Lease(x.label, x.nbytes, address, x.born_ns, now()))
        lease.home.append(address)
        lease.tokens.append(None)
        if not self._users:
            self.trim()

    def _take_back(self) -> None:
        while self._returned:
            block = self._blocks[self._returned.popleft()]
            self._used -= block.nbytes
            insort(self._free, (block.nbytes, block.address))

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
                while self._free:
                    self._release()
            finally:
                self._lock.release()
            if not self._returned:
                return

    def segments(self) -> list[Segment]:
        """Everything the pool holds, by address; blocks that just came back are free."""
        with self._lock:
            self._take_back()
            free = {address for _, address in self._free}
            asked = {x.about.address: x.about.nbytes for x in list(self._leases.values())}
            return [
                Segment(a, b.nbytes, (Block(a, b.nbytes, asked.get(a, 0), a not in free),))
                for a, b in sorted(self._blocks.items())
            ]

    def leased(self) -> dict[int, str]:
        """Labels of the blocks that are out, by address."""
        return {x.about.address: x.about.label for x in list(self._leases.values())}

    def replay_memory(self) -> ReplayMemory:
        """Where the pool lies, and who had which block of it when."""
        return ReplayMemory(
            device="cpu",
            reserved=self.reserved_bytes,
            ranges=[(s.address, s.address + s.nbytes) for s in self.segments()],
            leases=[*self.ended, *(x.about for x in list(self._leases.values()))],
        )


_abandoned: list[object] = []
_pools: weakref.WeakSet[LeasePool] = weakref.WeakSet()


@on_fork
def _after_fork() -> None:
    """In a child: new books, since the lock may have been held, and the books half written. Blocks
    that are out stay valid, and nobody takes them back."""
    for pool in list(_pools):
        _abandoned.append((pool._blocks, pool._leases))
        pool._start()
