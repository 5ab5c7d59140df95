"""Bytes lead back to the line, the module and the operator that asked for them."""

from __future__ import annotations

import functools
import inspect
import io
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import memprof
from memprof.profiler.live.attribution import Attribution
from memprof.profiler.model import (
    BufferProvenance,
    Category,
    EventKind,
    GraphKind,
    GraphRecord,
    LedgerKind,
    NodeProvenance,
    Origin,
    Profile,
    Role,
    Storage,
)

pytestmark = pytest.mark.zero_kernels


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.fc = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(self.norm(x))  # line: fc
        return F.gelu(y)  # line: gelu


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block()])
        self.head = nn.Linear(96, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()  # line: head


def _line(of: type, mark: str) -> int:
    lines, start = inspect.getsourcelines(of)
    return start + next(i for i, text in enumerate(lines) if f"# line: {mark}" in text)


@functools.cache
def _trained() -> Profile:
    """Three training steps, which several tests look at."""
    torch.manual_seed(0)
    compiled = torch.compile(Model(), backend="memprof")
    with memprof.profile() as session:
        for _ in range(3):
            compiled(torch.randn(16, 32)).backward()
    return session.profile()


def _made(graph: GraphRecord) -> list[tuple[Storage, BufferProvenance, NodeProvenance]]:
    """What a call allocates, with the buffer and the node it is attributed to."""
    (program,) = graph.programs
    found = []
    for event in program.events:
        if event.kind is EventKind.ALLOC:
            owner = event.owner or graph.buffer_of_line(event.line)
            assert owner is not None, event
            buffer = graph.buffers[owner]
            assert buffer.primary is not None, buffer
            found.append((program.storages[event.storage], buffer, graph.nodes[buffer.primary]))
    return found


def test_every_allocation_of_a_training_step_has_a_line_and_a_module() -> None:
    forward, backward = _trained().graphs
    for graph in (forward, backward):
        for _, _, node in _made(graph):
            assert node.frame is not None, node
            assert node.frame.file == __file__
            assert node.module_path is not None


def test_the_linear_layers_output_leads_to_its_line() -> None:
    forward, backward = _trained().graphs
    # GIVEN the one buffer of the forward that holds 16×96 floats computed by addmm
    (found,) = [
        (storage, node)
        for storage, buffer, node in _made(forward)
        if "addmm" in node.target and storage.nbytes == 16 * 96 * 4
    ]
    storage, node = found
    # THEN it is an activation, made by block.fc at its line
    assert storage.category is Category.ACTIVATION
    assert node.frame is not None
    assert node.frame.line == _line(Block, "fc")
    assert node.frame.code.startswith("y = self.fc(self.norm(x))")
    assert (node.module_path, node.module_type) == ("blocks.0.fc", "Linear")
    assert node.original_aten == "aten.addmm.default"
    # AND the gradient of its weight, in the backward, leads to the same line and module
    (gradient,) = [
        (storage, node) for storage, _, node in _made(backward) if storage.nbytes == 96 * 32 * 4
    ]
    storage, node = gradient
    assert storage.category is Category.GRADIENT
    assert node.frame is not None
    assert node.frame.line == _line(Block, "fc")
    assert node.module_path == "blocks.0.fc"


def test_a_model_of_torchs_own_modules_has_the_line_that_calls_it() -> None:
    # GIVEN a model whose every forward is text of torch's, one of a module of the program's in it
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), Block(), nn.Linear(96, 8))
    compiled = torch.compile(model, backend="memprof")
    optimizer = torch.optim.AdamW(model.parameters())
    with memprof.profile() as session:
        for _ in range(3):
            y = compiled(torch.randn(16, 64))  # line: call
            y.square().mean().backward()
            optimizer.step()
    this = test_a_model_of_torchs_own_modules_has_the_line_that_calls_it
    source, first = inspect.getsourcelines(this)
    call = first + next(i for i, line in enumerate(source) if line.endswith("# line: call\n"))
    forward, backward = session.profile().graphs
    # THEN what it makes is of the line that called it, and of the program's module its own
    for graph in (forward, backward):
        frames = [node.frame for _, _, node in _made(graph)]
        assert {f.file for f in frames if f is not None} == {__file__}
        lines = {f.line if f is not None else None for f in frames}
        assert call in lines
        assert lines <= {call, _line(Block, "fc"), _line(Block, "gelu")}
    # AND what the optimizer keeps beside it is a row: two moments of each parameter, and a step
    numbers = sum(2 * 4 * p.numel() + 4 for p in model.parameters())
    assert session.profile().optimizer_state == {"cpu": numbers}
    text = io.StringIO()
    session.report(file=text)
    assert re.search("optimizer state +beside", text.getvalue())


def test_the_stack_holds_the_callers_too() -> None:
    forward, _ = _trained().graphs
    node = next(n for n in forward.nodes.values() if n.module_path == "blocks.0.fc")
    assert [f.function for f in node.stack] == ["forward", "forward"]
    assert node.stack[-1].line == _line(Block, "fc")


def test_tangents_name_the_forward_outputs_whose_gradients_they_are() -> None:
    forward, backward = _trained().graphs
    tangents = [v for v in backward.inputs if v.role is Role.TANGENT]
    assert tangents
    for value in tangents:
        assert value.gradient_of is not None
        output = forward.outputs[value.gradient_of]
        assert output.role is Role.USER_OUTPUT
        assert (output.shape, output.dtype) == (value.shape, value.dtype)


def test_gradients_that_pass_between_graphs_are_autograd_details() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 24), nn.Linear(24, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            torch._dynamo.graph_break()
            return self.b(x.sin())

    torch.manual_seed(0)
    compiled = torch.compile(Broken(), backend="memprof")
    with memprof.profile() as session:
        for _ in range(3):
            compiled(torch.ones(2, 8)).sum().backward()
    backwards = [g for g in session.profile().graphs if g.kind is GraphKind.BACKWARD]
    passed = [v for g in backwards for v in g.outputs if v.role is Role.INPUT_GRADIENT]
    assert [(v.category, v.nbytes) for v in passed] == [(Category.AUTOGRAD_DETAIL, 2 * 24 * 4)]
    roles = {v.role for g in backwards for v in g.outputs if v.name}
    assert roles == {Role.PARAMETER_GRADIENT, Role.INPUT_GRADIENT}


def test_constants_of_the_graph_are_constants() -> None:
    # GIVEN a tensor made from Python numbers inside the function, too long to be inlined
    class WithTable(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor([float(i * i) for i in range(64)])

    compiled = torch.compile(WithTable(), backend="memprof")
    with memprof.profile() as session:
        for _ in range(3):
            compiled(torch.ones(64))
    (graph,) = session.profile().graphs
    constants = [s for s in graph.programs[0].storages if s.category is Category.CONSTANT]
    assert [(s.nbytes, s.origin) for s in constants] == [(256, Origin.EXTERNAL)]


def test_a_write_through_a_view_of_an_input_is_described() -> None:
    # GIVEN a write to a column: the view has one dimension, the memory that it lies in two
    def f(x: torch.Tensor) -> torch.Tensor:
        x[:, 0].add_(1)
        return x * 2

    compiled = torch.compile(f, backend="memprof")
    with memprof.profile() as session:
        compiled(torch.ones(8, 4))
    (graph,) = session.profile().graphs
    assert [e for e in session.profile().ledger if e.kind is LedgerKind.FALLBACK] == []
    # THEN what writes to it has the sizes of the input's memory, and the output is attributed
    written = {(b.shape, b.nbytes) for b in graph.buffers.values() if b.line is None}
    assert (("8", "4"), 4 * 32) in written
    made = Attribution(session.profile()).coverage([(graph, graph.programs[0])])
    assert (made.allocated, made.to_node) == (4 * 32, 4 * 32)


def test_a_layout_copy_is_blamed_on_the_kernel_that_wants_it() -> None:
    # GIVEN a fallback operator that requires another layout than its input has
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x.transpose(2, 3) * 2)

    torch.manual_seed(0)
    compiled = torch.compile(Conv(), backend="memprof")
    with memprof.profile() as session:
        for _ in range(3):
            compiled(torch.randn(2, 8, 12, 10)).sum().backward()
    for graph in session.profile().graphs:
        for _, buffer, node in _made(graph):
            assert node.frame is not None, (buffer, node)


def test_two_blocks_at_two_lines_with_one_cached_artifact() -> None:
    # GIVEN two functions of the same text at different lines: one entry in Inductor's cache
    def first(x: torch.Tensor) -> torch.Tensor:
        return (x * 7).tan()

    def second(x: torch.Tensor) -> torch.Tensor:
        return (x * 7).tan()

    lines = []
    for function in (first, second):
        torch._dynamo.reset()
        with memprof.profile() as session:
            torch.compile(function, backend="memprof")(torch.ones(33))
        (graph,) = session.profile().graphs
        lines.append({n.frame.line for n in graph.nodes.values() if n.frame})
    # THEN each is attributed to its own line
    assert lines == [
        {inspect.getsourcelines(first)[1] + 1},
        {inspect.getsourcelines(second)[1] + 1},
    ]
