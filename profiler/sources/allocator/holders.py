"""Holders of the memory of a device, found from the live objects of the process without a history.

Note [What holds memory]
~~~~~~~~~~~~~~~~~~~~~~~~
Known without anybody having watched are modules and optimizers (``known``); Python's tensors; and
what autograd has saved, found over ``next_functions`` from these tensors and the operation whose
backward is running. It is read as it lies (``SavedTensor.data``): to unpack it may run hooks of the
program, which ask for memory, and there is none.

A gradient is an attribute of its parameter that Python's collector does not see. One that has a
graph itself, after ``backward(create_graph=True)``, keeps that graph, and the graph the parameter:
what such a circle has, and nobody with a name does, is said to be of ``CIRCLE``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from memprof.profiler.model import Category

from . import _torch_compat as compat
from .history import AllocatorBlock
from .referrers import COMPILED, Referrers

NAMED = 64
"""Tensors, those with most bytes, whose referrers are looked up."""

ALIKE = 8
"""Tensors of one storage or graph whose referrers are looked up, at most."""

UNNAMED = "(a tensor that nobody with a name has)"
"""Holder of a tensor whose referrers are unknown."""

CIRCLE = "gradients that have a graph, which has them (create_graph=True)"
"""Holder of memory in a reference cycle of autograd's that has no name."""

MOST_NODES = 1_000_000
"""Nodes of autograd's graphs to walk, at most."""


@dataclass(slots=True, eq=False)
class HeldStorage:
    """A storage that somebody holds.

    Attributes:
        tensors: of the program's that lie in it, some of them.
        operation: of autograd that has saved it; empty if none has.
        root: the tensor from which a graph leads to that operation; None where it is the one whose
            backward is running, or none is saved.
        chain: who refers to one of the tensors; empty if not asked, or nobody with a name does.
        root_chain: the same of ``root``; or ``CIRCLE``.
    """

    address: int
    nbytes: int
    tensors: list[torch.Tensor] = field(default_factory=list)
    operation: str = ""
    root: torch.Tensor | None = None
    chain: str = ""
    root_chain: str = ""

    @property
    def what(self) -> str:
        """In words, for a row of an account; empty if nothing is known."""
        if self.chain or not self.operation:
            return self.chain or self.root_chain
        of = f", graph of {self.root_chain}" if self.root_chain else ""
        return f"saved by {self.operation}{of}"

    @property
    def category(self) -> Category:
        """Category of the storage, as far as its holder shows it."""
        if COMPILED in self.chain:
            if _BUFFER.match(self.chain):
                return Category.TEMPORARY
            only_passed = _ARGUMENT.match(self.chain) and not self.operation
            return Category.INPUT if only_passed else Category.ACTIVATION
        made = any(compat.node_of(t) is not None for t in self.tensors)
        saved = self.operation and (made or not self.chain)
        return Category.ACTIVATION if saved else Category.TENSOR


_BUFFER = re.compile(r"buf\d+\b")
"""A variable of generated code that it has made itself; the others are its inputs."""

_ARGUMENT = re.compile(r"arg\d+_\d+\b")
"""An input of code that has no backward, or is one of compiled autograd's; others' are ``primals``,
``tangents`` and what was saved."""


class Holders:
    """Holder of each storage of the process, at one instant.

    Attributes:
        held: in order of addresses. Let go of it at once: it holds tensors.
    """

    def __init__(self, device_type: str = "cuda", *, also: Any = None) -> None:
        """``also`` is an operation of autograd to walk from, as well as from tensors."""
        self._found: dict[int, HeldStorage] = {}
        self._type = device_type
        with compat.without_torch_function():
            tensors = _tensors()
            gradients = [(t, g) for t in tensors if (g := compat.gradient_of(t)) is not None]
            self._owners = {id(g): (t, ".grad") for t, g in gradients}
            tensors = list({id(t): t for t in (*tensors, *(g for _, g in gradients))}.values())
            circles = [x for pair in gradients if compat.node_of(pair[1]) is not None for x in pair]
            self._circles = set(map(id, circles))
            for tensor in tensors:
                self._add(tensor)
            self._above: dict[int, list[torch.Tensor]] = {}
            for node, root in _operations(tensors, also, self._above):
                for saved in compat.saved_by(node):
                    self._add(saved, root, type(node).__name__)
        self.held = [self._found[a] for a in sorted(self._found)]
        self._addresses = [h.address for h in self.held]

    def name(self, most: Iterable[HeldStorage] | None = None) -> None:
        """Find out who refers to these, by default the largest, or to tensors whose graphs have
        them."""
        if most is None:
            most = sorted(self.held, key=lambda h: -h.nbytes)[:NAMED]
        chosen = list(dict.fromkeys(most))
        ours = [self._found, *self.held, *(h.tensors for h in self.held), *self._above.values()]
        chains = _chains([t for h in chosen for t in h.tensors], ours, self._owners)
        for h in chosen:
            h.chain = next((c for t in h.tensors if (c := chains[id(t)])), "")
        unnamed = [h for h in chosen if not h.chain]
        roots = [t for h in unnamed for t in self._roots_above(h.root)]
        chains = _chains(roots, [*ours, roots], self._owners)
        for h in unnamed:
            above = self._roots_above(h.root)
            h.root = next((t for t in above if chains[id(t)]), h.root)
            h.root_chain = chains.get(id(h.root), "")
            if not h.root_chain and any(id(t) in self._circles for t in (*h.tensors, *above)):
                h.root_chain = CIRCLE

    def _roots_above(self, root: torch.Tensor | None) -> list[torch.Tensor]:
        """A tensor and those whose graphs lead to it, nearest first, some of them."""
        found = [] if root is None else [root]
        for tensor in found:
            if len(found) < ALIKE:
                known = set(map(id, found))
                found += [t for t in self._above.get(id(tensor), ()) if id(t) not in known]
        return found

    def of(self, block: AllocatorBlock) -> HeldStorage | None:
        """Storage that lies in a block, with its holder; of several the first, else None."""
        address = block.first_of(self._addresses)
        return None if address is None else self._found[address]

    def address_of(self, tensor: torch.Tensor | None) -> int | None:
        """Address of the first byte of a tensor's memory; None if it has none."""
        with compat.without_torch_function():
            memory = [] if tensor is None else compat.memory_of(tensor, self._type)
        return memory[0][0] if memory else None

    def category(self, block: AllocatorBlock) -> tuple[Category, str] | None:
        """Category and holder of a block by the tensors in it; None if none is known."""
        held = self.of(block)
        return None if held is None else (held.category, held.what or UNNAMED)

    def _add(
        self, tensor: torch.Tensor, root: torch.Tensor | None = None, operation: str = ""
    ) -> None:
        """Note a tensor of the program's, or what an operation has saved."""
        for address, nbytes in compat.memory_of(tensor, self._type):
            held = self._found.get(address)
            if held is None:
                held = self._found[address] = HeldStorage(address, nbytes)
            if not operation:
                if len(held.tensors) < ALIKE:
                    held.tensors.append(tensor)
            elif not held.operation:
                held.operation, held.root = operation, root


@dataclass(frozen=True, slots=True)
class HeldGraphs:
    """Operations of autograd of one kind that still have what they saved: bytes but for
    parameters and what several of them have, the device with most of it, and who refers to the
    tensors that lead to them."""

    operations: int
    nbytes: int
    device: str
    holder: str


def held_graphs(kind_of: Callable[[Any], int | None]) -> dict[int, HeldGraphs]:
    """Operations of autograd that still have what they saved, by kind; ``kind_of`` is None of one
    that does not matter."""
    found: dict[int, list[tuple[torch.Tensor | None, list[torch.Tensor]]]] = {}
    with compat.without_torch_function():
        for node, root in _operations(_tensors()):
            kind = kind_of(node)
            saved = compat.saved_by(node) if kind is not None else []
            if kind is not None and saved:
                found.setdefault(kind, []).append((root, saved))
        return {kind: _held(operations) for kind, operations in found.items()}


def _held(operations: list[tuple[torch.Tensor | None, list[torch.Tensor]]]) -> HeldGraphs:
    having = Counter(
        memory
        for _, saved in operations
        for memory in {
            (address, nbytes, str(tensor.device))
            for tensor in saved
            if not (tensor.requires_grad and tensor.is_leaf)
            for address, nbytes in compat.memory_of(tensor, "")
        }
    )
    devices: Counter[str] = Counter()
    for (_, nbytes, device), times in having.items():
        if times == 1:
            devices[device] += nbytes
    roots = [root for root, _ in operations if root is not None]
    chains = _chains(roots[:: max(1, len(roots) // ALIKE)], [roots, operations])
    device = devices.most_common(1)[0][0] if devices else ""
    holder = most_common_chain(chains.values())
    return HeldGraphs(len(operations), devices.total(), device, holder)


def most_common_chain(chains: Iterable[str]) -> str:
    """The most frequent chain of several similar objects, whatever keys and indices it has."""
    votes = Counter(_INDEX.sub("[...]", chain) for chain in chains if chain)
    return votes.most_common(1)[0][0] if votes else ""


_INDEX = re.compile(r"\[('[^']*'|[^\]]*)\]")


def _tensors() -> list[torch.Tensor]:
    return [t for t in compat.existing(torch.Tensor) if not compat.is_stand_in(t)]


def _operations(
    tensors: list[torch.Tensor],
    also: Any = None,
    above: dict[int, list[torch.Tensor]] | None = None,
) -> Iterator[tuple[Any, torch.Tensor | None]]:
    """Every operation of autograd that tensors lead to, or the operation ``also``, each once with
    the tensor. ``above`` gets the tensors that lead to another one, by the identity of that."""
    seen: set[Any] = set()
    firsts: dict[Any, torch.Tensor] = {}
    # Tensors of which others were made come last: a loss leads to everything. But each thread has
    # numbers of its own, also that of a backward which makes a graph.
    ordered = sorted(tensors, key=compat.sequence_of, reverse=True)
    roots: list[tuple[Any, torch.Tensor | None]] = [(also, None)] if also is not None else []
    roots += [(node, t) for t in ordered if (node := compat.node_of(t)) is not None]
    for first, root in roots:
        waiting = [first]
        if root is not None and first not in seen:
            firsts[first] = root
        while waiting and len(seen) < MOST_NODES:
            node = waiting.pop()
            below = firsts.get(node)
            if above is not None and root is not None and below is not None and below is not root:
                above.setdefault(id(below), []).append(root)
            if node not in seen:
                seen.add(node)
                yield node, root
                waiting += [n for n, _ in compat.next_functions(node) if n is not None]


def _chains(
    tensors: list[torch.Tensor],
    ours: list[Any],
    owners: Mapping[int, tuple[torch.Tensor, str]] | None = None,
) -> dict[int, str]:
    """Chain of referrers of each tensor, by identity, leaving out objects of ours; owners as
    ``known`` of ``Referrers.chains``."""
    different = {id(t): t for t in tensors}
    asked = list(different.values())
    found = Referrers().chains(asked, [tensors, different, ours, *ours], owners)
    return dict(zip(different, found, strict=True))
