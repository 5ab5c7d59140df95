"""Small messages between ranks of which one alone is simulated.

Note [Messages of a pipeline]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Stages of a pipeline tell one another what they will send (sizes, strides, types) in small tensors
of integers, and then send it. What such a message says decides what a stage allocates, so it is
answered: with what the rank that sends it has sent, where that rank was simulated before
(``--ranks 0,4``); else with what this rank itself has told that rank about a tensor of floating
point numbers, in the order in which it did, since the gradient that comes back has its size.
Messages are told apart by their order: those between two tensors to one rank are about the second.
What nobody answers reads as zero, and a note says which rank would have sent it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from memprof.profiler.sources.allocator.where import line_of_caller

from .pretend import named

MAX_NUMBERS = 128
"""Most integers of a message: more are data."""
_BRING = (
    "_reduce_scatter_base_",
    "alltoall_",
    "alltoall_base_",
    "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_",
    "scatter_",
)
"""Collectives that write to their first argument what depends on other ranks."""


class Announced(msgspec.Struct):
    """Messages that were sent before a tensor, and whether it was of floating point numbers; None
    as long as it was not sent."""

    messages: list[list[int]] = []
    floats: bool | None = None


class Messages:
    """Log of the messages that this rank sends; it also serves those that it receives.

    Args:
        heard: by rank, what those that were simulated before have sent to this one.
    """

    def __init__(self, heard: Mapping[int, list[Announced]]) -> None:
        self.sent: dict[int, list[Announced]] = {}
        self.notes: dict[str, None] = {}
        self.unanswered: set[int] = set()
        self._heard = heard
        self._next: dict[int, tuple[int, int]] = {}

    def install(self) -> None:
        """Follow messages from here on; torch is there."""
        from memprof.simulated_cuda.overrides import wrap_kernels

        wrap_kernels(
            "c10d",
            {
                "send": functools.partial(_following, self._send),
                "recv_": functools.partial(_following, self._receive),
                "broadcast_": _broadcasting,
                **{name: functools.partial(_forgetting, "reduce" in name) for name in _BRING},
            },
        )

    def _to(self, rank: int) -> list[Announced]:
        return self.sent.setdefault(rank, [])

    def _send(self, tensor: Any, rank: int) -> None:
        from memprof.simulated_cuda.integers import contents, is_known

        tensors = self._to(rank)
        if not tensors or tensors[-1].floats is not None:
            tensors.append(Announced())
        if _is_message(tensor) and is_known(tensor):
            tensors[-1].messages.append(contents(tensor).flatten().tolist())
        else:
            tensors[-1].floats = tensor.is_floating_point()

    def _receive(self, tensor: Any, rank: int) -> None:
        from memprof.simulated_cuda.integers import forget, overwritten

        forget([tensor])
        number, position = self._next.get(rank, (0, 0))
        if not _is_message(tensor):
            self._next[rank] = number + 1, 0
            return
        own = [a for a in self._to(rank) if a.floats is not False]
        about = self._heard.get(rank, own)
        coming = about[number % len(about)].messages if about else []
        fitting = (i for i in range(position, len(coming)) if len(coming[i]) == tensor.numel())
        at = next(fitting, None)
        line = line_of_caller()
        where = f"numbers from rank {rank}" + (f" in {named(line)}" if line is not None else "")
        if at is None:
            self.unanswered.add(rank)
            origin = (
                f"are not known and read as 0: simulate that rank before this one (--ranks {rank},"
                "...), or give what is read of them by --pretend"
            )
        else:
            self._next[rank] = number, at + 1
            values = tensor.new_tensor(coming[at], device="cpu")
            overwritten(tensor, values.view(tensor.shape))
            origin = "are taken to be what this rank has sent there"
        if at is None or rank not in self._heard:
            self.notes[f"{where} {origin}"] = None


def _is_message(tensor: Any) -> bool:
    return str(tensor.dtype) in ("torch.int32", "torch.int64") and tensor.numel() <= MAX_NUMBERS


def _forgetting(reduces: bool, run: Callable[..., Any]) -> Callable[..., Any]:
    """A collective whose outputs nobody knows, but for what is copied there as if every rank had
    it: that is no sum."""

    def forgotten(keys: Any, outputs: Any, *args: Any) -> Any:
        from memprof.simulated_cuda.integers import forget

        tensors = outputs if isinstance(outputs, list) else [outputs]
        forget(tensors)
        result = run(keys, outputs, *args)
        if reduces:
            forget(tensors)
        return result

    return forgotten


def _broadcasting(run: Callable[..., Any]) -> Callable[..., Any]:
    """A broadcast. Zeros where another rank's values would come are a place for these, and nobody
    knows what comes there; anything else is what every rank has."""

    def broadcast(keys: Any, tensors: list[Any], group: Any, root: int, *args: Any) -> Any:
        import torch.distributed as distributed

        from memprof.simulated_cuda.integers import SMALL, contents, forget, is_known

        work = run(keys, tensors, group, root, *args)
        if distributed.ProcessGroup.unbox(group).rank() != root:
            small = [t for t in tensors if t.nbytes <= SMALL and is_known(t)]
            forget(t for t in small if not contents(t).any())
        return work

    return broadcast


def _following(follow: Callable[[Any, int], None], run: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of ``c10d`` between this rank and another, whose number it has in the group."""

    def followed(keys: Any, tensors: list[Any], group: Any, member: int, tag: int) -> Any:
        import torch.distributed as distributed

        members = distributed.ProcessGroup.unbox(group)
        for tensor in tensors:
            follow(tensor, distributed.get_global_rank(members, member))
        return run(keys, tensors, group, member, tag)

    return followed
