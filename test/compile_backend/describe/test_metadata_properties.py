"""Our metadata says what torch's own classes say, for anything they can be made of."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings, strategies as st
from torch._functorch._aot_autograd import schemas

from memprof.compile_backend.stages.describe.aot_metadata import view_and_mutation_meta
from memprof.profiler.model import MutationType, OutputType

from .capture import derived_from_ours, derived_from_torch

SETTINGS = settings(max_examples=100)


def torchs(class_: Any, **values: Any) -> Any:
    """A torch dataclass, given the fields that this version of it has."""
    known = {f.name for f in dataclasses.fields(class_)}
    return class_(**{k: v for k, v in values.items() if k in known})


def test_types_are_torchs() -> None:
    assert [t.value for t in OutputType] == [t.name for t in schemas.OutputType]
    assert [m.name for m in MutationType] == [m.name for m in schemas.MutationType]


@st.composite
def torch_input_infos(draw: st.DrawFn) -> Any:
    return torchs(
        schemas.InputAliasInfo,
        is_leaf=draw(st.booleans()),
        mutates_data=draw(st.booleans()),
        mutates_metadata=draw(st.booleans()),
        mutations_hidden_from_autograd=draw(st.booleans()),
        mutations_under_no_grad_or_inference_mode=draw(st.booleans()),
        mutation_inductor_storage_resize=False,
        mutates_storage_metadata=False,
        mutation_is_shallow_copy_data=False,
        requires_grad=draw(st.booleans()),
        keep_input_mutations=draw(st.booleans()),
    )


@st.composite
def torch_output_infos(draw: st.DrawFn) -> Any:
    return torchs(
        schemas.OutputAliasInfo,
        output_type=draw(st.sampled_from(list(schemas.OutputType))),
        raw_type=object,
        base_idx=draw(st.none() | st.integers(0, 5)),
        dynamic_dims=None,
        requires_grad=draw(st.booleans()),
        requires_grad_for_backward=draw(st.booleans()),
    )


@st.composite
def torch_metadata(draw: st.DrawFn) -> Any:
    meta = torchs(
        schemas.ViewAndMutationMeta,
        input_info=draw(st.lists(torch_input_infos(), max_size=4)),
        output_info=draw(st.lists(torch_output_infos(), max_size=4)),
        num_intermediate_bases=draw(st.integers(0, 3)),
        keep_input_mutations=draw(st.booleans()),
        traced_tangents=[],
        traced_tangents_descs=[],
        subclass_inp_meta=[],
        subclass_fw_graph_out_meta=[],
        subclass_tangent_meta=[],
        bw_donated_idxs=draw(st.none() | st.lists(st.integers(0, 9), max_size=3)),
    )
    meta.is_rng_op_functionalized = draw(st.booleans())
    meta.num_outputs_rng_offset = int(meta.is_rng_op_functionalized)
    meta.num_forward = meta.num_forward_returns + meta.num_outputs_rng_offset
    if draw(st.booleans()):
        meta.num_symints_saved_for_bw = draw(st.integers(0, 3))
        meta.num_tensors_saved_with_no_vc_check = draw(st.integers(0, 3))
        meta.num_opaque_objects_saved_for_bw = draw(st.none() | st.integers(0, 2))
    return meta


@SETTINGS
@given(torch_metadata(), st.integers(0, 6))
def test_everything_derived_agrees_with_torch(theirs: Any, checked_tensors: int) -> None:
    ours = view_and_mutation_meta(theirs)
    assert not ours.unknown
    outputs = ours.num_forward
    if ours.is_partitioned:
        outputs += checked_tensors + sum(
            n or 0
            for n in (
                theirs.num_symints_saved_for_bw,
                theirs.num_tensors_saved_with_no_vc_check,
                theirs.num_opaque_objects_saved_for_bw,
            )
        )
        # The saved values are split without gap or overlap.
        parts = [i for part in ours.saved_positions(outputs) for i in part]
        assert parts == list(range(ours.num_forward, outputs))
    assert derived_from_ours(ours, outputs) == derived_from_torch(theirs, outputs)
