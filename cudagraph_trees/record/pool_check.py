"""Does a pool hold just what the trees know?

Note [Memory that a function keeps]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A function may keep a tensor that it made in the pool: a cache in a custom operator, a global, a
workspace. The trees would record over it. Whose it is can be told only right after the run that
made it, so the pool is looked at after each warm-up and each recording, and it counts as a failure
of that function alone. All other recordings move to a new pool. A function that kept something
once, as one that fills a cache, is warmed up there again and recorded; the cache lies in the old
pool, which lives as long as it is used. One that does it again runs without a graph from then on,
and that time the allocator keeps the lines that asked for the memory, as it does from the first
warm-up on with ``cudagraph_trees_history_recording``.
"""

from __future__ import annotations

import gc
from collections.abc import Collection

from ..device.cuda import CudaPool
from ..device.protocol import PoolBlock
from ..replay.errors import UntrackedMemory, is_the_users

SHOWN = 10
"""Number of blocks that a report describes."""

CALLS = 4
"""Lines of a block's stack that a report names, the innermost first."""


def check_pool(pool: CudaPool, tracked: Collection[int]) -> None:
    """Raise ``UntrackedMemory`` unless the blocks at ``tracked`` addresses alone are allocated."""
    kept = memory_kept(pool, tracked)
    if missing := set(tracked) - pool.live_addresses():
        raise UntrackedMemory(
            f"outputs at {sorted(map(hex, missing))} should be allocated in pool "
            f"{pool.handle} and are not. This points at aliasing that the compiler "
            "or a custom operator's meta function did not declare."
        )
    if kept:
        raise UntrackedMemory(kept)


def memory_kept(pool: CudaPool, tracked: Collection[int]) -> str:
    """Report of the blocks allocated beside those at ``tracked`` addresses, in sentences; "" if
    there are none."""
    if pool.live_addresses() <= set(tracked):
        return ""
    # A tensor in a reference cycle is dead, only not collected yet.
    gc.collect()
    addresses = pool.live_addresses() - set(tracked)
    if not addresses:
        return ""
    blocks = [b for b in pool.live_blocks() if b.address in addresses]
    lines = [
        f"Detected {len(addresses)} tensor(s) in the cudagraph pool not tracked as outputs, at "
        f"{sorted(map(hex, addresses))}. All live allocations must be tracked for correctness. "
        "Something that ran in the warm-up or the recording has kept a tensor: a cache "
        "in a custom operator, a global, a workspace.",
        "They are:",
        *(f"{_block(b)}." for b in blocks[:SHOWN]),
    ]
    if len(blocks) > SHOWN:
        lines.append(f"  And {len(blocks) - SHOWN} more.")
    if not any(b.frames for b in blocks):
        lines.append(
            "The next time the lines that allocate are named; "
            "torch._inductor.config.triton.cudagraph_trees_history_recording = True, set before "
            "the first call, has them named the first time."
        )
    return "\n".join(lines)


def _block(block: PoolBlock) -> str:
    frames = [f for f in block.frames if is_the_users(f[0])] or block.frames
    lines = ", called by ".join(f"{file}:{line} ({name})" for file, line, name in frames[:CALLS])
    at = f", allocated by {lines}" if lines else ""
    return f"  {block.requested} bytes at {block.address:#x}{at}"
