"""What becomes of live outputs when their step is over.

Note [The end of a path]
~~~~~~~~~~~~~~~~~~~~~~~~
When a new step begins, the memory of the last path is about to be reused, and whoever
still holds one of its outputs would read something else. Each live output gets one of
these ends, in this order:

* the very call that begins the new step writes to it (a cache that is handed back): it moves
  out of the pool, content and all, so that whoever holds it sees what was written;
* the call is that of a graph's partition, and the graph was given it: it moves out as well, since
  something else of the graph may read it (Note [Graphs in parts]);
* it is an argument of that call otherwise (``h = cell(x, h)``): the call gets a clone, so that
  it computes what the program says;
* it is a gradient (in a parameter's ``.grad``: autograd *steals* the tensor that a
  backward returns): it moves out of the pool, content and all, so that accumulating
  over several backwards is right;
* outputs are to be cloned (``outputs="clone"``): it moves out as well;
* otherwise its use raises an error that says what happened (``errors``).

Moving swaps the memory under the ``StorageImpl``, so every view moves along. Torch before
2.12 cannot do that to a storage over borrowed memory. There the trees look for the
holders that they know, a parameter's ``.grad``, the tensor that was handed out, and what of the
call's arguments moves out, give these new memory, and the use of any other view raises.

Where a copy is made, holders and arguments get the same one, and each keeps its sizes, strides
and place in it: compiled code relies on the strides, and what the call writes to an argument that
is a view of a holder is to be seen there.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

import torch

from memprof.profiler.model import LedgerKind

from . import _torch_compat as compat
from .device.protocol import TensorSpec
from .errors import OverwrittenMessage
from .function import CompilationMode
from .liveness import held
from .node_recorded import CUDAGraphNode
from .storage_ref import StorageWeakRefWrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .device.protocol import Input, Pool
    from .function import Function
    from .hand_out import HandOut
    from .manager import CUDAGraphTreeManager
    from .node_warmup import CUDAWarmupNode

_count = compat.storage_use_count
_refs = sys.getrefcount
_BLOCK = 512
"""Allocators' blocks begin at multiples of so many bytes, or fewer."""


def end_path(
    manager: CUDAGraphTreeManager, inputs: list[Input], next_function: Function | None
) -> None:
    """Give every live output of the current path its end, and forget the path.

    Args:
        manager: whose path.
        inputs: of the call that begins the new step; outputs among them are replaced.
        next_function: that call's function.
    """
    node = manager.current_node
    if node is None:
        return
    owners: dict[int, list[tuple[CUDAGraphNode | CUDAWarmupNode, int]]] = {}
    refs: list[StorageWeakRefWrapper] = []
    for n in node._path_from_root:
        for i, r in enumerate(n.outputs_weakrefs):
            if r is not None:
                refs.append(r)
                owners.setdefault(id(r), []).append((n, i))
    live = held(refs)
    by_pointer: dict[int, list[tuple[CUDAGraphNode | CUDAWarmupNode, int]]] = {}
    for r in live:
        by_pointer.setdefault(r.pointer, []).extend(owners[id(r)])
    for pointer, outputs in by_pointer.items():
        _end_output(manager, pointer, outputs, inputs, next_function)
    manager.current_node = None


def end_path_quickly(
    manager: CUDAGraphTreeManager,
    node: CUDAGraphNode,
    inputs: list[Input],
    next_function: Function,
) -> bool:
    """``end_path`` for the common cases: nothing is held, or ``loss = model(x)`` in a loop.

    In the second the variable still holds the last step's loss while the next step begins.
    All that is held are tensors that the last step's nodes handed out as they were, none that
    is to move out, and no argument of the new call, a static one included: their use raises from
    here on, and the node hands out others. Hot.

    Returns:
        False if it is another case; nothing was done then.
    """
    found: list[tuple[StorageWeakRefWrapper, HandOut, int]] | None = None
    for slot in node.live_after_slots:
        # ``StorageWeakRefWrapper.expired``, without the call.
        ref = slot[0]
        cache = ref.cache
        if cache is None:
            if _count(ref.pointer):
                return False
        elif _refs(cache[ref.slot]) != 2 or _count(ref.pointer) != ref.own:
            if slot[1].moves_out:
                return False
            if found is None:
                found = [slot]
            else:
                found.append(slot)
    if found is None:
        return True
    if manager.given:
        return False
    arguments = _unlocated(manager, next_function, inputs)
    for ref, hand_out, k in found:
        if _count(ref.pointer) == ref.own:
            # Nothing but the tensor itself is over the storage.
            t = hand_out.slots[k]
            for i in arguments:
                if inputs[i] is t:
                    return False
        else:
            begin, nbytes = ref.address, hand_out.nbytes[k]
            for i in arguments:
                if 0 <= inputs[i].data_ptr() - begin < nbytes:
                    return False
    step = manager.step
    for ref, hand_out, k in found:
        message = hand_out.messages[k] or hand_out.message(k)
        hand_out.overwrite(
            k,
            ref,
            message.text(step, step + 1, next_function.label),
            _count(ref.pointer) == ref.own,
        )
    return True


def _unlocated(
    manager: CUDAGraphTreeManager, function: Function, inputs: list[Input]
) -> Sequence[int]:
    """Tensors among the inputs that may lie in an output of the last step. Hot.

    Static ones do not where a recording fits that begins a step: its addresses are compared in C++,
    and what lay in an output when it was recorded was cloned before.
    """
    static = function.static_input_idxs
    if not static:
        return function.loose
    for root in manager.roots.get(function.id, ()):
        if root.fits(inputs):
            return function.loose
    return [*function.loose, *(i for i in static if isinstance(inputs[i], torch.Tensor))]


def takes_gradients(
    node: CUDAGraphNode | CUDAWarmupNode, function: Function | None, inputs: list[Input]
) -> bool:
    """Whether a call belongs to the step that runs, although one may begin.

    A compiled optimizer takes the gradients that the step's backward has made. In the same step
    it reads them where they are; in the next one they would have to move out of the pool first.
    Each function once a step, so that steps do end; and not where the program marks them.
    """
    if (
        function is None
        or function.mode is not CompilationMode.INFERENCE
        or compat.step_counters()[0].mark_step_counter
    ):
        return False
    path = list(node._path_from_root)
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
        for i in (*function.loose, *function.static_input_idxs)
        if isinstance(inputs[i], torch.Tensor)
    )


def _arguments_in(inputs: list[Input], pointer: int) -> list[int]:
    return [i for i, x in enumerate(inputs) if _lies_in(x, pointer)]


def _lies_in(x: Input, pointer: int) -> TypeGuard[torch.Tensor]:
    return isinstance(x, torch.Tensor) and x.untyped_storage()._cdata == pointer


def _end_output(
    manager: CUDAGraphTreeManager,
    pointer: int,
    outputs: list[tuple[CUDAGraphNode | CUDAWarmupNode, int]],
    inputs: list[Input],
    next_function: Function | None,
) -> None:
    # The last node whose output it is: a backward may return the memory of a saved tensor
    # of its forward ("donated" buffers).
    node, index = outputs[-1]
    function = node.wrapped_function
    handed_out = list(filter(_is_tensor, (_take(n, i, pointer) for n, i in outputs)))
    gradient = any(n.wrapped_function.mode is CompilationMode.BACKWARD for n, _ in outputs)
    clone = any(
        f.clone_outputs and (f.user_outputs is None or i in f.user_outputs)
        for f, i in ((n.wrapped_function, i) for n, i in outputs)
    )
    mutated = next_function.mutated_input_idxs if next_function is not None else ()
    written = [inputs[i] for i in mutated if _lies_in(inputs[i], pointer)]
    given = [t for ref in manager.given if _lies_in(t := ref(), pointer)]
    moving = bool(gradient or clone or written or given)
    # What a step that begins in inference mode moves out is used outside of it.
    with torch.no_grad(), torch.inference_mode(False):
        all_moved = moving and manager.pool.move_out(pointer)
        if moving and not all_moved:
            known = _known_holders(manager, pointer, handed_out, written + given, gradient)
        else:
            known = []
        if not all_moved:
            _copy_out(manager.pool, pointer, known, inputs)
    if all_moved or known:
        why = (
            "the call that begins the next one writes to it"
            if written
            else "a gradient"
            if gradient
            else 'outputs="clone"'
            if clone
            else "a graph in parts takes it"
        )
        reason = f"output {index} is held beyond its step: {why}"
        manager.note(LedgerKind.MOVED_OUT, function, reason)
    if all_moved:
        return
    known.clear()
    _drop_unheld(handed_out)
    if compat.storage_use_count(pointer) == 0:
        return
    message = OverwrittenMessage.of(function, index, node.id.id).text(
        made_in=manager.step,
        overwritten_in=manager.step + 1,
        by=next_function.label if next_function is not None else "a reset",
    )
    manager.pool.release_storage(pointer)
    manager.pool.invalidate(handed_out[0] if handed_out else None, pointer, message)
    manager.note(
        LedgerKind.INVALIDATED, function, f"output {index} is held beyond its step; its use raises"
    )


def _drop_unheld(handed_out: list[torch.Tensor]) -> None:
    """Those that only the trees held."""
    # The list's reference, and the argument's.
    held = [handed_out[k] for k in range(len(handed_out)) if _refs(handed_out[k]) > 2]
    handed_out[:] = held


def _known_holders(
    manager: CUDAGraphTreeManager,
    pointer: int,
    handed_out: list[torch.Tensor],
    arguments: list[torch.Tensor],
    gradient: bool,
) -> list[torch.Tensor]:
    """Tensors over one storage that are to have other memory.

    Args:
        manager: knows the parameters.
        pointer: to the storage.
        handed_out: tensors that were; those that are held count. It is emptied.
        arguments: of the call, those that are to stay the tensors that they are.
        gradient: it may be that of a parameter.
    """
    _drop_unheld(handed_out)
    found = {id(t): t for t in (*handed_out, *arguments)}
    handed_out.clear()
    if gradient:
        for p in manager.leaves:
            g = p.grad
            if g is not None and g.untyped_storage()._cdata == pointer:
                found[id(g)] = g
    return list(found.values())


def _copy_out(pool: Pool, pointer: int, holders: list[torch.Tensor], inputs: list[Input]) -> None:
    """Give holders of an output, and the arguments that lie in it, one copy of it outside of the
    pool: what the call writes to its arguments, holders see.

    Args:
        pool: where it lies.
        pointer: to its storage.
        holders: tensors over it; each gets other memory and stays what it is otherwise.
        inputs: of the call; another tensor takes the place of an argument that is no holder.
    """
    ours = {id(t) for t in holders}
    arguments = [i for i in _arguments_in(inputs, pointer) if id(inputs[i]) not in ours]
    copies = _copies(pool, [*holders, *(inputs[i] for i in arguments)])
    for t, copy in zip(holders, copies, strict=False):
        t.data = copy
    for i, copy in zip(arguments, copies[len(holders) :], strict=True):
        inputs[i] = copy


def _copies(pool: Pool, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors like these, which share a storage: over one copy of what they span of it.

    Compiled code relies on their strides, and on where they begin in a block.
    """
    if not tensors:
        return []
    spans = [_span(t) for t in tensors]
    begin = min(b for b, _ in spans) // _BLOCK * _BLOCK
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


def _is_tensor(t: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    return t is not None


def _take(node: CUDAGraphNode | CUDAWarmupNode, index: int, pointer: int) -> torch.Tensor | None:
    """The tensor that was handed out, if it exists, no longer cached."""
    if isinstance(node, CUDAGraphNode):
        cached = node.hand_out.drop_slot(index)
        if cached is not None:
            return cached
    ref = node.tensor_weakrefs[index] if index < len(node.tensor_weakrefs) else None
    t = None if ref is None else ref()
    if t is None:
        return None
    try:
        # That of a former run may live on, in memory of its own, or given up.
        return t if t.untyped_storage()._cdata == pointer else None
    except RuntimeError:
        return None


def warn_if_stuck(manager: CUDAGraphTreeManager, function: Function) -> None:
    """Warn if the same function comes again and again and no step ever ends."""
    if function in manager.warned_pending or not manager.generation_moved():
        return
    node = manager.current_node
    assert node is not None
    same = [n for n in node._path_from_root if n.wrapped_function is function]
    if len(same) <= 1:
        return
    before = {n.parent.wrapped_function for n in (*same, node) if n.parent is not None}
    if len(before) == len(same):
        return
    manager.warned_pending.add(function)
    warnings.warn(
        "Unable to hit fast path of CUDAGraphs because of pending, uninvoked backwards: "
        "outputs from a previous step still require backward. Consider running with "
        "torch.no_grad(), detaching outputs, or using "
        "torch.compiler.cudagraph_mark_step_begin() before each model invocation.",
        stacklevel=2,
    )
