"""Policy: reasons to neither warm up nor record a call, and to record one again.

``RecordPolicy.why_not`` asks whether a call is refused as things are, ``RecordPolicy.prepare`` acts
on one that is not, which may refuse it in turn. Once a function is warmed up, what else runs
without a graph has failed in one (``recorder.py``) or has sizes of its own (``call/entry.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from memprof.profiler.model import LedgerKind, TreeCause

from .. import _torch_compat as compat
from ..device.capture_lock import capturing
from ..device.protocol import Input
from ..replay.node import CUDAGraphNode, Node, number_of, path_addresses
from ..replay.spec import CompilationMode, FunctionSpec, PlaceState, Why
from ..steps.moves import Moves, copyable, nbytes_of
from .pool_owner import PoolOwner

IN_A_CAPTURE = "the program captures a CUDA graph of its own, whose part the call becomes"


@dataclass(slots=True)
class Call:
    """A call that no recording fits.

    Attributes:
        records: it would be recorded, and not warmed up.
        existing: recordings at its place that were tried, the latest last.
        reason: why it is recorded, if it is.
    """

    function: FunctionSpec
    inputs: list[Input]
    records: bool
    existing: Sequence[CUDAGraphNode]
    reason: Why = field(default_factory=lambda: Why("first recording"))


def cause_of(
    cause: TreeCause, function: FunctionSpec, inputs: Sequence[Input], which: Sequence[int]
) -> dict[str, Any]:
    """Fields of ``TreeDetail`` that say for programs why: ``which`` inputs of a call it was."""
    found = {n for i in which if (n := function.graph_input(i)) is not None}
    nbytes = nbytes_of(inputs, which)
    return {"cause": cause, "inputs": tuple(sorted(found)), "nbytes": nbytes}


def _most_misfits(function: FunctionSpec) -> int:
    limit: int = function.options["cudagraph_unexpected_rerecord_limit"]
    return limit


class RecordPolicy:
    """Decides about the functions of one manager. What it learns of one is in its ``state``.

    Attributes:
        stopped: compiled graphs of which nothing is recorded any more, and why.
        plain_forwards: by ``compile_id``: partitions of the forward whose last call ran without a
            graph.
    """

    def __init__(self, owner: PoolOwner) -> None:
        self._owner = owner
        self._path = owner.path
        self._ledger = owner.ledger
        self.moves = Moves()
        self.stopped: dict[object, str] = {}
        self.plain_forwards: dict[object, set[int | None]] = {}

    def why_not(self, call: Call) -> Why | None:
        """Find out why a call runs without a graph; None if nothing that is known refuses it. What
        it finds in inputs it logs once a function, and changes nothing else.

        Raises:
            RuntimeError: ``cudagraph_or_error`` is on for it, and torch's words say what is wrong.
        """
        function, node, owner = call.function, self._path.node, self._owner
        if torch.cuda.is_current_stream_capturing():
            return Why(IN_A_CAPTURE, this_once=True)
        if owner.stopped:
            return Why(owner.stopped)
        if function.state.given_up:
            return Why(function.state.given_up)
        backward = function.mode is CompilationMode.BACKWARD
        if backward and function.compile_id in self.plain_forwards:
            return Why("its forward ran without a graph", this_once=True)
        if (why := self._writes_to_copied(call, node)) is not None:
            return why
        if self._place(call).misfits > _most_misfits(function):
            return Why("it was recorded too often at this place")
        return self._input_elsewhere(call) if call.records else None

    def prepare(self, call: Call) -> Why | None:
        """Make ready to warm up or record a call that ``why_not`` does not refuse: count that no
        recording fits, have inputs that keep moving copied, or stop recording what they are of.

        Returns:
            Why it runs without a graph after all; None if it does not, and then ``call.reason`` is
            why it is recorded.

        Raises:
            RuntimeError: as ``why_not``.
        """
        function, node, owner = call.function, self._path.node, self._owner
        if call.records and node is None and not function.options.or_error:
            owner.check_room()
            if owner.stopped:
                return Why(owner.stopped)
        place = self._place(call)
        if call.records and call.existing:
            self._count_misfit(call, place, node)
            if place.misfits > _most_misfits(function):
                self._announce_limit(call, node)
                return place.refusal or Why(f"re-recording limit reached: {call.reason.reason}")
        if place.refusal is not None:
            return place.refusal
        if owner.pool.damaged:
            owner.give_back("the pool was damaged")
        if owner.pool.damaged:
            return Why("there is no pool")
        # The lock keeps finalizers from releasing recordings in the midst of a look at them.
        with capturing():
            return self._keeps_moving(call)

    def _place(self, call: Call) -> PlaceState:
        return call.function.state.places[number_of(self._path.node)]

    # ---- the inputs of a call

    def _writes_to_copied(self, call: Call, node: Node | None) -> Why | None:
        function, inputs = call.function, call.inputs
        support = function.options["cudagraph_support_input_mutation"]
        bad = [
            i
            for i in function.mutated
            if i not in function.static
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
        names = function.names_of_inputs(bad)
        return Why(f"it writes to inputs that graphs copy: {names}", cause)

    def _input_elsewhere(self, call: Call) -> Why | None:
        """Find an input that is not on the pool's device. A float is elsewhere, too: unlike an
        integer it does not select the function.

        Asked at each call that would record, never remembered: attention gives its backward the
        random state in a CPU tensor when it runs, and in a CUDA tensor when it is captured, so
        that a backward meets the first in its warm-up and never again.
        """
        function, device = call.function, self._owner.pool.device
        for i, t in enumerate(call.inputs):
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

    def _keeps_moving(self, call: Call) -> Why | None:
        """Copy small inputs that keep moving from now on, see Note [Inputs that keep moving]."""
        function, inputs, owner = call.function, call.inputs, self._owner
        node = self._path.node
        step = self._path.step + (node is None)
        recordings = list(owner.tree.nodes())
        moving, gone = self.moves.look(function, inputs, path_addresses(node), step, recordings)
        owner.drop(gone, "what it reads has gone")
        if not moving:
            return None
        cause = cause_of(TreeCause.KEEPS_MOVING, function, inputs, moving)
        every = nbytes_of(inputs, function.static)
        names = function.names_of_inputs(moving)
        what = f"inputs keep moving: {names}, {cause['nbytes']} bytes of {every} in static inputs"
        if copyable(function, inputs, moving):
            function.copy_from_now_on(moving)
            self.moves.forget(function)
            own = [n for n in owner.tree.nodes() if n.wrapped_function is function]
            owner.drop(own, "an input that it reads in place is copied from now on")
            reason = f"{what}; that is little: they are copied from now on"
            self._ledger.add(LedgerKind.DEMOTION, function, reason, **cause)
            return None
        why = f"{what}; nothing of this graph is recorded any more"
        self._stop(function, why)
        owner.give_back(why)
        message = f"skipping cudagraphs of {function.label} due to {why}"
        compat.announce_skip(message, function.options.or_error)
        return Why(why, cause)

    # ---- recording again

    def _count_misfit(self, call: Call, place: PlaceState, node: Node | None) -> None:
        """None of the recordings at the place fits: note why, and whether it counts against the
        limit of recordings there; managed inputs that have kept moving are copied from now on."""
        function, inputs = call.function, call.inputs
        counts = False
        for recording in call.existing:
            reason, moved = recording.mismatch(inputs)
            if not reason:
                # It was tried just now, and someone holds an input that must die.
                reason = "an input that died in the recording is still held"
            static = bool(moved) and moved[0] in recording.input_plan.static
            counts |= not static or compat.limit_counts_static_inputs()
            cause = cause_of(TreeCause.MOVED, function, inputs, moved) if moved else {}
            call.reason = Why(reason, cause)
        compat.graphs_log.debug(
            "[%s] Re-recording function=%s, mode=%s, reason=%s",
            function.compile_id,
            function.label,
            function.mode.name,
            call.reason.reason,
        )
        self._demote(call, place, node)
        place.misfits += counts

    def _demote(self, call: Call, place: PlaceState, node: Node | None) -> None:
        function, options = call.function, call.function.options
        limit = options["cudagraph_managed_input_rerecord_limit"]
        for i in call.existing[-1].moved_managed(call.inputs):
            place.moved[i] += 1
            if place.moved[i] < limit or i in place.demoted:
                continue
            if options["cudagraph_managed_input_rerecord_action"] == "skip":
                reason = f"input {i}, made by a graph, keeps moving"
                place.refusal = Why(reason)
                compat.announce_skip(
                    f"skipping cudagraph due to function {function.number} reaching the "
                    f"cudagraph-managed input re-recording threshold (={limit}) on cudagraph "
                    f"node {number_of(node)}: {reason}.",
                    options.or_error,
                )
                continue
            place.demoted |= {i}
            reason = (
                f"input {i}, made by a graph, was elsewhere at {place.moved[i]} recordings; it is "
                "copied from now on"
            )
            self._ledger.add(LedgerKind.DEMOTION, function, reason, parent=number_of(node))

    def _announce_limit(self, call: Call, node: Node | None) -> None:
        """Log, in torch's words, that the limit of a place is reached: ``why_not`` refuses what
        comes there from now on."""
        function, options = call.function, call.function.options
        limit = options["cudagraph_unexpected_rerecord_limit"]
        compat.announce_skip(
            f"skipping cudagraph due to function {function.number} exceeding max "
            f"re-recording limit (={limit}) on cudagraph node {number_of(node)} due to "
            f"{call.reason.reason}.",
            options.or_error,
        )

    # ---- functions

    def _stop(self, function: FunctionSpec, why: str) -> None:
        """Record no function of ``function``'s compiled graph any more."""
        if function.compile_id is not None:
            self.stopped[function.compile_id] = f"{function.label} runs without a graph"
        for f in self._owner.functions:
            self.added(f)
        function.state.given_up = why

    def added(self, function: FunctionSpec) -> None:
        """``function`` is one of the manager's: it may be of a graph that was stopped."""
        if function.compile_id in self.stopped:
            function.state.given_up = self.stopped[function.compile_id]

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
