"""Every byte of a pool explained.

Note [The four parts of a pool]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Between two calls, what a pool has reserved is exactly the sum of

* *nodes*: bytes that buffers of the recordings on the path asked for;
* *rounding*: what the allocator gave beyond that, because it rounds sizes and does not
  split off small remainders;
* *unattributed*: blocks that are allocated and that nobody knows;
* *free*: reserved and not allocated.

The allocator's own books are right only in the states WARMUP and RECORDING; after a replay
memory is as the replayed node's recording left it, less what died since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ..call.manager import CUDAGraphTreeManager
from ..device.capture_lock import capturing
from ..replay.liveness import StorageWeakRefWrapper
from ..replay.node import CUDAGraphNode, Node, path_to
from ..replay.path import ExecutionState


@dataclass(frozen=True, slots=True)
class PoolParts:
    """Bytes of a pool in four parts, see Note [The four parts of a pool].

    Attributes:
        nodes: bytes by the names that were asked for.
        rounding, unattributed, free: bytes.
    """

    nodes: Mapping[str, int]
    rounding: int
    unattributed: int
    free: int

    @property
    def reserved(self) -> int:
        """Bytes that the pool has from the system."""
        return sum(self.nodes.values()) + self.rounding + self.unattributed + self.free


Live: TypeAlias = tuple[str, int, int]
"""A live block: the name of what it belongs to, bytes asked for, bytes of the block."""

Name: TypeAlias = "Callable[[Node, int], str]"
"""Names an output of a recording or warm-up, by its index."""


def explain_pool(manager: CUDAGraphTreeManager, name: Name) -> PoolParts:
    """Split the reserved bytes of the manager's pool into parts, between two calls. Waits for
    other threads' captures.

    Args:
        name: of what the bytes of an output are counted under.
    """
    with capturing():
        reserved, node = manager.pool.reserved_bytes(), manager.path.node
        if manager.path.state is ExecutionState.EXECUTION:
            assert isinstance(node, CUDAGraphNode)
            live = _outputs_among(node.path_live_weakrefs(), path_to(node), name)
            return _parts(live, reserved)
        owners = {
            r.address: name(n, i)
            for n in path_to(node)
            for i, r in enumerate(n.outputs_weakrefs)
            if r is not None and not r.expired()
        }
        blocks = manager.pool.live_blocks()
    live = [(owners[b.address], b.requested, b.nbytes) for b in blocks if b.address in owners]
    unknown = sum(b.nbytes for b in blocks if b.address not in owners)
    return _parts(live, reserved, unattributed=unknown)


def _parts(live: Iterable[Live], reserved: int, unattributed: int = 0) -> PoolParts:
    nodes: dict[str, int] = {}
    rounding = 0
    for node, requested, block in live:
        nodes[node] = nodes.get(node, 0) + requested
        rounding += block - requested
    used = sum(nodes.values()) + rounding + unattributed
    return PoolParts(nodes, rounding, unattributed, reserved - used)


def _outputs_among(
    refs: Iterable[StorageWeakRefWrapper], path: Iterable[CUDAGraphNode], name: Name
) -> Iterable[Live]:
    """Outputs ``refs`` of a path, one an address; that of several nodes is the first one's."""
    wanted = set(refs)
    out: dict[int, Live] = {}
    for n in path:
        for i, r in enumerate(n.outputs_weakrefs):
            if r in wanted and r is not None and r.address not in out:
                out[r.address] = (name(n, i), *n.sizes.get(r.address, (0, 0)))
    return out.values()
