"""Static inputs that do not stay where they are.

Note [Inputs that keep moving]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A recording has the addresses of its static inputs baked in. Mostly they move once, if at all
(``load_state_dict(assign=True)``, another adapter), and recording again is right. Some move in
every step: FSDP gathers parameters into new memory, an offloader brings them back somewhere else,
a program sets ``p.data``. Recording again costs about as much as ten calls, and has memory.

What a single call says is little: code that several modules share is called with the parameters
of each in turn, and each deserves its recording. So the places of all static inputs of a call are
a *sighting*, and a sighting has *gone* when

* a storage is no longer there, or is somewhere else (FSDP resizes it), or nobody but recordings
  holds it (a forward returns what its backward needs, say a view of a weight, and a recording
  hands out the same tensor each time), or
* a parameter, the same Python object, has other memory (``p.data = …``).

The sightings of eight modules in turn have not gone: their parameters are where they were. When a
call brings a place that is new and a sighting of an earlier step has gone, the function has
*moved*. A move costs ``COST`` replays; of what has gone, the mean of its replays is taken off. At
``LIMIT``, which is three moves in a row that hardly any replay has paid for, the inputs keep
moving. So nothing is recorded for their sake from the fourth step on, and a program whose allocator
has come to rest by then keeps its graphs.

A storage that is there and has no memory says it at once, in the first step: it is filled before
each use and freed after it, as FSDP does with each block's parameters. To wait whether the
allocator comes to rest costs memory that the optimizer's state, say, needs.

Then, if they are small, they become copied inputs: ``SMALL_BYTES`` or a share of ``SMALL_SHARE``
of all static inputs, which costs a few percent of the time and of the memory. Otherwise nothing
of the compiled graph is recorded any more (``RecordPolicy.stop``), its backward and other sizes
included: what a forward without a graph saves is somewhere else in each step.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from . import _torch_compat as compat
from .device.protocol import Input
from .node import CUDAGraphNode
from .replay.liveness import StorageWeakRefWrapper, address_of
from .spec import FunctionSpec

_refs = sys.getrefcount

COST = 8
"""Replays that pay for one recording."""
LIMIT = 3 * COST - COST // 2
MAX_SIGHTINGS = 512
"""Kept a function: as many modules can share code and each have a recording."""
MAX_GONE = 32
"""Recordings kept a function for places that have gone: an allocator may go back and forth
between a few."""
SMALL_BYTES = 1 << 20
SMALL_SHARE = 1 / 64


@dataclass(frozen=True, slots=True)
class _Spot:
    """Describes where one static input was.

    Attributes:
        pointer: its ``data_ptr()``.
        storage: its own.
        parameter: its ``id()`` if it is one, else 0: others may be new at each call. No weak
            reference: torch swaps no tensor that has one (``torch.utils.swap_tensors``).
    """

    pointer: int
    storage: StorageWeakRefWrapper
    parameter: int

    @staticmethod
    def of(t: torch.Tensor) -> _Spot:
        parameter = id(t) if isinstance(t, torch.nn.Parameter) else 0
        return _Spot(t.data_ptr(), StorageWeakRefWrapper(t), parameter)

    def left(self, now: Mapping[int, int]) -> bool:
        """Tells whether the tensor, or the memory that it had, is not there any more: ``now`` has
        the ``data_ptr()`` of the call's parameters, by ``id()``."""
        storage = compat.storage_from_weak(self.storage.pointer)
        if storage is None or storage.data_ptr() != self.storage.address:
            return True
        return now.get(self.parameter, self.pointer) != self.pointer

    def freed(self) -> bool:
        """Tells whether the storage is there and has no memory now."""
        storage = compat.storage_from_weak(self.storage.pointer)
        return self.storage.address != 0 and storage is not None and storage.data_ptr() == 0

    def pinned(self, ours: Mapping[int, int]) -> bool:
        """Tells whether only recordings hold the memory, ``ours`` tensors of them over each
        storage."""
        held = ours.get(self.storage.pointer, 0)
        others = compat.storage_use_count(self.storage.pointer) - compat.wrapper_references - held
        return held > 0 and others == 0


_Key = tuple[tuple[int, int], ...]
"""``(input, address)`` of the static inputs of a call."""


@dataclass(slots=True)
class _Sighting:
    step: int
    spots: dict[int, _Spot]
    nodes: list[weakref.ref[CUDAGraphNode]] = field(default_factory=list)

    def replays(self) -> int:
        return max((n.replays for ref in self.nodes if (n := ref()) is not None), default=0)


@dataclass(slots=True)
class _Known:
    """Describes what is known of one function: sightings, and recordings for what has gone, the
    latest last; and inputs of the sightings that went since there was no ``debt``."""

    sightings: dict[_Key, _Sighting] = field(default_factory=dict)
    gone: list[weakref.ref[CUDAGraphNode]] = field(default_factory=list)
    debt: float = 0
    moved: set[int] = field(default_factory=set)


class Moves:
    def __init__(self) -> None:
        self._known: dict[FunctionSpec, _Known] = {}

    def look(
        self,
        function: FunctionSpec,
        inputs: Sequence[Input],
        managed: set[int],
        step: int,
        recordings: Callable[[], Iterable[CUDAGraphNode]],
    ) -> tuple[list[int], list[CUDAGraphNode]]:
        """A call of ``function`` is about to be warmed up or recorded.

        Args:
            function, inputs, step: of the call.
            managed: addresses of the outputs of the path; what lies there is the trees' own.
            recordings: gives all that there are.

        Returns:
            The inputs that keep moving, and recordings for places that have gone long ago, or whose
            memory nobody else holds.
        """
        spots = {
            i: _Spot.of(t)
            for i in sorted(function.static_input_idxs)
            if isinstance(t := inputs[i], torch.Tensor) and address_of(t) not in managed
        }
        if not spots:
            return [], []
        key = tuple((i, spot.pointer) for i, spot in spots.items())
        known = self._known.setdefault(function, _Known())
        sightings = known.sightings
        same = sightings.pop(key, None)
        sightings[key] = _Sighting(step, spots, same.nodes if same is not None else [])
        seen = [*([] if same is None else [same]), *sightings.values()]
        if freed := {i for s in seen for i, spot in s.spots.items() if spot.freed()}:
            return sorted(freed & spots.keys()), []
        if same is not None:
            return [], []
        earlier = [(k, s) for k, s in sightings.items() if s.step < step]
        ours = _held_by(recordings()) if earlier else Counter()
        now = {s.parameter: s.pointer for s in spots.values() if s.parameter}
        worthless: list[weakref.ref[CUDAGraphNode]] = []
        gone = []
        for k, s in earlier:
            pinned = {i for i, spot in s.spots.items() if spot.pinned(ours)}
            if left := pinned | {i for i, spot in s.spots.items() if spot.left(now)}:
                gone.append(s)
                del sightings[k]
                (worthless if pinned else known.gone).extend(s.nodes)
                known.moved |= left
        if gone:
            paid = sum(s.replays() for s in gone) / len(gone)
            known.debt = max(0, known.debt + COST - paid)
            if not known.debt:
                known.moved.clear()
        while len(sightings) > MAX_SIGHTINGS:
            known.gone += sightings.pop(next(iter(sightings))).nodes
        worthless += known.gone[:-MAX_GONE]
        del known.gone[:-MAX_GONE]
        moving = sorted(known.moved & spots.keys()) if known.debt >= LIMIT else []
        return moving, [node for ref in worthless if (node := ref()) is not None]

    def recorded(self, node: CUDAGraphNode) -> None:
        """``node`` was recorded for the call that was looked at last."""
        known = self._known.get(node.wrapped_function)
        if known is None:
            return
        pointers = node.input_plan.pointers
        key = tuple((i, p) for i in node.input_plan.static if (p := pointers[i]) is not None)
        found = known.sightings.get(key)
        if found is not None:
            found.nodes.append(weakref.ref(node))

    def forget(self, function: FunctionSpec) -> None:
        self._known.pop(function, None)


def _held_by(nodes: Iterable[CUDAGraphNode]) -> Counter[int]:
    """For storages outside the pool: how many tensors over them only recordings hold."""
    found: Counter[int] = Counter()
    for node in nodes:
        held, slots = node.output_cache.persistent, node.output_cache.slots
        for i in range(len(held)):
            if held[i] is None:
                continue
            # The list's reference, the argument's and the slot's.
            if _refs(held[i]) == 2 + (i < len(slots) and slots[i] is held[i]):
                found[held[i].untyped_storage()._cdata] += 1  # type: ignore[union-attr]
    return found


def copyable(function: FunctionSpec, inputs: Sequence[Input], moving: Sequence[int]) -> bool:
    """Tells whether these static inputs may become copied ones, see Note [Inputs that keep moving]:
    not if the function writes to any input, since a copy would no longer share memory with another
    input that it may share it with at a later call."""
    if function.mutated_input_idxs:
        return False
    every = nbytes_of(inputs, function.static_input_idxs)
    return nbytes_of(inputs, moving) <= max(SMALL_BYTES, int(every * SMALL_SHARE))


def nbytes_of(inputs: Sequence[Input], which: Sequence[int]) -> int:
    """Bytes of some inputs, views of one storage counted each."""
    return sum(inputs[i].nbytes for i in which if isinstance(inputs[i], torch.Tensor))
