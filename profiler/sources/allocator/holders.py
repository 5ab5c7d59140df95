"""Holders of the memory of a device, found from the live objects of the process without a history.

Note [What holds memory]
~~~~~~~~~~~~~~~~~~~~~~~~
Known without anybody having watched are modules and optimizers (``known``); Python's tensors, and
which variable leads to them (``variables``); and what autograd has saved, found over
``next_functions`` from these tensors and the operation whose backward is running. It is read as it
lies (``SavedTensor.data``): to unpack it may run hooks of the program, which ask for memory, and
there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from memprof.profiler.model import Category

from . import _torch_compat as compat
from .history import AllocatorBlock
from .variables import COMPILED, variables

UNNAMED = "(a tensor that no variable leads to)"
"""Holder of a tensor of which nothing else is known."""

MOST_NODES = 1_000_000
"""Nodes of autograd's graphs to walk, at most."""


@dataclass(slots=True, eq=False)
class HeldStorage:
    """A storage that somebody holds.

    Attributes:
        variable: that leads to one of the tensors in it; empty if none does.
        made: whether an operation of autograd has made one of these.
        operation: of autograd that has saved it; empty if none has.
        root: variable that leads to the tensor whose graph has that operation; empty if none does.
    """

    variable: str = ""
    made: bool = False
    operation: str = ""
    root: str = ""

    @property
    def what(self) -> str:
        """In words, for a row of an account."""
        if self.variable or not self.operation:
            return self.variable or UNNAMED
        of = f", graph of {self.root}" if self.root else ""
        return f"saved by {self.operation}{of}"

    @property
    def category(self) -> Category:
        """Category of the storage, as far as its holder shows it."""
        if COMPILED in self.variable:
            if _BUFFER.match(self.variable):
                return Category.TEMPORARY
            only_passed = _ARGUMENT.match(self.variable) and not self.operation
            return Category.INPUT if only_passed else Category.ACTIVATION
        saved = self.operation and (self.made or not self.variable)
        return Category.ACTIVATION if saved else Category.TENSOR


_BUFFER = re.compile(r"buf\d+\b")
"""A variable of generated code that it has made itself; the others are its inputs."""

_ARGUMENT = re.compile(r"arg\d+_\d+\b")
"""An input of code that has no backward, or is one of compiled autograd's; others' are ``primals``,
``tangents`` and what was saved."""


class Holders:
    """Holder of each storage of the process, at one instant.

    Attributes:
        held: by the address of the first byte, ascending.
    """

    def __init__(self, device_type: str = "cuda", *, also: Any = None) -> None:
        """``also`` is an operation of autograd to walk from, as well as from tensors."""
        found: dict[int, HeldStorage] = {}
        with compat.without_torch_function():
            names, tensors = variables(), _tensors()
            for tensor in tensors:
                for address, _ in compat.memory_of(tensor, device_type):
                    held = found.setdefault(address, HeldStorage())
                    held.variable = held.variable or names.get(id(tensor), "")
                    held.made |= compat.node_of(tensor) is not None
            # What a variable leads to comes first, and of that what was made last: a loss leads
            # to everything.
            tensors.sort(key=lambda t: (id(t) in names, compat.sequence_of(t)), reverse=True)
            for node, root in _operations(tensors, also):
                for saved in compat.saved_by(node):
                    for address, _ in compat.memory_of(saved, device_type):
                        held = found.setdefault(address, HeldStorage())
                        if not held.operation:
                            held.operation = type(node).__name__
                            held.root = names.get(id(root), "")
        self.held = dict(sorted(found.items()))
        self._addresses = list(self.held)

    def of(self, block: AllocatorBlock) -> HeldStorage | None:
        """Storage that lies in a block, with its holder; of several the first, else None."""
        address = block.first_of(self._addresses)
        return None if address is None else self.held[address]


def _tensors() -> list[torch.Tensor]:
    """Tensors of the process that have memory of their own, with their gradients, which Python's
    collector does not see."""
    tensors = [t for t in compat.existing(torch.Tensor) if not compat.is_stand_in(t)]
    gradients = [g for t in tensors if (g := compat.gradient_of(t)) is not None]
    return list({id(t): t for t in (*tensors, *gradients)}.values())


def _operations(
    tensors: list[torch.Tensor], also: Any = None
) -> Iterator[tuple[Any, torch.Tensor | None]]:
    """Every operation of autograd that tensors lead to, or the operation ``also``, each once with
    the first tensor that does."""
    seen: set[Any] = set()
    roots: list[tuple[Any, torch.Tensor | None]] = [(also, None)] if also is not None else []
    roots += [(node, t) for t in tensors if (node := compat.node_of(t)) is not None]
    for first, root in roots:
        waiting = [first]
        while waiting and len(seen) < MOST_NODES:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                yield node, root
                waiting += [n for n, _ in compat.next_functions(node) if n is not None]
