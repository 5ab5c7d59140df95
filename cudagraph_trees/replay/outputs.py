"""What an output is an alias of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..device.protocol import Output, Pool, TensorSpec
from .liveness import OutputRefs, PathOutputIndex, live_path_outputs
from .storage_ref import StorageWeakRefWrapper, address_of


@dataclass(frozen=True, slots=True)
class PathAlias:
    """The storage of an output of a node further up the path: ``index`` is which."""

    index: PathOutputIndex


@dataclass(frozen=True, slots=True)
class OutputAlias:
    """The storage of an earlier output of the same call: ``index`` is which."""

    index: int


@dataclass(slots=True)
class OutputPlan:
    """What each output of a recording is.

    Attributes:
        alias: by output; None if it shares no storage of the pool.
        specs: by output: where a tensor lies, the value of anything else.
        persistent: by output: the tensor to hand out each time, if its memory is a static
            input's, or otherwise outside the pool, or there is none.
        cacheable: by output: nothing on any path shares its storage, so that one tensor
            object can stand for all replays.
    """

    alias: list[PathAlias | OutputAlias | None] = field(default_factory=list)
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
        live, in_extent = live_path_outputs(path), pool.extent()
        plan = OutputPlan()
        first: dict[int, int] = {}
        for i, o in enumerate(outputs):
            fixed: torch.Tensor | None = None
            alias: PathAlias | OutputAlias | None = None
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
                    fixed = o
                elif not in_extent(address):
                    # Made by a device that gives users memory of their own, or kept by a
                    # custom operator: nobody's business here.
                    fixed = o
                elif address in live:
                    alias = PathAlias(live[address])
                elif address in first:
                    alias = OutputAlias(first[address])
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
