"""Does a pool hold just what the trees know?"""

from __future__ import annotations

import gc
from collections.abc import Collection
from typing import TYPE_CHECKING

from .pool_debug import describe

if TYPE_CHECKING:
    from .device.protocol import Pool
    from .torch_options import TreeOptions


class UntrackedMemory(RuntimeError):
    """Blocks of the pool are live that no output of the path explains."""


def check_pool(pool: Pool, known: Collection[int], options: TreeOptions) -> None:
    """Check that exactly the blocks at ``known`` addresses are allocated.

    Args:
        pool: which.
        known: addresses.
        options: how much the error says about others.

    Raises:
        UntrackedMemory: others are, or some of them are not.
    """
    known = set(known)
    if pool.only_live(known):
        return
    # A tensor in a reference cycle is dead, only not collected yet.
    gc.collect()
    actual = pool.live_addresses()
    if missing := known - actual:
        raise UntrackedMemory(
            f"outputs at {sorted(map(hex, missing))} should be allocated in pool "
            f"{pool.handle} and are not. This points at aliasing that the compiler "
            "or a custom operator's meta function did not declare."
        )
    if extra := actual - known:
        raise UntrackedMemory(
            f"Detected {len(extra)} tensor(s) in the cudagraph pool not tracked as outputs, at "
            f"{sorted(map(hex, extra))}. All live allocations must be tracked for correctness. "
            "Something that ran in the warm-up or the recording has kept a tensor: a cache "
            f"in a custom operator, a global, a workspace.\n{describe(pool, extra, options)}"
        )
