"""The pool of one manager, from when it is taken until it is given back.

Note [Giving the pool back]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
All recordings share the pool's segments, and each has addresses in them baked in: dropping one
frees nothing. So all are dropped, and a new pool is begun, into which whatever is used again is
recorded again. That may be in the midst of a step: outputs of the step that runs own their blocks
in the old pool from then on and stay valid. If no new pool can be made, the old one stays, marked
as *damaged*, and the next call that would be warmed up or recorded tries again; until then calls
run without a graph.

Note [Running out of memory]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A pool keeps what it has taken for as long as anything is recorded in it, and while a thread
allocates from a pool, torch's allocator (2.11, 2.12) gives nothing of the general pool back to the
device. So what fits a device without graphs can fail in a pool. A warm-up or a recording that has
run out of memory is made once more, after the unused memory of the general pool was given back. If
that fails as well, the pool goes back with all its recordings, the call runs without a graph, and
nothing is recorded any more by that manager (``PoolOwner.stopped``): a job runs wherever it runs
without graphs. If not even the call without a graph fits, the error is the program's own, and what
comes later may be recorded.

Note [Room for the optimizer]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Most optimizers make their state in their first step, in eager code that cannot ask for the pool's
memory; Adam makes twice the bytes of the gradients, which are in the pool. So after the first
warm-up of a backward, before anything is recorded, the pool is given back unless the device has
twice the pool's bytes left. When the next step begins, the state is there, and if the device does
not have the bytes that the pool had, nothing is recorded: a backward that ran out of memory in the
midst of a capture could not be called again without memory for copies of what was saved for it.
Recordings took up to 3 % more than warm-ups, so a thirty-second is added. A job that asked for
graphs or errors is not stopped for an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from memprof.profiler.model import LedgerKind

from .. import _torch_compat as compat
from ..device.capture_lock import capturing
from ..device.cuda import CudaPool
from ..explain.ledger import TreeLedger
from ..replay.node import CUDAGraphNode, Node, RecordingTree, path_to
from ..replay.path import ExecutionState, TreePath
from ..replay.spec import FunctionSpec
from .pool_check import memory_kept


class PoolOwner:
    """Owns the pool and what is recorded in it, and decides when recordings go.

    Attributes:
        functions: those that were wrapped and can still be called.
        pool: the one that is used now.
        pool_initial: bytes that a pool starts with, in one segment.
        stopped: why nothing is recorded any more, "" if it is.
        restored: how often the allocator's books were restored.
        warmed_up: something was warmed up in the pool.
    """

    def __init__(self, device: torch.device, pool_initial: int) -> None:
        self.device = device
        self.pool_initial = pool_initial
        self.functions: set[FunctionSpec] = set()
        self.path = TreePath()
        self.tree = RecordingTree()
        self.ledger = TreeLedger(str(device), self.path)
        with capturing():
            self.pool = CudaPool(device.index, pool_initial)
        self.stopped = ""
        self._needed = 0
        self.restored = 0
        self.warmed_up = False

    # ---- the allocator's books

    def restore_books(self, function: FunctionSpec | None = None) -> None:
        """Make the allocator's books say what memory says, if a replay came last. ``function`` is
        about to be warmed up or recorded, for the ledger."""
        node = self.path.node
        if self.path.state is not ExecutionState.EXECUTION or not isinstance(node, CUDAGraphNode):
            return
        self.restored += 1
        message = "Checkpointing cuda caching allocator state. Number of checkpoints %d"
        compat.graphs_log.debug(message, self.restored)
        # Cached tensors own nothing and would look live.
        _drop_cached_tensors(node)
        node.all_outputs_are_dead()
        node.restore_pool()
        self.path.books_restored()
        reason = "the allocator's books were restored"
        self.ledger.add(LedgerKind.CHECKPOINT, function, reason, node=node.number)

    def memory_kept(self, function: FunctionSpec, node: Node | None) -> str:
        """``pool_check.memory_kept`` beside the outputs of the path to ``node``, if it is to be
        checked. The allocator's books must be right."""
        if not function.options["slow_path_cudagraph_asserts"]:
            return ""
        path = [] if node is None else node.path_refs
        live = {r.address for r in path if not r.expired()}
        return memory_kept(self.pool, live)

    # ---- giving it back

    def give_back_damaged(self) -> None:
        """A function has kept memory of the pool: nothing may be recorded beside it."""
        self.pool.damaged = True
        self.give_back("a function has kept memory of the pool")

    def give_back(self, reason: str) -> None:
        """Start over, in the midst of a path too, see Note [Giving the pool back]."""
        with capturing():
            self.restore_books()
            self.start_over(reason)

    def give_back_warm_ups(self) -> None:
        """A function that was warmed up runs without a graph. Where nothing is recorded, what
        warm-ups took would be needed once more beside the pool."""
        if self.warmed_up and next(self.tree.nodes(), None) is None:
            self.give_back("nothing is recorded in it")

    def leave_room_for_state(self) -> None:
        """A backward was warmed up: see Note [Room for the optimizer]."""
        if next(self.tree.nodes(), None) is not None:
            return
        reserved = self.pool.reserved_bytes()
        if self.pool.unclaimed_bytes() < 2 * reserved:
            self._needed = max(self._needed, reserved + reserved // 32)
            self.give_back("the optimizer may need the memory for its state")

    def check_room(self) -> None:
        """A step begins that is to be recorded: stop if the pool does not fit beside the state, see
        Note [Room for the optimizer]."""
        needed, self._needed = self._needed, 0
        if not needed:
            return
        with capturing():
            torch.cuda.empty_cache()
            missing = needed - self.pool.reserved_bytes()
            free = self.pool.unclaimed_bytes()
        if missing > free:
            self.stop(f"the pool would need {missing} bytes, and {free} are left")

    def stop(self, why: str) -> None:
        """Record nothing any more: see Note [Running out of memory]."""
        self.stopped = why
        message = "no more CUDA graphs on %s: %s. A smaller batch leaves room for them"
        compat.log.warning(message, self.ledger.device, why)

    def start_over(self, reason: str) -> None:
        """Drop all recordings and take a new pool. The allocator's books must be right."""
        for node in list(self.tree.nodes()):
            self._release(node, reason)
        self.tree.clear()
        self.path.leave_pool()
        self.warmed_up = False
        for function in self.functions:
            function.state.places.clear()
        if self.pool.damaged or self.pool.reserved_bytes() > self.pool_initial:
            self.pool.damaged = True  # until there is another one
            self.pool.release()
            torch.cuda.empty_cache()
            try:
                self.pool = CudaPool(self.device.index, self.pool_initial)
            except Exception as e:
                # Not the exception: a log record lives on, and with it the frames of the failure.
                why = f"{type(e).__name__}: {e}"
                compat.log.warning("no other pool for CUDA graphs: %s", why)

    def drop(self, nodes: Iterable[CUDAGraphNode], reason: str) -> None:
        """Drop recordings and what was recorded after them. Those on the path that runs stay."""
        running = path_to(self.path.node)
        for node in nodes:
            if node not in running:
                for n in self.tree.remove(node):
                    self._release(n, reason)

    def _release(self, node: CUDAGraphNode, reason: str) -> None:
        self.ledger.add(LedgerKind.EVICTION, node.wrapped_function, reason, node=node.number)
        self.ledger.retire(node)
        node.release()

    def shut_down(self) -> None:
        """Drop all recordings and the pool, for good."""
        with capturing():
            node = self.path.node
            if self.path.state is ExecutionState.EXECUTION and isinstance(node, CUDAGraphNode):
                _drop_cached_tensors(node)
                if next(node.path_live_weakrefs(), None) is not None:
                    node.restore_pool()
            for n in list(self.tree.nodes()):
                self.ledger.retire(n)
                n.release()
            self.tree.clear()
            self.path.end()
            self.pool.release()


def _drop_cached_tensors(node: CUDAGraphNode) -> None:
    """Drop cached outputs of the path to ``node``; later replays hand out new tensors."""
    for n in path_to(node):
        n.output_cache.clear()
