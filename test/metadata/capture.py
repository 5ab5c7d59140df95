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
from torch._functorch._aot_autograd import graph_compile
from torch._inductor.compile_fx import compile_fx_inner

from memprof.compile_backend import _torch_compat as compat
from memprof.compile_backend.metadata import from_aot
from memprof.compile_backend.metadata.dynamo_input import DynamoInput, dynamo_inputs
from memprof.compile_backend.metadata.graph_io import ForwardDescription, GraphIO, describe_graph
from memprof.compile_backend.metadata.view_and_mutation import ViewAndMutationMeta
from memprof.profiler.model import GraphKind


@dataclass
class Graph:
    """One graph, as the inner compile saw it.

    Attributes:
        ours, torchs: our copy of the metadata, and what torch's object said at that moment.
        io: our description of inputs and outputs.
        result_names: names of the output nodes, "" for None.
        forward: of a backward.
    """

    kind: GraphKind
    ours: ViewAndMutationMeta
    torchs: dict[str, Any]
    io: GraphIO
    result_names: list[str]
    mutated_by_inductor: tuple[int, ...] = ()
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
    pairs: list[tuple[Any, ViewAndMutationMeta]] = field(default_factory=list)
    """torch's metadata before subclasses are taken apart, and our copy made at once."""
    subclass_metas: list[Any] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    """torch's AOTState of each compilation."""

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
        forward: list[tuple[Graph, ForwardDescription]] = []

        def inner(gm: torch.fx.GraphModule, example_inputs: Any, *args: Any, **kw: Any) -> Any:
            kind = (
                GraphKind.BACKWARD
                if kw.get("is_backward")
                else GraphKind.INFERENCE
                if kw.get("is_inference")
                else GraphKind.FORWARD
            )
            meta = compat.forward_metadata()
            ours = from_aot.view_and_mutation_meta(meta)
            io = describe_graph(
                gm,
                kind=kind,
                fw_metadata=ours,
                dynamo_inputs=inputs,
                static_input_idxs=tuple(kw.get("static_input_idxs") or ()),
                forward=forward[-1][1] if forward else None,
            )
            (output,) = gm.graph.find_nodes(op="output")
            results = [getattr(r, "name", "") for r in output.args[0]]
            graph = Graph(kind, ours, derived_from_torch(meta, len(results)), io, results)
            self.graphs.append(graph)
            if kind is GraphKind.FORWARD:
                forward.append((graph, io.as_forward()))
            elif forward:
                graph.forward = forward[-1][0]
            if not self.inductor:
                return make_boxed_func(gm.forward)
            compiled = compile_fx_inner(gm, example_inputs, *args, **kw)
            graph.mutated_by_inductor = tuple(getattr(compiled, "mutated_input_idxs", ()))
            return compiled

        return compat.run_compile_fx(gm, example_inputs, inner, {})


@contextlib.contextmanager
def capturing(inductor: bool) -> Iterator[Capture]:
    """A capture whose outer metadata, subclass metadata and states are collected too."""
    capture = Capture(inductor)
    get_inner = graph_compile._get_inner_meta
    stage2 = graph_compile.aot_stage2_compile

    def get_inner_meta(subclass_meta: Any, metadata: Any) -> Any:
        if not any(metadata is seen for seen, _ in capture.pairs):
            capture.pairs.append((metadata, from_aot.view_and_mutation_meta(metadata)))
        known = [*capture.subclass_metas, None]
        if not any(subclass_meta is seen for seen in known):
            capture.subclass_metas.append(subclass_meta)
        return get_inner(subclass_meta, metadata)

    def aot_stage2_compile(state: Any, *args: Any, **kw: Any) -> Any:
        capture.states.append(state)
        return stage2(state, *args, **kw)

    torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        for module in (graph_compile, _aot_autograd()):
            for name, ours in (
                ("_get_inner_meta", get_inner_meta),
                ("aot_stage2_compile", aot_stage2_compile),
            ):
                if hasattr(module, name):
                    stack.callback(setattr, module, name, getattr(module, name))
                    setattr(module, name, ours)
        yield capture
    torch._dynamo.reset()


def _aot_autograd() -> Any:
    import torch._functorch.aot_autograd as module

    return module


# What torch's object derives from its fields; ours derives the same from its own.
DERIVED = (
    "mutated_inp_runtime_indices",
    "num_mutated_inp_runtime_indices",
    "mutated_graph_handled_indices",
    "num_mutated_graph_handled_indices",
    "mutated_graph_handled_indices_seen_by_autograd",
    "num_mutated_graph_handled_indices_seen_by_autograd",
    "aliased_out_indices",
    "unsafe_view_out_indices",
    "num_outputs",
    "num_outputs_non_aliased",
    "num_outputs_aliased_to_inputs",
    "num_outputs_aliased_to_intermediates",
    "num_outputs_aliased",
    "num_unsafe_view_outputs",
    "dynamic_outputs",
    "is_rng_op_functionalized",
    "num_outputs_rng_offset",
    "num_forward_returns",
    "num_forward",
    "num_intermediate_bases",
    "keep_input_mutations",
    "num_symints_saved_for_bw",
    "num_tensors_saved_with_no_vc_check",
    "num_opaque_objects_saved_for_bw",
    "grad_enabled_mutation",
    "deterministic",
    "static_input_indices",
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
    "bw_donated_idxs",
    "num_backward_tokens",
    "num_graphsafe_rng_states",
    "graphsafe_rng_state_index",
    "mutated_inp_stream_indices",
)
SLICES = (
    "tensors_saved_for_backwards_slice",
    "tensors_saved_for_backwards_with_vc_check_slice",
    "tensors_saved_for_backwards_no_vc_check_slice",
    "opaque_objects_saved_for_backwards_slice",
    "symints_saved_for_backwards_slice",
)
OPTIONAL = (  # not in every version
    "is_train",
    "saved_tensor_is_graph_input",
    "act_input_indices",
    "tangent_source_stack_traces",
)


def derived_from_torch(meta: Any, outputs: int) -> dict[str, Any]:
    """What torch's metadata says, in plain Python."""
    said = {name: _plain(getattr(meta, name)) for name in DERIVED}
    said["mutation_types"] = [m.mutation_type.name.lower() for m in meta.input_info]
    said["output_types"] = [t.__qualname__ for t in meta.output_types]
    said["raw_types"] = [o.raw_type.__qualname__ for o in meta.output_info]
    said["kinds"] = [o.output_type.name for o in meta.output_info]
    said["base_idx"] = [o.base_idx for o in meta.output_info]
    said["dynamic_dims"] = [_plain(o.dynamic_dims) for o in meta.output_info]
    said["requires_grad"] = [o.requires_grad for o in meta.output_info]
    said["inputs_require_grad"] = [m.requires_grad for m in meta.input_info]
    said["dynamic_saved"] = {k: _plain(v) for k, v in meta.dynamic_saved_tensors_idxs.items()}
    said["tokens"] = len(meta.tokens)
    said["tangents"] = [d.expr() for d in meta.traced_tangents_descs]
    if meta.num_symints_saved_for_bw is not None:
        every = range(outputs)
        said["slices"] = [list(every[getattr(meta, name)]) for name in SLICES]
    for name in OPTIONAL:
        if getattr(meta, name, None) is not None:
            said[name] = _plain(getattr(meta, name))
    if hasattr(meta, "act_input_paths"):
        said["act_input_indices"] = [i for i, path in meta.act_input_paths if not path]
    if meta.num_symints_saved_for_bw is None:
        said.pop("saved_tensor_is_graph_input", None)
    return said


def derived_from_ours(meta: ViewAndMutationMeta, outputs: int) -> dict[str, Any]:
    """The same from our copy."""
    said = {name: _plain(getattr(meta, name)) for name in DERIVED}
    said["mutation_types"] = [m.mutation_type.value for m in meta.input_info]
    said["output_types"] = [t.rpartition(".")[2] for t in meta.output_types]
    said["raw_types"] = [o.raw_type.rpartition(".")[2] for o in meta.output_info]
    said["kinds"] = [o.output_type.value for o in meta.output_info]
    said["base_idx"] = [o.base_idx for o in meta.output_info]
    said["dynamic_dims"] = [_plain(o.dynamic_dims) for o in meta.output_info]
    said["requires_grad"] = [o.requires_grad for o in meta.output_info]
    said["inputs_require_grad"] = [m.requires_grad for m in meta.input_info]
    said["dynamic_saved"] = {d.saved: list(d.dims) for d in meta.dynamic_saved_tensors}
    said["tokens"] = len(meta.tokens)
    said["tangents"] = list(meta.traced_tangents_descs)
    if meta.is_partitioned:
        every = range(outputs)
        said["slices"] = [list(every[getattr(meta, name)]) for name in SLICES]
    for name in OPTIONAL:
        if getattr(meta, name) is not None:
            said[name] = _plain(getattr(meta, name))
    return said


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return list(value) if isinstance(value, (list, tuple)) else value
