"""Why a function runs without a graph, or is recorded otherwise than the last time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import torch

from memprof.profiler.model import TreeCause

from . import _torch_compat as compat
from .device.protocol import Input
from .moves import nbytes_of
from .node import CUDAGraphNode, Node, number_of
from .spec import CompilationMode, FunctionSpec, PlaceState, Why

MAX_FAILURES = 2
"""A function whose warm-up or recording failed so often runs without a graph for good."""


def cause_of(
    cause: TreeCause, function: FunctionSpec, inputs: Sequence[Input], which: Sequence[int]
) -> dict[str, Any]:
    """Fields of ``TreeDetail`` that say for programs why: ``which`` inputs of a call it was."""
    found = {n for i in which if (n := function.graph_input(i)) is not None}
    nbytes = nbytes_of(inputs, which)
    return {"cause": cause, "inputs": tuple(sorted(found)), "nbytes": nbytes}


def misfit_of(
    recordings: Sequence[CUDAGraphNode], function: FunctionSpec, inputs: list[Input]
) -> tuple[Why, bool]:
    """Why none of the recordings at a place, the latest above all, fits a call; and whether that
    counts against the limit of recordings there."""
    why, counts = Why("first recording"), False
    for node in recordings:
        reason, moved = node.mismatch(inputs)
        if not reason:
            # It was tried just now, and someone holds an input that must die.
            reason = "an input that died in the recording is still held"
        # Torch's limit leaves these out from 2.13 on.
        static = bool(moved) and moved[0] in node.input_plan.static
        counts |= not (static and compat.torch_version() >= (2, 13))
        why = Why(reason, cause_of(TreeCause.MOVED, function, inputs, moved) if moved else {})
    return why, counts


class RecordPolicy:
    """Decides about the functions of one manager. What it learns of one is in its ``state``.

    Attributes:
        stopped: compiled graphs of which nothing is recorded any more, and why.
        plain_forwards: by ``compile_id``: partitions of the forward whose last call ran without a
            graph.
    """

    def __init__(self, functions: Set[FunctionSpec]) -> None:
        """Args: ``functions`` are those of the manager, which adds to them and removes them."""
        self._functions = functions
        self.stopped: dict[object, str] = {}
        self.plain_forwards: dict[object, set[int | None]] = {}

    # ---- functions

    def refusal(self, function: FunctionSpec) -> Why | None:
        """Why ``function`` runs without a graph wherever it is called now; None if it need not."""
        if function.state.failures >= MAX_FAILURES:
            return Why(function.state.given_up or "warm-up or recording failed before")
        backward = function.mode is CompilationMode.BACKWARD
        if backward and function.compile_id in self.plain_forwards:
            return Why("its forward ran without a graph", this_once=True)
        return None

    def give_up(self, function: FunctionSpec, why: str) -> None:
        function.state.failures, function.state.given_up = MAX_FAILURES, why

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
        for function in self._functions:
            function.state.places.clear()

    def refusal_at(
        self, function: FunctionSpec, inputs: list[Input], node: Node | None, *, again: bool = False
    ) -> Why | None:
        """Why the function runs without a graph after ``node``; None if nothing speaks against one.
        Looks at the inputs of the call only if nobody has at this place, or ``again``."""
        place = function.state.places[number_of(node)]
        if again or not place.looked:
            place.looked, place.refusal = True, self._look(function, inputs, node)
        return place.refusal

    def _look(self, function: FunctionSpec, inputs: list[Input], node: Node | None) -> Why | None:
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
        if function.options.or_error or not function.state.warned_inputs:
            function.state.warned_inputs = True
            message = compat.mutation_message(function.placeholders, bad)
            compat.announce_skip(message, function.options.or_error)
        cause = cause_of(TreeCause.WRITES_TO_COPIED, function, inputs, bad)
        return Why("it writes to inputs that graphs copy", cause)

    def input_elsewhere(
        self, function: FunctionSpec, inputs: list[Input], device: torch.device
    ) -> Why | None:
        """Why these inputs cannot be recorded; None if all tensors are on ``device``.

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
                if not function.state.warned_inputs:
                    function.state.warned_inputs = True
                    message = f"skipping cudagraphs due to {reason}"
                    compat.announce_skip(message, function.options.or_error)
                return Why(reason)
        return None

    # ---- recording again

    def exceeds_limit(self, function: FunctionSpec, node: Node | None) -> bool:
        """Tells whether recordings after ``node`` failed to fit more often than the options
        allow.
        """
        limit: int = function.options["cudagraph_unexpected_rerecord_limit"]
        return function.state.places[number_of(node)].misfits > limit

    def warn_of_limit(self, function: FunctionSpec, node: Node | None, reason: str) -> None:
        """Say, once for each place and in torch's words, that its limit is reached."""
        place, options = number_of(node), function.options
        if place not in function.state.warned_limit:
            function.state.warned_limit.add(place)
            limit = options["cudagraph_unexpected_rerecord_limit"]
            compat.announce_skip(
                f"skipping cudagraph due to function {function.number} exceeding max "
                f"re-recording limit (={limit}) on cudagraph node {place} due to {reason}.",
                options.or_error,
            )

    def demote(
        self, function: FunctionSpec, node: Node | None, latest: CUDAGraphNode, inputs: list[Input]
    ) -> Iterator[str]:
        """Copy managed inputs from now on that have kept moving: ``latest`` is the last recording
        after ``node``, and does not fit the ``inputs`` of a call. Yields a sentence about each."""
        options = function.options
        limit = options["cudagraph_managed_input_rerecord_limit"]
        place: PlaceState = function.state.places[number_of(node)]
        for i in latest.moved_managed(inputs):
            place.moved[i] += 1
            if place.moved[i] < limit or i in place.demoted:
                continue
            if options["cudagraph_managed_input_rerecord_action"] == "skip":
                reason = f"input {i}, made by a graph, keeps moving"
                place.looked, place.refusal = True, Why(reason)
                compat.announce_skip(
                    f"skipping cudagraph due to function {function.number} reaching the "
                    f"cudagraph-managed input re-recording threshold (={limit}) on cudagraph "
                    f"node {number_of(node)}: {reason}.",
                    options.or_error,
                )
                continue
            place.demoted |= {i}
            yield (
                f"input {i}, made by a graph, was elsewhere at {place.moved[i]} recordings; it is "
                "copied from now on"
            )
