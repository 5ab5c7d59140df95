"""What is live when: by hand on a small training loop, against a slow and plain
implementation of Note [What is live between calls] on random ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from counting import lines_run
from framing import findings
from hypothesis import given, settings, strategies as st
from profile_builder import MIB, ProgramBuilder, calls, training

from memprof.profiler.live.live_set import Hold, Instant
from memprof.profiler.live.timeline import Timeline, UnobservedCalls
from memprof.profiler.model import (
    AllocationProgram,
    Category,
    Event,
    EventKind,
    GraphDescription,
    GraphKind,
    GraphRecord,
    GraphValue,
    LedgerEntry,
    LedgerKind,
    Origin,
    Profile,
    Role,
)


def mib(profile: Profile) -> list[tuple[float, float, float, float]]:
    """Entry, peak, exit, between of every call in MiB."""
    b = Timeline(profile).bytes_over_time()
    return [
        (e / MIB, p / MIB, x / MIB, w / MIB)
        for e, p, x, w in zip(b["entry"], b["peak"], b["exit"], b["between"], strict=True)
    ]


def names(timeline: Timeline, call: int, instant: int) -> list[tuple[str, str, int]]:
    """Sorted (name, why, MiB)."""
    live = timeline.live_at(call, instant)
    return sorted((i.storage.name, i.hold.value, i.nbytes // MIB) for i in live)


# By hand


def test_training_loop() -> None:
    timeline = Timeline(training())
    # 4 + 2 parameters; 9 saved by the forward; 4 gradient; 4 optimizer state from its first use.
    assert mib(training()) == [
        (7, 20, 16, 15),
        (16, 22, 12, 10),
        (14, 14.5, 14, 10),
        (11, 24, 20, 19),
        (20, 26, 16, 14),
        (14, 14.5, 14, 10),
        (11, 24, 20, 19),
        (20, 26, 16, 14),
        (14, 14.5, 14, 10),
    ]
    assert timeline.peak() == Instant(call=4, instant=1, nbytes=26 * MIB)
    assert timeline.unobserved() == []
    assert len(timeline) == 9


def test_live_set_of_the_backward() -> None:
    timeline = Timeline(training())
    # At entry: what the forward saved is the backward's own input, explained by the forward.
    assert names(timeline, 4, 0) == [
        ("arg2_1", "persistent", 4),
        ("buf0", "call", 8),
        ("primals_1", "call", 4),
        ("primals_2", "persistent", 2),
        ("primals_3", "call", 1),
        ("tangents_1", "call", 1),
    ]
    saved = next(i for i in timeline.live_at(4, 0) if i.storage.name == "buf0")
    assert (saved.graph, saved.owner, saved.line, saved.storage.category) == (
        0,
        "buf0",
        10,
        Category.ACTIVATION,
    )
    # After its second event the backward has freed it.
    assert "buf0" not in {n for n, hold, _ in names(timeline, 4, 2) if hold == "saved"}
    assert sum(i.nbytes for i in timeline.live_at(4, 2)) == 18 * MIB


def test_gradient_is_handed_on_to_the_optimizer() -> None:
    timeline = Timeline(training())
    # Another call between the backward and the optimizer sees the gradient.
    between = training()
    between.calls = calls((0, 0), (1, 0), (0, 0), (2, 0))
    held = names(Timeline(between), 2, 0)
    assert ("buf1", "handed_on", 4) in held
    # In the optimizer's own call it is an input that the backward explains.
    gradient = next(i for i in timeline.live_at(2, 0) if i.storage.name == "buf1")
    assert (gradient.graph, gradient.hold) == (1, Hold.CALL)


def test_gradients_accumulate() -> None:
    profile = training()
    profile.calls = calls(*[(0, 0), (1, 0)] * 2, (2, 0))
    timeline = Timeline(profile)
    # The second backward makes its own gradient, which is then added to the first one.
    assert ("buf1", "handed_on", 4) in names(timeline, 3, 3)
    assert ("buf1", "call", 4) in names(timeline, 3, 3)
    assert [between for *_, between in mib(profile)] == [15, 10, 19, 10, 10]


def test_two_forwards_wait_at_once() -> None:
    # GIVEN gradient accumulation that runs both forwards first
    profile = training()
    profile.calls = calls((0, 0), (0, 0), (1, 0), (1, 0))
    # THEN two copies of what one forward saves are live, and one of each parameter
    assert mib(profile) == [(7, 20, 16, 15), (16, 29, 25, 24), (25, 31, 21, 15), (16, 22, 12, 6)]
    copies = [(i.storage.name, i.count) for i in Timeline(profile).live_at(1, 0)]
    assert sorted(copies) == [
        ("buf0", 1),
        ("primals_1", 1),
        ("primals_2", 1),
        ("primals_3", 1),
        ("primals_3", 1),
    ]


def test_released_memory_is_gone() -> None:
    profile = training()
    profile.released = {2: 4, 8: 3}
    between = [b for *_, b in mib(profile)]
    # l2.bias (2) from call 4 on, the moment (4) from call 3 on.
    assert between == [15, 10, 10, 15, 8, 4, 13, 8, 4]


def test_released_counts_dropped_calls() -> None:
    profile = training()
    profile.calls = replace(profile.calls, dropped=100)
    profile.released = {2: 104, 8: 50}
    # 8 was released before the log begins, and yet its program is called again: a new
    # tensor may have its place, but of that we know nothing.
    assert [b for *_, b in mib(profile)] == [15, 10, 6, 15, 8, 4, 13, 8, 4]


def test_a_copy_of_a_parameter_dies_with_its_backward() -> None:
    """A forward saves a weight in another memory format: memory of its own, which metadata
    call the parameter."""
    S = Role.SAVED_FOR_BACKWARD
    weight = GraphValue(0, "w", Role.PARAMETER, Category.PARAMETER, "c.weight")
    saved = GraphValue(0, "w", S, Category.PARAMETER)
    fw = GraphRecord(
        0,
        GraphKind.FORWARD,
        "0/0",
        0,
        description=GraphDescription(inputs=(weight,), outputs=(saved,)),
    )
    made = ProgramBuilder().input("w", 10, Category.PARAMETER, 1, [0])
    fw.programs = [made.alloc("buf0", 10, 1, Category.PARAMETER, 2, [0]).build()]
    given = replace(weight, forward_output=0)
    bw = GraphRecord(1, GraphKind.BACKWARD, "0/0", 0, description=GraphDescription(inputs=(given,)))
    bw.programs = [ProgramBuilder().input("w", 10, Category.PARAMETER, 3, [0]).build()]
    profile = Profile(graphs=[fw, bw], calls=calls(*[(0, 0), (1, 0)] * 3))
    b = Timeline(profile).bytes_over_time()
    assert list(b["between"]) == [20, 10] * 3
    assert list(b["entry"]) == [10, 20] * 3


def test_constants_of_a_graph_persist() -> None:
    """Memory that no argument reaches: without an identity, named within its graph."""
    external = ProgramBuilder()
    external.storage("c", 5, Origin.EXTERNAL, Category.CONSTANT)
    external.storage("", 7, Origin.EXTERNAL, Category.CONSTANT)
    graph = GraphRecord(0, GraphKind.INFERENCE, "0/0", programs=[external.build()])
    other = GraphRecord(1, GraphKind.INFERENCE, "1/0", programs=[ProgramBuilder().build()])
    profile = Profile(graphs=[graph, other], calls=calls((0, 0), (0, 0), (1, 0)))
    assert findings(profile) == []
    b = Timeline(profile).bytes_over_time()
    assert (list(b["entry"]), list(b["between"])) == ([12, 12, 12], [12, 12, 12])


def test_warm_ups_are_not_observed() -> None:
    profile = training()
    profile.ledger += [LedgerEntry(k, LedgerKind.WARM_UP, 0, "new sizes") for k in range(2)]
    for before, reason in (
        (2, "warm-ups of its CUDA graph, before the observed call"),
        # One more than there were warm-ups.
        (3, "no program was observed for the sizes of these calls"),
    ):
        profile.calls = calls(*[(0, -1)] * before, (0, 0), (1, 0))
        assert Timeline(profile).unobserved() == [UnobservedCalls(0, before, reason)]


def test_unobserved_calls_are_counted_with_their_reason() -> None:
    profile = training()
    profile.graphs[2].unobservable = "generated code is C++"
    profile.ledger.append(LedgerEntry(9, LedgerKind.NOT_OBSERVED, 0, "a profiler was running"))
    profile.calls = calls((0, -1), (1, 0), (0, 0), (1, -1), (2, -1), (2, -1), (1, -1))
    timeline = Timeline(profile)
    assert timeline.unobserved() == [
        UnobservedCalls(0, 1, "a profiler was running"),
        UnobservedCalls(1, 2, "no program was observed for the sizes of these calls"),
        UnobservedCalls(2, 2, "generated code is C++"),
    ]
    # The unobserved backward takes what its forward saved: gone when it has returned.
    assert mib(profile) == [
        (0, 0, 0, 0),
        (14, 20, 10, 0),
        (7, 20, 16, 15),
        (15, 15, 15, 6),
        (6, 6, 6, 6),
        (6, 6, 6, 6),
        (6, 6, 6, 6),
    ]
    with pytest.raises(IndexError, match="call 3 was not observed"):
        timeline.live_at(3, 1)


def test_no_calls() -> None:
    timeline = Timeline(Profile())
    assert timeline.peak() is None
    assert len(timeline) == 0
    with pytest.raises(IndexError, match="there is no call 0"):
        timeline.live_at(0, 0)


def test_instants_outside_a_call() -> None:
    timeline = Timeline(training())
    for call, instant in ((9, 0), (-1, 0), (0, 8), (0, -1)):
        with pytest.raises(IndexError):
            timeline.live_at(call, instant)


def test_devices_are_counted_apart() -> None:
    profile = training()
    on_gpu = ProgramBuilder(device="cuda:0").alloc("buf0", 5 * MIB, 1).build()
    cpu = profile.graphs[2].programs[0]
    mixed = replace(
        cpu,
        storages=(*cpu.storages, replace(on_gpu.storages[0], id=4)),
        events=(Event(EventKind.ALLOC, 4, 1, "buf9"), *cpu.events),
    )
    profile.graphs[2].programs[0] = mixed
    profile.calls = calls((2, 0))
    both = Timeline(profile).peak()
    gpu, host = Timeline(profile, "cuda:0"), Timeline(profile, "cpu")
    assert both is not None
    assert both.nbytes == (12 + 5) * MIB + MIB // 2
    assert gpu.peak() == Instant(0, 1, 5 * MIB)
    assert [i.storage.name for i in gpu.live_at(0, 1)] == ["buf0"]
    assert host.peak() == Instant(0, 2, 12 * MIB + MIB // 2)
    assert {i.storage.device for i in host.live_at(0, 2)} == {"cpu"}


def test_backward_goes_to_the_forward_of_its_size() -> None:
    # GIVEN a graph called with two sizes, both forwards waiting
    def forward(key: int) -> AllocationProgram:
        return ProgramBuilder(key).alloc("buf0", key, 1, Category.ACTIVATION, key, [0]).build()

    def backward(key: int) -> AllocationProgram:
        p = ProgramBuilder(key).input("mm", key, Category.ACTIVATION, key, [0])
        return p.free("mm", 1).build()

    S = Role.SAVED_FOR_BACKWARD
    saved_out = GraphValue(0, "mm", S, Category.ACTIVATION)
    saved_in = GraphValue(0, "mm", S, Category.ACTIVATION, forward_output=0)
    fw = GraphRecord(
        0, GraphKind.FORWARD, "0/0", 7, description=GraphDescription(outputs=(saved_out,))
    )
    bw = GraphRecord(
        1, GraphKind.BACKWARD, "0/0", 7, description=GraphDescription(inputs=(saved_in,))
    )
    fw.programs = [forward(100), forward(1000)]
    bw.programs = [backward(100), backward(1000)]
    # WHEN the older one's backward comes first
    profile = Profile(graphs=[fw, bw], calls=calls((0, 0), (0, 1), (1, 0), (1, 1)))
    b = Timeline(profile).bytes_over_time()
    # THEN each backward takes its own
    assert list(b["entry"]) == [0, 100, 1100, 1000]
    assert list(b["exit"]) == [100, 1100, 1000, 0]
    assert list(b["between"]) == [100, 1100, 1000, 0]


def test_a_captured_backward_takes_what_several_calls_of_one_forward_saved() -> None:
    # GIVEN two layers that share their code, and the one captured backward of both
    activation = Category.ACTIVATION
    forward = GraphRecord(
        0,
        GraphKind.FORWARD,
        "0/0",
        0,
        description=GraphDescription(
            outputs=(GraphValue(0, "mm", Role.SAVED_FOR_BACKWARD, activation),)
        ),
        programs=[ProgramBuilder().alloc("buf0", MIB, 1, activation, outputs=[0]).build()],
    )
    saved = ("saved_0", "saved_1")
    program = ProgramBuilder()
    for i, name in enumerate(saved):
        program.input(name, MIB, activation, inputs=[i])
    for line, name in enumerate(saved, 1):
        program.free(name, line)
    backward = GraphRecord(
        1,
        GraphKind.BACKWARD,
        "!0/0",
        1,
        description=GraphDescription(
            inputs=tuple(
                GraphValue(
                    i, name, Role.SAVED_FOR_BACKWARD, activation, forward_graph=0, forward_output=0
                )
                for i, name in enumerate(saved)
            )
        ),
        programs=[program.build()],
    )
    profile = Profile(graphs=[forward, backward], calls=calls(*[(0, 0), (0, 0), (1, 0)] * 2))
    # THEN each call's memory is live, once, until the backward begins, and then the backward's own
    once = [(0, 1, 1, 1), (1, 2, 2, 2), (2, 2, 0, 0)]
    assert mib(profile) == once * 2
    assert [i.hold for i in Timeline(profile).live_at(5, 0)] == [Hold.CALL] * 2


def test_memory_saved_by_two_graphs_exists_once() -> None:
    """Two graphs in a row; the second takes the first's output, and both save it."""
    S = Role.SAVED_FOR_BACKWARD
    saved = GraphValue(0, "h", S, Category.ACTIVATION)
    fw0 = GraphRecord(
        0, GraphKind.FORWARD, "0/0", 0, description=GraphDescription(outputs=(saved,))
    )
    fw0.programs = [ProgramBuilder().alloc("buf0", 64, 1, Category.ACTIVATION, 1, [0]).build()]
    taken = GraphValue(0, "x", Role.USER_INPUT, Category.INPUT)
    fw1 = GraphRecord(
        1,
        GraphKind.FORWARD,
        "1/0",
        1,
        description=GraphDescription(inputs=(taken,), outputs=(saved,)),
    )
    fw1.programs = [ProgramBuilder().input("x", 64, Category.INPUT, 1, [0], [0]).build()]

    def backward(id: int, graph_id: int, identity: int) -> GraphRecord:
        given_back = replace(saved, forward_output=0)
        g = GraphRecord(
            id,
            GraphKind.BACKWARD,
            f"{graph_id}/0",
            graph_id,
            description=GraphDescription(inputs=(given_back,)),
        )
        # Observed at another step: an identity of its own, tied to the forward by its index.
        p = ProgramBuilder().input("h", 64, Category.ACTIVATION, identity, [0])
        g.programs = [p.free("h", 1).build()]
        return g

    profile = Profile(graphs=[fw0, fw1, backward(2, 1, 77), backward(3, 0, 78)])
    order = ((0, 0), (1, 0), (2, 0), (3, 0))
    profile.calls = calls(*order, *order)
    b = Timeline(profile).bytes_over_time()
    assert list(b["entry"]) == [0, 64, 64, 64] * 2
    assert list(b["between"]) == [64, 64, 64, 0] * 2
    # Two micro-batches: two copies, not four.
    profile.calls = calls((0, 0), (1, 0), (0, 0), (1, 0), (2, 0), (3, 0), (2, 0), (3, 0))
    between = Timeline(profile).bytes_over_time()["between"]
    assert between == [64, 64, 128, 128, 128, 64, 64, 0]


# Against a plain implementation


def plain_entry_and_peak(profile: Profile, k: int) -> tuple[int, int]:
    """Live bytes at the entry of call ``k`` and at its peak, straight from the definition."""
    graphs = {g.id: g for g in profile.graphs}
    log = list(zip(profile.calls.graph, profile.calls.program, strict=True))

    def program(call: int) -> AllocationProgram | None:
        g, p = log[call]
        return graphs[g].programs[p] if p >= 0 else None

    def saved(call: int) -> dict[object, int]:
        p = program(call)
        outputs = graphs[log[call][0]].outputs
        return {
            s.identity: s.nbytes
            for s in ([live.storage for live in p.surviving()] if p else [])
            if any(outputs[o].role is Role.SAVED_FOR_BACKWARD for o in s.outputs)
        }

    def given(call: int) -> int | None:
        p = program(call)
        if p is None:
            return None
        values = graphs[log[call][0]].inputs
        return sum(
            s.nbytes
            for s in p.storages
            if any(values[i].forward_output is not None for i in s.inputs)
        )

    # Pair.
    partner: dict[int, int] = {}
    for b, (g, _) in enumerate(log):
        if graphs[g].kind is not GraphKind.BACKWARD:
            continue
        waiting = [
            f
            for f, (h, _) in enumerate(log[:b])
            if graphs[h].kind is GraphKind.FORWARD
            and graphs[h].graph_id == graphs[g].graph_id
            and f not in partner
        ]
        same = [f for f in waiting if (sum(saved(f).values()) if program(f) else None) == given(b)]
        if waiting:
            f = (same or waiting)[-1]
            partner[f] = b
    forward_of = {b: f for f, b in partner.items()}

    persistent: dict[object, int] = {}
    for call in range(k + 1):
        p = program(call)
        values = graphs[log[call][0]].inputs
        for s in p.storages if p else ():
            if any(values[i].forward_output is not None for i in s.inputs):
                continue
            if s.origin is Origin.INPUT and s.category in (
                Category.PARAMETER,
                Category.OPTIMIZER_STATE,
            ):
                persistent[s.identity] = s.nbytes
    # Copies by identity and holder.
    held: dict[object, Counter[object]] = {}
    size: dict[object, int] = {}
    for f, b in partner.items():
        if f < k <= b and not (b == k and program(k)):
            for identity, n in saved(f).items():
                held.setdefault(identity, Counter())[log[f]] += 1
                size[identity] = n
    for call in range(k):
        p = program(call)
        made = (
            [live.storage for live in p.surviving() if live.storage.origin is not Origin.INPUT]
            if p
            else []
        )
        following = next((c for c in range(call + 1, len(log)) if log[c] == log[call]), len(log))
        for s in made:
            if s.category is Category.GRADIENT:  # added to, not replaced
                following = len(log)
            takers = {
                (g.id, q)
                for g in profile.graphs
                for q, other in enumerate(g.programs)
                for t in other.storages
                if t.origin is Origin.INPUT
                and t.identity == s.identity
                and (g.id, q) != log[call]
                and not any(g.inputs[i].forward_output is not None for i in t.inputs)
            }
            # Until the last of the takers' first calls before it is made again.
            ends = [
                next((c for c in range(call + 1, following) if log[c] == t), -1) for t in takers
            ]
            if max(ends, default=-1) >= k:
                held.setdefault(s.identity, Counter())["handed"] = 1
                size[s.identity] = s.nbytes
    # A backward of which no forward, or an unobserved one, is known: any program of it.
    g = log[k][0]
    mate = next(
        ((h.id, 0) for h in graphs.values() if h.id != g and h.graph_id == graphs[g].graph_id),
        (-1, 0),
    )
    if k in forward_of and program(forward_of[k]):
        mate = log[forward_of[k]]
    p = program(k)
    own: set[object] = set()
    inputs = 0
    if p:
        to_forward = {}
        if graphs[log[k][0]].kind is GraphKind.BACKWARD:
            to_forward = {
                o: s.identity for s in graphs[mate[0]].programs[mate[1]].storages for o in s.outputs
            }
        for s in p.storages:
            if s.origin is Origin.INPUT:
                inputs += s.nbytes
                back = [graphs[log[k][0]].inputs[i].forward_output for i in s.inputs]
                named = [to_forward[o] for o in back if o in to_forward]
                own.add(named[0] if named else s.identity)
    total = 0
    for identity, n in persistent.items():
        total += 0 if identity in own else n
    for identity, holders in held.items():
        if identity in persistent:
            continue
        if identity in own:
            # This call, or the forward it belongs to, holds a copy as well.
            with_me = holders.copy()
            if graphs[log[k][0]].kind is GraphKind.BACKWARD:
                with_me[mate] += 1
            elif identity in saved(k):
                with_me[log[k]] += 1
            total += size[identity] * max(max(with_me.values()) - 1, 0)
        else:
            total += size[identity] * max(holders.values())
    if p is None:
        return total, total
    live = best = total + inputs
    for e in p.events:
        n = p.storages[e.storage].nbytes
        live += n if e.kind is EventKind.ALLOC else -n if e.kind is EventKind.FREE else 0
        best = max(best, live)
    return total + inputs, best


SIZES = st.integers(min_value=1, max_value=50)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """A chain of forwards that hand on and save their inputs, backwards, an optimizer."""
    fresh = iter(range(1, 10_000))
    graphs: list[GraphRecord] = []
    n = draw(st.integers(1, 3))
    parameter = [(next(fresh), draw(SIZES)) for _ in range(2)]
    handed = (next(fresh), draw(SIZES))
    gradients: list[tuple[int, int]] = []
    S = Role.SAVED_FOR_BACKWARD
    backwards: list[GraphRecord] = []
    for i in range(n):
        weight = draw(st.sampled_from(parameter))
        save_input, save_weight = draw(st.booleans()), draw(st.booleans())
        out = (next(fresh), draw(SIZES))
        inner = (next(fresh), draw(SIZES))
        b = ProgramBuilder()
        b.input("w", weight[1], Category.PARAMETER, weight[0], [0], [2] if save_weight else [])
        b.input("x", handed[1], Category.INPUT, handed[0], [1], [3] if save_input else [])
        b.alloc("inner", inner[1], 1, Category.ACTIVATION, inner[0], [1])
        b.alloc("t", draw(SIZES), 2)
        save_out = draw(st.booleans())
        b.alloc("out", out[1], 3, Category.ACTIVATION if save_out else Category.OUTPUT, out[0], [0])
        b.free("t", 4)
        outputs = (
            GraphValue(0, "out", S if save_out else Role.USER_OUTPUT, Category.OUTPUT),
            GraphValue(1, "inner", S, Category.ACTIVATION),
            GraphValue(2, "w", S if save_weight else Role.UNKNOWN, Category.PARAMETER),
            GraphValue(3, "x", S if save_input else Role.UNKNOWN, Category.INPUT),
        )
        inputs = (
            GraphValue(0, "w", Role.PARAMETER, Category.PARAMETER),
            GraphValue(1, "x", Role.USER_INPUT, Category.INPUT),
        )
        graphs.append(
            GraphRecord(
                i,
                GraphKind.FORWARD,
                f"{i}/0",
                i,
                description=GraphDescription(inputs, outputs),
                programs=[b.build()],
            )
        )
        # Identities as when both were observed in one step, or as in different steps.
        together = draw(st.booleans())
        c = ProgramBuilder()
        values: list[GraphValue] = []
        for name, made, output, given_back in (
            ("inner", inner, 1, True),
            ("x", handed, 3, save_input),
            ("w", weight, 2, save_weight),
            ("out", out, 0, save_out),
        ):
            if given_back:
                identity = made[0] if together or name == "w" else next(fresh)
                category = Category.PARAMETER if name == "w" else Category.ACTIVATION
                c.input(name, made[1], category, identity, [len(values)])
                values.append(GraphValue(len(values), name, S, category, forward_output=output))
        c.alloc("t", draw(SIZES), 1)
        if draw(st.booleans()):
            c.free("inner", 2)
        gradient = (next(fresh), draw(SIZES))
        gradients.append(gradient)
        c.alloc("g", gradient[1], 3, Category.GRADIENT, gradient[0], [0])
        c.free("t", 4)
        backwards.append(
            GraphRecord(
                n + i,
                GraphKind.BACKWARD,
                f"{i}/0",
                i,
                (),
                GraphDescription(
                    tuple(values),
                    (GraphValue(0, "g", Role.PARAMETER_GRADIENT, Category.GRADIENT),),
                ),
                programs=[c.build()],
            )
        )
        handed = out
    o = ProgramBuilder()
    for i, (identity, size) in enumerate(gradients):
        o.input(f"g{i}", size, Category.GRADIENT, identity, [i])
    o.input("m", draw(SIZES), Category.OPTIMIZER_STATE, next(fresh), [n])
    values_ = [GraphValue(i, f"g{i}", Role.UNKNOWN, Category.GRADIENT) for i in range(n + 1)]
    optimizer = GraphRecord(
        2 * n,
        GraphKind.INFERENCE,
        "9/0",
        None,
        description=GraphDescription(inputs=tuple(values_)),
        programs=[o.build()],
    )
    graphs += [*backwards, optimizer]
    step = [*range(n), *range(2 * n - 1, n - 1, -1), 2 * n]
    free_order = draw(st.lists(st.sampled_from(range(2 * n + 1)), max_size=12))
    order = draw(
        st.sampled_from([step * 2, [*step[:n] * 2, *step[n:-1] * 2, step[-1]], free_order])
    )
    rows = [(g, -1 if draw(st.integers(0, 9)) == 0 else 0) for g in order]
    return Profile(graphs=graphs, calls=calls(*rows))


@settings(max_examples=300)
@given(profiles())
def test_bytes_equal_the_plain_implementation(profile: Profile) -> None:
    assert findings(profile) == []
    timeline = Timeline(profile)
    b = timeline.bytes_over_time()
    for k in range(len(timeline)):
        assert (b["entry"][k], b["peak"][k]) == plain_entry_and_peak(profile, k), k


@settings(max_examples=100)
@given(profiles())
def test_live_sets_agree_with_the_timeline(profile: Profile) -> None:
    timeline = Timeline(profile)
    b = timeline.bytes_over_time()
    best: Instant | None = None
    for k, (g, p) in enumerate(zip(profile.calls.graph, profile.calls.program, strict=True)):
        last = len(profile.graphs[g].programs[p].events) if p >= 0 else 0
        sizes = []
        for i in range(last + 1):
            live = timeline.live_at(k, i)
            assert all(item.count > 0 for item in live)
            nbytes = sum(item.nbytes for item in live)
            sizes.append(nbytes)
            if best is None or nbytes > best.nbytes:
                best = Instant(k, i, nbytes)
        assert (sizes[0], max(sizes), sizes[-1]) == (b["entry"][k], b["peak"][k], b["exit"][k])
    assert timeline.peak() == best


@st.composite
def programs(draw: st.DrawFn) -> AllocationProgram:
    builder = ProgramBuilder()
    for i in range(draw(st.integers(0, 3))):
        builder.input(f"x{i}", draw(SIZES), Category.INPUT)
    live: list[str] = [f"x{i}" for i in range(len(builder.storages))]
    for n in range(draw(st.integers(0, 25))):
        what = draw(st.sampled_from(["alloc", "free", "reuse"]))
        if what == "alloc" or not live:
            builder.alloc(f"b{n}", draw(SIZES), n + 1)
            live.append(f"b{n}")
        elif what == "free":
            builder.free(live.pop(draw(st.integers(0, len(live) - 1))), n + 1)
        else:
            i = draw(st.integers(0, len(live) - 1))
            builder.reuse(live[i], f"b{n}", n + 1)
            live[i] = f"b{n}"
    return builder.build()


@given(programs())
def test_program_invariants(program: AllocationProgram) -> None:
    sizes = [
        sum(x.storage.nbytes for x in program.live_at(i)) for i in range(len(program.events) + 1)
    ]
    assert sizes[0] == program.entry_bytes
    at, best = program.peak()
    assert (at, best) == (sizes.index(max(sizes)), max(sizes))
    running = program.entry_bytes
    for delta, size in zip(program.deltas(), sizes[1:], strict=True):
        running += delta
        assert running == size
    assert sum(d for d in program.deltas() if d > 0) == program.allocated_bytes


# Work


def test_work_is_in_proportion_to_calls() -> None:
    def lines(steps: int) -> int:
        profile = training()
        profile.calls = calls(*[(0, 0), (1, 0), (2, 0)] * steps, step_ns=10)
        peaks: list[Instant | None] = []

        def look() -> None:
            timeline = Timeline(profile)
            peaks.append(timeline.peak())
            timeline.bytes_over_time()

        count = lines_run(look)
        assert peaks == [Instant(4, 1, 26 * MIB)]
        return count

    assert lines(3_000) < 8.5 * lines(375)


def test_many_waiting_forwards() -> None:
    """A recurrent loop: 2,000 forwards wait before the first backward runs."""
    profile = training()
    n = 2000
    profile.calls = calls(*[(0, 0)] * n, *[(1, 0)] * n)
    b = Timeline(profile).bytes_over_time()
    assert b["between"][n - 1] == (6 + 9 * n) * MIB
    assert b["between"][2 * n - 1] == 6 * MIB


def test_many_graphs_with_parameters_of_their_own() -> None:
    # GIVEN graphs of 20 parameters each: every call meets those of all graphs
    def many(count: int) -> Profile:
        graphs = []
        for g in range(count):
            builder = ProgramBuilder()
            for p in range(20):
                builder.input(f"p{p}", MIB, Category.PARAMETER, 20 * g + p, [p])
            inputs = [
                GraphValue(p, f"p{p}", Role.PARAMETER, Category.PARAMETER, f"l{g}.p{p}")
                for p in range(20)
            ]
            kind, programs = GraphKind.INFERENCE, [builder.build()]
            graphs.append(
                GraphRecord(
                    g,
                    kind,
                    f"{g}/0",
                    description=GraphDescription(inputs=tuple(inputs)),
                    programs=programs,
                )
            )
        rows = [(g, 0) for g in range(count)] * 3
        return Profile(graphs=graphs, calls=calls(*rows), released={0: 2 * count})

    # WHEN the log is looked at, THEN they are there from their first call to their release,
    between = Timeline(many(300)).bytes_over_time()["between"]
    assert [between[k] // MIB for k in (0, 1, 299, 599, 600)] == [20, 40, 6000, 6000, 5999]
    # and nobody looked at each in every call.
    few, more = (lines_run(partial(Timeline, many(n))) for n in (20, 160))
    assert more < 8.5 * few


def serving(released: dict[int, int], mutated: bool = True, times: int = 6) -> Profile:
    """A prefill that makes a cache of 8 MiB, and a decode step that writes to it."""
    U, given = Role.USER_INPUT, Category.INPUT
    out = GraphValue(0, "out", Role.USER_OUTPUT, Category.OUTPUT)
    prefill = ProgramBuilder().alloc("cache", 8 * MIB, 1, Category.OUTPUT, 7, [0]).build()
    decode = (
        ProgramBuilder()
        .input("token", MIB, given, 8, [0])
        .input("cache", 8 * MIB, given, 7, [1])
        .alloc("out", MIB, 1, Category.OUTPUT, 9, [0])
        .build()
    )
    inputs = (GraphValue(0, "token", U, given), GraphValue(1, "cache", U, given, mutated=mutated))
    graphs = [
        GraphRecord(
            i,
            GraphKind.INFERENCE,
            f"{i}/0",
            i,
            description=GraphDescription(given, (out,)),
            programs=[program],
        )
        for i, (given, program) in enumerate((((), prefill), (inputs, decode)))
    ]
    log = calls((0, 0), *[(1, 0)] * times)
    return Profile(graphs=graphs, calls=log, released=released)


def categories(profile: Profile) -> Counter[Category]:
    timeline = Timeline(profile)
    at = timeline.peak()
    assert at is not None
    found: Counter[Category] = Counter()
    for item in timeline.live_at(at.call, at.instant):
        found[item.storage.category] += item.nbytes
    return found


def test_an_input_that_is_written_to_and_stays_is_state() -> None:
    state = categories(serving({}))
    assert state[Category.PERSISTENT_STATE] == 8 * MIB
    assert state[Category.INPUT] == MIB
    # One that is let go of at once is what an operation in place works on.
    assert Category.PERSISTENT_STATE not in categories(serving({7: 2}))
    assert Category.PERSISTENT_STATE in categories(serving({7: 4}))
    assert Category.PERSISTENT_STATE not in categories(serving({}, mutated=False))
    assert Category.PERSISTENT_STATE not in categories(serving({}, times=2))
