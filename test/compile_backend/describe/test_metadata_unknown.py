"""Fields of torch that have another name one day: each costs itself and nothing else."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

import pytest
import torch

import memprof
from memprof.compile_backend import _torch_compat as compat
from memprof.compile_backend.session.runtime import RUNTIME
from memprof.compile_backend.stages.describe.aot_metadata import view_and_mutation_meta
from memprof.compile_backend.stages.describe.dynamo_input import dynamo_inputs
from memprof.compile_backend.stages.describe.graph_io import GraphIO, describe_graph
from memprof.profiler.model import GraphKind, LedgerKind, ViewAndMutationMeta

OF = {"input_info": "input_info.", "output_info": "output_info."}


class Renamed:
    """An object of torch without one of its attributes; notes what is read.

    Args:
        missing: ``field``, or ``input_info.field`` of each input.
    """

    def __init__(self, of: Any, missing: str = "", owner: str = "") -> None:
        self.of, self.missing, self.owner = of, missing, owner
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        full = self.owner + name
        self.read.add(full)
        if full == self.missing:
            raise AttributeError(f"no attribute {name!r}")
        value = getattr(self.of, name)
        if not self.owner and name in OF:
            parts = [Renamed(v, self.missing, OF[name]) for v in value]
            for part in parts:
                part.read = self.read
            return parts
        return value


@dataclasses.dataclass
class Copy:
    meta: ViewAndMutationMeta
    io: GraphIO
    told: list[str]


@functools.cache
def copies() -> dict[tuple[GraphKind, str], Copy]:
    """By kind of graph and missing field ("" for none), from one real compilation."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    found: dict[tuple[GraphKind, str], Copy] = {}

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        inputs = dynamo_inputs(gm, example_inputs)
        forward: list[GraphIO] = []

        def inner(kind: GraphKind, gm: torch.fx.GraphModule, example: Any) -> Any:
            reader = Renamed(compat.forward_metadata())
            view_and_mutation_meta(reader)
            for missing in ("", *sorted(reader.read)):
                told: list[str] = []
                meta = view_and_mutation_meta(
                    Renamed(reader.of, missing), lambda field, error, told=told: told.append(field)
                )
                io = describe_graph(
                    gm,
                    kind=kind,
                    fw_metadata=meta,
                    dynamo_inputs=inputs,
                    forward=forward[-1] if forward else None,
                )
                found[kind, missing] = Copy(meta, io, told)
            if kind is GraphKind.FORWARD:
                forward.append(found[kind, ""].io)
            return make_boxed_func(gm.forward)

        compile_graphs: Any = aot_autograd(
            fw_compiler=functools.partial(inner, GraphKind.FORWARD),
            bw_compiler=functools.partial(inner, GraphKind.BACKWARD),
        )
        return compile_graphs(gm, example_inputs)

    torch._dynamo.reset()
    buffer = torch.zeros(4)
    w = torch.randn(4, 4, requires_grad=True)

    def step(x: torch.Tensor) -> Any:
        buffer.add_(x.detach().sum(0))
        y = torch.nn.functional.dropout(x @ w, 0.5).sin() * x.shape[0]
        return y, y.view(-1), x.t()

    run = torch.compile(step, backend=backend, dynamic=True)
    run(torch.randn(3, 4))[0].sum().backward()
    return found


NOT_IN_EVERY_TORCH = {"saved_tensor_is_graph_input", "output_info.requires_grad_for_backward"}


def test_every_field_may_be_missing() -> None:
    kinds = {kind for kind, _ in copies()}
    assert kinds == {GraphKind.FORWARD, GraphKind.BACKWARD}
    fields = {f.name for f in dataclasses.fields(ViewAndMutationMeta)} - {"unknown"}
    missing = {name for _, name in copies()} - {""}
    assert len(missing) >= 23
    for (kind, name), copy in copies().items():
        whole = copies()[kind, ""]
        assert whole.told == []
        if not name:
            continue
        # The field is told once, though there are several inputs; it is named in the copy.
        ours = name.partition(".")[0]
        if name in NOT_IN_EVERY_TORCH:
            assert copy.told == []
            continue
        assert copy.told == [f"ViewAndMutationMeta.{name}"]
        lost = {f for f in fields if getattr(copy.meta, f) != getattr(whole.meta, f)}
        assert lost <= {ours}, name
        assert copy.meta.knows(*(fields - {ours}))
        # What goes in and comes out is still known, by AOTAutograd's descriptors.
        assert [(v.name, v.role, v.category, v.fqn) for v in copy.io.inputs] == [
            (v.name, v.role, v.category, v.fqn) for v in whole.io.inputs
        ], name
        assert [(v.name, v.role) for v in copy.io.outputs] == [
            (v.name, v.role) for v in whole.io.outputs
        ], name


def _train(**options: Any) -> None:
    """Its gradients are checked: a loss linear in the weight."""
    torch._dynamo.reset()
    w = torch.ones(4, requires_grad=True)
    x = torch.arange(4.0)
    run = torch.compile(
        lambda: (w * x).sum(), backend="memprof", options={"fx_graph_cache": False, **options}
    )
    run().backward()
    assert torch.equal(w.grad, x)


def test_a_compilation_loses_the_field_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """GIVEN a torch without three of the fields WHEN it compiles twice THEN each is logged in one
    line, once, counted for each graph, and graphs are profiled."""
    real = compat.forward_metadata
    gone = ("bw_donated_idxs", "num_intermediate_bases", "input_info.mutation_type")

    def without() -> Any:
        meta = real()
        for name in gone:
            meta = Renamed(meta, name) if meta is not None else None
        return meta

    monkeypatch.setattr(compat, "forward_metadata", without)
    counts = RUNTIME.ledger.counts()
    with caplog.at_level(logging.WARNING, "memprof"), memprof.profile() as session:
        _train()
        _train()
    entries = [e for e in RUNTIME.ledger.entries_since(counts) if e.kind is LedgerKind.FALLBACK]
    for name in gone:
        assert sum(f".{name} is unknown" in e.reason for e in entries) == 4, entries
        lines = [r.getMessage() for r in caplog.records if f".{name} " in r.getMessage()]
        assert len(lines) == 1
        assert "\n" not in lines[0]
    assert len(entries) == 4 * len(gone)
    graphs = session.profile().graphs
    assert [g.kind for g in graphs] == [GraphKind.FORWARD, GraphKind.BACKWARD] * 2
    for graph in graphs:
        assert graph.inputs
        assert graph.buffers
        assert not any(v.donated for v in graph.inputs)
    torch._dynamo.reset()


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise AttributeError("renamed")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (compat, "aot_id"),
        (compat, "forward_metadata"),
        (compat, "compile_id"),
    ],
)
def test_what_is_read_beside_the_metadata(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, name, _raise)
    counts = RUNTIME.ledger.counts()
    try:
        with caplog.at_level(logging.WARNING, "memprof"), memprof.profile() as session:
            _train(compiled_autograd=True)
    finally:
        torch._dynamo.reset()
    entries = [e for e in RUNTIME.ledger.entries_since(counts) if e.kind is LedgerKind.FALLBACK]
    assert entries
    assert all("is unknown: AttributeError: renamed" in e.reason for e in entries), entries
    graphs = session.profile().graphs
    assert [g.kind for g in graphs] == [GraphKind.FORWARD, GraphKind.BACKWARD]
    assert all(g.buffers for g in graphs)
    assert all(g.inputs for g in graphs)
