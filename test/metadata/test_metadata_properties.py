"""Our metadata says what torch's own classes say, for anything they can be made of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._functorch._aot_autograd import schemas
from torch._functorch._aot_autograd.descriptors import PlainAOTOutput, TangentAOTInput

from memprof.compile_backend.metadata import codec, from_aot
from memprof.compile_backend.metadata.input_alias import (
    InputAliasInfo,
    MutationError,
    MutationType,
)
from memprof.compile_backend.metadata.output_alias import OutputAliasInfo, OutputType, ViewSequence
from memprof.compile_backend.metadata.sizes import SymbolicSize
from memprof.compile_backend.metadata.subclass import (
    OpaqueMeta,
    PlainTensorMeta,
    SubclassCreationMeta,
)
from memprof.compile_backend.metadata.view_and_mutation import (
    DynamicDims,
    FlattenSpec,
    InputPath,
    MetadataNotReadyError,
    TracedTangent,
    ViewAndMutationMeta,
)

from .capture import derived_from_ours, derived_from_torch

SETTINGS = settings(max_examples=100)


def torchs(class_: Any, **values: Any) -> Any:
    """A torch dataclass, given the fields that this version of it has."""
    known = {f.name for f in dataclasses.fields(class_)}
    return class_(**{k: v for k, v in values.items() if k in known})


FACTS = (
    "is_leaf",
    "mutates_data",
    "mutates_metadata",
    "mutations_hidden_from_autograd",
    "mutations_under_no_grad_or_inference_mode",
    "mutation_inductor_storage_resize",
    "mutates_storage_metadata",
    "requires_grad",
    "keep_input_mutations",
)


def test_mutation_type_for_every_combination_of_facts() -> None:
    checked = refused = 0
    for bits in range(2 ** len(FACTS)):
        facts = {name: bool(bits >> i & 1) for i, name in enumerate(FACTS)}
        try:
            theirs = torchs(schemas.InputAliasInfo, **facts, mutation_is_shallow_copy_data=False)
            expected = theirs.mutation_type.name.lower()
        except AssertionError:
            with pytest.raises(MutationError):
                _ = InputAliasInfo(**facts).mutation_type
            refused += 1
            continue
        assert from_aot.input_alias_info(theirs).mutation_type.value == expected, facts
        checked += 1
    assert (checked, refused) == (228, 284)


def test_output_types_are_torchs() -> None:
    assert [t.value for t in OutputType] == [t.name for t in schemas.OutputType]


@st.composite
def torch_input_infos(draw: st.DrawFn) -> Any:
    mutated, grad, hidden = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    metadata = draw(st.booleans())
    return torchs(
        schemas.InputAliasInfo,
        is_leaf=draw(st.booleans()),
        mutates_data=mutated,
        mutates_metadata=metadata,
        mutations_hidden_from_autograd=hidden,
        mutations_under_no_grad_or_inference_mode=draw(st.booleans()),
        mutation_inductor_storage_resize=False,
        mutates_storage_metadata=False,
        mutation_is_shallow_copy_data=False,
        requires_grad=grad,
        keep_input_mutations=draw(st.booleans()),
    )


@st.composite
def torch_output_infos(draw: st.DrawFn) -> Any:
    return torchs(
        schemas.OutputAliasInfo,
        output_type=draw(st.sampled_from(list(schemas.OutputType))),
        raw_type=draw(st.sampled_from([torch.Tensor, torch.SymInt, int])),
        base_idx=draw(st.none() | st.integers(0, 5)),
        dynamic_dims=draw(st.none() | st.sets(st.integers(0, 4))),
        requires_grad=draw(st.booleans()),
        requires_grad_for_backward=draw(st.booleans()),
    )


@st.composite
def torch_metadata(draw: st.DrawFn) -> Any:
    tangents = draw(st.lists(st.sampled_from([(2, 3), (4,), ()]), max_size=3))
    meta = torchs(
        schemas.ViewAndMutationMeta,
        input_info=draw(st.lists(torch_input_infos(), max_size=4)),
        output_info=draw(st.lists(torch_output_infos(), max_size=4)),
        num_intermediate_bases=draw(st.integers(0, 3)),
        keep_input_mutations=draw(st.booleans()),
        traced_tangents=[torch.empty(shape, device="meta") for shape in tangents],
        traced_tangents_descs=[TangentAOTInput(PlainAOTOutput(i)) for i in range(len(tangents))],
        subclass_inp_meta=[schemas.PlainTensorMeta(0)],
        subclass_fw_graph_out_meta=[],
        subclass_tangent_meta=[],
        static_input_indices=draw(st.lists(st.integers(0, 9), max_size=3)),
        bw_donated_idxs=draw(st.none() | st.lists(st.integers(0, 9), max_size=3)),
        num_backward_tokens=draw(st.integers(0, 2)),
        tokens={f"effect{i}": None for i in range(draw(st.integers(0, 2)))},
    )
    meta.is_rng_op_functionalized = draw(st.booleans())
    meta.num_outputs_rng_offset = int(meta.is_rng_op_functionalized)
    meta.num_forward = meta.num_forward_returns + meta.num_outputs_rng_offset
    if draw(st.booleans()):
        meta.num_symints_saved_for_bw = draw(st.integers(0, 3))
        meta.num_tensors_saved_with_no_vc_check = draw(st.integers(0, 3))
        meta.num_opaque_objects_saved_for_bw = draw(st.none() | st.integers(0, 2))
        meta.dynamic_saved_tensors_idxs.update(
            draw(st.dictionaries(st.integers(0, 4), st.sets(st.integers(0, 3)), max_size=2))
        )
    return meta


@SETTINGS
@given(torch_metadata(), st.integers(0, 6))
def test_everything_derived_agrees_with_torch(theirs: Any, checked_tensors: int) -> None:
    ours = from_aot.view_and_mutation_meta(theirs)
    saved = 0
    if ours.is_partitioned:
        saved = checked_tensors + sum(
            n or 0
            for n in (
                theirs.num_symints_saved_for_bw,
                theirs.num_tensors_saved_with_no_vc_check,
                theirs.num_opaque_objects_saved_for_bw,
            )
        )
    outputs = ours.num_forward + saved
    assert derived_from_ours(ours, outputs) == derived_from_torch(theirs, outputs)
    # The saved values are split without gap or overlap.
    if ours.is_partitioned:
        every = range(outputs)
        parts = [
            *every[ours.tensors_saved_for_backwards_with_vc_check_slice],
            *every[ours.tensors_saved_for_backwards_no_vc_check_slice],
            *every[ours.opaque_objects_saved_for_backwards_slice],
            *every[ours.symints_saved_for_backwards_slice],
        ]
        assert parts == list(range(ours.num_forward, outputs))


@SETTINGS
@given(torch_metadata(), torch_metadata())
def test_equality_is_torchs(a: Any, b: Any) -> None:
    ours_a, ours_b = map(from_aot.view_and_mutation_meta, (a, b))
    assert (ours_a == ours_b) == (a == b)
    assert ours_a == from_aot.view_and_mutation_meta(a)
    assert hash(ours_a) == hash(from_aot.view_and_mutation_meta(a))


@pytest.mark.parametrize(
    ("field", "value", "equal"),
    [
        ("num_intermediate_bases", 7, False),
        ("keep_input_mutations", False, False),
        ("num_backward_tokens", 3, False),
        ("is_rng_op_functionalized", True, False),
        ("traced_tangents", (TracedTangent("torch.Tensor", "torch.float32", (3,)),), False),
        ("static_input_indices", (1, 2), True),  # no part of the analysis
        ("bw_donated_idxs", (1,), True),
    ],
)
def test_what_equality_looks_at(field: str, value: Any, equal: bool) -> None:
    meta = ViewAndMutationMeta((), (), 0, True)
    changed = dataclasses.replace(meta, **{field: value})
    assert (meta == changed) is equal
    assert not meta.identical(changed)


def test_slices_need_a_partitioned_graph() -> None:
    meta = ViewAndMutationMeta((), (), 0, True)
    assert not meta.is_partitioned
    for name in (
        "tensors_saved_for_backwards_slice",
        "tensors_saved_for_backwards_with_vc_check_slice",
        "tensors_saved_for_backwards_no_vc_check_slice",
        "symints_saved_for_backwards_slice",
    ):
        with pytest.raises(MetadataNotReadyError, match="has not been partitioned"):
            getattr(meta, name)
    assert meta.opaque_objects_saved_for_backwards_slice == slice(0, 0)


def test_everything_is_immutable() -> None:
    meta = ViewAndMutationMeta((), (), 0, True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        meta.num_intermediate_bases = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        PlainTensorMeta(0).unwrapped_idx = 1  # type: ignore[misc]


def test_view_sequences_compare_by_where_they_lead() -> None:
    a = ViewSequence(("view",), size=(6,), stride=(1,), storage_offset=0)
    assert a == ViewSequence(("t", "view"), size=(6,), stride=(1,), storage_offset=0)
    assert a != ViewSequence(("view",), size=(6,), stride=(1,), storage_offset=1)
    # A lost sequence is no difference.
    info = OutputAliasInfo(OutputType.ALIAS_OF_INPUT, "torch.Tensor", 0, (), True, True, a)
    assert info == dataclasses.replace(info, view_sequence=None)
    assert hash(info) == hash(dataclasses.replace(info, view_sequence=None))


# --- JSON ---------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
symbols = st.builds(SymbolicSize, names, st.booleans())
size_lists = st.lists(st.integers(-1, 9) | symbols | st.none(), max_size=3).map(tuple)
plain = st.builds(PlainTensorMeta, st.integers(0, 9))
layouts = st.recursive(
    plain | st.just(OpaqueMeta()),
    lambda inner: st.builds(
        SubclassCreationMeta,
        flat_tensor_start_idx=st.integers(0, 9),
        flat_arg_count=st.integers(1, 9),
        included_subclass_symints=st.booleans(),
        attrs=st.lists(st.tuples(names, inner), max_size=3).map(tuple),
        outer_size=size_lists,
        outer_stride=size_lists,
        type_name=names,
        context=names,
        context_is_portable=st.booleans(),
    ),
    max_leaves=6,
)
inputs = st.builds(
    InputAliasInfo,
    **{name: st.booleans() for name in FACTS if name != "mutates_storage_metadata"},
    mutates_storage_metadata=st.just(False),
    mutation_is_shallow_copy_data=st.none() | st.booleans(),
)
views = st.builds(
    ViewSequence,
    steps=st.lists(names, max_size=3).map(tuple),
    symbolic=st.booleans(),
    size=st.lists(st.integers(0, 9) | symbols, max_size=3).map(tuple),
    stride=st.none() | st.lists(st.integers(0, 9) | symbols, max_size=3).map(tuple),
    storage_offset=st.none() | st.integers(0, 9) | symbols,
)
outputs = st.builds(
    OutputAliasInfo,
    output_type=st.sampled_from(OutputType),
    raw_type=names,
    base_idx=st.none() | st.integers(0, 9),
    dynamic_dims=st.none() | st.lists(st.integers(0, 4)).map(tuple),
    requires_grad=st.booleans(),
    requires_grad_for_backward=st.none() | st.booleans(),
    view_sequence=st.none() | views,
)
flattens = st.builds(FlattenSpec, st.lists(names, max_size=2).map(tuple), names)
metadata = st.builds(
    ViewAndMutationMeta,
    input_info=st.lists(inputs, max_size=3).map(tuple),
    output_info=st.lists(outputs, max_size=3).map(tuple),
    num_intermediate_bases=st.integers(0, 3),
    keep_input_mutations=st.booleans(),
    traced_tangents=st.lists(
        st.builds(
            TracedTangent, names, st.none() | names, size_lists, st.none(), st.none() | flattens
        ),
        max_size=2,
    ).map(tuple),
    subclass_inp_meta=st.lists(layouts, max_size=2).map(tuple),
    subclass_tangent_meta=st.lists(layouts, max_size=2).map(tuple),
    dynamic_saved_tensors=st.lists(
        st.builds(DynamicDims, st.integers(0, 3), st.just((0, 1))), max_size=2
    ).map(tuple),
    act_input_paths=st.none()
    | st.lists(st.builds(InputPath, st.integers(0, 3), st.just(("a",))), max_size=2).map(tuple),
    saved_tensor_is_graph_input=st.none() | st.lists(st.booleans()).map(tuple),
    mutated_inp_stream_indices=st.none() | st.just((None, 3)),
    num_symints_saved_for_bw=st.none() | st.integers(0, 3),
)


@SETTINGS
@given(metadata)
def test_json_gives_back_what_it_was_given(meta: ViewAndMutationMeta) -> None:
    again = codec.from_json(codec.to_json(meta), ViewAndMutationMeta)
    assert again.identical(meta)
    assert [o.view_sequence is None for o in again.output_info] == [
        o.view_sequence is None for o in meta.output_info
    ]
    assert codec.from_builtins(codec.to_builtins(meta), ViewAndMutationMeta).identical(meta)


@SETTINGS
@given(metadata)
def test_runtime_safe_form_has_nothing_symbolic(meta: ViewAndMutationMeta) -> None:
    safe = meta.runtime_safe()
    assert safe.runtime_safe() is safe
    assert safe.traced_tangents == ()
    assert safe.traced_tangent_metas == tuple(t.flatten for t in meta.traced_tangents)
    assert not any(
        o.view_sequence is not None and o.view_sequence.symbolic for o in safe.output_info
    )

    def sizes(layout: Any) -> list[Any]:
        found = [*getattr(layout, "outer_size", ()), *getattr(layout, "outer_stride", ())]
        return found + [s for _, inner in getattr(layout, "attrs", ()) for s in sizes(inner)]

    for layout in (*safe.subclass_inp_meta, *safe.subclass_tangent_meta):
        assert not any(isinstance(s, SymbolicSize) for s in sizes(layout))
    # Counts and indices do not change.
    assert [m.mutates_data for m in safe.input_info] == [m.mutates_data for m in meta.input_info]
    assert safe.aliased_out_indices == meta.aliased_out_indices


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"input_info": 3}',
        b'{"input_info": [], "output_info": [], "num_intermediate_bases": "x",'
        b' "keep_input_mutations": true}',
        b'{"input_info": [], "output_info": [], "num_intermediate_bases": 0,'
        b' "keep_input_mutations": true, "subclass_inp_meta": [{"kind": "banana"}]}',
        b'{"input_info": [], "output_info": [], "num_intermediate_bases": 0,'
        b' "keep_input_mutations": true, "subclass_inp_meta": [7]}',
    ],
)
def test_json_that_is_no_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(codec.MetadataFormatError, match="not a ViewAndMutationMeta"):
        codec.from_json(data, ViewAndMutationMeta)


def test_impossible_facts_in_json_are_refused() -> None:
    facts = dict.fromkeys(FACTS, False) | {"mutates_storage_metadata": True}
    with pytest.raises(codec.MetadataFormatError, match="mutates_metadata"):
        codec.from_builtins(facts, InputAliasInfo)


def test_unknown_objects_of_torch_are_refused() -> None:
    with pytest.raises(from_aot.UnknownMetadataError, match="unknown layout int"):
        from_aot.layout(3)


def test_mutation_types_are_torchs() -> None:
    assert [m.name for m in MutationType] == [m.name for m in schemas.MutationType]
