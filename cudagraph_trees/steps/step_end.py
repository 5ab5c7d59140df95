"""Live outputs at the end of their step.

Note [The end of a step]
~~~~~~~~~~~~~~~~~~~~~~~~
When a new step begins, the memory of the last path is about to be reused. Each output that is
still held gets one of these ends, in this order:

* the very call that begins the new step writes to it (a cache that is handed back): it moves
  out of the pool, content and all, so that whoever holds it sees what was written;
* the call is that of a graph's partition, and the graph was given it: it moves out as well, since
  something else of the graph may read it (Note [Graphs in parts]);
* it is an argument of that call otherwise (``h = cell(x, h)``): the call gets a clone;
* it is a gradient (in a leaf's ``.grad``: autograd *steals* the tensor that a backward returns): it
  moves out, so that accumulating over several backwards is right;
* outputs are to be cloned (``outputs="clone"``), or are the state that a compiled optimizer makes
  in its first step, as the momentum of ``torch.optim.SGD``: it moves out as well;
* otherwise its use raises an error that says what happened (``errors``).

Moving swaps the memory under the ``StorageImpl``, so every view moves along. Torch before
2.12 cannot do that to a storage over borrowed memory. There the trees look for the
holders that they know, a leaf's ``.grad``, the tensor that was handed out, and what of the
call's arguments moves out, give these new memory, and the use of any other view raises.

Where a copy is made, holders and arguments get the same one, and each keeps its sizes, strides
and place in it: compiled code relies on the strides, and what the call writes to an argument that
is a view of a holder is to be seen there.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from memprof.profiler.model import LedgerKind, TreeCause
from memprof.profiler.model.allocator_rules import ROUNDING

from .. import _torch_compat as compat
from ..device.cuda import CudaPool
from ..device.protocol import Input, TensorSpec
from ..replay.errors import overwritten_message
from ..replay.liveness import held
from ..replay.node import CUDAGraphNode, Node, path_to
from ..replay.spec import CompilationMode, FunctionSpec

_count = compat.storage_use_count
_refs = sys.getrefcount


class ParameterRefs:
    """The parameters that forwards of one manager were recorded with, and other leaves that they
    were called with, as long as they live: gradients can leave the pool only through them where
    torch cannot swap the memory of a storage, see Note [The end of a step]."""

    def __init__(self) -> None:
        # Entries go when their parameter does.
        self._refs = WeakTensorKeyDictionary()

    def remember(self, function: FunctionSpec, inputs: list[Input]) -> None:
        """Keep the leaves among the inputs of a forward that is about to be recorded. Those that
        are no static inputs may be others, or no leaves, at each call: ``FunctionSpec.leaves``."""
        if compat.can_swap_storage() or function.mode is not CompilationMode.FORWARD:
            return
        self._keep(inputs, function.static)
        function.leaves = tuple(
            i
            for i in function.loose
            if isinstance(inputs[i], torch.Tensor) and inputs[i].requires_grad
        )

    def remember_leaves(self, function: FunctionSpec, inputs: list[Input]) -> None:
        self._keep(inputs, function.leaves)

    def _keep(self, inputs: list[Input], which: Sequence[int]) -> None:
        for i in which:
            t = inputs[i]
            if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad:
                self._refs[t] = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(list(self._refs))


def end_quickly(
    node: CUDAGraphNode,
    inputs: list[Input],
    next_function: FunctionSpec,
    located: bool,
    step: int,
) -> bool:
    """``StepEnd.end`` for the common cases: nothing is held, or the last loss is, of ``loss =
    model(x)`` in a loop. All that is held are tensors that the last step's nodes handed out
    as they were, none that is to move out, and no argument of the new call: their use raises from
    here on, and the node hands out others. Hot.

    Args: as of ``StepEnd``; ``located``: a recording that begins a step fits the call.

    Returns:
        False if it is another case; nothing was done then.
    """
    live = node.find_live(node.live_after)
    if not live:
        return True
    arguments = _unlocated(next_function, inputs, located)
    ends = []
    for found in live:
        ref, output_cache, k = node.live_after_slots[found]
        if ref.cache is None or output_cache.moves_out:
            return False
        if output_cache.of_inference and (
            next_function.trains or output_cache.slots[k].requires_grad  # type: ignore[union-attr]
        ):
            return False  # perhaps a backward is to come
        is_alone = ref.is_alone()
        if is_alone:
            # Nothing but the tensor itself is over the storage.
            t = output_cache.slots[k]
            for i in arguments:
                if inputs[i] is t:
                    return False
        else:
            begin, nbytes = ref.address, output_cache.nbytes[k]
            for i in arguments:
                if 0 <= inputs[i].data_ptr() - begin < nbytes:
                    return False
        ends.append((ref, output_cache, k, is_alone))
    for ref, output_cache, k, is_alone in ends:
        message = output_cache.messages[k] or output_cache.message(k)
        text = message(step, next_function.caller)
        output_cache.overwrite(k, ref, text, is_alone)
    return True


def _unlocated(function: FunctionSpec, inputs: list[Input], located: bool) -> Sequence[int]:
    """Tensors among the inputs that may lie in an output of the last step. Hot.

    Static ones do not where a recording fits that begins a step: it has just compared their
    addresses, and what lay in an output when it was recorded was cloned before.
    """
    static = function.static
    if located or not static:
        return function.loose
    return [*function.loose, *(i for i in static if isinstance(inputs[i], torch.Tensor))]


def continues_step(
    node: Node, at_backward: Node | None, function: FunctionSpec, inputs: list[Input]
) -> bool:
    """Tells whether a call belongs to the step that runs, although one may begin. None does where
    the program marks steps.

    Args: ``node`` ran last, and ``at_backward`` when the last backward ran.
    """
    return not compat.step_counters()[0].mark_step_counter and (
        _takes_gradients(node, function, inputs) or _awaits_backward(node, at_backward, function)
    )


def _awaits_backward(node: Node, at_backward: Node | None, function: FunctionSpec) -> bool:
    """Tells whether something is held that inference calls have returned since the last backward,
    and a backward is to come for it: it is part of a graph of autograd, as what a reentrant
    checkpoint returns; or the call is a training one, as a student's after its teacher; or one that
    the same checkpoint makes."""
    since = itertools.takewhile(lambda n: n is not at_backward, reversed(path_to(node)))
    is_held = [
        n.handed_out(i)
        for n in since
        if n.wrapped_function.mode is CompilationMode.INFERENCE
        for i, ref in enumerate(n.outputs_weakrefs)
        if ref is not None and not ref.expired()
    ]
    if not is_held or function.mode is CompilationMode.FORWARD:
        return bool(is_held)
    if any(t is not None and t.grad_fn is not None for t in is_held):
        return True
    return function.trains and compat.checkpoint_runs()


def _takes_gradients(node: Node, function: FunctionSpec, inputs: list[Input]) -> bool:
    """Tells whether a compiled optimizer reads the gradients that the step's backward has made
    where they are. Each function once a step, so that steps do end."""
    if function.mode is not CompilationMode.INFERENCE:
        return False
    path = path_to(node)
    if any(n.wrapped_function is function for n in path):
        return False
    gradients = {
        r.address
        for n in path
        if n.wrapped_function.mode is CompilationMode.BACKWARD
        for r in n.outputs_weakrefs
        if r is not None and not r.expired()
    }
    return bool(gradients) and any(
        inputs[i].untyped_storage().data_ptr() in gradients
        for i in (*function.loose, *function.static)
        if isinstance(inputs[i], torch.Tensor)
    )


def is_stuck(node: Node, function: FunctionSpec) -> bool:
    """Tells whether the same function comes again and again on one path: no step ever ends."""
    same = [n for n in path_to(node) if n.wrapped_function is function]
    if len(same) <= 1:
        return False
    before = {n.parent.wrapped_function for n in (*same, node) if n.parent is not None}
    return len(before) != len(same)


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of ``step``, in which ``node`` ran last. ``inputs`` and ``next_function`` are a call
    that begins the new one, and outputs among the inputs are replaced. ``given`` is what the graph
    was given that this call is a part of; gradients of ``parameters`` may lie in the pool.
    ``add_entry`` writes into the ledger."""

    node: Node
    step: int
    inputs: list[Input]
    next_function: FunctionSpec
    given: Sequence[TensorWeakRef]
    parameters: Iterable[torch.Tensor]
    pool: CudaPool
    add_entry: Callable[..., None]

    def end(self) -> None:
        path = path_to(self.node)
        owners = {
            r: (n, i) for n in path for i, r in enumerate(n.outputs_weakrefs) if r is not None
        }
        by_pointer: dict[int, list[tuple[Node, int]]] = {}
        for r in held(list(owners)):
            by_pointer.setdefault(r.pointer, []).append(owners[r])
        for pointer, outputs in by_pointer.items():
            self._end(pointer, outputs)

    def _end(self, pointer: int, outputs: list[tuple[Node, int]]) -> None:
        # The last node whose output it is: a backward may return the memory of a saved tensor
        # of its forward ("donated" buffers).
        node, index = outputs[-1]
        function = node.wrapped_function
        # No name in here keeps one of them alive.
        handed_out = [t for t in (_take(n, i) for n, i in outputs) if t is not None]
        gradient = any(n.wrapped_function.mode is CompilationMode.BACKWARD for n, _ in outputs)
        functions = [(n.wrapped_function, i) for n, i in outputs]
        clone = any(f.clone_outputs and f.description.is_visible(i) for f, i in functions)
        mutated = self.next_function.mutated
        written = _lying_in((self.inputs[i] for i in mutated), pointer)
        given = _lying_in((ref() for ref in self.given), pointer)
        moving = bool(gradient or clone or written or given)
        known: list[torch.Tensor] = []
        # What a step that begins in inference mode moves out is used outside of it.
        with torch.no_grad(), torch.inference_mode(False):
            all_moved = moving and self.pool.move_out(pointer)
            if not all_moved:
                if moving:
                    parameters = self.parameters if gradient else ()
                    known = _known_holders(pointer, handed_out, written + given, parameters)
                _copy_out(self.pool, pointer, known, self.inputs)
        of = function.graph_outputs_of(index)
        if all_moved or known:
            why = (
                "the call that begins the next one writes to it"
                if written
                else "a gradient"
                if gradient
                else "state of an optimizer"
                if function.makes_state
                else 'outputs="clone"'
                if clone
                else "a graph in parts takes it"
            )
            reason = f"output {index} is held beyond its step: {why}"
            cause = TreeCause.HELD_GRADIENT if gradient else TreeCause.HELD
            self.add_entry(LedgerKind.MOVED_OUT, function, reason, cause=cause, outputs=of)
        if all_moved:
            return
        known.clear()
        _drop_unheld(handed_out)
        if _count(pointer) == 0:
            return
        message = overwritten_message(function, index, node.number)
        text = message(self.step, self.next_function.caller)
        self.pool.release_storage(pointer)
        self.pool.invalidate(handed_out[0] if handed_out else None, pointer, text)
        reason = f"output {index} is held beyond its step; its use raises"
        self.add_entry(LedgerKind.INVALIDATED, function, reason, cause=TreeCause.HELD, outputs=of)


def _lies_in(x: Input, pointer: int) -> TypeGuard[torch.Tensor]:
    return isinstance(x, torch.Tensor) and x.untyped_storage()._cdata == pointer


def _lying_in(values: Iterable[Input], pointer: int) -> list[torch.Tensor]:
    return [x for x in values if _lies_in(x, pointer)]


def _drop_unheld(handed_out: list[torch.Tensor]) -> None:
    # The list's reference, and the argument's.
    held = [handed_out[k] for k in range(len(handed_out)) if _refs(handed_out[k]) > 2]
    handed_out[:] = held


def _known_holders(
    pointer: int,
    handed_out: list[torch.Tensor],
    arguments: list[torch.Tensor],
    parameters: Iterable[torch.Tensor],
) -> list[torch.Tensor]:
    """Tensors over one storage that are to have other memory: of ``handed_out``, which is emptied,
    those that are held; ``arguments`` of the call; and gradients of ``parameters``."""
    _drop_unheld(handed_out)
    found = {id(t): t for t in (*handed_out, *arguments)}
    handed_out.clear()
    for p in parameters:
        g = p.grad
        try:
            if g is not None and g.untyped_storage()._cdata == pointer:
                found[id(g)] = g
        except (RuntimeError, NotImplementedError):
            continue  # it is sparse, or was made to raise
    return list(found.values())


def _copy_out(
    pool: CudaPool, pointer: int, holders: list[torch.Tensor], inputs: list[Input]
) -> None:
    """Give holders of an output, and the arguments that lie in it, one copy of it outside of the
    pool. Another tensor takes the place of an argument that is no holder."""
    ours = {id(t) for t in holders}
    arguments = [i for i, x in enumerate(inputs) if _lies_in(x, pointer) and id(x) not in ours]
    copies = _copies(pool, [*holders, *(inputs[i] for i in arguments)])
    for t, copy in zip(holders, copies, strict=False):
        t.data = copy
    for i, copy in zip(arguments, copies[len(holders) :], strict=True):
        inputs[i] = copy


def _copies(pool: CudaPool, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors like these, which share a storage: over one copy of what they span of it."""
    if not tensors:
        return []
    spans = [_span(t) for t in tensors]
    begin = min(b for b, _ in spans) // ROUNDING * ROUNDING
    nbytes = max(e for _, e in spans) - begin
    source = tensors[0].untyped_storage()
    view = torch.empty(0, dtype=torch.uint8, device=source.device)
    copy = view.set_(source, begin, (nbytes,), (1,)).clone().untyped_storage()
    out = []
    for t in tensors:
        spec = TensorSpec.of(t)
        offset = spec.offset - begin // t.itemsize
        new = pool.tensor_at(replace(spec, nbytes=nbytes, offset=offset), copy)
        new = new.conj() if t.is_conj() else new
        out.append(torch._neg_view(new) if t.is_neg() else new)
    return out


def _span(t: torch.Tensor) -> tuple[int, int]:
    """First byte of a tensor in its storage, and the one after its last."""
    begin = int(t.storage_offset())
    n = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1 if t.numel() else 0
    return begin * t.itemsize, (begin + n) * t.itemsize


def _take(node: Node, index: int) -> torch.Tensor | None:
    """The tensor that was handed out, if it exists, no longer cached."""
    if isinstance(node, CUDAGraphNode):
        cached = node.output_cache.drop_slot(index)
        if cached is not None:
            return cached
    return node.handed_out(index)
