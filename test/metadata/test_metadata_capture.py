"""What AOTAutograd collects in real compilations, and what we make of it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import linecache
from typing import Any

import pytest
import torch
from torch._functorch._aot_autograd import schemas
from torch._functorch.aot_autograd import aot_export_module
from torch.testing._internal.two_tensor import TwoTensor

from memprof.compile_backend.metadata import codec, from_aot
from memprof.compile_backend.metadata.compile_config import CompileConfig, CompileConfigError
from memprof.compile_backend.metadata.compile_state import CompileState
from memprof.compile_backend.metadata.graph_io import GraphIO
from memprof.compile_backend.metadata.output_alias import OutputType
from memprof.compile_backend.metadata.signature import (
    BackwardSignature,
    GraphSignature,
    SignatureError,
)
from memprof.compile_backend.metadata.sizes import is_symbolic
from memprof.compile_backend.metadata.subclass import (
    FlatLayout,
    PlainTensorMeta,
    SubclassCreationMeta,
    SubclassRebuildError,
    TensorAlias,
)
from memprof.compile_backend.metadata.view_and_mutation import ViewAndMutationMeta
from memprof.profiler.model import Category, GraphKind, GraphValue, Role

from .capture import Capture, capturing, derived_from_ours
from .cases import CASES

# Every case is traced once; AOTAutograd strips its own objects afterwards, ours stay.
COMPILED = {"batch_norm", "adam_step", "adam_lambda", "adamw_foreach", "adamw_tensor_lr"}
"""By Inductor as well, which has a word on what they write."""


@functools.cache
def captured(name: str) -> Capture:
    with capturing(name in COMPILED) as capture:
        CASES[name](capture.backend)
    return capture


every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_every_field_agrees_with_torch(name: str) -> None:
    graphs = captured(name).graphs
    assert graphs
    for graph in graphs:
        assert derived_from_ours(graph.ours, len(graph.result_names)) == graph.torchs


@every_case
def test_json(name: str) -> None:
    for graph in captured(name).graphs:
        again = codec.from_json(codec.to_json(graph.ours), ViewAndMutationMeta)
        assert again.identical(graph.ours)
        assert codec.from_json(codec.to_json(graph.io), GraphIO) == graph.io
    for _, outer in captured(name).pairs:
        assert codec.from_json(codec.to_json(outer), ViewAndMutationMeta).identical(outer)


@every_case
def test_nothing_is_unknown(name: str) -> None:
    for graph in captured(name).graphs:
        values = [*graph.io.inputs, *(v for v in graph.io.outputs if v.name)]
        assert not [v for v in values if Role.UNKNOWN is v.role or Category.UNKNOWN is v.category]
        assert [v.index for v in graph.io.inputs] == list(range(len(graph.io.inputs)))
        assert [v.name for v in graph.io.outputs] == graph.result_names


@every_case
def test_saved_values_of_backward_are_outputs_of_forward(name: str) -> None:
    """Wired by counting; partitioning keeps names, which proves the count."""
    for graph in captured(name).graphs:
        if graph.kind is not GraphKind.BACKWARD:
            continue
        assert graph.forward is not None
        saved = [v for v in graph.io.inputs if v.forward_output is not None]
        assert {v.forward_output: v.name for v in saved} == {
            v.index: v.name
            for v, d in zip(
                graph.forward.io.outputs, graph.forward.io.output_descriptors, strict=True
            )
            if d is not None and d.kind.value.startswith("saved_for_backward")
        }
        for value in saved:
            assert value.forward_output is not None
            output = graph.forward.io.outputs[value.forward_output]
            assert (value.nbytes, value.dtype, value.shape) == (
                output.nbytes,
                output.dtype,
                output.shape,
            )
            assert value.category is output.category or value.role is Role.SIZE


@every_case
def test_saved_inputs_agree_with_torch(name: str) -> None:
    """torch 2.15 says itself which saved tensors are inputs of the forward."""
    for graph in captured(name).graphs:
        said = graph.ours.saved_tensor_is_graph_input
        if graph.kind is not GraphKind.FORWARD or said is None:
            continue
        tensors = graph.io.outputs[graph.ours.tensors_saved_for_backwards_slice]
        assert tuple(v.alias_of_input is not None for v in tensors) == said


@every_case
def test_runtime_safe_form_is_what_torch_keeps(name: str) -> None:
    for theirs, ours in captured(name).pairs:
        if theirs.traced_tangent_metas is None:  # no cache asked for it
            theirs.make_runtime_safe()
        kept, safe = from_aot.view_and_mutation_meta(theirs), ours.runtime_safe()
        for field in (
            "traced_tangents",
            "traced_tangent_metas",
            "output_types",
            "output_info",
            "input_info",
            "subclass_inp_meta",
            "subclass_fw_graph_out_meta",
            "subclass_tangent_meta",
        ):
            assert getattr(safe, field) == getattr(kept, field), field
        assert [o.view_sequence is None for o in safe.output_info] == [
            o.view_sequence is None for o in kept.output_info
        ]


@every_case
def test_configuration_is_torchs(name: str) -> None:
    for state in captured(name).states:
        theirs, ours = state.aot_config, from_aot.compile_config(state.aot_config)
        for field in (
            "aot_id",
            "num_params_buffers",
            "keep_inference_input_mutations",
            "is_export",
            "no_tangents",
            "dynamic_shapes",
            "enable_log",
            "pre_dispatch",
            "precompile_backend_id",
        ):
            assert getattr(ours, field) == getattr(theirs, field), field
        assert list(ours.static_input_indices or ()) == list(theirs.static_input_indices or ())
        assert len(ours.arg_sources or ()) == len(theirs.aot_autograd_arg_pos_to_source or ())
        assert codec.from_json(codec.to_json(ours), CompileConfig) == ours


def test_cases_reach_every_output_and_mutation_type() -> None:
    names = list(CASES)
    kinds = {o.output_type for n in names for g in captured(n).graphs for o in g.ours.output_info}
    # Dynamo returns an input itself without the graph: AOTAutograd is_input comes from export.
    assert kinds == set(OutputType) - {OutputType.IS_INPUT}
    mutations = {
        m.mutation_type.value for n in names for g in captured(n).graphs for m in g.ours.input_info
    }
    assert mutations == {"not_mutated", "mutated_in_graph", "mutated_out_graph"}
    graphs = [g.ours for n in names for g in captured(n).graphs]
    assert any(m.mutates_storage_metadata for g in graphs for m in g.input_info)
    assert any(m.mutations_hidden_from_autograd for g in graphs for m in g.input_info)
    # Not reached: saved tensors without version check (the partitioner computes what a
    # custom function kept on ctx again), storage resizes, opaque objects and, without a
    # GPU, functionalised random numbers. test_metadata_properties.py builds these.
    assert any(g.num_symints_saved_for_bw for g in graphs)
    assert any(g.dynamic_saved_tensors for g in graphs)
    # Inductor has its tokens taken out again before the graph reaches it.
    assert not any(g.tokens for g in graphs)
    assert any(g.grad_enabled_mutation is False for g in graphs)
    assert any(g.static_input_indices for g in graphs)
    assert any(g.num_intermediate_bases for g in graphs)
    assert any(o.view_sequence for g in graphs for o in g.output_info)


# --- roles and categories -----------------------------------------------------------------


def table(values: tuple[GraphValue, ...]) -> list[tuple[Any, ...]]:
    return [
        (v.role.value, v.category.value, v.fqn, v.alias_of_input) if v.name else None
        for v in values
    ]


def test_roles_of_a_module() -> None:
    capture = captured("batch_norm")
    forward, backward = capture.forward.io, capture.backward.io
    assert table(forward.inputs) == [
        ("parameter", "parameter", "0.weight", None),
        ("parameter", "parameter", "0.bias", None),
        ("user_input", "input", "L['args'][0]", None),
        ("buffer", "parameter", "1.num_batches_tracked", None),
        ("buffer", "parameter", "1.running_mean", None),
        ("buffer", "parameter", "1.running_var", None),
        ("parameter", "parameter", "1.weight", None),
        ("parameter", "parameter", "1.bias", None),
    ]
    assert table(forward.outputs) == [
        ("user_output", "output", None, None),
        ("saved_for_backward", "input", "L['args'][0]", 2),
        ("saved_for_backward", "parameter", "1.weight", 6),
        ("saved_for_backward", "activation", None, None),
    ]
    assert table(backward.inputs) == [
        ("user_input", "input", "L['args'][0]", None),
        ("parameter", "parameter", "1.weight", None),
        ("saved_for_backward", "activation", None, None),
        ("tangent", "autograd_detail", None, None),
    ]
    assert table(backward.outputs) == [
        ("parameter_gradient", "gradient", "0.weight", None),
        ("parameter_gradient", "gradient", "0.bias", None),
        None,
        None,
        None,
        None,
        ("parameter_gradient", "gradient", "1.weight", None),
        ("parameter_gradient", "gradient", "1.bias", None),
    ]
    assert [v.index for v in forward.inputs if v.static] == [0, 1, 3, 4, 5, 6, 7]
    # The graph writes the statistics, and Inductor agrees.
    assert tuple(v.index for v in forward.inputs if v.mutated) == (3, 4, 5)
    assert capture.forward.mutated_by_inductor == (3, 4, 5)
    assert forward.signature is not None
    assert forward.signature.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert [fqn for _, fqn in forward.signature.inputs_to_buffers] == [
        "1.num_batches_tracked",
        "1.running_mean",
        "1.running_var",
    ]
    assert backward.backward_signature is not None
    assert [fqn for _, fqn in backward.backward_signature.gradients_to_parameters] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]


PARAMETER = ("parameter", "parameter")
STATE = ("optimizer_state", "optimizer_state")
GRADIENT = ("parameter_gradient", "gradient")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adam_step", [PARAMETER] * 2 + [STATE] * 6 + [GRADIENT] * 2),
        ("adam_lambda", [PARAMETER] * 2 + [STATE] * 6 + [GRADIENT] * 2),
        ("adamw_foreach", [PARAMETER] * 2 + [STATE] * 6 + [GRADIENT] * 2),
        ("adamw_tensor_lr", [PARAMETER] * 2 + [STATE] * 6 + [STATE] + [GRADIENT] * 2),
    ],
)
def test_roles_of_a_compiled_optimizer_step(name: str, expected: list[Any]) -> None:
    io = captured(name).inference.io
    assert [(v.role.value, v.category.value) for v in io.inputs] == expected
    assert {v.fqn for v in io.inputs if v.role is Role.PARAMETER} == {
        "param_groups.0.params.0",
        "param_groups.0.params.1",
    }
    assert {v.fqn for v in io.inputs if v.role is Role.PARAMETER_GRADIENT} == {
        "param_groups.0.params.0.grad",
        "param_groups.0.params.1.grad",
    }
    # A step writes parameters and state.
    written = captured(name).inference.mutated_by_inductor
    assert {io.inputs[i].role for i in written} == {Role.PARAMETER, Role.OPTIMIZER_STATE}


def test_roles_of_sgd_whose_first_step_makes_the_state() -> None:
    first, second = (g.io for g in captured("sgd_momentum").graphs)
    assert [(v.role.value, v.category.value) for v in first.inputs] == [
        *[PARAMETER] * 2,
        *[GRADIENT] * 2,
    ]
    assert [v.role for v in first.outputs] == [Role.USER_OUTPUT] * 2
    assert [(v.role.value, v.category.value) for v in second.inputs] == [
        *[PARAMETER] * 2,
        *[STATE] * 2,
        *[GRADIENT] * 2,
    ]


def test_outputs_that_view_inputs() -> None:
    assert table(captured("output_views_of_inputs").forward.io.outputs) == [
        ("user_output", "input", "L['x']", 0),
        ("user_output", "output", None, None),
        ("user_output", "input", "L['y']", 1),
        ("saved_for_backward", "input", "L['x']", 0),
        ("saved_for_backward", "input", "L['y']", 1),
    ]


def test_outputs_that_view_intermediates() -> None:
    outputs = captured("output_views_of_intermediates").forward.io.outputs
    assert [v.role.value for v in outputs] == [
        *["user_output"] * 5,
        "intermediate_base",
        "saved_for_backward",
    ]


def test_an_output_that_is_saved_too_is_an_activation() -> None:
    outputs = captured("saved_user_output").forward.io.outputs
    by_name: dict[str, list[GraphValue]] = {}
    for v in outputs:
        by_name.setdefault(v.name, []).append(v)
    (twice,) = [vs for vs in by_name.values() if len(vs) == 2]
    assert [(v.role, v.category) for v in twice] == [
        (Role.USER_OUTPUT, Category.ACTIVATION),
        (Role.SAVED_FOR_BACKWARD, Category.ACTIVATION),
    ]


def test_mutation_that_autograd_must_see() -> None:
    capture = captured("mutation_seen_by_autograd")
    outputs = capture.forward.io.outputs
    assert (outputs[0].role, outputs[0].fqn) == (Role.MUTATED_INPUT, "L['x']")
    signature = capture.forward.io.signature
    assert signature is not None
    assert signature.user_inputs_to_mutate == (
        (outputs[0].name, capture.forward.io.inputs[0].name),
    )
    # The graph itself writes nothing.
    assert not any(v.mutated for v in capture.forward.io.inputs)


def test_overlapping_views_are_one_input() -> None:
    io = captured("mutation_of_overlapping_views").inference.io
    assert [(v.role, v.mutated) for v in io.inputs] == [(Role.USER_INPUT, True)]
    # 8 floats of which the views reach three.
    assert io.inputs[0].nbytes in (12, 32)


def test_tokens_shift_nothing() -> None:
    """AOTAutograd takes tokens out of the outputs but leaves their descriptors there."""
    forward = captured("effect_token_with_backward").forward
    assert [v.role for v in forward.io.outputs] == [Role.USER_OUTPUT, Role.SAVED_FOR_BACKWARD]
    assert len(forward.io.output_descriptors) == 2
    assert None not in forward.io.output_descriptors


def test_symbolic_sizes() -> None:
    forward, backward = captured("saved_symints").forward, captured("saved_symints").backward
    sizes = [v for v in forward.io.inputs if v.role is Role.SIZE]
    assert sizes
    assert all(v.nbytes is None for v in forward.io.inputs)
    symints = forward.io.outputs[forward.ours.symints_saved_for_backwards_slice]
    assert [v.role for v in symints] == [Role.SIZE] * len(symints)
    assert [v.name for v in symints] == [v.name for v in backward.io.inputs[: len(symints)]]


def test_frames_of_outputs() -> None:
    for value in captured("graph_break").graphs[0].io.outputs:
        if value.role is Role.USER_OUTPUT:
            assert value.frame is not None
            file, _, line = value.frame.rpartition(":")
            assert file.endswith("cases.py")
            assert "m(x)" in linecache.getline(file, int(line))


# --- subclasses ---------------------------------------------------------------------------


def rebuilt(meta: SubclassCreationMeta, theirs: Any, flat: list[Any]) -> tuple[Any, Any]:
    """What we and torch make of the same flat arguments."""
    ours = meta.rebuild(flat)
    assert (ours.size(), ours.stride()) == (ours.a.size(), ours.a.stride())
    if any(isinstance(a, int) for a in flat) and torch.__version__.startswith("2.11."):
        return ours, ours  # torch 2.11 reads symbolic strides from where the sizes are
    return ours, theirs.creation_fn(flat, is_runtime=True)


def same(ours: Any, theirs: Any) -> None:
    """Same class, same inner tensors, same outer metadata."""
    assert type(ours) is type(theirs)
    if not isinstance(ours, TwoTensor):
        assert ours is theirs
        return
    assert ours.size() == theirs.size()
    assert ours.stride() == theirs.stride()
    same(ours.a, theirs.a)
    same(ours.b, theirs.b)


def flat_args(layout: FlatLayout, shape: tuple[int, ...]) -> list[Any]:
    """Dense tensors of ``shape``, and the sizes and strides among the arguments of ``layout``."""
    sizes, strides = shape, torch.empty(shape).stride()
    if isinstance(layout, SubclassCreationMeta):
        found = [arg for _, inner in layout.attrs for arg in flat_args(inner, shape)]
        symbolic = (
            [*map(is_symbolic, layout.outer_size)],
            [*map(is_symbolic, layout.outer_stride)],
        )
    else:
        assert isinstance(layout, PlainTensorMeta)
        found = [torch.randn(shape)]
        symbolic = ([*layout.size_symbol_placeholders], [*layout.stride_symbol_placeholders])
    found += itertools.compress(sizes, symbolic[0])
    found += itertools.compress(strides, symbolic[1])
    assert len(found) == layout.arg_count
    return found


@pytest.mark.parametrize(
    ("name", "shape"),
    [("two_tensor", (2, 3)), ("nested_two_tensor", (2, 3)), ("dynamic_two_tensor", (5, 7))],
)
def test_subclasses_are_rebuilt_as_torch_does(name: str, shape: tuple[int, ...]) -> None:
    ((theirs, ours),) = captured(name).pairs
    if theirs.traced_tangent_metas is None:
        theirs.make_runtime_safe()
    found = 0
    for layout, their_layout in zip(ours.subclass_inp_meta, theirs.subclass_inp_meta, strict=True):
        if not isinstance(layout, SubclassCreationMeta):
            continue
        found += 1
        flat = [0] * layout.flat_tensor_start_idx + flat_args(layout, shape)
        same(*rebuilt(layout, their_layout, flat))
        same(*rebuilt(layout.runtime_safe(), their_layout, flat))
        # What comes back from a file builds it too: the class is found by its name.
        read = codec.from_json(codec.to_json(layout), SubclassCreationMeta)
        assert read.binding is None
        same(*rebuilt(read, their_layout, flat))
    assert found == 1
    assert ours.has_subclasses


def test_rebuilding_says_what_is_missing() -> None:
    ((_, ours),) = captured("dynamic_two_tensor").pairs
    (layout,) = [m for m in ours.subclass_inp_meta if isinstance(m, SubclassCreationMeta)]
    layout = dataclasses.replace(layout, outer_size_from_attr=None, outer_stride_from_attr=None)
    start, t = layout.flat_tensor_start_idx, torch.randn(5, 7)
    with pytest.raises(SubclassRebuildError, match=r"flat argument \d, but there are 3"):
        layout.rebuild([5, 7, t])
    with pytest.raises(SubclassRebuildError, match="must be a tensor and is a int"):
        layout.rebuild([5] * start + [t] + [5] * 20)
    outer = sum(map(is_symbolic, (*layout.outer_size, *layout.outer_stride)))
    whole = [5] * start + flat_args(layout, (5, 7))
    with pytest.raises(SubclassRebuildError, match="symbolic outer size"):
        layout.rebuild(whole[:-outer])
    with pytest.raises(SubclassRebuildError, match="symbolic outer stride"):
        layout.rebuild(whole[:-1])
    unknown = dataclasses.replace(layout, binding=None, type_name="torch.nowhere.Nothing")
    with pytest.raises(SubclassRebuildError, match=r"no importable class torch\.nowhere"):
        unknown.rebuild(whole)
    lost = dataclasses.replace(layout, binding=None, context="<spec>", context_is_portable=False)
    with pytest.raises(SubclassRebuildError, match="was not kept"):
        lost.rebuild(whole)


def test_subclass_metadata_of_gradients() -> None:
    (theirs,) = captured("two_tensor").subclass_metas
    ours = from_aot.subclass_meta(theirs)
    assert ours.grad_input_metas is not None
    # Both inputs get a TwoTensor gradient, the dense one too.
    assert [type(m) for m in ours.grad_input_metas] == [SubclassCreationMeta] * 2
    assert len(ours.fw_metadata.input_info) == 3


def test_tensor_alias_is_compared_by_identity() -> None:
    t = torch.ones(1)
    assert TensorAlias(t) != TensorAlias(t)


# --- signatures ---------------------------------------------------------------------------


class Exported(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x: Any, y: Any) -> Any:
        self.steps.add_(1)
        y.mul_(2)
        return ((x * self.weight + self.steps) * y).sum(), (x + 1).detach()


@pytest.mark.parametrize("joint", [False, True])
def test_signature_is_torchs(joint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    original = schemas.GraphSignature.from_tracing_metadata.__func__

    def record(cls: Any, **kw: Any) -> Any:
        calls.append(kw)
        return original(cls, **kw)

    monkeypatch.setattr(schemas.GraphSignature, "from_tracing_metadata", classmethod(record))
    args = [torch.randn(3), torch.randn(3)]
    _, theirs = aot_export_module(
        Exported(), args, trace_joint=joint, output_loss_index=0 if joint else None
    )
    (kw,) = calls
    kw.pop("loss_index")
    theirs_backward = kw.pop("backward_signature")
    backward = theirs_backward and BackwardSignature(
        tuple(theirs_backward.gradients_to_parameters.items()),
        tuple(theirs_backward.gradients_to_user_inputs.items()),
        theirs_backward.loss_output,
    )
    kw["view_mutation_metadata"] = from_aot.view_and_mutation_meta(kw["view_mutation_metadata"])
    in_spec, out_spec = kw.pop("in_spec"), kw.pop("out_spec")
    ours = GraphSignature.from_tracing_metadata(
        **kw,
        in_spec=torch.utils._pytree.treespec_dumps(in_spec),
        out_spec=torch.utils._pytree.treespec_dumps(out_spec),
        backward_signature=backward,
    )
    for field in ("parameters", "buffers", "user_inputs", "user_outputs"):
        assert list(getattr(ours, field)) == getattr(theirs, field), field
    for field in (
        "inputs_to_parameters",
        "inputs_to_buffers",
        "buffers_to_mutate",
        "parameters_to_mutate",
        "user_inputs_to_mutate",
    ):
        assert dict(getattr(ours, field)) == getattr(theirs, field), field
    assert list(ours.input_tokens) == theirs.input_tokens
    assert ours.buffers_to_mutate
    assert ours.user_inputs_to_mutate
    assert (ours.backward_signature is not None) is joint
    assert torch.utils._pytree.treespec_loads(ours.in_spec) == in_spec
    assert codec.from_json(codec.to_json(ours), GraphSignature) == ours

    short = {**kw, "graph_input_names": kw["graph_input_names"][:-1]}
    with pytest.raises(SignatureError, match="expected among"):
        GraphSignature.from_tracing_metadata(**short, backward_signature=backward)
    long = {**kw, "graph_output_names": [*kw["graph_output_names"], "more"]}
    with pytest.raises(SignatureError, match="left over: more"):
        GraphSignature.from_tracing_metadata(**long, backward_signature=backward)


# --- configuration and state --------------------------------------------------------------


def test_configuration_refuses_what_torch_refuses() -> None:
    with pytest.raises(CompileConfigError, match="pre_dispatch"):
        CompileConfig(aot_id=0, pre_dispatch=True)


def test_states_are_changed_by_copying() -> None:
    state = CompileState(GraphKind.FORWARD, torch.fx.symbolic_trace(lambda x: x))
    noted = state.with_note("observe", 3)
    assert dict(noted.notes) == {"observe": 3}
    assert dict(state.notes) == {}
