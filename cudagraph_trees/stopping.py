"""Functions that are recorded no more, and recordings that go while their manager lives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from memprof.profiler.model import LedgerKind, TreeCause

from . import _torch_compat as compat
from .liveness import path_refs
from .locks import capturing
from .moves import copyable, nbytes_of
from .node_program import graph_input
from .node_warmup import CUDAWarmupNode

if TYPE_CHECKING:
    from .device.protocol import Input, Output
    from .function import Function
    from .manager import CUDAGraphTreeManager
    from .node_recorded import CUDAGraphNode

SHOWN = 5
"""So many inputs a sentence names."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What of a ``TreeDetail`` says why: its fields of the same names."""

    cause: TreeCause | None = None
    inputs: tuple[int, ...] = ()
    nbytes: int = 0

    @staticmethod
    def of(
        cause: TreeCause, function: Function, inputs: Sequence[Input], which: Sequence[int]
    ) -> Cause:
        """``which`` of the inputs of a call are the cause."""
        numbers = (graph_input(function, i) for i in which)
        found = tuple(sorted({n for n in numbers if n is not None}))
        return Cause(cause, found, nbytes_of(inputs, which))

    def detail(self) -> dict[str, Any]:
        """As keyword arguments of ``TreeLedger.add``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is neither warmed up nor recorded; the same names as ``run_plainly``'s."""

    reason: str
    cause: Cause = Cause()
    this_once: bool = False

    def how(self) -> dict[str, Any]:
        """As keyword arguments of ``run_plainly``."""
        return {"reason": self.reason, "cause": self.cause, "this_once": self.this_once}


def refusal(
    manager: CUDAGraphTreeManager, function: Function, inputs: list[Input]
) -> Refusal | None:
    """Why a call must not be warmed up or recorded now; None if nothing speaks against it.

    Raises:
        RuntimeError: inputs keep moving, and ``cudagraph_or_error`` is on.
    """
    if manager.pool.damaged:
        manager.give_memory_back("the pool was damaged")
    if manager.pool.damaged:
        return Refusal("there is no pool")
    if not manager.rested():
        return Refusal("the pool was given back in this step", this_once=True)
    if not manager.device.address_bound:
        return None
    # The lock keeps finalizers from releasing recordings in the midst of a look at them.
    with capturing():
        return _refusal_for_moves(manager, function, inputs)


def _refusal_for_moves(
    manager: CUDAGraphTreeManager, function: Function, inputs: list[Input]
) -> Refusal | None:
    node = manager.current_node
    sight = manager.moves.look(
        function, inputs, path_addresses(node), manager.step + (node is None), manager.nodes
    )
    drop(manager, sight.worthless, "what it reads has gone")
    if not sight.moving:
        return None
    cause = Cause.of(TreeCause.KEEPS_MOVING, function, inputs, sight.moving)
    every = nbytes_of(inputs, function.static_input_idxs)
    what = f"inputs keep moving: {_names(function, sight.moving)}, {cause.nbytes} bytes"
    if copyable(function, inputs, sight.moving):
        _copy(manager, function, sight.moving)
        manager.note(
            LedgerKind.DEMOTION,
            function,
            f"{what} of {every} in static inputs; that is little: they are copied from now on",
            **cause.detail(),
        )
        return None
    why = f"{what} of {every} in static inputs; nothing of this graph is recorded any more"
    stop(manager, function, why)
    message = f"skipping cudagraphs of {function.label} due to {why}"
    compat.announce_skip(message, function.options.or_error)
    return Refusal(why, cause)


def stop(manager: CUDAGraphTreeManager, function: Function, why: str) -> None:
    """Record nothing of the compiled graph that ``function`` is of any more, and give back the
    memory of what was recorded. See Note [Inputs that keep moving]."""
    if function.compile_id is not None:
        manager.stopped[function.compile_id] = f"{function.label} runs without a graph"
    for f in manager.ids_to_funcs.values():
        if f is not function and f.compile_id in manager.stopped:
            manager.give_up(f, manager.stopped[f.compile_id])
    manager.give_up(function, why)
    manager.give_memory_back(why)


def _copy(manager: CUDAGraphTreeManager, function: Function, which: Sequence[int]) -> None:
    """Inputs are static no longer."""
    function.static_input_idxs = tuple(i for i in function.static_input_idxs if i not in which)
    function.loose = tuple(sorted({*function.loose, *which}))
    manager.moves.forget(function)
    recordings = [n for n in manager.nodes() if n.wrapped_function is function]
    drop(manager, recordings, "an input that it reads in place is copied from now on")


def drop(manager: CUDAGraphTreeManager, nodes: Iterable[CUDAGraphNode], reason: str) -> None:
    """Drop recordings and what was recorded after them. Those on the path that runs stay."""
    running = _path(manager.current_node)
    for node in nodes:
        if node in running:
            continue
        parent = node.parent
        siblings = (manager.roots if parent is None else parent.children).get(
            node.wrapped_function.id, []
        )
        if node not in siblings:
            continue  # it went with another one
        siblings.remove(node)
        for n in _subtree(node):
            manager.note(LedgerKind.EVICTION, n.wrapped_function, reason, node=n.id.id)
            manager.ledger.retire(n)
            n.wrapped_function.recordings -= 1
            n.release()


def died(manager: CUDAGraphTreeManager, function: Function) -> None:
    """Nobody can call ``function`` any more: its model, constants and recordings go.

    From a finalizer: a call may be under way. What is on the path that runs stays in the tree,
    without its graph, until the path ends.
    """
    function.model = _gone
    function.constants = ()
    for node in _path(manager.current_node):
        if node.wrapped_function is function and not isinstance(node, CUDAWarmupNode):
            node.run_handle.release()
            node.hand_out.let_go_of_fixed()
    manager.dead.add(function)
    _drop_the_dead(manager)


def bury(manager: CUDAGraphTreeManager) -> None:
    """Let go of the rest of the functions that have died, and of the pool if it was for them."""
    # Those that die meanwhile wait for the lock, and are let go of next time.
    with capturing():
        _drop_the_dead(manager)
        in_use = {n.wrapped_function for n in _path(manager.current_node)}
        buried = manager.dead - in_use
        for function in buried:
            manager.forget(function)
        manager.dead -= buried
        if not in_use and next(manager.nodes(), None) is None:
            manager.give_memory_back("the functions that it was for are gone")


def _drop_the_dead(manager: CUDAGraphTreeManager) -> None:
    nodes = [n for n in manager.nodes() if n.wrapped_function in manager.dead]
    drop(manager, nodes, "its function is gone")


def _gone(inputs: list[Input]) -> list[Output]:
    raise RuntimeError("this function was let go of")


def _path(node: CUDAGraphNode | CUDAWarmupNode | None) -> list[CUDAGraphNode | CUDAWarmupNode]:
    return [] if node is None else list(node._path_from_root)


def _subtree(node: CUDAGraphNode) -> Iterator[CUDAGraphNode]:
    yield node
    for children in list(node.children.values()):
        for child in list(children):
            yield from _subtree(child)


def _names(function: Function, which: Sequence[int]) -> str:
    names = [_name(function, i) for i in which[:SHOWN]]
    more = f" and {len(which) - SHOWN} more" if len(which) > SHOWN else ""
    return ", ".join(names) + more


def _name(function: Function, i: int) -> str:
    """The user's name of an input, else the compiler's."""
    at = graph_input(function, i)
    if at is not None and function.record is not None:
        value = function.record.inputs[at]
        return value.fqn or value.name
    placeholder = function.placeholders[i] if i < len(function.placeholders) else None
    return str(getattr(placeholder, "name", f"input {i}"))


def path_addresses(node: CUDAGraphNode | CUDAWarmupNode | None) -> set[int]:
    """Addresses of all outputs of a path, dead ones included."""
    if node is None:
        return set()
    return {r.address for r in path_refs(node.path_weakrefs)}
