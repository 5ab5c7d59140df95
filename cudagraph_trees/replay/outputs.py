"""The outputs of a recording: what each is, and how a replay hands it out.

Note [Cached outputs]
~~~~~~~~~~~~~~~~~~~~~
To make a tensor costs about as much as to launch a graph. So an output whose storage no
other output shares is made once, kept in a slot, and handed out again by every replay that
finds it held by nobody else. What its last holder left on it is looked for first:

* of one that autograd made part of a graph the ``grad_fn``, hooks and attributes are cleared. That
  its gradient is to be *retained* cannot be: another tensor takes its place;
* so it does where a user made it a leaf or gave it ``.grad``, hooks, attributes or a class: none
  of these goes with ``requires_grad``;
* a *version* other than 0 means that something was done to it in place, perhaps to its
  sizes: another tensor takes its place. In inference mode it is a normal tensor as well, which
  has a version, since the next call may come outside of that mode.

When the tensor is still held at the beginning of the next step, its use must raise from
then on, and the slot needs another one. The common case is ``out = model(x)`` in a loop: nothing
else over its storage is held. For that a *twin* is kept, a second tensor over the storage that
nobody is ever given. The held tensor lets go of the storage, and a likeness of the twin goes into
the slot: the storage stays, and with it all that the trees know about it. If somebody else holds
the storage, say a view, its use must raise, and the next tensor gets a storage of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from .. import _torch_compat as compat
from ..device.cuda import CudaPool
from ..device.protocol import Output, TensorSpec
from . import native
from .errors import OverwrittenMessage, overwritten_message
from .liveness import (
    OutputRefs,
    StorageWeakRefWrapper,
    address_of,
    detach_in_place,
    live_by_address,
)
from .spec import CompilationMode, FunctionSpec

Clean: TypeAlias = "Callable[[list[Output], list[int]], Sequence[int]]"
"""Finds the indices of cached outputs on which their last holder has left something (a hook, a
``grad``); may clear others itself. Hot."""


Replace: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]"
"""Makes every later use of a cached tensor alone raise ``RuntimeError`` with a text. Returns one
like a twin, over the same storage, that is cached in its place. Hot."""


def replaced(tensor: torch.Tensor, twin: torch.Tensor, message: str) -> torch.Tensor:
    """``Replace`` in Python."""
    compat.set_tensor_message(tensor, message)
    return compat.another(tensor, twin)


def marked(tensors: list[Output], which: list[int]) -> Sequence[int]:
    """``Clean`` in Python: those of ``which`` whose tensors have something left on them."""
    return [i for i in which if _is_marked(tensors[i])]  # type: ignore[arg-type]


def _is_marked(t: torch.Tensor) -> bool:
    return bool(
        t.requires_grad
        or t._version
        or t.__dict__
        or t.grad is not None
        or t._backward_hooks
        or t._post_accumulate_grad_hooks
        or type(t) is not torch.Tensor
    )


class OutputCache:
    """Kinds of the outputs of one recording, and the tensors that replays hand out.

    Attributes:
        refs: by output: the reference to one that lies in the pool.
        alias: by output, whose storage it shares: that of an output further up the path, or, by
            number, of an earlier output of the same call; None if of neither.
        specs: by output: where a tensor lies, the value of anything else.
        persistent: by output: the tensor to hand out each time, if its memory is outside the pool.
        cacheable: by output: nothing on any path shares its storage, so that one tensor
            object can stand for all replays.
        slots: what needs no work: cached tensors, persistent ones, numbers.
        twins: see Note [Cached outputs]; None where there is none.
        missing: slots whose cached tensor is gone.
        build: outputs that share a storage, or have none and a user can get hold of them: they are
            built anew each time.
        seen: cached outputs that a user can get hold of; ``clean`` looks at these.
        fixed: persistent ones that are not the user's own.
        moves_out: what is held beyond its step gets memory of its own: gradients, and what is
            to be cloned.
        disagreements: outputs that the description says are memory of another value, and are not.
        nbytes: of the storage of each output.
        invalidated: how often the use of each output was made to raise.
    """

    def __init__(
        self,
        function: FunctionSpec,
        node: int,
        outputs: Sequence[Output],
        above: Sequence[StorageWeakRefWrapper],
        persistent: dict[int, StorageWeakRefWrapper],
        placed: Mapping[int, int],
        pool: CudaPool,
    ) -> None:
        """Args: ``above`` are the outputs of its ancestors, those that died during the recording
        dead; ``persistent`` the storages of static inputs and constants, by address; ``placed`` the
        addresses of the inputs that it reads.

        Raises:
            NotImplementedError: an output's memory is on the host; a replay would not compute it
                again.
        """
        self.function = function
        self.node = node
        self.pool = pool
        self.moves_out = function.clone_outputs or function.mode is CompilationMode.BACKWARD
        self.of_inference = function.mode is CompilationMode.INFERENCE
        self.refs: OutputRefs = []
        self.alias: list[StorageWeakRefWrapper | int | None] = []
        self.specs: list[TensorSpec | int | None] = []
        self.persistent: list[torch.Tensor | None] = []
        self.cacheable: list[bool] = []
        self.fixed: list[int] = []
        self.disagreements: list[str] = []
        self._classify(outputs, live_by_address(above), persistent)
        self._compare(outputs, placed)
        n = len(outputs)
        self.nbytes = [s.nbytes if isinstance(s, TensorSpec) else 0 for s in self.specs]
        self.messages: list[OverwrittenMessage | None] = [None] * n
        self.invalidated = [0] * n
        self.slots: list[Output] = []
        self.twins: list[torch.Tensor | None] = [None] * n
        self.missing: list[int] = []
        self.build: list[int] = []
        self.seen: list[int] = []
        self.clean: Clean = marked
        self.replace: Replace = replaced
        self.ready = False

    def _classify(
        self,
        outputs: Sequence[Output],
        live: dict[int, StorageWeakRefWrapper],
        persistent: dict[int, StorageWeakRefWrapper],
    ) -> None:
        in_extent = self.pool.extent()
        first: dict[int, int] = {}
        for i, o in enumerate(outputs):
            fixed: torch.Tensor | None = None
            alias: StorageWeakRefWrapper | int | None = None
            cacheable = False
            if isinstance(o, torch.Tensor):
                address = address_of(o)
                if address and o.device != self.pool.device:
                    traces = self.function.stack_traces
                    where = traces[i] if traces else None
                    raise NotImplementedError(
                        f"output {i} is on {o.device}; a recording cannot compute it again. "
                        f"It comes from: {where or '(unknown)'}"
                    )
                outside = persistent.get(address)
                if (
                    not address
                    or (outside is not None and not outside.expired())
                    or not in_extent(address)  # a custom operator keeps it
                ):
                    fixed = o
                elif address in live:
                    alias = live[address]
                elif address in first:
                    alias = first[address]
                    self.cacheable[alias] = False
                else:
                    first[address] = i
                    cacheable = True
                self.refs.append(StorageWeakRefWrapper(o) if fixed is None else None)
                self.specs.append(TensorSpec.of(o))
                # What requires a gradient as soon as it was recorded is a user's own tensor, most
                # often a parameter that is saved for the backward: its hooks are the user's.
                if fixed is not None and not fixed.requires_grad:
                    if o.numel() or address or not self.function.description.is_visible(i):
                        self.fixed.append(i)
                    else:  # its holder's graph of autograd would live with it
                        fixed = None
            else:
                self.refs.append(None)
                self.specs.append(o)
            self.alias.append(alias)
            self.persistent.append(fixed)
            self.cacheable.append(cacheable)

    def _compare(self, outputs: Sequence[Output], placed: Mapping[int, int]) -> None:
        """Compare the addresses of outputs with what the description says they are memory of. Where
        they differ, neither of the two is cached."""
        description = self.function.description
        inputs = {v.index: i for i, v in enumerate(description.inputs)}
        bases = description.bases()
        for i, (o, value) in enumerate(zip(outputs, description.outputs, strict=False)):
            base, aliased = bases[i], value.alias_of_input
            if not isinstance(o, torch.Tensor) or not o.numel():
                continue
            of_input = None if aliased is None else inputs.get(aliased)
            if of_input is not None:
                expected, what = placed.get(of_input), description.inputs[of_input].label
            elif base is not None and isinstance(outputs[base], torch.Tensor):
                expected, what = address_of(outputs[base]), f"output {base}"  # type: ignore[arg-type]
                self.cacheable[base] &= expected == address_of(o)
            else:
                continue
            if address_of(o) != expected:
                self.cacheable[i] = False
                self.disagreements.append(
                    f"AOTAutograd alone says that output {i} is memory of {what}"
                )

    def outputs(self) -> list[Output]:
        """The outputs of a replay that was just launched. Hot."""
        if not self.ready:
            self._fill()
        elif self.missing:
            for i in self.missing:
                self._fill_slot(i)
            self.missing.clear()
        out = self.slots.copy()
        for i in self.clean(out, self.seen):
            self._clean(i, out)
        for i in self.fixed:
            if out[i].requires_grad:  # type: ignore[union-attr]
                out[i]._backward_hooks = None  # type: ignore[union-attr]
        for i in self.build:
            out[i] = self._rebuild(i, out)
        return out

    def message(self, i: int) -> OverwrittenMessage:
        found = self.messages[i]
        if found is None:
            found = self.messages[i] = overwritten_message(self.function, i, self.node)
        return found

    # ---- slots

    def _fill(self) -> None:
        """Make all cached tensors, or the rest where that was interrupted. Nobody else holds them
        yet."""
        self.build, self.seen = [], []
        if (built := native.load()) is not None:
            self.clean, self.replace = built.clean, built.replace
        if not self.slots:
            self.slots += [None] * len(self.specs)
        for i, spec in enumerate(self.specs):
            fixed, ref = self.persistent[i], self.refs[i]
            if not isinstance(spec, TensorSpec):
                self.slots[i] = spec
            elif fixed is not None:
                self.slots[i] = fixed
            elif self.cacheable[i]:
                if ref is not None and ref.cache is None:
                    self._fill_slot(i)
                if self.function.description.is_visible(i):
                    self.seen.append(i)
            else:
                self.build.append(i)
        self.missing.clear()
        self.ready = True

    def _fill_slot(self, i: int) -> None:
        spec, ref = self.specs[i], self.refs[i]
        assert isinstance(spec, TensorSpec)
        assert ref is not None
        t = self.slots[i] = self.pool.tensor_at(spec)
        compat.add_cached_tensor(t)
        del t
        ref.attach_cache(self.slots, i)  # type: ignore[arg-type]

    def drop_slot(self, i: int) -> torch.Tensor | None:
        """Take a cached tensor out of the cache; its holders keep it. None if it is none, or was
        given other memory (``t.data = ...``), which is its holder's business."""
        ref = self.refs[i]
        if ref is None or ref.cache is None:
            return None
        t = self.slots[i]
        assert isinstance(t, torch.Tensor)
        ready, self.ready = self.ready, False  # where this is interrupted, _fill goes on
        ref.remove_extra_reference()
        compat.remove_cached_tensor(t)
        self.slots[i] = self.twins[i] = None
        self.missing.append(i)
        self.ready = ready
        return t if ref.has(t) else None

    def clear(self) -> None:
        """Drop all cached tensors: the next replay makes others."""
        for i in range(len(self.slots)):
            self.drop_slot(i)
        self.slots.clear()
        self.missing.clear()
        self.ready = False

    def let_go_of_fixed(self) -> None:
        """Drop outputs outside the pool, since none is handed out any more. Slots of what may be
        held stay, for the end of the path."""
        for i, t in enumerate(self.persistent):
            if t is not None and i < len(self.slots):
                self.slots[i] = None
        self.persistent.clear()

    def overwrite(self, i: int, ref: StorageWeakRefWrapper, text: str, alone: bool) -> None:
        """A cached output is held and its memory will be reused: from here on its use raises
        ``text``. ``alone``: the tensor that was handed out is the only one over its storage, the
        twin aside. See Note [Cached outputs]. Hot."""
        if not alone:
            held = self.drop_slot(i)
            if held is not None or compat.storage_use_count(ref.pointer):
                self.invalidated[i] += 1
                self.pool.invalidate(held, ref.pointer, text)
            return
        self.invalidated[i] += 1
        t, twin = self.slots[i], self.twins[i]
        assert isinstance(t, torch.Tensor)
        if twin is None:
            spec = self.specs[i]
            assert isinstance(spec, TensorSpec)
            twin = self.twins[i] = compat.likeness(t, spec.shape, spec.stride)
            ref.own += 1
        try:
            self.slots[i] = self.replace(t, twin, text)
        except RuntimeError:  # cached tensors were switched off: Python switches them on
            self.slots[i] = replaced(t, twin, text)

    # ---- what a former run left

    def _clean(self, i: int, out: list[Output]) -> None:
        """Clear what a former run's user and autograd left on a cached tensor."""
        t = out[i]
        assert isinstance(t, torch.Tensor)
        if t.is_leaf or t._version or t.retains_grad or type(t) is not torch.Tensor:
            del t
            out[i] = None
            self.drop_slot(i)
            self._fill_slot(i)
            self.missing.remove(i)
            out[i] = self.slots[i]
            return
        t._backward_hooks = None
        t.__dict__.clear()
        t.grad = None
        detach_in_place(t)

    def _rebuild(self, i: int, out: list[Output]) -> torch.Tensor:
        spec, ref, alias = self.specs[i], self.refs[i], self.alias[i]
        assert isinstance(spec, TensorSpec)
        if ref is None:
            with torch.inference_mode(False):
                return torch.empty_strided(
                    spec.shape, spec.stride, dtype=spec.dtype, device=spec.device
                )
        storage: torch.UntypedStorage | None = None
        if isinstance(alias, StorageWeakRefWrapper):
            storage = compat.storage_from_weak(alias.pointer)
        elif alias is not None:
            storage = out[alias].untyped_storage()  # type: ignore[union-attr]
        t = self.pool.tensor_at(spec, storage)
        ref.rebind(t)
        return t
