"""The pool of one manager, from when it is taken until it is given back.

Note [Giving the pool back]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
A pool is given back when what it has taken is of no use any more, or when no more can be recorded
in it: all recordings go, and a new pool is begun. Outputs of the step that runs own their blocks in
the old one from then on and stay valid.

* What comes later in that step would be recorded for addresses in the old pool, which do not come
  back. So nothing is recorded (the pool *rests*) until the next step begins, or, where no step
  ever ends since no backward comes, until nobody holds anything of that step.
* No call is lost for it. If there is no memory for a pool that begins with ``pool_initial`` bytes,
  one is made that begins with nothing. If there is none for that, either, the old one stays,
  *damaged*: the next call that would be warmed up or recorded tries again to make one.

Note [A pool that nobody needs]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What a pool has taken from the device it keeps for as long as anything is recorded in it. A function
that was warmed up there and is then run without a graph (its capture failed, its parameters keep
moving, an input is on the host) would need its memory once more beside the pool. So before it runs
that way for the first time, a new pool is begun, if the function's part of the old one is worth it:
those that can be recorded are recorded again, in a pool of the size that they need.

Note [Room for the optimizer]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Most optimizers make their state in their first step, and eager code that runs out of memory asks
nobody for a pool's. So after the first warm-up of a backward the pool is given back if the device
has little more left than twice the gradients, which is what Adam makes; of a step with several
backwards, those of all up to then. When the same functions begin the next step, the state is there,
and the bytes that a pool needs are known: if the device does not have them, the job goes on without
graphs, as it would have without memprof. That is decided once: later the pool has what it needs. A
sixteenth of the pool is little, and a thirty-second is added to what it needs: recordings took up
to 3 % more than warm-ups. A job that asked for graphs or errors is not stopped for an estimate.

Note [Keeping a pool within its budget]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
All recordings share the pool's segments, and each has addresses in them baked in: dropping one,
say the least recently used, frees nothing. So all are dropped, and whatever is used again is
recorded again into a new pool, which then holds the working set and no longer the sizes that were
seen once. What a recording needs is known only when it has been made, so a pool may be above its
budget until the step ends. If recordings were dropped less than ``PATIENCE`` steps ago, the working
set itself does not fit: the function whose recording went over the limit runs without a graph from
then on, as well.
"""

from __future__ import annotations

from collections.abc import Iterable

from memprof.profiler.model import LedgerKind

from . import _torch_compat as compat
from .account.ledger import TreeLedger
from .capture.pool_check import memory_kept
from .capture_lock import capturing
from .device.cuda import CudaDevice
from .node import CUDAGraphNode, Node, RecordingTree, path_to
from .path import ExecutionState, TreePath
from .record_policy import RecordPolicy
from .replay.liveness import StorageWeakRefWrapper
from .settings import TreeSettings
from .spec import CompilationMode, FunctionSpec

MAX_ROOMS = 3
"""So often the pool is given back for what does not fit beside it."""

ROOM_APART = 4
"""What is warmed up apart is so beside the pool if it can have so many times the pool's bytes: what
takes more than four times as much as all others together is seldom called after them."""

PATIENCE = 4
"""Steps in which a working set is recorded once more."""


class PoolOwner:
    """Owns the pool and what is recorded in it, and decides when recordings go.

    Attributes:
        functions: those that were wrapped and can still be called.
        pool: the one that is used now; of no more than ``budget`` bytes, if that is not None.
        over_budget: the pool is above it, until the step ends.
        resting: the pool was given back; nothing is recorded until the step ends.
        restored: how often the allocator's books were restored.
        no_room: why nothing is recorded any more, "" if it is.
    """

    def __init__(self, device: CudaDevice, settings: TreeSettings) -> None:
        self.device = device
        self.settings = settings
        self.functions: set[FunctionSpec] = set()
        self.path = TreePath()
        self.tree = RecordingTree()
        self.policy = RecordPolicy(self.functions)
        self.ledger = TreeLedger(str(device.device), self.path)
        with capturing():
            self.pool = device.create_pool(settings.pool_initial)
        self.budget = settings.pool_budget
        self.over_budget = False
        # The function whose run went over it, and the step that ended when recordings last went.
        self._over_by: FunctionSpec | None = None
        self._last_enforced: int | None = None
        self.resting = False
        self.restored = 0
        self.no_room = ""
        self._rooms = 0
        # By number: functions for whose sake there is no room, and backwards after which the pool
        # was given back for the optimizer's state; then bytes that the pool needs, and the
        # functions with which the next step begins.
        self._cramped: frozenset[int] = frozenset()
        self._stood_back: set[int] = set()
        self._needed = 0
        self._needed_by: frozenset[int] = frozenset()
        self._begun_already: set[int] = set()
        # Outputs of the step in which the pool was given back, with memory in the old one.
        self._left: list[StorageWeakRefWrapper] = []

    # ---- limits

    def check_budget(self, function: FunctionSpec) -> None:
        limit = self.budget
        if limit is not None and not self.over_budget and self.pool.reserved_bytes() > limit:
            self.over_budget, self._over_by = True, function

    def lower_budget(self, budget: int | None) -> None:
        """Code that is compiled now asks for a pool of no more than ``budget`` bytes."""
        if budget is not None and (self.budget is None or budget < self.budget):
            self.budget = budget
            self.over_budget = self._reserved_bytes() > budget

    def enforce_budget(self) -> None:
        """The step has ended, and the pool is above its limit: drop recordings, and perhaps give
        up a function, which raises if ``cudagraph_or_error`` is on for it."""
        with capturing():
            reason = f"the pool has {self.pool.reserved_bytes()} bytes, its budget is {self.budget}"
            function, self._over_by, self.over_budget = self._over_by, None, False
            last, self._last_enforced = self._last_enforced, self.path.step
            self.start_over(reason)
            soon = last is not None and self.path.step - last < PATIENCE
            if soon and function is not None and function in self.functions:
                self.policy.give_up(function, "it did not fit the pool's budget before")
                why = f"{reason}, and what is in use does not fit"
                entry = f"{why}: it runs without a graph from now on"
                self.ledger.add(LedgerKind.SKIP, function, entry)
                message = f"skipping cudagraphs of {function.label}: {why}"
                compat.announce_skip(message, function.options.or_error)

    def ask_for_initial(self, nbytes: int) -> None:
        """Code asks for a pool that begins with so many bytes: what has begun with less says so."""
        if nbytes > self.settings.pool_initial and nbytes not in self._begun_already:
            self._begun_already.add(nbytes)
            compat.log.warning(
                "a pool of %d bytes to begin with was asked for, but code that runs already has "
                "one on %s, which began with %d; it takes what it needs when it needs it",
                nbytes,
                self.ledger.device,
                self.settings.pool_initial,
            )

    def _reserved_bytes(self) -> int:
        with capturing():
            return self.pool.reserved_bytes()

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
        return memory_kept(self.pool, live, function.options)

    # ---- giving it back

    def leave(self) -> None:
        """A function has kept memory of the pool: nothing may be recorded beside it."""
        self.pool.damaged = True
        self.give_back("a function has kept memory of the pool")

    def give_back(self, reason: str) -> None:
        """Start over, in the midst of a path too, see Note [Giving the pool back]."""
        node = self.path.node
        self.resting |= node is not None
        with capturing():
            self.restore_books()
            self.start_over(reason)
        if node is not None:
            self._left = [r for r in node.path_refs if not r.expired()]

    def give_back_unneeded(self, function: FunctionSpec) -> None:
        # See Note [A pool that nobody needs].
        grown = function.state.pool_growth
        if grown == 0 or any(n.wrapped_function is function for n in self.tree.nodes()):
            return
        if grown >= self._reserved_bytes() >> 6:
            self.give_back("the pool took memory for a function that now runs without a graph")

    def leave_room_for_state(self, backward: FunctionSpec) -> None:
        # See Note [Room for the optimizer].
        if backward.number in self._stood_back or next(self.tree.nodes(), None) is not None:
            return
        path = path_to(self.path.node)
        reserved = self.pool.reserved_bytes()
        if self.device.unclaimed_bytes() < 2 * _gradients(path) + reserved // 16:
            self._stood_back.add(backward.number)
            self._needed = reserved + reserved // 32
            self._needed_by = frozenset(n.wrapped_function.number for n in path)
            self.give_back("the optimizer may need the memory for its state")

    def lacks_room(self, function: FunctionSpec) -> bool:
        """``function`` begins a step: whether the pool that it is for would not fit; then
        ``no_room`` says so."""
        cramped = self._needed_by
        if function.number not in cramped or function.options.or_error:
            return False
        self._needed_by = frozenset()
        with capturing():
            missing = self._needed - self.pool.reserved_bytes()
            if missing > self.device.unclaimed_bytes():
                self.device.empty_cache()
            free = self.device.unclaimed_bytes()
        if missing > free:
            self._nothing_more(f"the pool would need {missing} bytes, and {free} are left", cramped)
        return bool(self.no_room)

    def _nothing_more(self, why: str, cramped: frozenset[int]) -> None:
        self.no_room, self._cramped = why, cramped
        message = "no more CUDA graphs on %s: %s. A smaller batch leaves room for them"
        compat.log.warning(message, self.ledger.device, why)

    def forget(self, functions: Iterable[FunctionSpec]) -> None:
        """They are gone. If there was no room for their sake, there may be some."""
        self._cramped -= {f.number for f in functions}
        if self.no_room and not self._cramped:
            self.no_room, self._rooms = "", 0

    def make_room(self, function: FunctionSpec) -> bool:
        """``function`` has not fitted beside the pool, and runs without a graph: the pool's memory
        goes back to the device. Returns whether there was any; if the call then succeeds,
        ``count_room`` follows."""
        reserved = self._reserved_bytes()
        if reserved:
            self.give_back(f"{function.label} needs the memory, and runs without a graph")
        return reserved > 0

    def count_room(self, function: FunctionSpec) -> None:
        """The room was made for ``function``, and it has run in it."""
        self._rooms += 1
        if self._rooms == MAX_ROOMS:
            why = f"{function.label} does not fit beside a pool, given back {MAX_ROOMS} times"
            self._nothing_more(why, frozenset({function.number}))

    def stand_aside(self, function: FunctionSpec) -> None:
        """``function`` is about to be warmed up in the general pool. Where it is not known what it
        needs, this pool is given back unless there is much more; else the smaller of the two goes.
        """
        needs, reserved = function.state.needs, self._reserved_bytes()
        crowded = reserved and self.device.available_bytes() < ROOM_APART * reserved
        if crowded or needs > reserved > 0:
            self.give_back(f"{function.label} is warmed up in the general pool")

    def rested(self) -> bool:
        """Tells whether recording may go on after ``give_back``."""
        path = self.path
        if self.resting and (
            path.step_may_begin()
            or (path.generation_moved() and all(r.expired() for r in self._left))
        ):
            self.resting = False
            self._left.clear()
            # What the outputs of that step have let go of meanwhile.
            self.device.empty_cache()
        return not self.resting

    def start_over(self, reason: str) -> None:
        """Drop all recordings and take a new pool. The allocator's books must be right."""
        for node in list(self.tree.nodes()):
            self._release(node, reason)
        self.tree.clear()
        self.path.leave()
        self.policy.forget_recordings()
        for f in self.functions:
            f.state.pool_growth = 0
        if self.pool.damaged or self.pool.reserved_bytes() > self.settings.pool_initial:
            self.pool.damaged = True  # until there is another one
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


def _gradients(path: Iterable[Node]) -> int:
    """Bytes of the pool that backwards of the path have made and somebody holds."""
    storages = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for n in path
        if n.wrapped_function.mode is CompilationMode.BACKWARD
        for ref in n.tensor_weakrefs
        if ref is not None and (t := ref()) is not None
    }
    return sum(storages.values())


def _drop_cached_tensors(node: CUDAGraphNode) -> None:
    """Those of the path to ``node``: outputs that are handed out from then on are others."""
    for n in path_to(node):
        n.output_cache.clear()
