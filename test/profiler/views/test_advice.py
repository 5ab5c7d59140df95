"""Advice: each kind of finding on a profile that has the problem, and on one that has not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from profile_builder import (
    KIB,
    MIB,
    ProgramBuilder,
    buffer,
    calls,
    node,
    training,
)

from memprof.profiler.model import (
    Category,
    GraphDescription,
    GraphKind,
    GraphRecord,
    GraphValue,
    LedgerEntry,
    LedgerKind,
    Profile,
    Role,
    TreeCause,
    TreeDetail,
)
from memprof.profiler.views.advice import FindingKind
from memprof.profiler.views.advice.logits import is_product
from memprof.profiler.views.report import summarize
from profiler.live.test_attribution import with_tangent

CUDA = "cuda:0"


def kinds(profile: Profile) -> list[FindingKind]:
    return [f.kind for f in summarize(profile).advice]


def test_nothing_happened_nothing_to_say() -> None:
    assert summarize(Profile()).advice == []


def test_the_gradient_of_a_large_output() -> None:
    # GIVEN an output, and so its gradient, twice as large as all that the forward keeps
    found = next(
        f for f in summarize(with_tangent(40 * MIB)).advice if f.kind is FindingKind.LARGE_OUTPUT
    )
    assert found.nbytes == 40 * MIB
    assert found.title == "logits of head, 8 x 1,280 x 1,024, and what the loss makes of them"
    # Of one copy nothing goes if the loss alone is computed in pieces.
    assert [way.nbytes for way in found.ways] == [40 * MIB, 35 * MIB]
    assert "fused linear cross-entropy" in found.ways[0].change
    (evidence,) = found.evidence
    assert (evidence.node, evidence.module) == ("tangents_1", "head")
    assert evidence.frame is not None
    assert evidence.frame.line == 36
    # An output like any activation is none: chunks of it would save nothing.
    assert FindingKind.LARGE_OUTPUT not in kinds(with_tangent(12 * MIB))
    assert FindingKind.LARGE_OUTPUT not in kinds(training())


def head(vocabulary: str = "8192") -> Profile:
    """A forward whose last matrix product makes 256 rows, of 4 sequences, and a copy in float32;
    and a weight that has as many elements."""
    program = (
        ProgramBuilder()
        .input("weight", 8 * MIB, Category.PARAMETER, 1, [0])
        .input("tokens", 2 * KIB, Category.INPUT, 2, [1])
        .alloc("buf0", 4 * MIB, 10, Category.ACTIVATION, 3, [0])
        .alloc("buf1", 8 * MIB, 11, Category.ACTIVATION, 4, [1])
        .alloc("buf2", 8 * MIB, 12)  # a copy of the weight, transposed
        .build()
    )
    nodes = [
        node("mm", "aten.mm.default", "head", 30),
        node("copy", "aten._to_copy.default", "", 31),
        node("sub", "aten._log_softmax.default", "", 32),
        node("other", "aten.clone.default", "head", 30),
    ]
    # In the order of the forward the weight's copy comes first.
    nodes = [dataclasses.replace(n, seq_nr=7 if n.name != "other" else 6) for n in nodes]
    shapes = dict.fromkeys(("buf0", "buf1", "buf2"), ("256", vocabulary))
    of = {"buf0": "mm", "buf1": "copy", "buf2": "other"}
    buffers = {
        name: dataclasses.replace(buffer(name, of[name]), shape=shape)
        for name, shape in shapes.items()
    }
    inputs = (
        GraphValue(0, "weight", Role.PARAMETER, Category.PARAMETER, shape=("256", "8192")),
        GraphValue(1, "tokens", Role.USER_INPUT, Category.INPUT, shape=("4", "64")),
    )
    outputs = tuple(
        GraphValue(i, name, Role.SAVED_FOR_BACKWARD, Category.ACTIVATION)
        for i, name in enumerate(("mm", "copy"))
    )
    graph = GraphRecord(
        0,
        GraphKind.FORWARD,
        "0/0",
        0,
        ("cpu",),
        GraphDescription(inputs, outputs),
        {n.name: n for n in nodes},
        buffers,
        programs=[program],
    )
    return Profile(graphs=[graph], calls=calls((0, 0)))


def test_logits_are_one_finding_and_nothing_else() -> None:
    # GIVEN logits of 4 MiB and a copy of 8 MiB
    (found,) = summarize(head()).advice
    assert found.kind is FindingKind.LARGE_OUTPUT
    assert found.title == "logits of head, 4 x 64 x 8,192, and what the loss makes of them"
    assert found.nbytes == 12 * MIB
    assert [(e.nbytes, e.module) for e in found.evidence] == [(8 * MIB, ""), (4 * MIB, "head")]
    # THEN eight chunks leave an eighth, and the loss alone in chunks leaves the logits, too
    assert [w.nbytes for w in found.ways] == [12 * MIB, 12 * MIB * 7 // 8, 8 * MIB * 7 // 8]
    # AND where sizes are not known when the code is generated there is none
    assert FindingKind.LARGE_OUTPUT not in kinds(head("s0"))


# Recomputation


def layers(op: str, sizes: list[int], logits: int = 16 * MIB) -> Profile:
    """A forward that saves a value in each layer, and at the end one that nobody recomputes."""
    f, b = ProgramBuilder(), ProgramBuilder()
    nodes, buffers, outputs, inputs = [], [], [], []
    for i, size in enumerate(sizes):
        f.alloc(f"buf{i}", size, 10 + i, Category.ACTIVATION, 100 + i, [i])
        b.input(f"act{i}", size, Category.ACTIVATION, 100 + i, [i])
        nodes.append(node(f"n{i}", op, f"blocks.{i}.mlp", 55))
        buffers.append(buffer(f"buf{i}", f"n{i}"))
        role = Role.SAVED_FOR_BACKWARD
        outputs.append(GraphValue(i, f"n{i}", role, Category.ACTIVATION))
        inputs.append(GraphValue(i, f"act{i}", role, Category.ACTIVATION, forward_output=i))
    f.alloc("logits", logits, 90, Category.ACTIVATION, 190, [len(sizes)])
    b.input("logits", logits, Category.ACTIVATION, 190, [len(sizes)])
    last = GraphValue(len(sizes), "logits", Role.SAVED_FOR_BACKWARD, Category.ACTIVATION)
    outputs.append(last)
    inputs.append(dataclasses.replace(last, forward_output=len(sizes)))
    forward = GraphRecord(
        0,
        GraphKind.FORWARD,
        "0/0",
        0,
        ("cpu",),
        GraphDescription(outputs=tuple(outputs)),
        {n.name: n for n in nodes},
        {x.name: x for x in buffers},
        programs=[f.build()],
    )
    backward = GraphRecord(
        1,
        GraphKind.BACKWARD,
        "0/0",
        0,
        ("cpu",),
        GraphDescription(tuple(inputs)),
        programs=[b.build()],
    )
    return Profile(graphs=[forward, backward], calls=calls(*[(0, 0), (1, 0)] * 3))


def test_layers_of_one_kind_are_one_finding() -> None:
    (found,) = summarize(layers("aten.gelu.default", [4 * MIB, 6 * MIB, 5 * MIB])).advice
    assert found.kind is FindingKind.RECOMPUTE
    assert found.nbytes == 15 * MIB
    assert found.whose == "at the peak"
    assert found.title == "gelu in blocks.*.mlp: kept for the backward"
    # mlp has no module inside: what it returns would be saved by the module that takes it
    assert "call blocks.* through torch.utils.checkpoint" in found.change
    assert [(e.nbytes, e.graph, e.node, e.module) for e in found.evidence] == [
        (6 * MIB, "0/0 forward", "n1", "blocks.1.mlp"),
        (5 * MIB, "0/0 forward", "n2", "blocks.2.mlp"),
        (4 * MIB, "0/0 forward", "n0", "blocks.0.mlp"),
    ]
    frame = found.evidence[0].frame
    assert frame is not None
    assert frame.line == 55
    assert found.evidence[0].text == "gelu"


@pytest.mark.parametrize(
    ("random", "said", "unsaid"),
    [
        (False, "or let the compiler choose with torch._functorch.config.activation", "wrong"),
        (True, "not activation_memory_budget, with which", "let the compiler"),
        (None, "checkpoint(use_reentrant=False)", "activation_memory_budget"),
    ],
)
def test_the_partitioners_budget_is_named_where_nothing_random_is_drawn(
    random: bool | None, said: str, unsaid: str
) -> None:
    profile = layers("aten.gelu.default", [4 * MIB, 6 * MIB])
    profile.graphs[0].random = random
    (found,) = summarize(profile).advice
    assert "torch.utils.checkpoint" in found.change
    assert said in found.change
    assert unsaid not in found.change


def test_what_a_module_computes_inside_is_worth_wrapping_that_module() -> None:
    profile = layers("aten.gelu.default", [4 * MIB])
    profile.graphs[0].nodes["up"] = node("up", "aten.addmm.default", "blocks.0.mlp.up", 55)
    (found,) = summarize(profile).advice
    assert "call blocks.*.mlp through torch.utils.checkpoint" in found.change


@pytest.mark.parametrize(
    ("op", "is_one"),
    [
        ("aten.mm.default", True),
        ("aten.addmm.default", True),
        ("aten._scaled_mm.default", True),
        ("aten.convolution.default", True),
        ("aten.conv_tbc.default", False),
        ("aten.max.dim", False),
        ("aten.clone.default", False),
        ("mylib.mm.default", False),
        ("getitem", False),
    ],
)
def test_products(op: str, is_one: bool) -> None:
    assert is_product(op) is is_one


def test_an_unknown_module_is_not_called_the_root() -> None:
    profile = layers("aten.gelu.default", [4 * MIB])
    graph = profile.graphs[0]
    (known,) = graph.nodes.values()
    graph.nodes[known.name] = dataclasses.replace(known, module_path=None)
    assert [f.title.partition(":")[0] for f in summarize(profile).advice] == [
        "gelu in an unknown module"
    ]
    graph.nodes[known.name] = dataclasses.replace(known, module_path="")
    assert [f.title.partition(":")[0] for f in summarize(profile).advice] == [
        "gelu in the root module"
    ]


def test_all_that_is_kept_counts_whatever_made_it() -> None:
    for op in ("aten.gelu.default", "aten.mm.default", "mylib.effect.default"):
        (found,) = summarize(layers(op, [4 * MIB, 2 * MIB])).advice
        assert (found.kind, found.nbytes) == (FindingKind.RECOMPUTE, 6 * MIB)
    assert kinds(layers("aten.gelu.default", [1000 * KIB])) == []


@pytest.mark.parametrize(
    ("graph", "is_again", "left"), [(1, True, 4 * MIB), (1, False, 8 * MIB), (0, True, 8 * MIB)]
)
def test_a_module_that_is_checkpointed_already_is_no_finding(
    graph: int, is_again: bool, left: int
) -> None:
    # GIVEN a backward, not a forward, that computes a product of the first of two blocks again
    profile = layers("aten.add.Tensor", [4 * MIB, 4 * MIB])
    again = node("up", "aten.addmm.default", "blocks.0.up", 55)
    profile.graphs[graph].nodes["up"] = dataclasses.replace(again, recomputed=is_again)
    # THEN what the block keeps is what a checkpoint keeps
    (found,) = summarize(profile).advice
    assert found.nbytes == left


def test_on_a_gpu_the_class_to_checkpoint_can_be_measured() -> None:
    profile = layers("aten.gelu.default", [4 * MIB])
    forward, backward = profile.graphs
    add = node("add", "aten.add.Tensor", "blocks.0", 56)
    forward.nodes["add"] = dataclasses.replace(add, module_type="Block")
    measured = "memprof fit --try checkpoint=Block -- python train.py measures it"
    (found,) = summarize(profile).advice
    assert measured not in found.change
    for graph in (forward, backward):
        for i, program in enumerate(graph.programs):
            storages = tuple(dataclasses.replace(s, device=CUDA) for s in program.storages)
            graph.programs[i] = dataclasses.replace(program, storages=storages)
    (found,) = summarize(profile).advice
    assert found.change.endswith(measured)


# Graph trees


def entry(
    kind: LedgerKind,
    reason: str = "",
    count: int = 1,
    marginal: int = 0,
    key: tuple[int, ...] = (),
    function: str = "0/0 forward",
    device: str = CUDA,
    graph: int | None = 0,
    **detail: Any,
) -> LedgerEntry:
    detail = {"pool_after": 100 * MIB, **detail}
    tree = TreeDetail(device, function, key, marginal=marginal, **detail)
    return LedgerEntry(1, kind, graph, reason, count, tree)


def moved(count: int, marginal: int = 0, **more: Any) -> LedgerEntry:
    """Recorded again since the graph's first input, or ``inputs``, has moved."""
    detail = {"cause": TreeCause.MOVED, "inputs": (0,), **more}
    return entry(LedgerKind.RERECORD, "a reason", count, marginal, **detail)


def on_trees(*ledger: LedgerEntry) -> Profile:
    """``training()`` with a ledger of trees; its forward's output 0 has 1 MiB."""
    profile = training()
    profile.graphs[0].programs = [
        dataclasses.replace(
            p, storages=tuple(dataclasses.replace(s, device=CUDA) for s in p.storages)
        )
        for p in profile.graphs[0].programs
    ]
    again = node("again", "aten.mm.default", "l1", 3)  # its model is checkpointed already
    profile.graphs[1].nodes["again"] = dataclasses.replace(again, recomputed=True)
    profile.ledger = list(ledger)
    return profile


def change_input(profile: Profile, index: int, **changes: bool) -> None:
    graph = profile.graphs[0]
    inputs = list(graph.inputs)
    inputs[index] = dataclasses.replace(inputs[index], **changes)
    graph.description = dataclasses.replace(graph.description, inputs=tuple(inputs))


def test_state_that_is_copied_in_every_replay() -> None:
    # GIVEN a replayed graph whose parameter primals_2 (2 MiB) has no static address
    profile = on_trees(entry(LedgerKind.REPLAY, "replayed", 40))
    change_input(profile, 1, static=False)
    (found,) = summarize(profile).advice
    assert found.kind is FindingKind.STATIC_INPUT
    assert found.nbytes == 2 * MIB
    assert found.evidence[0].text == "l2.bias: parameter without a static address"
    assert found.evidence[0].count == 40
    assert "mark_static_address" in found.change


def test_a_cache_that_the_graph_writes_to_could_be_static() -> None:
    profile = on_trees(entry(LedgerKind.REPLAY, "replayed", 40))
    change_input(profile, 2, mutated=True)
    (found,) = summarize(profile).advice
    assert found.evidence[0].text == (
        "L['x']: the graph writes to it: the same memory at every call"
    )


def test_a_cache_that_prevents_the_graph() -> None:
    writes = TreeCause.WRITES_TO_COPIED
    profile = on_trees(entry(LedgerKind.SKIP, "a reason", 7, cause=writes, inputs=(2,)))
    assert summarize(profile).advice == []
    change_input(profile, 2, mutated=True)
    (found,) = summarize(profile).advice
    assert found.kind is FindingKind.STATIC_INPUT
    assert found.evidence[0].count == 7
    assert "so it runs without a CUDA graph" in found.evidence[0].text


def test_a_batch_is_not_static() -> None:
    # Its backward has it too, as a saved input.
    assert summarize(on_trees(entry(LedgerKind.REPLAY, "replayed", 40))).advice == []


def test_an_input_that_moves() -> None:
    profile = on_trees(
        entry(LedgerKind.RECORD, marginal=3 * MIB),
        moved(2, 3 * MIB),
        moved(1, 2 * MIB),
    )
    (found,) = summarize(profile).advice
    assert found.kind is FindingKind.MOVING_ADDRESS
    assert found.nbytes == 5 * MIB  # by which the pool grew; the input has 4 MiB
    assert found.title == "0/0 forward was recorded 3 times again because an input has moved"
    (e,) = found.evidence
    assert (e.text, e.count, e.nbytes) == ("l1.weight was at another address", 3, 4 * MIB)


def test_a_graph_that_is_not_recorded_any_more() -> None:
    # GIVEN two recordings, and then 40 calls without one
    again = moved(2, 9 * MIB)
    skipped = entry(LedgerKind.SKIP, "inputs keep moving", count=40)
    assert skipped.tree is not None
    tree = dataclasses.replace(
        skipped.tree, cause=TreeCause.KEEPS_MOVING, inputs=(0,), nbytes=7 * MIB
    )
    (found,) = summarize(on_trees(again, dataclasses.replace(skipped, tree=tree))).advice
    # THEN one finding says so, and it does not rest on the sentence
    assert (found.kind, found.nbytes) == (FindingKind.MOVING_ADDRESS, 7 * MIB)
    assert found.title.startswith("0/0 forward ran 40 times without a CUDA graph")
    assert [e.text for e in found.evidence] == ["l1.weight was at another address"]


def test_recordings_that_cost_no_pool_are_about_the_input() -> None:
    (found,) = summarize(on_trees(moved(5))).advice
    assert (found.kind, found.nbytes) == (FindingKind.MOVING_ADDRESS, 4 * MIB)


def test_one_move_or_another_reason_is_no_finding() -> None:
    assert summarize(on_trees(moved(1, 9 * MIB))).advice == []
    other = "an input that died in the recording is still held"
    assert summarize(on_trees(entry(LedgerKind.RERECORD, other, 9, 9 * MIB))).advice == []


def test_at_most_five_and_the_largest_first() -> None:
    profile = on_trees(
        entry(LedgerKind.REPLAY, "replayed", 40),
        moved(9, 40 * MIB),
        moved(9, 41 * MIB, function="1/0 forward"),
        moved(9, 42 * MIB, function="2/0 forward"),
    )
    change_input(profile, 1, static=False)
    found = summarize(profile).advice
    assert [(f.kind.value, f.nbytes // MIB) for f in found] == [
        ("moving_address", 42),
        ("moving_address", 41),
        ("static_input", 2),
    ]
