"""Every byte of a pool explained.

Note [The five parts of a pool]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
At any instant, what a pool has reserved is exactly the sum of

* *nodes*: bytes that buffers of the recordings on the path asked for;
* *rounding*: what the allocator gave beyond that, because it rounds sizes and does not
  split off small remainders;
* *workspace*: scratch memory of libraries that stays when the line that made it is done;
* *unattributed*: blocks that are allocated and that nobody knows;
* *free*: reserved and not allocated.

The allocator's own books are right only in the states WARMUP and RECORDING; after a replay
memory is as the replayed node's recording left it, less what died since. Inside a replay, the
recording's allocation program says what is live at each instant. There a block's size is known if
it was live when the recording ended, and otherwise is the request rounded up to 512 bytes: a
remainder of a block that was not split off counts as free then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from memprof.profiler.model.allocator_rules import rounded

from ..capture_lock import capturing
from ..manager import CUDAGraphTreeManager
from ..node import CUDAGraphNode, path_to
from ..path import ExecutionState
from ..replay.liveness import StorageWeakRefWrapper


@dataclass(frozen=True, slots=True)
class PoolParts:
    """Describes what a pool's bytes are, see Note [The five parts of a pool].

    Attributes:
        nodes: bytes by number of the recording (negative: warm-up) that made them.
        rounding, workspace, unattributed, free: bytes.
    """

    nodes: Mapping[int | str, int]
    rounding: int
    workspace: int
    unattributed: int
    free: int

    @property
    def attributed(self) -> int:
        """Bytes that belong to nodes."""
        return sum(self.nodes.values())

    @property
    def live(self) -> int:
        """Bytes that are allocated."""
        return self.attributed + self.rounding + self.workspace + self.unattributed

    @property
    def reserved(self) -> int:
        """Bytes that the pool has from the system."""
        return self.live + self.free


Live: TypeAlias = tuple["int | str", int, int]
"""A live block: the node that it belongs to, bytes asked for, bytes of the block."""


def explain_pool(manager: CUDAGraphTreeManager) -> PoolParts:
    """Returns what the pool's bytes are now, between two calls. Waits for other threads'
    captures.
    """
    with capturing():
        segments, node = manager.pool.segments(), manager.path.node
        if manager.path.state is ExecutionState.EXECUTION:
            assert isinstance(node, CUDAGraphNode)
            live = _outputs_among(node.path_live_weakrefs(), path_to(node))
            return _parts(live, sum(s.nbytes for s in segments))
        owned = [(n.number, r) for n in path_to(node) for r in n.outputs_weakrefs if r is not None]
        owners = {r.address: n for n, r in owned if not r.expired()}
    blocks = [b for s in segments for b in s.blocks if b.live]
    known = [(owners[b.address], b.requested, b.nbytes) for b in blocks if b.address in owners]
    unknown = sum(b.nbytes for b in blocks if b.address not in owners)
    return _parts(known, sum(s.nbytes for s in segments), unattributed=unknown)


def explain_replay(node: CUDAGraphNode, instant: int | None = None) -> PoolParts:
    """Returns what the pool's bytes are at one instant of a replay of ``node``.

    Args:
        node: a recording that knows its allocation program (``configure(programs=True)``).
        instant: of the program, 0 to ``len(events)``; the peak if None.

    Raises:
        ValueError: the recording does not know its program.
        IndexError: there is no such instant.
    """
    program = node.program
    if program is None:
        raise ValueError(
            "this recording does not know its allocation program; call "
            "memprof.cudagraph_trees.configure(programs=True) before it is recorded"
        )
    if instant is None:
        instant = program.peak()[0]
    path = path_to(node)
    # Outputs of the path that are no inputs of this node lie there all the time.
    passed = {s.nbytes and node.specs[s.inputs[0]].address for s in program.storages if s.inputs}
    others = [r for r in node.live_before if r.address not in passed]
    live = [*_outputs_among(others, path)]
    workspace = 0
    for x in program.live_at(instant):
        storage = x.storage
        if storage.id in node.workspaces:
            workspace += rounded(storage.nbytes)
            continue
        owner, sizes = node, (storage.nbytes, rounded(storage.nbytes))
        if storage.inputs:
            made = node.input_plan.outputs[storage.inputs[0]]
            if made is not None:
                owner = next(n for n in path if made in n.outputs_weakrefs)
                sizes = owner.sizes.get(node.specs[storage.inputs[0]].address, sizes)
        live.append((owner.number, *sizes))
    with capturing():
        reserved = node.pool.reserved_bytes()
    return _parts(live, reserved, workspace)


def _parts(
    live: Iterable[Live], reserved: int, workspace: int = 0, unattributed: int = 0
) -> PoolParts:
    nodes: dict[int | str, int] = {}
    rounding = 0
    for node, requested, block in live:
        nodes[node] = nodes.get(node, 0) + requested
        rounding += block - requested
    used = sum(nodes.values()) + rounding + workspace + unattributed
    return PoolParts(nodes, rounding, workspace, unattributed, reserved - used)


def _outputs_among(
    refs: Iterable[StorageWeakRefWrapper], path: Iterable[CUDAGraphNode]
) -> Iterable[Live]:
    """These outputs of a path, by address: what several nodes returned is the first one's."""
    wanted = set(refs)
    out: dict[int, Live] = {}
    for n in path:
        for r in n.outputs_weakrefs:
            if r in wanted and r is not None and r.address not in out:
                out[r.address] = (n.number, *n.sizes.get(r.address, (0, 0)))
    return out.values()
