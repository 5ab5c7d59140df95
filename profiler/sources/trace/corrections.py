"""Differences of the categories from torch's, and why.

torch's rules see operators and versions. Each correction adds one thing that the trace knows
besides; later ones overrule earlier ones. A value is

* an activation, or temporary if it is released before the module returns: unknown to torch, made in
  a module's forward and outside the backward. torch finds activations by following values that
  operators read, so it knows nothing of a result that no operator reads;
* autograd detail: unknown to torch and made by the autograd engine, in a node or between nodes (it
  sums gradients of broadcast operands there), or made outside of modules for a backward node to
  read, such as the ones that a backward starts from;
* temporary: a storage without a tensor, released within the operator that made it;
* temporary if released inside the optimizer step that made it, else optimizer state. torch does not
  know the former and learns of the latter at the next step's start; over several steps its flood
  takes the temporaries for activations;
* what the caller's modules and optimizers say, at the address of a tensor of theirs;
* by the phase, if made in, or handed to, compiled code: Note [Compiled code has no data flow]. This
  is known before torch's rules run, which then start from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from memprof.profiler.sources.allocator._torch_compat import memory_of

from .categories import (
    ACTIVATION,
    AUTOGRAD_DETAIL,
    GRADIENT,
    OPTIMIZER_STATE,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
)
from .columns import Bytes, EventColumns, at
from .context import NO_PHASE, PHASE_BACKWARD, PHASE_FORWARD, PHASE_OPTIMIZER, Context
from .graph import Graph
from .storages import Storages

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
            self._add(t, OPTIMIZER_STATE)
        for t in members:
            if t.grad is not None:
                self._add(t.grad, GRADIENT)

    def _add(self, t: Any, category: int) -> None:
        for address, _ in memory_of(t, ""):
            self.tensors.setdefault((str(t.device), address), category)


def correct(
    columns: EventColumns,
    graph: Graph,
    category: Bytes,
    context: Context,
    storages: Storages,
    compiled: Bytes,
    objects: KnownObjects,
) -> None:
    """Corrects categories in place, an entry a value and then one a block."""
    n = storages.keys
    # What holds of a storage holds of all its values.
    storage = np.concatenate([graph.value_key, np.arange(n, len(storages), dtype=np.int32)])
    row = storages.created[storage]
    phase = at(context.phase, row, NO_PHASE)
    unknown = category == UNKNOWN
    scopes = columns.scopes
    died = storages.died[storage]
    module = at(context.module, row)
    compiled_call = at(context.compiled, row) >= 0

    in_module = unknown & (module >= 0) & (phase == PHASE_FORWARD) & ~compiled_call
    category[in_module] = ACTIVATION
    category[in_module & (died <= at(scopes.end, module, 0))] = TEMPORARY
    seed = np.zeros(len(storages), np.bool_)
    seed[graph.edge_key[(graph.in_value >= 0) & graph.backward[graph.edge_node]]] = True
    for_backward = seed[storage] & (phase == PHASE_FORWARD) & (module < 0) & ~compiled_call
    for_backward |= phase == PHASE_BACKWARD
    category[unknown & for_backward] = AUTOGRAD_DETAIL
    last = storages.destroyed[storage]
    leaf = columns.allocations.leaf
    same_leaf = (row >= 0) & (last >= 0) & (at(leaf, row) == at(leaf, last))
    category[(storage >= n) & same_leaf] = TEMPORARY

    in_step = phase == PHASE_OPTIMIZER
    gone = died <= at(scopes.end, at(context.optimizer, row), 0)
    firm = np.isin(category, (PARAMETER, GRADIENT, OPTIMIZER_STATE))
    category[in_step & gone] = TEMPORARY
    category[in_step & ~gone & ~firm] = OPTIMIZER_STATE

    named = _named_keys(columns, storages, objects)[storage]
    category[named != 0] = named[named != 0]
    known = compiled[storage]
    # A storage the caller's objects name is what they say it is.
    chosen = (known != 0) & (named == 0) & ~in_step
    category[chosen] = known[chosen]


def _named_keys(columns: EventColumns, storages: Storages, objects: KnownObjects) -> Bytes:
    """Category of the storages (keys, then blocks) that live objects occupy, 0 elsewhere. Of those
    that an address has held, it is the last, which the trace did not see released."""
    out = np.zeros(len(storages), np.uint8)
    if not objects.tensors:
        return out
    alive = np.flatnonzero(storages.destroyed[: storages.keys] < 0)
    devices = [str(d) for d in columns.devices]
    latest: dict[Address, int] = {}
    for key in alive[np.argsort(storages.born[alive], kind="stable")].tolist():
        address = devices[int(columns.keys.device[key])], int(columns.keys.ptr[key]) % (1 << 64)
        latest[address] = key
    for address, key in latest.items():
        out[key] = objects.tensors.get(address, UNKNOWN)
    return out
