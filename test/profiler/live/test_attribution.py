"""Live bytes → category, module, node, line, graph: every view adds up, what is unknown says
why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from profile_builder import KIB, MIB, buffer, node, training

from memprof.profiler.live.attribution import Attribution, Breakdown, Coverage, View
from memprof.profiler.live.live_set import Hold, LiveItem
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import (
    Category,
    GraphRecord,
    NodeProvenance,
    Origin,
    Profile,
    SourceFrame,
    Statement,
    Storage,
)


def at(profile: Profile, call: int, instant: int, view: View) -> Breakdown:
    return Attribution(profile).breakdown(Timeline(profile).live_at(call, instant), view)


def parts(b: Breakdown) -> dict[str, float]:
    return {p.key: p.nbytes / MIB for p in b.parts}


def remainder(b: Breakdown) -> dict[str, int]:
    return {p.key: p.nbytes for p in b.remainder}


def test_views_of_the_forward_at_its_peak() -> None:
    # After event 3: parameters 4 + 2, input 1, buf0 8 (mm), buf1 2 (relu), scratch 3.
    profile = training()
    assert parts(at(profile, 0, 3, View.CATEGORY)) == {
        "activation": 8,
        "parameter": 6,
        "temporary": 5,
        "input": 1,
    }
    # The scratch memory of the kernel at line 13 belongs to what the kernel computes: buf1.
    assert parts(at(profile, 0, 3, View.NODE)) == {
        "mm": 8,
        "relu": 5,
        "primals_1": 4,
        "primals_2": 2,
        "primals_3": 1,
    }
    assert parts(at(profile, 0, 3, View.MODULE)) == {"l1": 12, "": 5, "l2": 2, "(input)": 1}
    file = "/nowhere/site-packages/zoo/model.py"
    assert parts(at(profile, 0, 3, View.LINE)) == {
        f"{file}:3": 8,
        "(parameter)": 6,
        f"{file}:4": 5,
        "(input)": 1,
    }
    assert parts(at(profile, 0, 3, View.GRAPH)) == {
        "0/0 forward": 13,
        "(parameter)": 6,
        "(input)": 1,
    }


def test_reuse_moves_bytes_to_the_new_buffer() -> None:
    nodes = parts(at(training(), 0, 5, View.NODE))
    assert (nodes["sum_1"], "relu" in nodes) == (2, False)


def test_saved_memory_in_the_backward_belongs_to_the_forward_node() -> None:
    b = at(training(), 1, 0, View.NODE)
    saved = next(p for p in b.parts if p.key == "mm")
    assert (saved.graph, saved.nbytes, saved.note) == (0, 8 * MIB, "aten.mm.default")
    assert parts(at(training(), 1, 0, View.GRAPH))["0/0 forward"] == 8


def with_tangent(nbytes: int) -> Profile:
    """A training whose backward begins with the gradient of the forward's output."""
    profile = training()
    forward, back = profile.graphs[:2]
    shape = ("8", str(nbytes // 32 // 1024), "1024")
    value = replace(back.inputs[3], gradient_of=0, shape=shape)
    profile.graphs[1] = replace(
        back,
        description=replace(back.description, inputs=(*back.inputs[:3], value)),
        programs=[
            replace(
                p,
                storages=tuple(
                    replace(s, nbytes=nbytes) if s.name == "tangents_1" else s for s in p.storages
                ),
            )
            for p in back.programs
        ],
    )
    name = forward.outputs[0].name
    known = {name: node(name, "aten.mm.default", "head", 36)}
    profile.graphs[0] = replace(forward, nodes={**forward.nodes, **known})
    return profile


def test_the_gradient_of_an_output_has_the_line_and_the_module_of_the_output() -> None:
    profile = with_tangent(1 * MIB)
    before, after = (at(p, 1, 0, View.LINE) for p in (training(), with_tangent(1 * MIB)))
    assert "(autograd detail)" in parts(before)
    assert "(autograd detail)" not in parts(after)
    assert parts(after)["/nowhere/site-packages/zoo/model.py:36"] == 1
    assert parts(at(profile, 1, 0, View.MODULE))["head"] == 1
    # It is what it was, and made by nobody's graph.
    assert parts(at(profile, 1, 0, View.CATEGORY))["autograd_detail"] == 1
    assert parts(at(profile, 1, 0, View.GRAPH))["(autograd detail)"] == 1
    assert parts(at(profile, 1, 0, View.NODE))["tangents_1"] == 1


def test_a_gradient_of_an_output_that_is_not_there() -> None:
    profile = with_tangent(1 * MIB)
    back = profile.graphs[1]
    value = replace(back.inputs[3], gradient_of=99)
    profile.graphs[1] = replace(
        back, description=replace(back.description, inputs=(*back.inputs[:3], value))
    )
    assert "(autograd detail)" in parts(at(profile, 1, 0, View.LINE))


def test_saved_memory_of_a_forward_that_was_never_observed() -> None:
    # The forward's record alone names the node of each output.
    profile = training()
    profile.graphs[0].programs = []
    profile.calls.program[:] = [-1 if g == 0 else 0 for g in profile.calls.graph]
    b = at(profile, 1, 0, View.NODE)
    assert next((p.graph, p.nbytes) for p in b.parts if p.key == "mm") == (0, 8 * MIB)
    # Without any record of it, the remainder says so.
    del profile.graphs[0]
    profile.calls.graph[:], profile.calls.program[:] = [1], [0]
    profile.calls.start_ns[:], profile.calls.end_ns[:], profile.calls.thread[:] = [0], [0], [0]
    assert (
        remainder(at(profile, 0, 0, View.MODULE))["saved by a forward of which there is no record"]
        == 8 * MIB
    )


@pytest.mark.parametrize(
    ("breakage", "view", "reason"),
    [
        (
            lambda g: g.buffers.pop("buf0"),
            View.NODE,
            "the generated code's buffer has no provenance",
        ),
        (lambda g: g.nodes.pop("mm"), View.NODE, "the FX node has no record"),
        (
            lambda g: g.buffers.update(buf0=buffer("buf0", kind="FallbackKernel")),
            View.NODE,
            "the compiler names no FX node for a FallbackKernel",
        ),
        (
            lambda g: g.nodes.update(mm=node("mm", "aten.mm.default", None, 3)),
            View.MODULE,
            "the FX node belongs to no known module",
        ),
        (
            lambda g: g.nodes.update(mm=node("mm", "aten.mm.default", "l1", None)),
            View.LINE,
            "the FX node has no user source line",
        ),
    ],
)
def test_what_is_unknown_says_why(breakage: object, view: View, reason: str) -> None:
    profile = training()
    assert remainder(at(profile, 0, 1, view)) == {}
    breakage(profile.graphs[0])  # type: ignore[operator]
    b = at(profile, 0, 1, view)
    assert remainder(b) == {reason: 8 * MIB}
    assert (b.attributed, b.unattributed, b.total) == (7 * MIB, 8 * MIB, 15 * MIB)


def test_without_a_primary_node_the_last_one_stands_for_the_buffer() -> None:
    profile = training()
    both = replace(buffer("buf0", "relu", "mm"), primary=None)
    profile.graphs[0].buffers["buf0"] = both
    assert parts(at(profile, 0, 1, View.NODE))["mm"] == 8


def test_scratch_memory_of_an_unknown_line() -> None:
    profile = training()
    profile.graphs[0].statements = ()
    b = at(profile, 0, 3, View.NODE)
    assert remainder(b) == {"line 13 of the generated code computes no known buffer": 3 * MIB}


def test_scratch_memory_inside_a_statement_of_several_lines() -> None:
    profile = training()
    kernel = Statement(11, ("buf1",), (), "buf1 = op(", "call")
    profile.graphs[0].statements = (kernel,)
    assert parts(at(profile, 0, 3, View.NODE))["relu"] == 5


def test_unknown_category_is_remainder_there_only() -> None:
    profile = training()
    # The optimizer's buffer has no category and no provenance.
    assert remainder(at(profile, 2, 1, View.CATEGORY)) == {"category unknown": 512 * KIB}
    assert remainder(at(profile, 2, 1, View.GRAPH)) == {}
    assert remainder(at(profile, 2, 1, View.LINE)) == {
        "the generated code's buffer has no provenance": 512 * KIB
    }


def test_parameters_belong_to_the_module_of_their_name() -> None:
    profile = training()
    b = at(profile, 0, 0, View.MODULE)
    assert parts(b) == {"l1": 4, "l2": 2, "(input)": 1}
    profile.graphs[0].description = replace(
        profile.graphs[0].description,
        inputs=tuple(replace(v, fqn=None) for v in profile.graphs[0].inputs),
    )
    b = at(profile, 0, 0, View.MODULE)
    assert remainder(b) == {"a parameter whose name is not known": 6 * MIB}


def test_constants_are_outside_compiled_code() -> None:
    profile = training()
    constant = Storage(0, 8, "cpu", Origin.EXTERNAL, "_tensor_constant0", Category.CONSTANT)
    item = LiveItem(constant, 0, "_tensor_constant0", 0, Hold.CALL)
    attribution = Attribution(profile)
    for view, key in (
        (View.CATEGORY, "constant"),
        (View.MODULE, "(constant)"),
        (View.LINE, "(constant)"),
        (View.NODE, "_tensor_constant0"),
    ):
        b = attribution.breakdown([item], view)
        assert ([p.key for p in b.parts], b.unattributed) == ([key], 0)
    # What an operator keeps for itself is known by the buffer that the operator returns.
    kept = replace(constant, name="buf0")
    b = attribution.breakdown([replace(item, storage=kept, owner="buf0")], View.MODULE)
    assert [p.key for p in b.parts] == ["l1"]


def test_coverage() -> None:
    profile = training()
    attribution = Attribution(profile)

    def coverage(*graphs: GraphRecord) -> Coverage:
        return attribution.coverage((g, g.programs[0]) for g in graphs)

    # The output of `add` has a module and no line: that counts as a source.
    assert coverage(profile.graphs[0]) == Coverage(14 * MIB, 14 * MIB, 14 * MIB, {})
    lost = {"the generated code's buffer has no provenance": 512 * KIB}
    assert coverage(profile.graphs[2]) == Coverage(512 * KIB, 0, 0, lost)
    # A node without source is half attributed, and the reason is given once.
    profile = training()
    profile.graphs[0].nodes["mm"] = node("mm", "aten.mm.default", None, None)
    attribution = Attribution(profile)
    missing = {"the FX node has no user source line": 8 * MIB}
    assert coverage(profile.graphs[0]) == Coverage(14 * MIB, 14 * MIB, 6 * MIB, missing)
    total = coverage(profile.graphs[0], profile.graphs[2])
    assert total == Coverage(14 * MIB + 512 * KIB, 14 * MIB, 6 * MIB, {**missing, **lost})


STORAGES = st.builds(
    Storage,
    id=st.integers(0, 5),
    nbytes=st.integers(0, 1000),
    device=st.just("cpu"),
    origin=st.sampled_from(Origin),
    name=st.sampled_from(["", "primals_1", "buf0", "nothing"]),
    category=st.sampled_from(Category),
    inputs=st.lists(st.integers(0, 2), max_size=2).map(tuple),
)


@given(
    st.lists(
        st.builds(
            LiveItem,
            STORAGES,
            st.sampled_from([0, 1]),
            st.sampled_from([None, "primals_1", "buf0", "buf1", "buf9", ""]),
            st.integers(0, 20),
            st.sampled_from(Hold),
            st.integers(1, 3),
        )
    )
)
def test_every_view_adds_up(items: list[LiveItem]) -> None:
    attribution = Attribution(training())
    for view in View:
        b = attribution.breakdown(items, view)
        assert b.total == sum(i.nbytes for i in items)
        assert b.attributed == sum(p.nbytes for p in b.parts)
        assert b.unattributed == sum(p.nbytes for p in b.remainder)
        assert b.attributed + b.unattributed == b.total
        assert sum(p.storages for p in (*b.parts, *b.remainder)) == sum(i.count for i in items)
        assert len({(p.key, p.graph) for p in b.parts}) == len(b.parts)
        assert "unknown" not in remainder(b), "every reason is in words"


def test_the_line_of_a_node_is_the_users_own() -> None:
    # GIVEN a collective, which torch traces into code of its own, and one that is torch's alone
    torch = "/venv/lib/python3.11/site-packages/torch/distributed/_functional_collectives.py"
    mine = SourceFrame("/home/me/train.py", 14, "step", "y = all_reduce(y, 'sum', group)")
    theirs = [SourceFrame(torch, line, "all_reduce", "return") for line in (170, 138)]
    # THEN the line is the user's where there is one
    assert NodeProvenance("all_reduce", "", stack=(mine, *theirs)).frame == mine
    assert NodeProvenance("all_reduce", "", stack=tuple(theirs)).frame == theirs[1]
    assert NodeProvenance("all_reduce", "").frame is None
