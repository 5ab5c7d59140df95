"""What an output is an alias of, and how to hand it out again after a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from . import _torch_compat as compat
from .device.protocol import Output, Pool, TensorSpec
from .errors import OverwrittenMessage
from .function import CompilationMode
from .inputs import address_of, live_path_outputs
from .liveness import OutputRefs, PathOutputIndex
from .storage_ref import StorageWeakRefWrapper

if TYPE_CHECKING:
    from .function import Function


class OutputAliasInfo:
    """What the storage of an output is."""

    __slots__ = ()


class _UnaliasedStorage(OutputAliasInfo):
    """A storage of its own, or no tensor at all."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UnaliasedStorage"


UnaliasedStorage = _UnaliasedStorage()


class AliasesPriorGraphOutput(OutputAliasInfo):
    """The storage of an output of a node further up the path.

    Attributes:
        index: ``(depth, output)``.
    """

    __slots__ = ("index",)

    def __init__(self, index: PathOutputIndex) -> None:
        if not isinstance(index, tuple):
            raise AssertionError(f"expected (depth, output), got {index!r}")
        self.index = index


class AliasesNewOutput(OutputAliasInfo):
    """The storage of an earlier output of the same call.

    Attributes:
        index: which one.
    """

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        if not isinstance(index, int):
            raise AssertionError(f"expected the index of an output, got {index!r}")
        self.index = index


@dataclass(slots=True)
class OutputPlan:
    """What each output of a recording is.

    Attributes:
        alias: by output; None for memory outside the pool and empty storages.
        specs: by output: where a tensor lies, the value of anything else.
        persistent: by output: the tensor to hand out each time, if its memory is a static
            input's, or otherwise outside the pool, or there is none.
        cacheable: by output: nothing on any path shares its storage, so that one tensor
            object can stand for all replays.
    """

    alias: list[OutputAliasInfo | None] = field(default_factory=list)
    specs: list[TensorSpec | int | None] = field(default_factory=list)
    persistent: list[torch.Tensor | None] = field(default_factory=list)
    cacheable: list[bool] = field(default_factory=list)

    @staticmethod
    def of(
        outputs: Sequence[Output],
        path: Sequence[OutputRefs],
        persistent: dict[int, StorageWeakRefWrapper],
        pool: Pool,
        stack_traces: Sequence[str | None] | None,
    ) -> OutputPlan:
        """Classify what a recording returned.

        Args:
            outputs: what it returned.
            path: outputs of its ancestors, those that died during the recording dead.
            persistent: storages of static inputs and constants, by address.
            pool: that it was recorded in.
            stack_traces: for the error message.

        Raises:
            NotImplementedError: an output's memory is on the host; a replay would not
                compute it again.
        """
        live = live_path_outputs(path)
        plan = OutputPlan()
        first: dict[int, int] = {}
        for i, o in enumerate(outputs):
            fixed: torch.Tensor | None = None
            alias: OutputAliasInfo | None = UnaliasedStorage
            cacheable = False
            if isinstance(o, torch.Tensor):
                address = address_of(o)
                if address and o.device != pool.device:
                    where = stack_traces[i] if stack_traces else None
                    raise NotImplementedError(
                        f"output {i} is on {o.device}; a recording cannot compute it again. "
                        f"It comes from: {where or '(unknown)'}"
                    )
                known = persistent.get(address)
                if not address or (known is not None and not known.expired()):
                    fixed, alias = o, None
                elif not pool.contains(address):
                    # Made by a device that gives users memory of their own, or kept by a
                    # custom operator: nobody's business here.
                    fixed, alias = o, None
                elif address in live:
                    alias = AliasesPriorGraphOutput(live[address])
                elif address in first:
                    alias = AliasesNewOutput(first[address])
                    plan.cacheable[first[address]] = False
                else:
                    first[address] = i
                    cacheable = True
            plan.alias.append(alias)
            plan.specs.append(TensorSpec.of(o) if isinstance(o, torch.Tensor) else o)
            plan.persistent.append(fixed)
            plan.cacheable.append(cacheable)
        return plan

    def references(self, outputs: Sequence[Output]) -> OutputRefs:
        """A weak reference for each output in the pool."""
        return [
            StorageWeakRefWrapper(o) if isinstance(o, torch.Tensor) and fixed is None else None
            for o, fixed in zip(outputs, self.persistent, strict=True)
        ]


class HandOut:
    """Hands out the outputs of a recording after a replay.

    ``slots`` holds what needs no work: the cached tensors, persistent ones, numbers. The
    rest, tensors that share a storage, is built anew each time.
    """

    __slots__ = (
        *("build", "function", "gradients", "invalidated", "messages", "missing", "nbytes"),
        *("node", "path", "plan", "pool", "ready", "refs", "resettable", "slots"),
    )

    def __init__(
        self,
        function: Function,
        node: int,
        plan: OutputPlan,
        refs: OutputRefs,
        path: Sequence[OutputRefs],
        pool: Pool,
    ) -> None:
        """Args: ``path`` includes ``refs``, as its last element."""
        self.function = function
        self.node = node
        self.messages: dict[int, OverwrittenMessage] = {}
        self.invalidated: dict[int, int] = {}
        self.gradients = function.mode is CompilationMode.BACKWARD
        self.nbytes = [s.nbytes if isinstance(s, TensorSpec) else 0 for s in plan.specs]
        self.missing: list[int] = []
        self.plan = plan
        self.refs = refs
        self.path = path
        self.pool = pool
        self.slots: list[Output] = []
        self.build: list[int] = []
        self.resettable: list[int] = []
        self.ready = False

    def fill(self) -> None:
        """Make the cached tensors that are missing. Nobody else holds them yet."""
        plan = self.plan
        self.build = []
        self.resettable = []
        if not self.slots:
            self.slots[:] = [None] * len(plan.specs)
        for i, spec in enumerate(plan.specs):
            fixed, ref = plan.persistent[i], self.refs[i]
            if not isinstance(spec, TensorSpec):
                self.slots[i] = spec
            elif fixed is not None:
                self.slots[i] = fixed
                self.resettable.append(i)
            elif plan.cacheable[i]:
                if ref is not None and ref.cache is None:
                    self.fill_slot(i)
                self.resettable.append(i)
            else:
                self.build.append(i)
        self.missing.clear()
        self.ready = True

    def message(self, i: int) -> OverwrittenMessage:
        """The error for output ``i`` when its memory was reused."""
        found = self.messages.get(i)
        if found is None:
            found = self.messages[i] = OverwrittenMessage.of(self.function, i, self.node)
        return found

    def fill_slot(self, i: int) -> None:
        """Make one cached tensor."""
        spec, ref = self.plan.specs[i], self.refs[i]
        assert isinstance(spec, TensorSpec)
        assert ref is not None
        self.slots[i] = self.pool.tensor_at(spec)
        compat.add_cached_tensor(self.slots[i])  # type: ignore[arg-type]
        ref.attach_cache(self.slots, i)  # type: ignore[arg-type]

    def drop_slot(self, i: int) -> torch.Tensor | None:
        """Take a cached tensor out of the cache; its holders keep it. None if it is none."""
        ref = self.refs[i]
        if ref is None or ref.cache is None:
            return None
        t = self.slots[i]
        assert isinstance(t, torch.Tensor)
        ref.remove_extra_reference()
        compat.remove_cached_tensor(t)
        self.slots[i] = None
        self.missing.append(i)
        return t

    def clear(self) -> None:
        """Drop all cached tensors."""
        for i in range(len(self.slots)):
            self.drop_slot(i)
        self.slots.clear()
        self.missing.clear()
        self.ready = False

    def outputs(self) -> list[Output]:
        """The outputs of a replay that was just launched."""
        if not self.ready:
            self.fill()
        elif self.missing:
            for i in self.missing:
                self.fill_slot(i)
            self.missing.clear()
        out = self.slots.copy()
        for i in self.resettable:
            if out[i].requires_grad:  # type: ignore[union-attr]
                self.reset(i, out)
        for i in self.build:
            out[i] = self.rebuild(i, out)
        return out

    def reset(self, i: int, out: list[Output]) -> None:
        """Clear what a former run's user and autograd left on a cached tensor."""
        t = out[i]
        assert isinstance(t, torch.Tensor)
        if self.plan.persistent[i] is not None:
            t._backward_hooks = None
            return
        t._backward_hooks = None
        if t.is_leaf:
            t.requires_grad_(False)
            t.grad = None
        else:
            t.detach_()

    def rebuild(self, i: int, out: list[Output]) -> torch.Tensor:
        """Make an output that shares its storage."""
        spec, ref, alias = self.plan.specs[i], self.refs[i], self.plan.alias[i]
        assert isinstance(spec, TensorSpec)
        assert ref is not None
        storage: torch.UntypedStorage | None = None
        if isinstance(alias, AliasesPriorGraphOutput):
            depth, index = alias.index
            prior = self.path[depth][index]
            assert prior is not None
            storage = compat.storage_from_weak(prior.pointer)
        elif isinstance(alias, AliasesNewOutput):
            storage = out[alias.index].untyped_storage()  # type: ignore[union-attr]
        t = self.pool.tensor_at(spec, storage)
        ref.rebind(t)
        return t
