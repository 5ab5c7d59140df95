"""Why a function is not recorded, or recorded no more, at a place of the tree.

A *place* is a function and the recording that it comes after. What is known about it
outlives the recordings that were tried there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import torch

from . import _torch_compat as compat

if TYPE_CHECKING:
    from .device.protocol import Input
    from .function import Function
    from .node_recorded import CUDAGraphNode
    from .node_warmup import CUDAWarmupNode

Place: TypeAlias = "tuple[int | None, Function]"
"""Number of the node before, None at a root, and the function."""


class Places:
    """What is known about the places of one manager's tree."""

    def __init__(self) -> None:
        self._skipped: dict[Place, str] = {}
        self._recorded_again: dict[Place, int] = defaultdict(int)
        self._moves: dict[Place, dict[int, int]] = {}
        self._demoted: dict[Place, frozenset[int]] = {}
        self._warned_inputs: set[Function] = set()
        self._warned_limit: set[Place] = set()

    def forget(self) -> None:
        """All recordings are gone: what was learned from them is, too."""
        for known in (self._skipped, self._recorded_again, self._moves, self._demoted):
            known.clear()

    def forget_function(self, function: Function) -> None:
        """``function`` is gone."""
        self._warned_inputs.discard(function)
        self._warned_limit = {p for p in self._warned_limit if p[1] is not function}
        for known in (self._skipped, self._recorded_again, self._moves, self._demoted):
            for place in [p for p in known if p[1] is function]:
                del known[place]

    def reason_against(
        self,
        place: Place,
        inputs: list[Input],
        node: CUDAGraphNode | CUDAWarmupNode | None,
        *,
        again: bool = False,
    ) -> str:
        """Why the function runs without a graph at this place; "" if nothing speaks against one.

        Args:
            place: where.
            inputs: of the call, as it was made.
            node: the one before, that ``place`` names.
            again: look at the inputs, even if that was done at this place before.
        """
        if place not in self._skipped or again:
            self._skipped[place] = self._look(place[1], inputs, node)
        return self._skipped[place]

    def known_reason(self, place: Place) -> str:
        """The reason that was found before, "" if there is none or nobody looked."""
        return self._skipped.get(place, "")

    def _look(
        self,
        function: Function,
        inputs: list[Input],
        node: CUDAGraphNode | CUDAWarmupNode | None,
    ) -> str:
        support = function.options.supports_mutation
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
            return ""
        # An error each time says which line writes.
        if function.options.or_error or function not in self._warned_inputs:
            self._warned_inputs.add(function)
            message = compat.mutation_message(function.placeholders, bad)
            compat.announce_skip(message, function.options.or_error)
        return "it writes to inputs that graphs copy"

    def input_elsewhere(self, function: Function, inputs: list[Input], device: torch.device) -> str:
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
        """Whether that has happened too often."""
        return self._recorded_again.get(place, 0) > place[1].options.rerecord_limit

    def warn_of_limit(self, place: Place, reason: str) -> None:
        """Torch's sentence about it, once."""
        if place not in self._warned_limit:
            self._warned_limit.add(place)
            options = place[1].options
            compat.announce_skip(
                f"skipping cudagraph due to function {place[1].id.id} exceeding max "
                f"re-recording limit (={options.rerecord_limit}) on cudagraph node {place[0]} "
                f"due to {reason}.",
                options.or_error,
            )

    # ---- managed inputs that keep moving

    def demoted(self, place: Place) -> frozenset[int]:
        """Inputs that are copied there although a node of the path made them."""
        return self._demoted.get(place, frozenset())

    def demote(self, place: Place, latest: CUDAGraphNode, inputs: list[Input]) -> Iterator[str]:
        """Copy managed inputs from now on that have kept moving.

        Args:
            place: where.
            latest: the last recording there; it does not fit.
            inputs: of the call that it does not fit.

        Yields:
            A sentence about each input that was demoted.
        """
        options = place[1].options
        limit = options.managed_input_rerecord_limit
        counts = self._moves.setdefault(place, {})
        for i in latest.moved_managed(inputs):
            counts[i] = counts.get(i, 0) + 1
            if counts[i] >= limit and i not in self.demoted(place):
                if options.managed_input_rerecord_action == "skip":
                    reason = self._skipped[place] = f"input {i}, made by a graph, keeps moving"
                    compat.announce_skip(
                        f"skipping cudagraph due to function {place[1].id.id} reaching the "
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
