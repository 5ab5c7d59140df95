"""Looking into a pool from outside, under the names that torch's trees have for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _torch_compat as compat
from .storage_ref import StorageWeakRefWrapper


def get_cudagraph_segments(pool_id: tuple[int, int]) -> list[dict[str, Any]]:
    """The allocator's segments of one pool, in the form of ``torch.cuda.memory_snapshot()``."""
    return compat.memory_snapshot(pool_id)


def get_block_addrs(pool_id: tuple[int, int], live_only: bool = True) -> list[int]:
    """Addresses of the blocks of a pool."""
    out = []
    for segment in get_cudagraph_segments(pool_id):
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" or not live_only:
                out.append(address)
            address += block["size"]
    return out


def check_memory_pool(
    device: int, pool_id: tuple[int, int], live_storages_ptrs: Sequence[StorageWeakRefWrapper]
) -> None:
    """Check that exactly these storages are allocated in a pool.

    Raises:
        RuntimeError: they are not; it says which blocks are too many or too few.
    """
    import gc

    known = {r.data_ptr() for r in live_storages_ptrs if r() is not None}
    if compat.pool_has_only(device, pool_id, known):
        return
    gc.collect()
    actual = set(get_block_addrs(pool_id))
    if missing := known - actual:
        raise RuntimeError(
            f"These storage data ptrs are not allocated in pool {pool_id} but should be: {missing}."
        )
    if extra := actual - known:
        raise RuntimeError(
            f"Detected {len(extra)} tensor(s) in the cudagraph pool not tracked as outputs: "
            f"{sorted(extra)}. All live allocations must be tracked for correctness."
        )
