"""Traces a function as Inductor would and keeps what AOTAutograd knew of each graph.

The metadata is complete before Inductor's part begins, so a graph then runs as it is, node by
node; only where the question is what Inductor makes of it does Inductor compile it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._inductor.compile_fx import compile_fx_inner

from memprof.compile_backend import _torch_compat as compat
from memprof.compile_backend.stages.describe.aot_metadata import (
    Descriptor,
    DescriptorKind,
    descriptor,
    view_and_mutation_meta,
)
from memprof.compile_backend.stages.describe.comparison import compared
from memprof.compile_backend.stages.describe.dynamo_input import DynamoInput, dynamo_inputs
from memprof.compile_backend.stages.describe.graph_io import GraphIO, describe_graph
from memprof.profiler.model import GraphDescription, GraphKind, MutationType, ViewAndMutationMeta


@dataclass
class Graph:
    """One graph, as the inner compile saw it.

    Attributes:
        ours, torchs: our copy of the metadata, and what torch's object said at that moment.
        io: our description of inputs and outputs.
        result_names: names of the output nodes, "" for None.
        output_descriptors: AOTAutograd's.
        forward: of a backward.
    """

    kind: GraphKind
    ours: ViewAndMutationMeta
    torchs: dict[str, Any]
    io: GraphIO
    result_names: list[str]
    output_descriptors: list[Descriptor]
    mutated_by_inductor: tuple[int, ...] = ()
    agreed: GraphDescription | None = None
    disagreements: list[str] = field(default_factory=list)
    forward: Graph | None = None


@dataclass
class Capture:
    """Everything captured from all compilations of one test.

    Attributes:
        inductor: compiles the graphs, which then know ``mutated_by_inductor``.
    """

    inductor: bool = False
    graphs: list[Graph] = field(default_factory=list)
    dynamo: list[tuple[DynamoInput, ...]] = field(default_factory=list)

    def of(self, kind: GraphKind) -> Graph:
        """The only graph of this kind."""
        (graph,) = [g for g in self.graphs if g.kind is kind]
        return graph

    @property
    def forward(self) -> Graph:
        return self.of(GraphKind.FORWARD)

    @property
    def backward(self) -> Graph:
        return self.of(GraphKind.BACKWARD)

    @property
    def inference(self) -> Graph:
        return self.of(GraphKind.INFERENCE)

    def backend(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """Hand this to torch.compile."""
        inputs = dynamo_inputs(gm, example_inputs)
        self.dynamo.append(inputs)
        forward: list[Graph] = []

        def inner(gm: torch.fx.GraphModule, example_inputs: Any, *args: Any, **kw: Any) -> Any:
            kind = (
                GraphKind.BACKWARD
                if kw.get("is_backward")
                else GraphKind.INFERENCE
                if kw.get("is_inference")
                else GraphKind.FORWARD
            )
            meta = compat.forward_metadata()
            ours = view_and_mutation_meta(meta)
            io = describe_graph(
                gm,
                kind=kind,
                fw_metadata=ours,
                dynamo_inputs=inputs,
                forward=forward[-1].io if forward else None,
            )
            (output,) = gm.graph.find_nodes(op="output")
            results = [getattr(r, "name", "") for r in output.args[0]]
            descriptors = [descriptor(d) for d in output.meta.get("desc") or ()]
            if len(descriptors) > len(results):  # AOTAutograd leaves those of tokens there
                descriptors = [d for d in descriptors if d.kind is not DescriptorKind.TOKEN]
            said = derived_from_torch(meta, len(results))
            graph = Graph(kind, ours, said, io, results, descriptors)
            self.graphs.append(graph)
            if kind is GraphKind.FORWARD:
                forward.append(graph)
            elif forward:
                graph.forward = forward[-1]
            if not self.inductor:
                return make_boxed_func(gm.forward)
            compiled = compile_fx_inner(gm, example_inputs, *args, **kw)
            lists = compat.inductors_lists(compiled, kw)
            graph.mutated_by_inductor = tuple(lists[1])
            graph.agreed, graph.disagreements = compared(io.description, kind, *lists)
            return compiled

        return compat.run_compile_fx(gm, example_inputs, inner, {}, autograd_cache=False)


@contextlib.contextmanager
def capturing(inductor: bool) -> Iterator[Capture]:
    torch._dynamo.reset()
    yield Capture(inductor)
    torch._dynamo.reset()


def derived_from_torch(meta: Any, outputs: int) -> dict[str, Any]:
    """What torch's metadata says, in plain Python."""
    said: dict[str, Any] = {
        "mutation_types": [m.mutation_type.name.lower() for m in meta.input_info],
        "mutated_in_graph": list(meta.mutated_graph_handled_indices),
        "num_mutated_outputs": meta.num_mutated_inp_runtime_indices,
        "outputs": [(o.output_type.name, o.base_idx, o.requires_grad) for o in meta.output_info],
        "num_forward": meta.num_forward,
        "donated": _plain(meta.bw_donated_idxs),
    }
    if meta.num_symints_saved_for_bw is not None:
        every = range(outputs)
        said["saved"] = [
            list(every[meta.tensors_saved_for_backwards_slice]),
            list(every[meta.opaque_objects_saved_for_backwards_slice]),
            list(every[meta.symints_saved_for_backwards_slice]),
        ]
    return said


def derived_from_ours(meta: ViewAndMutationMeta, outputs: int) -> dict[str, Any]:
    """The same from our copy."""
    said: dict[str, Any] = {
        "mutation_types": [m.mutation_type.value for m in meta.input_info],
        "mutated_in_graph": [
            i
            for i, m in enumerate(meta.input_info)
            if m.mutation_type is MutationType.MUTATED_IN_GRAPH
        ],
        "num_mutated_outputs": meta.num_mutated_outputs,
        "outputs": [(o.output_type.value, o.base_idx, o.requires_grad) for o in meta.output_info],
        "num_forward": meta.num_forward,
        "donated": _plain(meta.bw_donated_idxs),
    }
    if meta.is_partitioned:
        said["saved"] = [list(part) for part in meta.saved_positions(outputs)]
    return said


def _plain(value: Any) -> Any:
    return None if value is None else list(value)
