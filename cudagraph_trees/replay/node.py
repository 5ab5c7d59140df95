"""The nodes of a tree: what ran in the pool, and what of the path before it that relies on.

``capture`` makes them. Dynamo calls ``_is_cuda_graph_recorded_tensor`` by that name
(``torch._dynamo.variables.optimizer``).

Note [What is decided when]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
A replay should do no more than: compare addresses, look whether what was dead when the
node was recorded is dead now, copy inputs, launch, hand out. So everything a replay needs
is laid out when the node is recorded, and what is left out of a list costs nothing then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.weak import TensorWeakRef

from .. import _torch_compat as compat
from ..device.cuda import CudaPool, released
from ..device.protocol import Input, Output, TensorSpec
from .inputs import Copies, InputPlan, inputs_again, same_addresses
from .liveness import OutputRefs, StorageWeakRefWrapper, address_of, find_live, held
from .outputs import OutputCache
from .spec import FunctionSpec

_foreach_copy = compat.foreach_copy


class CalledOff(Exception):
    """A recording turned out not to fit when its replay had begun. Nothing was launched; ``inputs``
    are those of the call again."""

    def __init__(self, inputs: list[Input]) -> None:
        super().__init__("an input has other sizes, or died in the recording and is still held")
        self.inputs = inputs


class Node:
    """A run in the pool: a warm-up, or a recording (``CUDAGraphNode``). Only warm-ups follow a
    warm-up, because the addresses of its outputs are accidental.

    Attributes:
        wrapped_function: what ran.
        number: of the recording in its manager, from 0; negative for a warm-up.
        step: number of the step in which it was made.
        outputs_weakrefs: by output: those that lie in the pool. Never replaced, only changed.
        tensor_weakrefs: the tensors that the run itself returned of these.
        path_refs: the outputs of all nodes from the root to this one.
        live_after: those of them that may be live after it.
        children: recordings that follow this one, by function.
        held_parent: of a warm-up, the node before it; the tree holds recordings.
    """

    def __init__(
        self,
        function: FunctionSpec,
        number: int,
        step: int,
        parent: Node | None,
        refs: OutputRefs,
        outputs: list[Output],
    ) -> None:
        self.wrapped_function = function
        self.number = number
        self.step = step
        self._parent = None if parent is None else weakref.ref(parent)
        self.outputs_weakrefs = refs
        self.tensor_weakrefs = [
            None if r is None else TensorWeakRef(o)  # type: ignore[arg-type]
            for r, o in zip(refs, outputs, strict=True)
        ]
        above = [] if parent is None else parent.path_refs
        self.path_refs: list[StorageWeakRefWrapper] = [*above, *(r for r in refs if r is not None)]
        self.live_after = self.path_refs
        self.find_live = find_live()
        self.children: dict[FunctionSpec, list[CUDAGraphNode]] = {}
        self.held_parent: Node | None = None

    @property
    def parent(self) -> Node | None:
        return None if self._parent is None else self._parent()

    def handed_out(self, i: int) -> torch.Tensor | None:
        """The tensor that stands for output ``i``, None if it is gone, or given other memory."""
        output, ref = self.outputs_weakrefs[i], self.tensor_weakrefs[i]
        if output is None or ref is None:
            return None
        t = ref() if output.cache is None else output.cache[output.slot]
        try:
            # That of a former run may live on, in memory of its own, or given up.
            return t if t is not None and output.has(t) else None
        except RuntimeError:
            return None

    def path_live_weakrefs(self) -> Iterator[StorageWeakRefWrapper]:
        return (r for r in self.live_after if not r.expired())

    def all_outputs_are_dead(self) -> bool:
        return not (self.find_live(self.live_after) and held(self.live_after, self.path_refs))

    def _is_cuda_graph_recorded_tensor(self, t: torch.Tensor) -> bool:
        """Tells whether a tensor is an output of the path that is live."""
        address = address_of(t)
        return any(r.address == address for r in self.path_live_weakrefs())


class CUDAGraphNode(Node):
    """A recording of one function after one path.

    Attributes:
        live_after_slots: what was live at its end, each with the cache that it is handed out by,
            and its number there.
        checkpoint: the allocator's books at its end.
        sizes: by address, (bytes asked for, bytes of the block) of its outputs.
        specs: where the storages of copied and managed inputs are, by input.
        same_addresses: whether a call's inputs lie where it reads them; None if none matters.
        dead_before, dead_after: outputs of the path that must be dead when it is replayed, and
            those that must die when it takes its inputs.
        copies: fills the buffers of its copied inputs, None if there are none.
        keep_inputs: inputs that an output is an alias of: they live until it is made.
        marginal_bytes: what the pool took from the device for it.
    """

    def __init__(
        self,
        function: FunctionSpec,
        number: int,
        step: int,
        parent: CUDAGraphNode | None,
        pool: CudaPool,
        *,
        launch: Callable[[], object],
        outputs: list[Output],
        plan: InputPlan,
        specs: dict[int, TensorSpec],
        persistent: dict[int, StorageWeakRefWrapper],
        placed: Mapping[int, int],
        live_before: list[StorageWeakRefWrapper],
    ) -> None:
        """Make the node of a capture that has just ended, see Note [What is decided when].

        Args: ``persistent`` is that of ``reference_persistent``, ``placed`` of ``OutputCache``.
        """
        above = [] if parent is None else parent.path_refs
        cache = OutputCache(function, number, outputs, above, persistent, placed, pool)
        aliased = {a for a in cache.alias if isinstance(a, StorageWeakRefWrapper)}
        for n in path_to(parent):
            for i, r in enumerate(n.outputs_weakrefs):
                if r in aliased:
                    n.output_is_aliased(i)
        super().__init__(function, number, step, parent, cache.refs, outputs)
        self.pool = pool
        self.launch = launch
        self.input_plan = plan
        self.output_cache = cache
        self.specs = specs
        self.live_after_slots = [
            (r, n.output_cache, i)
            for n in (*path_to(parent), self)
            for i, r in enumerate(n.outputs_weakrefs)
            if r is not None and not r.expired()
        ]
        self.live_after = [r for r, _, _ in self.live_after_slots]
        self.checkpoint = pool.checkpoint()
        own = {r.address for r in cache.refs if r is not None}
        self.sizes = {
            block.address: (block.requested, block.nbytes)
            for block in pool.live_blocks()
            if block.address in own
        }
        self.same_addresses = same_addresses(plan.pointers, plan.checked) if plan.checked else None
        were_live = set(live_before)
        self.dead_before = (
            [] if parent is None else [r for r in parent.live_after if r not in were_live]
        )
        self.dead_after = [r for r in live_before if r.expired()]
        buffers = {i: pool.tensor_at(specs[i]) for i in plan.copied}
        self.copies = Copies(buffers) if buffers else None
        self.keep_inputs = [i for i, r in enumerate(plan.outputs) if r in aliased]
        self.recorded_ns = 0
        self.replays = 0
        self.marginal_bytes = 0

    def fits(self, inputs: list[Input]) -> bool:
        """Tells whether the recording is right for this call. Hot."""
        return (self.same_addresses is None or self.same_addresses(inputs)) and (
            not self.dead_before
            or not self.find_live(self.dead_before)
            or not held(self.dead_before, self.path_refs)
        )

    def run(self, inputs: list[Input]) -> list[Output]:
        """Run it on inputs that it fits, which are emptied. ``CalledOff`` if someone holds an input
        that died in the recording, or one that is copied has other sizes. Hot."""
        copies = self.copies
        if copies is not None:
            try:
                if copies.odd:
                    copies.copy_odd(inputs)
                if copies.buffers:
                    _foreach_copy(copies.buffers, copies.sources(inputs))
            except RuntimeError:
                if copies.fit(inputs):
                    raise
                raise CalledOff(list(inputs)) from None
        kept = [inputs[i] for i in self.keep_inputs] if self.keep_inputs else None
        if self.dead_after:
            self._let_die(inputs)
        self.launch()
        inputs.clear()
        outputs = self.output_cache.outputs()
        del kept
        return outputs

    def _let_die(self, inputs: list[Input]) -> None:
        """Let go of inputs that died in the recording; if somebody else holds them, it is called
        off."""
        # The launch does not read them through Python.
        for i in self.input_plan.managed:
            inputs[i] = None
        for i in self.input_plan.copied:
            inputs[i] = None
        if self.find_live(self.dead_after) and held(self.dead_after, self.path_refs):
            raise CalledOff(self._rebuild_inputs(inputs))

    def _rebuild_inputs(self, inputs: list[Input]) -> list[Input]:
        """Inputs of a call that was called off by ``_let_die``."""
        plan, out = self.input_plan, list(inputs)
        refs = {i: r for i in plan.managed if (r := plan.outputs[i]) is not None}
        for i, t in inputs_again(self.pool, self.specs, refs).items():
            out[i] = t
        return out

    def mismatch(self, inputs: list[Input]) -> tuple[str, list[int]]:
        """Why this recording cannot serve ``inputs``, in torch's words, and the inputs that moved;
        "" if it can, as far as is seen before a replay. Not hot."""
        plan, placeholders = self.input_plan, self.wrapped_function.placeholders
        for kind, which in (
            ("cudagraph managed tensor", plan.managed),
            ("static input", plan.static),
        ):
            if moved := plan.moved(inputs, which):
                lines = [f"{kind} data pointer changed."]
                for i in moved:
                    p = placeholders[i] if i < len(placeholders) else None
                    lines.append(
                        f"input name: {getattr(p, 'name', i)}. "
                        f"data pointer changed from {plan.pointers[i]} to {inputs[i].data_ptr()}. "
                        f"input stack trace: {getattr(p, 'stack_trace', None)}"
                    )
                return "\n".join(lines), moved
        if self.dead_before and held(self.dead_before, self.path_refs):
            return "expected dead indices before graph are live", []
        if self.copies is not None and not self.copies.fit(inputs):
            return "a copied input has other sizes", []
        return "", []

    def moved_managed(self, inputs: list[Input]) -> list[int]:
        """Managed inputs that are somewhere else now and could be copied instead: see
        ``moves.copyable``."""
        if self.wrapped_function.mutated:
            return []
        kept = {*self.wrapped_function.static, *self.keep_inputs}
        return self.input_plan.moved(inputs, [i for i in self.input_plan.managed if i not in kept])

    def _is_cuda_graph_recorded_tensor(self, t: torch.Tensor) -> bool:
        """Tells whether the memory of a tensor is that of an output of the path, live or not."""
        address = address_of(t)
        return any(r.address == address for r in self.path_refs)

    def output_is_aliased(self, index: int) -> None:
        """A descendant returns an alias of this output: no cached tensor for it any more."""
        self.output_cache.cacheable[index] = False
        self.output_cache.clear()

    def restore_pool(self) -> None:
        """Make the allocator's books say what memory says after a replay."""
        # Held until it is done: the garbage collector may come by.
        live: dict[int, torch.UntypedStorage] = {}
        for r in self.path_live_weakrefs():
            storage = compat.storage_from_weak(r.pointer)
            if storage is not None:
                live.setdefault(r.address, storage)
        dead = {r.address for r in self.live_after} - live.keys()
        self.pool.restore(self.checkpoint, [s._cdata for s in live.values()], dead)

    def release(self) -> None:
        self.output_cache.clear()
        self.output_cache.persistent.clear()
        self.launch = released
        self.checkpoint = None

    def release_graph(self) -> None:
        """Drop what its function holds of the device. The rest stays until the path ends."""
        self.launch = released
        self.output_cache.let_go_of_fixed()


N = TypeVar("N", bound=Node)


def path_to(node: N | None) -> list[N]:
    """Nodes from the root to ``node``, which is the last; none if it is None."""
    nodes: list[N] = []
    at: Any = node
    while at is not None:
        nodes.append(at)
        at = at.parent
    nodes.reverse()
    return nodes


def number_of(node: Node | None) -> int | None:
    """Number of a node, for the ledger; None if there is no node."""
    return None if node is None else node.number


def path_addresses(node: Node | None) -> set[int]:
    """Addresses of all outputs of a path, dead ones included: the memory is the pool's."""
    return set() if node is None else {r.address for r in node.path_refs}


class RecordingTree:
    """The recordings of one manager. ``roots``, those that nothing precedes, by function, are
    replaced or added to, never emptied one by one: another thread may be walking over them."""

    def __init__(self) -> None:
        self.roots: dict[FunctionSpec, list[CUDAGraphNode]] = {}

    def after(self, parent: Node | None) -> dict[FunctionSpec, list[CUDAGraphNode]]:
        return self.roots if parent is None else parent.children

    def add(self, node: CUDAGraphNode) -> bool:
        """``node`` was recorded. Returns whether there were others of its function there."""
        siblings = self.after(node.parent).setdefault(node.wrapped_function, [])
        siblings.append(node)
        return len(siblings) > 1

    def remove(self, node: CUDAGraphNode) -> list[CUDAGraphNode]:
        """Take out a recording and what was recorded after it: these, none if it is out already."""
        siblings = self.after(node.parent).get(node.wrapped_function, [])
        if node not in siblings:
            return []
        siblings.remove(node)
        return list(_walk([node]))

    def forget(self, function: FunctionSpec) -> None:
        # A new one: a collector may have come by in the midst of a walk over it.
        self.roots = {f: nodes for f, nodes in self.roots.items() if nodes or f is not function}

    def clear(self) -> None:
        self.roots.clear()

    def nodes(self) -> Iterator[CUDAGraphNode]:
        """All recordings, parents before children; one that is added meanwhile may be missing.

        The thread that writes a profile comes by here while others record, and takes no lock, which
        a capture has for long: ``list`` copies a dictionary's values or a list in one step of the
        interpreter.
        """
        return _walk([node for nodes in list(self.roots.values()) for node in list(nodes)])


def _walk(nodes: list[CUDAGraphNode]) -> Iterator[CUDAGraphNode]:
    stack = nodes[::-1]
    while stack:
        node = stack.pop()
        yield node
        for children in list(node.children.values()):
            stack.extend(list(children)[::-1])
