"""``profile_memory``: from a torch.profiler run to a memory profile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from memprof.profiler.model import Category
from memprof.profiler.model.dataflow import NO_EVENTS

from . import _torch_compat as compat
from .categories import CATEGORIES, deduce
from .columns import Bytes, EventColumns, Ints, ScopeKind, frozen
from .compiled import of_compiled_code
from .context import find_context
from .corrections import KnownObjects, correct
from .graph import build_graph
from .read import read_events
from .storages import find_changes, lifetimes


class DataFlowProfile:
    """A memory profile of one profiler run, in columns.

    Args:
        columns: what was read of the run.
        corrections: apply memprof's; without them the categories are torch's exactly.
        objects: what is known of the model's and the optimizer's tensors.

    Attributes:
        columns: what was read of the run.
        graph: the data-flow graph.
        counted: which storages of the key table take part.
        changes: what happened to memory, by time.
        storages: when each storage was made and released.
        context: where each allocation was made.
        compiled_calls: how many calls of compiled code the trace has; what is inside of them is
            in memprof's report of compiled code.
    """

    def __init__(
        self,
        columns: EventColumns,
        *,
        corrections: bool = True,
        objects: KnownObjects | None = None,
    ) -> None:
        objects = objects or KnownObjects()
        self._paths = objects.paths
        self.columns = columns
        self.graph = graph = build_graph(columns)
        self.context = context = find_context(columns)
        self.storages = storages = lifetimes(columns)
        code = (ScopeKind.COMPILED_CALL, ScopeKind.GENERATED_CODE)
        outer = columns.scopes.around(*code, outermost=True)
        self.compiled_calls = len(np.unique(outer[outer >= 0]))
        compiled = np.zeros(len(storages), np.uint8)
        if self.compiled_calls and corrections:
            compiled = of_compiled_code(columns, context, storages)
        by_torch, self.counted = deduce(columns, graph, compiled[: storages.keys])
        self.changes = find_changes(columns, graph, self.counted, storages)
        # An entry a value and then one a block; the entry of each storage's version 0, and the end.
        blocks = len(storages) - storages.keys
        self._category = np.concatenate([by_torch, np.zeros(blocks, np.uint8)])
        first = graph.first_value
        numbers = first[-1] + np.arange(1, blocks + 1, dtype=np.int32)
        self._first = frozen(np.concatenate([first, numbers]))
        if corrections:
            correct(columns, graph, self._category, context, storages, compiled, objects)

    # -- categories -----------------------------------------------------------------

    def category(self, storage: int, version: int = 0) -> Category:
        """The category of a version of a storage, given by row.

        A version that the trace does not have counts as the nearest one it has. A storage
        without a key has one version.
        """
        first, end = self._first[storage : storage + 2].tolist()
        return CATEGORIES[self._category[min(first + max(version, 0), end - 1)]]

    def change_categories(self) -> tuple[Bytes, Bytes]:
        """Numbers of the categories before and after each change.

        Equal but for increments of a version, which move bytes from one to the other.
        """
        changes = self.changes
        before = self._first[changes.storage] + changes.version
        # An increment leads to the next version; nothing else does.
        after = before + (changes.action == compat.INCREMENT_VERSION)
        return self._category[before], self._category[after]

    # -- names ----------------------------------------------------------------------

    def module_path(self, scope: int) -> str:
        """Name of a module call: its path where the caller named the model, else the
        names of the calls around it, outermost first."""
        parts: list[str] = []
        scopes = self.columns.scopes
        while scope >= 0:
            if scopes.kind[scope] == ScopeKind.MODULE:
                path = self._paths.get(int(scopes.identity[scope]))
                if path is not None:
                    return path
                name = self.columns.names[int(scopes.name[scope])]
                parts.append(name.removeprefix(compat.MODULE_PREFIX))
            scope = int(scopes.parent[scope])
        return ".".join(reversed(parts))

    def module(self, storage: int) -> str | None:
        """The module that a storage was made for; None if none is known."""
        row = int(self.storages.created[storage])
        return (self.module_path(int(self.context.module[row])) or None) if row >= 0 else None

    def operator(self, storage: int) -> str | None:
        """The operator that made a storage; None if none is known."""
        row = int(self.storages.created[storage])
        if row < 0:
            return None
        name = int(self.columns.allocations.op[row])
        if name < 0:
            name = int(self.columns.leaves.name[self.columns.allocations.leaf[row]])
        return self.columns.names[name] if name >= 0 else None

    def __repr__(self) -> str:
        return f"<DataFlowProfile: {len(self.storages.device):,} storages on {self.devices}>"

    @property
    def devices(self) -> list[str]:
        """Devices with memory in this profile, e.g. ``["cpu", "cuda:0"]``; none where the trace
        has no memory events: of what operators took nothing would say when it was let go of."""
        used = np.unique(self.storages.device).tolist() if len(self.columns.allocations) else []
        return sorted(str(self.columns.devices[i]) for i in used)

    def device_index(self, device: str) -> int:
        """Row of a device.

        Raises:
            ValueError: the trace has nothing on it, or no memory events.
        """
        known = [str(d) for d in self.columns.devices]
        if str(device) in known and len(self.columns.allocations):
            return known.index(str(device))
        raise ValueError(
            f"nothing in this trace is on {device!r}; it has {self.devices or NO_EVENTS}"
        )

    def versions_at(self, time: int) -> Ints:
        """Version of each storage at a time, counting writes by their start."""
        t = self.changes
        writes = (t.action == compat.INCREMENT_VERSION) & (t.time <= time)
        return np.bincount(t.storage[writes], minlength=len(self.storages))


def profile_memory(
    result: Any,
    *,
    modules: Iterable[Any] | Any = (),
    optimizers: Iterable[Any] | Any = (),
    corrections: bool = True,
) -> DataFlowProfile:
    """The memory profile of a finished ``torch.profiler`` run.

    Args:
        result: a ``torch.profiler.profile`` made with ``record_shapes=True, profile_memory=True,
            with_stack=True`` that has stopped, or the ``_ProfilerResult`` inside it.
        modules, optimizers: the model and optimizer that were traced, or several. Their
            tensors are then known for what they are, and modules by their path.
        corrections: apply memprof's; without them the categories are torch's exactly.

    Raises:
        TypeError: ``result`` is no profiler result.
        ValueError: it has not stopped, or lacks one of the three options.
    """
    missing = compat.missing_options(result)
    if missing:
        raise ValueError(
            f"the profiler ran without {', '.join(missing)}; memory analysis needs "
            "torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True)"
        )
    return DataFlowProfile(
        read_events(result),
        corrections=corrections,
        objects=KnownObjects(_several(modules), _several(optimizers)),
    )


def _several(given: Any) -> list[Any]:
    """One object or several, as a list. A module may itself be iterable: it is one."""
    if isinstance(given, (list, tuple, set)):
        return list(given)
    return [] if given is None else [given]
