"""What a manager does with its pool as a whole: limits, giving it back, taking another one.

Note [Giving the pool back]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
A pool is given back when what it has taken is of no use any more, or when no more can be recorded
in it: all recordings go, and a new pool is begun. Outputs of the step that runs own their blocks in
the old one from then on and stay valid.

* What comes later in that step would be recorded for addresses in the old pool, which do not come
  back. So nothing is recorded (the manager *rests*) until the next step begins, or, where no step
  ever ends since no backward comes, until nobody holds anything of that step.
* It happens in the midst of calls that have their results already, or are about to get them
  without a graph: no call is lost for it. If there is no memory for a pool that begins with
  ``pool_initial`` bytes, one is made that begins with nothing. If there is none for that, either,
  the old one stays, *damaged*: nothing is warmed up or recorded in it, and the next call that
  would be tries again to make one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from memprof.profiler.model import LedgerKind

from . import _torch_compat as compat
from . import recording
from .liveness import path_refs
from .locks import capturing

if TYPE_CHECKING:
    from .budget import Budget
    from .device.protocol import Device, Pool
    from .function import Function, FunctionID
    from .ledger import TreeLedger
    from .node_recorded import CUDAGraphNode
    from .node_warmup import CUDAWarmupNode
    from .places import Places
    from .settings import TreeSettings
    from .storage_ref import StorageWeakRefWrapper


class OwnsPool:
    """Mixed into ``CUDAGraphTreeManager``.

    Attributes:
        resting: the pool was given back; nothing is recorded until the step ends.
    """

    device: Device
    settings: TreeSettings
    pool: Pool
    budget: Budget
    ledger: TreeLedger
    places: Places
    roots: dict[FunctionID, list[CUDAGraphNode]]
    ids_to_funcs: dict[FunctionID, Function]
    current_node: CUDAGraphNode | CUDAWarmupNode | None
    can_start_new_generation: Callable[[], bool]
    generation_moved: Callable[[], bool]
    nodes: Callable[[], Iterator[CUDAGraphNode]]
    note: Callable[..., None]
    _roots: dict[Function, list[CUDAGraphNode]]

    def __init__(self) -> None:
        self.resting = False
        self._begun_already: set[int] = set()
        # Outputs of the step in which it was, with memory in the old pool.
        self._left: list[StorageWeakRefWrapper] = []

    # ---- limits

    def spent(self, function: Function) -> None:
        """Something was allocated from the pool."""
        if self.budget.limit is not None and self.budget.spent(
            function, self.pool.reserved_bytes()
        ):
            # Hides the roots from the hot path until the budget was enforced.
            self._roots = {}

    def limit_pool(self, budget: int | None) -> None:
        """Code that is compiled now asks for a pool of no more than ``budget`` bytes."""
        with capturing():
            if self.budget.lower(budget, self.pool.reserved_bytes()):
                self._roots = {}

    def begun_already(self, pool_initial: int) -> None:
        """Code asks for a pool that begins with ``pool_initial`` bytes, and it has begun."""
        if pool_initial not in self._begun_already:
            self._begun_already.add(pool_initial)
            compat.log.warning(
                "a pool of %d bytes to begin with was asked for, but code that runs already has "
                "one on %s, which began with %d; it takes what it needs when it needs it",
                pool_initial,
                self.ledger.device,
                self.settings.pool_initial,
            )

    # ---- starting over

    def give_memory_back(self, reason: str) -> None:
        """Start over, in the midst of a path too: its outputs own their memory from then on, and
        nothing is recorded until the step ends, see Note [Giving the pool back]."""
        node = self.current_node
        self.resting |= node is not None
        with capturing():
            recording.restore_books(self, None)  # type: ignore[arg-type]
            self.start_over(reason)
        if node is not None:
            self._left = [r for r in path_refs(node.path_weakrefs) if not r.expired()]

    def rested(self) -> bool:
        """Whether recording may go on after ``give_memory_back``: a new step begins, or it is later
        and nothing is held of the old one."""
        if self.resting and (
            self.can_start_new_generation()
            or (self.generation_moved() and all(r.expired() for r in self._left))
        ):
            self.resting = False
            self._left.clear()
            # What the outputs of that step have let go of meanwhile.
            self.device.empty_cache()
        return not self.resting

    def start_over(self, reason: str) -> None:
        """Drop all recordings and take a new pool.

        The allocator's books must be right: outputs of the current path own their blocks in
        the old pool and stay valid for as long as they are held.
        """
        for node in list(self.nodes()):
            self.note(LedgerKind.EVICTION, node.wrapped_function, reason, node=node.id.id)
            self.ledger.retire(node)
            node.release()
        self.roots.clear()
        self._roots = {}
        self.current_node = None
        self.places.forget()
        for function in self.ids_to_funcs.values():
            function.pool_growth = function.recordings = 0
        if self.pool.damaged or self.pool.reserved_bytes() > self.settings.pool_initial:
            # Until there is another one, whatever becomes of this.
            self.pool.damaged = True
            self.pool.release()
            self.device.empty_cache()
            self._take_pool()

    def _take_pool(self) -> None:
        for nbytes in dict.fromkeys((self.settings.pool_initial, 0)):
            try:
                self.pool = self.device.create_pool(nbytes)
                return
            except Exception as e:
                why = f"{type(e).__name__}: {e}"
                compat.log.warning("no other pool of %d bytes for CUDA graphs: %s", nbytes, why)
