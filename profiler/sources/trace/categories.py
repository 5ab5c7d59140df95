"""Category of each value: the rules of torch's memory profile, over columns.

Note [Precedence]
~~~~~~~~~~~~~~~~~
A category is known of a tensor id, of a storage, or of one version of a storage, and holds in that
order. Rules run in the order of ``deduce``; those by id overwrite each other, those by version
never do.

Note [Depends on a gradient]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Parameters depend on gradients through their updates, activations through parameters, inputs on
nothing. The first step sees parameters before any update, so one asks of the tensor id, not of a
version: an id depends on a gradient if it is read where a gradient or parameter is, or is made by a
node that reads such an id. That is reachability in the graph of ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from memprof.profiler.model import Category

from .columns import Bools, Bytes, EventColumns, Ints, frozen
from .graph import Graph

CATEGORIES = (
    Category.UNKNOWN,
    Category.INPUT,
    Category.TEMPORARY,
    Category.ACTIVATION,
    Category.GRADIENT,
    Category.AUTOGRAD_DETAIL,
    Category.PARAMETER,
    Category.OPTIMIZER_STATE,
)
"""Category of each number in a column of categories; the numbers are torch's."""
UNKNOWN, INPUT, TEMPORARY, ACTIVATION = range(4)
GRADIENT, AUTOGRAD_DETAIL, PARAMETER, OPTIMIZER_STATE = range(4, 8)
ORDER = (
    PARAMETER,
    OPTIMIZER_STATE,
    INPUT,
    TEMPORARY,
    ACTIVATION,
    GRADIENT,
    AUTOGRAD_DETAIL,
    UNKNOWN,
)
"""Categories from the bottom of a plot to its top, as torch's exports number them."""


class _Deduction:
    """The rules, run once in order by ``deduce``."""

    def __init__(self, columns: EventColumns, graph: Graph, given: Bytes) -> None:
        self.graph, keys = graph, columns.keys
        self.tensor_index = keys.tensor_index
        ids = int(keys.tensor_index.max()) + 1 if len(keys) else 0
        self.by_id = np.zeros(ids, np.uint8)
        self.by_key = np.zeros(len(keys), np.uint8)
        self.by_version = np.zeros(len(graph.value_key), np.uint8)
        self.given = given
        self.present = np.zeros(len(keys), np.bool_)
        self.present[graph.edge_key] = True
        self.id_of_value = keys.tensor_index[graph.value_key]

        self.reads, self.read_bounds = _known(graph.in_value, graph.bounds)
        self.makes, self.make_bounds = _known(graph.out_value, graph.bounds)
        self.made_backward = self.makes[np.repeat(graph.backward, np.diff(self.make_bounds))]

    def nodes(self, order: Iterable[int]) -> Iterator[tuple[list[int], list[int]]]:
        """The values that each node reads, and those that it makes."""
        reads, makes = self.reads.data, self.makes.data
        read_bounds, make_bounds = self.read_bounds.data, self.make_bounds.data
        for node in order:
            read = reads[read_bounds[node] : read_bounds[node + 1]]
            yield read.tolist(), makes[make_bounds[node] : make_bounds[node + 1]].tolist()

    def forward(self) -> Iterator[tuple[list[int], list[int]]]:
        """``nodes`` outside of the backward, by time."""
        return self.nodes(np.flatnonzero(~self.graph.backward).data)

    def current(self) -> Bytes:
        """The category of every value by the rules so far."""
        key = self.graph.value_key
        out = self.by_version
        for stronger in (self.by_key[key], self.by_id[self.id_of_value], self.given[key]):
            out = np.where(stronger != 0, stronger, out)
        return out

    def set_ids(self, keys: Ints, category: int) -> None:
        self.by_id[self.tensor_index[keys]] = category
        self.present[keys] = True

    def set_default(self, values: Ints, category: int) -> None:
        self.by_version[values[self.by_version[values] == 0]] = category

    # -- rules ----------------------------------------------------------------------

    def depends_on_gradient(self, category: Bytes) -> Bools:
        """Tensor ids that depend on a gradient or parameter, see the note above."""
        seen = np.zeros(len(self.by_id), np.bool_)
        source = (category == GRADIENT) | (category == PARAMETER)
        seen[self.id_of_value[self.reads[source[self.reads]]]] = True

        ids = self.id_of_value[self.reads]
        order = np.argsort(ids, kind="stable")
        starts = np.searchsorted(ids[order], np.arange(len(seen) + 1)).data
        nodes = np.repeat(np.arange(len(self.graph), dtype=np.int32), np.diff(self.read_bounds))
        readers_of = nodes[order].data
        del ids, order, nodes
        made, bounds = self.id_of_value[self.makes].data, self.make_bounds.data

        todo = np.flatnonzero(seen).tolist()
        done = bytearray(seen.tobytes())
        visited = bytearray(len(self.graph))
        while todo:
            id = todo.pop()
            for node in readers_of[starts[id] : starts[id + 1]]:
                if not visited[node]:
                    visited[node] = 1
                    for out in made[bounds[node] : bounds[node + 1]]:
                        if not done[out]:
                            done[out] = 1
                            todo.append(out)
        return np.frombuffer(done, np.bool_)

    def inputs(self) -> None:
        """Mark values that contribute to a gradient but depend on none as inputs."""
        category = self.current()
        depends = self.depends_on_gradient(category)
        contributes = bytearray(((category == GRADIENT) | (category == PARAMETER)).tobytes())
        for read, made in self.nodes(range(len(self.graph) - 1, -1, -1)):
            touched = read + made
            if any(map(contributes.__getitem__, touched)):
                for v in touched:
                    contributes[v] = 1
        candidate = np.zeros(len(category), np.bool_)
        candidate[self.reads] = candidate[self.makes] = True
        candidate &= np.frombuffer(contributes, np.bool_)
        # What the backward makes is a detail of autograd rather than an input.
        candidate[self.made_backward] = False
        candidate &= ~depends[self.id_of_value]
        self.set_default(np.flatnonzero(candidate), INPUT)

    def parameters_by_data_flow(self) -> None:
        """Mark what the forward reads, and is updated from gradients it leads to, as parameters."""
        category = self.current()
        gradient = (category == GRADIENT).tobytes()
        forward = bytearray((category == INPUT).tobytes())
        candidate = bytearray(len(category))
        for read, made in self.forward():
            fed = any(map(forward.__getitem__, read))
            if fed and not any(map(gradient.__getitem__, read + made)):
                for v in made:
                    forward[v] = 1
                for v in read:
                    if not forward[v]:
                        candidate[v] = 1

        contributes = bytearray(gradient)
        used = bytearray(len(category))
        for read, made in self.nodes(range(len(self.graph) - 1, -1, -1)):
            if any(map(contributes.__getitem__, made)):
                for v in read:
                    contributes[v] = used[v] = 1
        chosen = np.frombuffer(candidate, np.bool_) & np.frombuffer(used, np.bool_)
        ids = np.zeros(len(self.by_id), np.bool_)
        ids[self.id_of_value[chosen]] = True
        ids &= self.depends_on_gradient(category)
        named = self.present & ids[self.tensor_index]
        self.set_ids(np.flatnonzero(named), PARAMETER)

    def activations(self) -> None:
        """Mark what the forward makes of inputs as activations."""
        category = bytearray(self.current().tobytes())
        required = {INPUT, ACTIVATION}
        allowed = {INPUT, ACTIVATION, PARAMETER, TEMPORARY}
        found = array("i")
        for read, made in self.forward():
            seen = {category[v] for v in read}
            if seen <= allowed and not seen.isdisjoint(required):
                for v in made:
                    found.append(v)
                    if not category[v]:
                        category[v] = ACTIVATION
        self.set_default(np.asarray(found, np.int32), ACTIVATION)

    def autograd_detail(self) -> None:
        """Mark as autograd detail what the backward makes anew, or from an unknown value."""
        category = bytearray(self.current().tobytes())
        found = array("i")
        version = self.graph.value_version[self.made_backward].data
        for value, number in zip(self.made_backward.data, version, strict=True):
            if number == 0 or category[value - 1] in (UNKNOWN, AUTOGRAD_DETAIL):
                found.append(value)
                if not category[value]:
                    category[value] = AUTOGRAD_DETAIL
        self.set_default(np.asarray(found, np.int32), AUTOGRAD_DETAIL)


def _known(values: Ints, bounds: Ints) -> tuple[Ints, Ints]:
    """``values`` of edges that are not -1, and between which bounds each node's are, from those of
    all its edges."""
    known = values >= 0
    before = np.concatenate([np.zeros(1, np.int32), np.cumsum(known, dtype=np.int32)])
    return values[known], before[bounds]


def deduce(columns: EventColumns, graph: Graph, given: Bytes) -> tuple[Bytes, Bools]:
    """Applies torch's rules to a trace.

    Args:
        given: the category of storages that are known from elsewhere, 0 where not.

    Returns:
        The category of every value, a position in ``CATEGORIES``; and which storages take part: in
        the graph or named by a rule by id.
    """
    rules = _Deduction(columns, graph, given)
    rules.set_ids(columns.gradients, GRADIENT)
    rules.by_key[graph.edge_key[graph.intermediate]] = TEMPORARY
    rules.set_ids(columns.parameters, PARAMETER)
    rules.inputs()
    rules.parameters_by_data_flow()
    rules.activations()
    rules.set_ids(columns.optimizer_states, OPTIMIZER_STATE)
    rules.autograd_detail()
    return frozen(rules.current(), np.uint8), frozen(rules.present)
