"""One description of a graph: who reads it, and that what it says is what is done."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import memprof
from memprof.compile_backend import _torch_compat as compat, straight_calls as calls
from memprof.compile_backend.session.ledger import Ledger
from memprof.compile_backend.stages.describe.aot_metadata import view_and_mutation_meta
from memprof.compile_backend.stages.describe.comparison import compared
from memprof.profiler.model import (
    Category,
    GraphDescription,
    GraphKind,
    GraphRecord,
    GraphValue,
    InputAliasInfo,
    LedgerKind,
    MemoryFormatMeta,
    OutputAliasInfo,
    Role,
    ViewAndMutationMeta,
)

ROOT = Path(__file__).parents[2]
PARTS = (
    GraphDescription,
    GraphValue,
    ViewAndMutationMeta,
    InputAliasInfo,
    OutputAliasInfo,
    MemoryFormatMeta,
)
TORCHS = {
    # The lists of Inductor, of code that memprof's backend compiles and of other code.
    "static_input_idxs": {"compile_backend/_torch_compat.py", "cudagraph_trees/call/entry.py",
                          "cudagraph_trees/call/inductor.py"},
    "mutated_input_idxs": {"compile_backend/_torch_compat.py", "cudagraph_trees/_torch_compat.py",
                           "cudagraph_trees/replay/spec.py"},
    "user_visible_output_idxs": {"cudagraph_trees/replay/spec.py"},
    # AOTAutograd's object.
    "fw_metadata": {"compile_backend/_torch_compat.py",
                    "compile_backend/stages/describe/graph_io.py",
                    "compile_backend/inner_compile.py"},
    "view_and_mutation_meta": {"compile_backend/inner_compile.py"},
    # What torch's prologue and epilogue take, where they run.
    "subclass_inp_meta": {"compile_backend/_torch_compat.py"},
    "subclass_fw_graph_out_meta": {"compile_backend/_torch_compat.py"},
    "maybe_subclass_metadata": {"compiled_autograd/_torch_compat.py",
                                "compiled_autograd/aot_backward.py"},
    # The description of a forward, as whoever compiles it leaves it for the tracer.
    "memprof_description": {"compiled_autograd/aot_backward.py"},
}  # fmt: skip
"""Names by which torch says something of inputs and outputs: the only files that read them."""


def product() -> dict[str, ast.Module]:
    folders = ("compile_backend", "cudagraph_trees", "compiled_autograd", "profiler", "what_if")
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {str(f.relative_to(ROOT)): ast.parse(f.read_text()) for f in files}


def names_read(tree: ast.Module) -> set[str]:
    """Names, attributes, keywords and keys of a module that are no part of a definition."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, (ast.keyword, ast.arg)) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_torch_is_asked_in_one_place() -> None:
    read = {name: names_read(tree) for name, tree in product().items()}
    for name, allowed in TORCHS.items():
        assert {file for file, names in read.items() if name in names} == allowed, name


def test_every_field_has_a_reader_and_stands_in_the_list_of_readers() -> None:
    attributes: set[str] = set()
    for name, tree in product().items():
        # Copying is no reading.
        if name != "compile_backend/stages/describe/aot_metadata.py":
            attributes |= {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            }
    listed = (ROOT / "docs/architecture.md").read_text().partition("### AOT metadata")[2]
    for part in PARTS:
        fields = {f.name for f in dataclasses.fields(part)}
        assert not fields - attributes, part
        assert not {f for f in fields if f"`{f}`" not in listed}, part


def test_it_is_plain_data() -> None:
    value = GraphValue(0, "primals_1", Role.PARAMETER, Category.PARAMETER, info=0)
    metadata = ViewAndMutationMeta(
        input_info=(InputAliasInfo(is_leaf=True),),
        dynamic_saved_tensors_idxs=((0, frozenset({1})),),
        subclass_tangent_meta=(MemoryFormatMeta(None, None, "channels_last"), None),
    )
    record = GraphRecord(
        0, GraphKind.FORWARD, description=GraphDescription((value,), metadata=metadata)
    )
    assert msgspec.json.decode(msgspec.json.encode(record), type=GraphRecord) == record


# --- what Inductor says --------------------------------------------------------------------


def described(**fields: Any) -> GraphDescription:
    value = GraphValue(
        0, "arg0_1", Role.USER_INPUT, Category.INPUT, "L['x']", "torch.float32", info=0
    )
    metadata = ViewAndMutationMeta(input_info=(InputAliasInfo(),))
    return GraphDescription((dataclasses.replace(value, **fields),), metadata=metadata)


@pytest.mark.parametrize(
    ("ours", "static", "mutated", "says"),
    [
        ({}, (), (), []),
        ({"static": True, "mutated": True}, (0,), (0,), []),
        ({"mutated": True}, (), (), ["AOTAutograd alone says that L['x'] is written to"]),
        ({}, (), (0,), ["Inductor alone says that L['x'] is written to"]),
        ({"static": True}, (), (), ["AOTAutograd alone says that L['x'] stays where it is"]),
        ({}, (0,), (), ["Inductor alone says that L['x'] stays where it is"]),
    ],
)
def test_of_two_words_the_safe_one_is_taken(
    ours: dict[str, bool], static: tuple[int, ...], mutated: tuple[int, ...], says: list[str]
) -> None:
    before = described(**ours)
    after, told = compared(before, GraphKind.INFERENCE, static, mutated)
    assert told == says
    assert set(after.static) == {*static} & {*before.static}
    assert set(after.mutated) == {*mutated} | {*before.mutated}


def test_where_autograds_word_is_not_known_inductors_is_taken() -> None:
    unknown = ViewAndMutationMeta((InputAliasInfo(),), unknown=("static_input_indices",))
    before = dataclasses.replace(described(), metadata=unknown)
    after, told = compared(before, GraphKind.INFERENCE, (0,), ())
    assert (after.static, told) == ((0,), [])


# --- a field decides -----------------------------------------------------------------------


@pytest.mark.parametrize("stride", [(3, 1), (1, 2)])
def test_a_tangents_format_is_what_the_backward_gets(stride: tuple[int, int]) -> None:
    """GIVEN a straight call whose description says how gradients are laid out WHEN one comes in
    another way THEN the backward gets it as the description says."""
    torch._dynamo.reset()
    metadata: list[ViewAndMutationMeta] = []
    given: list[tuple[int, ...]] = []

    def forward(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        found = view_and_mutation_meta(compat.forward_metadata())
        (tangent,) = found.subclass_tangent_meta
        assert tangent == MemoryFormatMeta((2, 3), (3, 1), None)
        layout = dataclasses.replace(tangent, stride=stride)
        metadata.append(dataclasses.replace(found, subclass_tangent_meta=(layout,)))
        return make_boxed_func(gm.forward)  # type: ignore[no-any-return]

    def backward(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(args: list[Any]) -> Any:
            given.append(args[-1].stride())
            return gm(*args)

        return make_boxed_func(lambda *args: run(list(args)))  # type: ignore[no-any-return]

    through: Any = aot_autograd(fw_compiler=forward, bw_compiler=backward)
    ledger = Ledger()

    def backend(gm: Any, inputs: Any) -> Any:
        with calls.straight_calls(
            ledger, inputs, lambda torchs: GraphDescription(metadata=metadata[-1])
        ):
            return through(gm, inputs)

    x = torch.ones(2, 3, requires_grad=True)
    run = torch.compile(lambda x: x.sin(), backend=backend)
    for _ in range(2):  # the first call is torch's
        run(x).backward(torch.ones(3, 2).t() if stride == (3, 1) else torch.ones(2, 3))
    assert given[-1] == stride
    assert not ledger.entries_since({})
    torch._dynamo.reset()


@pytest.mark.simgpu
def test_metadata_that_cannot_be_read_gives_inductors_output_and_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone() -> Any:
        raise AttributeError("renamed")

    monkeypatch.setattr(compat, "forward_metadata", gone)
    torch._dynamo.reset()
    w = torch.ones(4, device="cuda", requires_grad=True)
    x = torch.ones(4, device="cuda")
    run = torch.compile(lambda x: (w * x).sum(), backend="memprof", options={"observe_runs": 0})
    with memprof.profile() as session:
        for _ in range(4):
            run(x).backward()
    torch._dynamo.reset()
    entries = session.profile().ledger
    why = [e.reason for e in entries if e.kind is LedgerKind.NOT_GRAPHED]
    assert why == ["what it takes and returns is not known: AttributeError: renamed"] * 2
    assert not any(e.tree for e in entries)


@pytest.mark.simgpu
def test_where_inductor_says_more_the_trees_and_the_ledger_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GIVEN an Inductor that says of an input what AOTAutograd does not WHEN the graph is called
    THEN it runs without a graph, and the ledger has both words, and the reason by name."""
    real = compat.inductors_lists

    def more(compiled: Any, given: Any) -> Any:
        return real(compiled, given)[0], (0,)

    monkeypatch.setattr(compat, "inductors_lists", more)
    torch._dynamo.reset()
    x = torch.ones(4, device="cuda")
    run = torch.compile(lambda x: x * 2, backend="memprof", options={"observe_runs": 0})
    with memprof.profile() as session:
        for _ in range(4):
            run(x)
    torch._dynamo.reset()
    profile = session.profile()
    told = [(e.kind, e.reason) for e in profile.ledger]
    assert (LedgerKind.COMPILED, "Inductor alone says that L['x'] is written to") in told
    assert (LedgerKind.SKIP, "it writes to inputs that graphs copy: L['x']") in told
    assert LedgerKind.RECORD not in dict(told)
    (graph,) = profile.graphs
    assert graph.description.mutated == (0,)
    assert "0 user input L['x'] float32[4] · written to" in str(graph.description)
