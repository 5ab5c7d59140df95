"""Why a function runs without a graph, or is recorded otherwise than the last time.

A *place* is a function and the recording that it comes after. What is known about it
outlives the recordings that were tried there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from memprof.profiler.model import TreeCause

from . import _torch_compat as compat
from .device.protocol import Input
from .moves import nbytes_of
from .node import CUDAGraphNode, Node, number_of
from .replay.inputs import CheckInvariantStatus
from .spec import CompilationMode, FunctionSpec, FunctionState

MAX_FAILURES = 2
"""A function whose warm-up or recording failed so often runs without a graph for good."""

Place: TypeAlias = "tuple[int | None, FunctionSpec]"
"""Number of the node before, None at a root, and the function."""


def cause_of(
    cause: TreeCause, function: FunctionSpec, inputs: Sequence[Input], which: Sequence[int]
) -> dict[str, Any]:
    """Fields of ``TreeDetail`` that say for programs why: ``which`` inputs of a call it was."""
    found = {n for i in which if (n := function.graph_input(i)) is not None}
    nbytes = nbytes_of(inputs, which)
    return {"cause": cause, "inputs": tuple(sorted(found)), "nbytes": nbytes}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call runs without a graph.

    Attributes:
        reason, cause: for the ledger, see ``cause_of``.
        this_once: it will be recorded after all.
        failed: the ledger knows the reason already, of a failure.
    """

    reason: str
    cause: dict[str, Any] = field(default_factory=dict)
    this_once: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why none of the recordings at a place fits a call.

    Attributes:
        reason, cause: of the latest one, for the ledger.
        counts: it counts against the limit of recordings at the place.
    """

    reason: str = "first recording"
    cause: dict[str, Any] = field(default_factory=dict)
    counts: bool = False

    @staticmethod
    def of(
        recordings: Sequence[CUDAGraphNode], function: FunctionSpec, inputs: list[Input]
    ) -> Misfit:
        """Of all recordings of ``function`` at a place, for these inputs."""
        found = Misfit()
        for node in recordings:
            status, reason, moved = node.mismatch(inputs)
            if status is CheckInvariantStatus.SUCCESS:
                # It was tried just now, and someone holds an input that must die.
                reason = "an input that died in the recording is still held"
            # Torch's limit leaves these out from 2.13 on.
            static = status is CheckInvariantStatus.StaticInputIdxMismatch
            found = Misfit(
                reason,
                cause_of(TreeCause.MOVED, function, inputs, moved) if moved else {},
                found.counts or not (static and compat.torch_version() >= (2, 13)),
            )
        return found


class RecordPolicy:
    """What is known about the functions of one manager, and about the places of its tree.

    Attributes:
        stopped: compiled graphs of which nothing is recorded any more, and why.
        plain_forwards: by ``compile_id``: partitions of the forward whose last call ran without a
            graph.
    """

    def __init__(self, functions: Mapping[FunctionSpec, FunctionState]) -> None:
        """Args: ``functions`` are those of the manager, which adds to them and removes them."""
        self._functions = functions
        self.stopped: dict[object, str] = {}
        self.plain_forwards: dict[object, set[int | None]] = {}
        self._skipped: dict[Place, Refusal | None] = {}
        self._recorded_again: dict[Place, int] = defaultdict(int)
        self._moves: dict[Place, dict[int, int]] = {}
        self._demoted: dict[Place, frozenset[int]] = {}
        self._warned_inputs: set[FunctionSpec] = set()
        self._warned_limit: set[Place] = set()

    # ---- functions

    def refusal(self, function: FunctionSpec) -> Refusal | None:
        """Why ``function`` runs without a graph wherever it is called now; None if it need not."""
        state = self._functions[function]
        if state.failures >= MAX_FAILURES:
            return Refusal(state.given_up or "warm-up or recording failed before")
        backward = function.mode is CompilationMode.BACKWARD
        if backward and function.compile_id in self.plain_forwards:
            return Refusal("its forward ran without a graph", this_once=True)
        return None

    def give_up(self, function: FunctionSpec, why: str) -> None:
        """``function`` runs without a graph from now on, and each time the ledger says ``why``."""
        state = self._functions[function]
        state.failures, state.given_up = MAX_FAILURES, why

    def stop(self, function: FunctionSpec, why: str) -> None:
        """Nothing of the compiled graph that ``function`` is of is recorded any more, its backward
        and other sizes included. See Note [Inputs that keep moving]."""
        if function.compile_id is not None:
            self.stopped[function.compile_id] = f"{function.label} runs without a graph"
        for f in self._functions:
            self.added(f)
        self.give_up(function, why)

    def added(self, function: FunctionSpec) -> None:
        """``function`` is one of the manager's: it may be of a graph that was stopped."""
        if function.compile_id in self.stopped:
            self.give_up(function, self.stopped[function.compile_id])

    def ran_plainly(self, function: FunctionSpec) -> None:
        """``function`` ran without a graph.

        What a forward then saves for its backward is somewhere else each time, so a backward that
        comes after it is not recorded. Which sizes a backward belongs to its own integers do not
        tell; the forward before it is mostly its own.
        """
        if function.mode is CompilationMode.FORWARD and function.compile_id is not None:
            self.plain_forwards.setdefault(function.compile_id, set()).add(function.partition)

    def ran_with_graph(self, function: FunctionSpec) -> None:
        """``function`` ran with a graph, or is gone. Needed only if there are plain forwards."""
        plain = self.plain_forwards.get(function.compile_id)
        if plain is not None and function.mode is CompilationMode.FORWARD:
            plain.discard(function.partition)
            if not plain:
                del self.plain_forwards[function.compile_id]

    # ---- places

    def forget_recordings(self) -> None:
        """All recordings are gone: what was learned from them is, too."""
        for known in (self._skipped, self._recorded_again, self._moves, self._demoted):
            known.clear()

    def forget_function(self, function: FunctionSpec) -> None:
        """``function`` is gone, and what was known about it goes."""
        self.ran_with_graph(function)
        self._warned_inputs.discard(function)
        self._warned_limit = {p for p in self._warned_limit if p[1] is not function}
        for known in (self._skipped, self._recorded_again, self._moves, self._demoted):
            for place in [p for p in known if p[1] is function]:
                del known[place]

    def refusal_at(
        self, function: FunctionSpec, inputs: list[Input], node: Node | None, *, again: bool = False
    ) -> Refusal | None:
        """Why the function runs without a graph after ``node``; None if nothing speaks against one.
        Looks at the inputs of the call only if nobody has at this place, or ``again``."""
        place = number_of(node), function
        if place not in self._skipped or again:
            self._skipped[place] = self._look(function, inputs, node)
        return self._skipped[place]

    def known_refusal(self, place: Place) -> Refusal | None:
        """The one that was found before, None if there is none or nobody looked."""
        return self._skipped.get(place)

    def _look(
        self, function: FunctionSpec, inputs: list[Input], node: Node | None
    ) -> Refusal | None:
        support = function.options["cudagraph_support_input_mutation"]
        bad = [
            i
            for i in function.mutated_input_idxs
            if i not in function.static_input_idxs
            and not (
                support
                and node is not None
                and isinstance(inputs[i], torch.Tensor)
                and node._is_cuda_graph_recorded_tensor(inputs[i])
                and not (i in function.alignment_checked and compat.is_misaligned(inputs[i]))
            )
        ]
        if not bad:
            return None
        # An error each time says which line writes.
        if function.options.or_error or function not in self._warned_inputs:
            self._warned_inputs.add(function)
            message = compat.mutation_message(function.placeholders, bad)
            compat.announce_skip(message, function.options.or_error)
        cause = cause_of(TreeCause.WRITES_TO_COPIED, function, inputs, bad)
        return Refusal("it writes to inputs that graphs copy", cause)

    def input_elsewhere(
        self, function: FunctionSpec, inputs: list[Input], device: torch.device
    ) -> str:
        """Why these inputs cannot be recorded; "" if all tensors are on ``device``.

        A float is elsewhere, too: unlike an integer it does not select the function.

        Asked at each call that would record, never remembered: attention gives its backward the
        random state in a CPU tensor when it runs, and in a CUDA tensor when it is captured, so
        that a backward meets the first in its warm-up and never again.
        """
        for i, t in enumerate(inputs):
            if isinstance(t, torch.Tensor):
                where = f"on {t.device}" if t.device != device and t.numel() > 0 else ""
            else:
                where = f"a {type(t).__name__}" if isinstance(t, (float, complex)) else ""
            if where:
                reason = f"input {i} is {where}: a recording would keep the value it has now"
                if function not in self._warned_inputs:
                    self._warned_inputs.add(function)
                    message = f"skipping cudagraphs due to {reason}"
                    compat.announce_skip(message, function.options.or_error)
                return reason
        return ""

    # ---- recording again

    def recorded_again(self, place: Place) -> None:
        """A recording that exists there does not fit."""
        self._recorded_again[place] += 1

    def exceeds_limit(self, place: Place) -> bool:
        """Whether recordings there have failed to fit more often than the options allow."""
        limit: int = place[1].options["cudagraph_unexpected_rerecord_limit"]
        return self._recorded_again.get(place, 0) > limit

    def warn_of_limit(self, place: Place, reason: str) -> None:
        """Say, once for each place and in torch's words, that its limit is reached."""
        if place not in self._warned_limit:
            self._warned_limit.add(place)
            options = place[1].options
            limit = options["cudagraph_unexpected_rerecord_limit"]
            compat.announce_skip(
                f"skipping cudagraph due to function {place[1].number} exceeding max "
                f"re-recording limit (={limit}) on cudagraph node {place[0]} due to {reason}.",
                options.or_error,
            )

    # ---- managed inputs that keep moving

    def demoted(self, place: Place) -> frozenset[int]:
        """Inputs that are copied there although a node of the path made them."""
        return self._demoted.get(place, frozenset())

    def demote(self, place: Place, latest: CUDAGraphNode, inputs: list[Input]) -> Iterator[str]:
        """Copy managed inputs from now on that have kept moving: ``latest`` is the last recording
        at the place, and does not fit the ``inputs`` of a call. Yields a sentence about each."""
        options = place[1].options
        limit = options["cudagraph_managed_input_rerecord_limit"]
        counts = self._moves.setdefault(place, {})
        for i in latest.moved_managed(inputs):
            counts[i] = counts.get(i, 0) + 1
            if counts[i] >= limit and i not in self.demoted(place):
                if options["cudagraph_managed_input_rerecord_action"] == "skip":
                    reason = f"input {i}, made by a graph, keeps moving"
                    self._skipped[place] = Refusal(reason)
                    compat.announce_skip(
                        f"skipping cudagraph due to function {place[1].number} reaching the "
                        f"cudagraph-managed input re-recording threshold (={limit}) on cudagraph "
                        f"node {place[0]}: {reason}.",
                        options.or_error,
                    )
                    continue
                self._demoted[place] = self.demoted(place) | {i}
                yield (
                    f"input {i}, made by a graph, was elsewhere at {counts[i]} recordings; it is "
                    "copied from now on"
                )
