"""Differences of the categories from torch's, and why.

torch's rules see operators and versions. Each ``Rule`` adds one thing that the trace knows besides,
and is the only source of one kind of difference; which one decided is kept for every value, so
that a difference can be looked up. With ``rules=()`` the categories are torch's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import numpy as np

from .categories import (
    ACTIVATION,
    AUTOGRAD_DETAIL,
    GRADIENT,
    OPTIMIZER_STATE,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
)
from .columns import Bytes, EventColumns, Ints, at, frozen
from .context import NO_PHASE, PHASE_BACKWARD, PHASE_FORWARD, PHASE_OPTIMIZER, Context
from .graph import Graph
from .storages import Storages


class Rule(IntEnum):
    """Rule that decided a category. In order; later rules overrule earlier ones."""

    TORCH = 0
    FORWARD_CALL = 1
    """Unknown to torch, made in a module's forward and outside the backward: an activation, or
    temporary if it is released before the module returns. torch finds activations by following
    values that operators read, so it knows nothing of a result that no operator reads."""
    BACKWARD_PASS = 2
    """Unknown to torch and made by the autograd engine, in a node or between nodes (it sums
    gradients of broadcast operands there): autograd detail. So is what is made outside of modules
    for a backward node to read, such as the ones that a backward starts from."""
    SCRATCH = 3
    """A storage without a tensor, released within the operator that made it: temporary."""
    OPTIMIZER_STEP = 4
    """Made inside an optimizer step: temporary if released inside it, else optimizer state. torch
    does not know the former and learns of the latter at the next step's start; over several steps
    its flood takes the temporaries for activations."""
    OBJECTS = 5
    """At the address of a tensor of the modules or optimizers that the caller named."""
    COMPILED_PHASE = 6
    """Made in, or handed to, compiled code: Note [Compiled code has no data flow]. This is known
    before torch's rules run, which then start from it."""


ALL_RULES: frozenset[Rule] = frozenset(Rule) - {Rule.TORCH}

Address = tuple[str, int]
"""Name of a device, and address on it where a storage begins."""


class KnownObjects:
    """Tensors of the caller's modules and optimizers, and the modules.

    Attributes:
        tensors: category: PARAMETER (buffers too), OPTIMIZER_STATE, or GRADIENT for what is in
            ``.grad``.
        paths: of each module, by ``id()``.
    """

    def __init__(self, modules: Iterable[Any] = (), optimizers: Iterable[Any] = ()) -> None:
        self.tensors: dict[Address, int] = {}
        self.paths: dict[int, str] = {}
        members: list[Any] = []
        for module in modules:
            module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
            for path, child in module.named_modules():
                self.paths.setdefault(id(child), path or type(child).__name__)
            members += [*module.parameters(), *module.buffers()]
        states: list[Any] = []
        for optimizer in optimizers:
            members += [p for group in optimizer.param_groups for p in group["params"]]
            for state in optimizer.state.values():
                states += state.values() if isinstance(state, dict) else ()
        for t in members:
            self._add(t, PARAMETER)
        for t in states:
            if hasattr(t, "untyped_storage"):
                self._add(t, OPTIMIZER_STATE)
        for t in members:
            if t.grad is not None:
                self._add(t.grad, GRADIENT)

    def _add(self, t: Any, category: int) -> None:
        try:
            address = str(t.device), int(t.untyped_storage().data_ptr())
        except (NotImplementedError, RuntimeError, ValueError):
            return  # No storage of its own: a sparse gradient, a parameter of a lazy module.
        if address[1]:  # it has memory
            self.tensors.setdefault(address, category)


def correct(
    columns: EventColumns,
    graph: Graph,
    by_torch: Bytes,
    context: Context,
    storages: Storages,
    compiled: Bytes | None,
    objects: KnownObjects,
    rules: frozenset[Rule],
) -> tuple[Bytes, Bytes, Ints]:
    """Applies rules to the categories by torch's, an entry a value.

    Returns:
        The category and the ``Rule`` that decided it, an entry a value and then one a block; and by
        storage the entry of its version 0, with the number of entries at the end.
    """
    n = storages.keys
    blocks = np.arange(1, len(storages) - n + 1, dtype=np.int32)
    # What holds of a storage holds of all its values.
    storage = np.concatenate([graph.value_key, np.arange(n, len(storages), dtype=np.int32)])
    category = np.concatenate([by_torch, np.zeros(len(storages) - n, np.uint8)])
    rule = np.zeros(len(category), np.uint8)

    def apply(which: Rule, chosen: Any, value: Any) -> None:
        """Give the chosen entries a category, each its own or all the same."""
        if which not in rules:
            return
        rows = np.flatnonzero(chosen)
        new = np.broadcast_to(value, category.shape)[rows]
        changed = category[rows] != new
        rule[rows[changed]] = which
        category[rows] = new

    row = storages.created[storage]
    made = row >= 0
    phase = at(context.phase, row, NO_PHASE)
    unknown = category == UNKNOWN
    scopes = columns.scopes
    died = storages.died[storage]
    module = at(context.module, row)
    compiled_call = at(context.compiled, row) >= 0

    in_module = (module >= 0) & (phase == PHASE_FORWARD) & ~compiled_call
    before_return = died <= at(scopes.end, module, 0)
    apply(Rule.FORWARD_CALL, unknown & in_module & before_return, TEMPORARY)
    apply(Rule.FORWARD_CALL, unknown & in_module & ~before_return, ACTIVATION)
    del in_module, before_return
    seed = np.zeros(len(storages), np.bool_)
    seed[graph.edge_key[(graph.in_value >= 0) & graph.backward[graph.edge_node]]] = True
    for_backward = seed[storage] & (phase == PHASE_FORWARD) & (module < 0) & ~compiled_call
    for_backward |= phase == PHASE_BACKWARD
    apply(Rule.BACKWARD_PASS, unknown & for_backward, AUTOGRAD_DETAIL)
    last = storages.destroyed[storage]
    leaf = columns.allocations.leaf
    same_leaf = made & (last >= 0) & (at(leaf, row) == at(leaf, last))
    apply(Rule.SCRATCH, (storage >= n) & same_leaf, TEMPORARY)
    del last, same_leaf

    step = at(context.optimizer, row)
    in_step = phase == PHASE_OPTIMIZER
    gone = died <= at(scopes.end, step, 0)
    firm = np.isin(category, (PARAMETER, GRADIENT, OPTIMIZER_STATE))
    apply(Rule.OPTIMIZER_STEP, in_step & gone, TEMPORARY)
    apply(Rule.OPTIMIZER_STEP, in_step & ~gone & ~firm, OPTIMIZER_STATE)

    if objects.tensors:
        named = _named_keys(columns, storages, objects)
        apply(Rule.OBJECTS, named[storage] != 0, named[storage])

    if compiled is not None:
        known = compiled[storage]
        # A storage the caller's objects name is what they say it is.
        chosen = (known != 0) & (rule != Rule.OBJECTS) & ~in_step
        # Given before torch's rules ran, so the category already agrees.
        category[chosen] = known[chosen]
        rule[chosen] = Rule.COMPILED_PHASE

    first = np.concatenate([graph.first_value, graph.first_value[-1] + blocks])
    return frozen(category, np.uint8), frozen(rule, np.uint8), frozen(first)


def _named_keys(columns: EventColumns, storages: Storages, objects: KnownObjects) -> Bytes:
    """Category of the storages (keys, then blocks) that live objects occupy, 0 elsewhere. Of those
    that an address has held, it is the last, which the trace did not see released."""
    out = np.zeros(len(storages), np.uint8)
    alive = np.flatnonzero(storages.destroyed[: storages.keys] < 0)
    devices = [str(d) for d in columns.devices]
    latest: dict[Address, int] = {}
    for key in alive[np.argsort(storages.born[alive], kind="stable")].tolist():
        address = devices[int(columns.keys.device[key])], int(columns.keys.ptr[key]) % (1 << 64)
        latest[address] = key
    for address, key in latest.items():
        out[key] = objects.tensors.get(address, UNKNOWN)
    return out
