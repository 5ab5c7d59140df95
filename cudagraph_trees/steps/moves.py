"""Static inputs that do not stay where they are.

Note [Inputs that keep moving]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A recording has the addresses of its static inputs baked in. Mostly they move once, if at all
(``load_state_dict(assign=True)``, another adapter), and recording again is right. Some move in
every step: FSDP gathers parameters into new memory, an offloader brings them back somewhere else,
a program sets ``p.data``. Recording again costs about as much as ten calls, and has memory.

What a single call says is little: code that several modules share is called with the parameters
of each in turn, and each deserves its recording. So the addresses of all static inputs of a call
are a *place*, and a place is *gone* when a storage of it is no longer there, or has other memory,
or nobody but recordings holds it (a forward returns what its backward needs, say a view of a
weight, and a recording hands out the same tensor each time). Recordings for it are dropped.

When a call brings a new place and one of an earlier step is gone, the function has *moved*. A
move costs ``COST`` replays; of places that are gone, the mean of their replays is taken off. At
``LIMIT``, which is three moves in a row that hardly any replay has paid for, the inputs keep
moving: nothing is recorded for their sake from the fourth step on.

A storage that is there and has no memory says it at once, in the first step: it is filled before
each use and freed after it, as FSDP does with each block's parameters.

Inputs that keep moving become copied ones if they are small: ``SMALL_BYTES`` or a share of
``SMALL_SHARE`` of all static inputs. Otherwise nothing of the compiled graph is recorded any more,
its backward and other sizes included: what a forward without a graph saves is somewhere else in
each step.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from .. import _torch_compat as compat
from ..device.protocol import Input
from ..replay.liveness import StorageWeakRefWrapper, address_of
from ..replay.node import CUDAGraphNode
from ..replay.spec import FunctionSpec

_refs = sys.getrefcount

COST = 8
"""Replays that pay for one recording."""
LIMIT = 3 * COST - COST // 2
MAX_PLACES = 512
"""Places kept a function: as many modules can share code and each have a recording. Memory that
somebody holds after a parameter has left it never counts as gone."""
SMALL_BYTES = 1 << 20
SMALL_SHARE = 1 / 64

_Key = tuple[tuple[int, int], ...]
"""``(input, data_ptr())`` of the static inputs of a call."""


@dataclass(slots=True)
class _Place:
    """Storages of the static inputs of a call, by input, the step in which it was made last, and
    the recordings for it."""

    step: int
    storages: dict[int, StorageWeakRefWrapper]
    nodes: list[weakref.ref[CUDAGraphNode]] = field(default_factory=list)

    def recordings(self) -> list[CUDAGraphNode]:
        return [node for ref in self.nodes if (node := ref()) is not None]

    def replays(self) -> int:
        return max((node.replays for node in self.recordings()), default=0)

    def freed(self) -> set[int]:
        """Inputs whose storage is there and has no memory now."""
        return {i for i, ref in self.storages.items() if ref.address and _address_now(ref) == 0}

    def gone(self, by_recordings: Counter[int]) -> set[int]:
        """Inputs whose storage has gone, or has other memory, or is held by nobody but recordings,
        which have ``by_recordings`` tensors over each."""
        return {
            i
            for i, ref in self.storages.items()
            if _address_now(ref) != ref.address or _held_alone(ref, by_recordings[ref.pointer])
        }


def _address_now(ref: StorageWeakRefWrapper) -> int | None:
    storage = compat.storage_from_weak(ref.pointer)
    return None if storage is None else storage.data_ptr()


def _held_alone(ref: StorageWeakRefWrapper, by_recordings: int) -> bool:
    count = compat.storage_use_count(ref.pointer) - compat.wrapper_references
    return by_recordings > 0 and count == by_recordings


@dataclass(slots=True)
class _Moves:
    """Moves of one function: its places, what moves have cost and replays have not paid for, and
    the inputs that moved since nothing was owed."""

    places: dict[_Key, _Place] = field(default_factory=dict)
    debt: float = 0
    moved: set[int] = field(default_factory=set)


class Moves:
    """Follows where the static inputs of the functions of one manager lie."""

    def __init__(self) -> None:
        self._moves: dict[FunctionSpec, _Moves] = {}

    def look(
        self,
        function: FunctionSpec,
        inputs: Sequence[Input],
        managed: set[int],
        step: int,
        recordings: Iterable[CUDAGraphNode],
    ) -> tuple[list[int], list[CUDAGraphNode]]:
        """Look at a call of ``function`` that is about to be warmed up or recorded.

        Args:
            function, inputs, step: of the call.
            managed: addresses of the outputs of the path; what lies there is the trees' own.
            recordings: all that there are.

        Returns:
            The inputs that keep moving, and the recordings for places that are gone.
        """
        static: dict[int, torch.Tensor] = {}
        for i in sorted(function.static):
            if isinstance(inputs[i], torch.Tensor) and address_of(inputs[i]) not in managed:
                static[i] = inputs[i]
        if not static:
            return [], []
        moves = self._moves.setdefault(function, _Moves())
        freed = {i for place in moves.places.values() for i in place.freed()} & static.keys()
        if freed:
            return sorted(freed), []
        key = tuple((i, t.data_ptr()) for i, t in static.items())
        before = moves.places.get(key)
        storages = {i: StorageWeakRefWrapper(t) for i, t in static.items()}
        moves.places[key] = _Place(step, storages, [] if before is None else before.nodes)
        if before is not None:
            return [], []
        gone = self._take_gone(moves, step, recordings)
        while len(moves.places) > MAX_PLACES:
            gone.append(moves.places.pop(next(iter(moves.places))))
        if gone:
            paid = sum(place.replays() for place in gone) / len(gone)
            moves.debt = max(0, moves.debt + COST - paid)
            if not moves.debt:
                moves.moved.clear()
        moving = sorted(moves.moved & static.keys()) if moves.debt >= LIMIT else []
        return moving, [node for place in gone for node in place.recordings()]

    def _take_gone(
        self, moves: _Moves, step: int, recordings: Iterable[CUDAGraphNode]
    ) -> list[_Place]:
        """Take out the places of steps before ``step`` that are gone."""
        earlier = {key: place for key, place in moves.places.items() if place.step < step}
        by_recordings = _held_by(recordings) if earlier else Counter()
        gone = []
        for key, place in earlier.items():
            if inputs := place.gone(by_recordings):
                moves.moved |= inputs
                gone.append(place)
                del moves.places[key]
        return gone

    def recorded(self, node: CUDAGraphNode) -> None:
        """``node`` was recorded for the call that was looked at last."""
        moves = self._moves.get(node.wrapped_function)
        if moves is None:
            return
        pointers = node.input_plan.pointers
        key = tuple((i, p) for i in node.input_plan.static if (p := pointers[i]) is not None)
        place = moves.places.get(key)
        if place is not None:
            place.nodes.append(weakref.ref(node))

    def forget(self, function: FunctionSpec) -> None:
        self._moves.pop(function, None)


def _held_by(nodes: Iterable[CUDAGraphNode]) -> Counter[int]:
    """Number of tensors over each storage outside the pool that only recordings hold."""
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
    if function.mutated:
        return False
    every = nbytes_of(inputs, function.static)
    return nbytes_of(inputs, moving) <= max(SMALL_BYTES, int(every * SMALL_SHARE))


def nbytes_of(inputs: Sequence[Input], which: Sequence[int]) -> int:
    """Bytes of some inputs, views of one storage counted each."""
    return sum(inputs[i].nbytes for i in which if isinstance(inputs[i], torch.Tensor))
