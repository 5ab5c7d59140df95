"""Does a pool hold just what the trees know?

Note [Memory that a function keeps]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A function may keep a tensor that it made in the pool: a cache in a custom operator, a global, a
workspace. The trees do not know of it, and would record over it. Whose it is can be told only
right after the run that made it, so the pool is looked at after each warm-up and each recording,
and it counts as a failure of that function alone. The block stays for as long as somebody holds
it, and nothing may be recorded beside it: all other recordings move to a new pool. A function that
kept something once, as one that fills a cache, is warmed up there again and recorded, for the
cache lies in the old pool, which lives as long as it is used. One that does it again runs without
a graph from then on, and that time the allocator keeps the lines that asked for the memory.
"""

from __future__ import annotations

import gc
from collections.abc import Collection

from ..device.cuda import CudaPool
from ..errors import UntrackedMemory
from ..torch_options import TreeOptions
from .pool_debug import describe


def check_pool(pool: CudaPool, known: Collection[int], options: TreeOptions) -> None:
    """Check that exactly the blocks at ``known`` addresses are allocated.

    Args:
        pool: which.
        known: addresses.
        options: how much the error says about others.

    Raises:
        UntrackedMemory: others are, or some of them are not.
    """
    missing, extra = _differences(pool, known)
    if missing:
        raise UntrackedMemory(
            f"outputs at {sorted(map(hex, missing))} should be allocated in pool "
            f"{pool.handle} and are not. This points at aliasing that the compiler "
            "or a custom operator's meta function did not declare."
        )
    if extra:
        raise UntrackedMemory(_kept(pool, extra, options))


def memory_kept(pool: CudaPool, known: Collection[int], options: TreeOptions) -> str:
    """What is allocated beside the blocks at ``known`` addresses, in sentences; "" if nothing.

    Args: as of ``check_pool``.
    """
    _, extra = _differences(pool, known)
    return _kept(pool, extra, options) if extra else ""


def _differences(pool: CudaPool, known: Collection[int]) -> tuple[set[int], set[int]]:
    """Addresses that are known and not allocated, and that are allocated and not known."""
    known = set(known)
    if pool.only_live(known):
        return set(), set()
    # A tensor in a reference cycle is dead, only not collected yet.
    gc.collect()
    actual = pool.live_addresses()
    return known - actual, actual - known


def _kept(pool: CudaPool, addresses: Collection[int], options: TreeOptions) -> str:
    return (
        f"Detected {len(addresses)} tensor(s) in the cudagraph pool not tracked as outputs, at "
        f"{sorted(map(hex, addresses))}. All live allocations must be tracked for correctness. "
        "Something that ran in the warm-up or the recording has kept a tensor: a cache "
        f"in a custom operator, a global, a workspace.\n{describe(pool, addresses, options)}"
    )
