"""What AOTAutograd collects in real compilations, and what we make of it."""

from __future__ import annotations

import functools
import linecache
from typing import Any

import pytest

from memprof.compile_backend.stages.describe.aot_metadata import DescriptorKind
from memprof.profiler.model import Category, GraphKind, GraphValue, OutputType, Role

from .capture import Capture, capturing, derived_from_ours
from .cases import CASES

pytestmark = pytest.mark.zero_kernels

# Every case is traced once; AOTAutograd strips its own objects afterwards, ours stay.
COMPILED = {"batch_norm", "adam_step", "adamw_foreach", "adamw_tensor_lr"}
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
            for v, d in zip(graph.forward.io.outputs, graph.forward.output_descriptors, strict=True)
            if d.kind is DescriptorKind.SAVED_FOR_BACKWARD
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
def test_donated_inputs_are_saved_activations(name: str) -> None:
    """What the backward may overwrite is no memory that the forward was given or returned."""
    for graph in captured(name).graphs:
        donated = [v for v in graph.io.inputs if v.donated]
        if graph.kind is GraphKind.BACKWARD:
            assert [v.index for v in donated] == list(graph.ours.bw_donated_idxs or ())
        assert {v.role for v in donated} <= {Role.SAVED_FOR_BACKWARD}
        for value in donated:
            assert graph.forward is not None
            assert value.forward_output is not None
            assert graph.forward.io.outputs[value.forward_output].alias_of_input is None


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
    # Not reached: opaque objects and, without a GPU, functionalised random numbers.
    # test_metadata_properties.py builds these.
    assert any(g.num_symints_saved_for_bw for g in graphs)
    assert any(g.bw_donated_idxs for g in graphs)
    assert any(g.num_intermediate_bases for g in graphs)


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
        ("buffer", "persistent_state", "1.num_batches_tracked", None),
        ("buffer", "persistent_state", "1.running_mean", None),
        ("buffer", "persistent_state", "1.running_var", None),
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


PARAMETER = ("parameter", "parameter")
STATE = ("optimizer_state", "optimizer_state")
GRADIENT = ("parameter_gradient", "gradient")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adam_step", [PARAMETER] * 2 + [STATE] * 6 + [GRADIENT] * 2),
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


def test_symbolic_sizes() -> None:
    forward, backward = captured("saved_symints").forward, captured("saved_symints").backward
    sizes = [v for v in forward.io.inputs if v.role is Role.SIZE]
    assert sizes
    assert all(v.nbytes is None for v in forward.io.inputs)
    _, _, positions = forward.ours.saved_positions(len(forward.io.outputs))
    symints = [forward.io.outputs[i] for i in positions]
    assert [v.role for v in symints] == [Role.SIZE] * len(symints)
    assert [v.name for v in symints] == [v.name for v in backward.io.inputs[: len(symints)]]


def test_frames_of_outputs() -> None:
    for value in captured("graph_break").graphs[0].io.outputs:
        if value.role is Role.USER_OUTPUT:
            assert value.frame is not None
            file, _, line = value.frame.rpartition(":")
            assert file.endswith("cases.py")
            assert "m(x)" in linecache.getline(file, int(line))
