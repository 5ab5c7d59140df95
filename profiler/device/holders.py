"""Whose the memory of a device is, asked of the live objects of the process: no history needed.

Note [What holds memory]
~~~~~~~~~~~~~~~~~~~~~~~~
Three kinds of owners are known without anybody having watched: parameters, gradients and optimizer
state (``known``); Python's tensors, which the collector knows; and what autograd has saved. The
last is found by walking from the tensors that the program holds, and from the operation whose
backward is running, over ``next_functions``. What an operation has saved is read as it lies
(``SavedTensor.data``): to unpack it may run hooks of the program, which copy to the device or
compute again, and there is no memory for either.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from memprof.profiler.model import Purpose

from . import _torch_compat as compat
from .referrers import COMPILED, Referrers
from .replay import Block

NAMED = 64
"""Tensors, those with most bytes, of which it is asked who refers to them."""

UNNAMED = "(a tensor that nobody with a name has)"
"""Holder of a tensor of which it is not known who refers to it."""

MOST_NODES = 1_000_000
"""Of autograd's graphs, that are walked."""


@dataclass(slots=True, eq=False)
class Held:
    """Memory that somebody holds.

    Attributes:
        address: of the first byte of its storage.
        nbytes: of the storage.
        tensor: of the program's, that holds it: itself, or by the graph that leads to it.
        operation: of autograd that has saved it; empty if none has.
        direct: whether the tensor itself is in it, and not only leads to it.
        made: whether autograd has made it, so that it is no leaf.
        chain: who refers to the tensor, see ``referrers.py``; empty if not asked or not found.
    """

    address: int
    nbytes: int
    tensor: torch.Tensor | None
    operation: str = ""
    direct: bool = True
    made: bool = False
    chain: str = ""

    @property
    def what(self) -> str:
        """In words, for a row of an account."""
        if self.direct and self.chain:
            return self.chain
        graph = f", graph of {self.chain}" if self.chain and not self.direct else ""
        return f"saved by {self.operation}{graph}" if self.operation else ""


class Holders:
    """What every piece of memory of the process is held by, at one instant.

    Attributes:
        held: by address, in order of addresses. Let go of it at once: it holds tensors.
    """

    def __init__(self, device_type: str = "cuda", *, also: Any = None) -> None:
        """
        Args:
            device_type: whose memory.
            also: an operation of autograd to walk from, as well as from tensors.
        """
        self._found: dict[int, Held] = {}
        self._type = device_type
        with compat.without_torch_function():
            tensors = [t for t in compat.existing(torch.Tensor) if not compat.is_stand_in(t)]
            for tensor in tensors:
                self._add(tensor, tensor)
            seen: set[Any] = set()
            if also is not None:
                self._walk(also, None, seen)
            # From those first of which the program made others last: a loss leads to all.
            for tensor in sorted(tensors, key=compat.sequence_of, reverse=True):
                node = compat.node_of(tensor)
                if node is not None:
                    self._walk(node, tensor, seen)
        self.held = [self._found[a] for a in sorted(self._found)]
        self._addresses = [h.address for h in self.held]

    def name(self, most: Iterable[Held] | None = None) -> None:
        """Find out who refers to those with most bytes.

        Args:
            most: to ask for; by default the largest.
        """
        chosen = list(most) if most is not None else []
        if most is None:
            chosen = sorted(self.held, key=lambda h: -h.nbytes)[:NAMED]
        tensors = {id(h.tensor): h.tensor for h in chosen if h.tensor is not None}
        asked = list(tensors.values())
        chains = dict(zip(tensors, Referrers().chains(asked, [tensors]), strict=True))
        for h in self.held:
            if h.tensor is not None:
                h.chain = chains.get(id(h.tensor), h.chain)

    def of(self, block: Block) -> Held | None:
        """Who holds a block, as far as that is known: of several the first."""
        at = bisect.bisect_left(self._addresses, block.address)
        if at < len(self.held) and self._addresses[at] < block.address + block.size:
            return self.held[at]
        return None

    def purpose(self, block: Block) -> tuple[Purpose, str] | None:
        """What a block is for of which nothing else is known."""
        held = self.of(block)
        if held is None:
            return None
        if COMPILED in held.chain:
            return Purpose.TEMPORARY, held.what
        saved = held.operation and (held.made or not held.direct or not held.chain)
        return Purpose.ACTIVATION if saved else Purpose.TENSOR, held.what or UNNAMED

    def _add(self, tensor: torch.Tensor, by: torch.Tensor | None, operation: str = "") -> None:
        for address, nbytes in compat.memory_of(tensor, self._type):
            held = self._found.get(address)
            if held is None:
                made = compat.node_of(tensor) is not None
                self._found[address] = Held(address, nbytes, by, operation, not operation, made)
            else:
                held.operation = held.operation or operation

    def _walk(self, root: Any, tensor: torch.Tensor | None, seen: set[Any]) -> None:
        waiting = [root]
        while waiting and len(seen) < MOST_NODES:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            name = compat.node_name(node)
            for saved in compat.saved_by(node):
                self._add(saved, tensor, name)
            waiting += [n for n, _ in compat.next_functions(node) if n is not None]
