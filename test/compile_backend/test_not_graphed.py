"""Why compiled code is not handed to the graph trees, in the ledger's words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cudagraph_trees.support import VALUES, same
from rendering import render_text

import memprof
from memprof.compile_backend import _torch_compat
from memprof.compile_backend.session.ledger import Ledger
from memprof.compile_backend.session.runtime import RUNTIME
from memprof.compile_backend.stages.graphs import GraphsStage
from memprof.profiler.model import GraphKind, GraphRecord, LedgerKind
from memprof.profiler.views.report import summarize

AFTER_ITS_FORWARD = "its forward runs without a graph, and so does what takes what that saved"


@pytest.mark.parametrize(
    ("on", "own", "of_forward", "says"),
    [
        (True, None, False, "Inductor found no part of it that can be captured"),
        (True, None, True, "Inductor found no part of it that can be captured"),
        (True, "skipping due to cpu device (x)", False, "skipping due to cpu device (x)"),
        (
            False,
            None,
            False,
            "the code switches graphs off for it: torch._dynamo.override_cudagraphs",
        ),
        (False, None, True, AFTER_ITS_FORWARD),
        (False, "skipping due to cpu device (x)", True, "skipping due to cpu device (x)"),
    ],
)
def test_a_graph_that_is_not_captured_says_why(
    on: bool, own: str | None, of_forward: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN Inductor's box, which an annotation of the code has switched off before compilation, and
    # which Inductor itself switches off meanwhile
    box: Any = _torch_compat.no_cudagraphs()
    box.value = on
    monkeypatch.setattr(RUNTIME, "ledger", Ledger())
    record = GraphRecord(3, GraphKind.FORWARD)
    stage = GraphsStage(
        record,
        box,
        {},
        [],
        clone_outputs=False,
        inductor={},
        annotate=False,
        of_forward=of_forward,
    )
    box.value = False
    compiled = SimpleNamespace(disabled_cudagraphs_reason=own)
    assert stage.post_compile(compiled) is compiled
    (entry,) = RUNTIME.ledger.entries_since({})
    assert (entry.kind, entry.graph, entry.reason) == (LedgerKind.NOT_GRAPHED, 3, says)


@pytest.mark.simgpu
def test_a_backward_whose_forward_is_not_captured_names_no_annotation() -> None:
    # GIVEN a model that takes a tensor of the host besides, which Inductor does not capture whole
    weight = torch.ones(8, device="cuda", requires_grad=True)
    compiled = torch.compile(
        lambda x, y: (weight * x.sin()).sum() * y,
        backend="memprof",
        options={"graph_partition": False},
    )
    with memprof.profile() as session:
        compiled(torch.ones(8, device="cuda"), torch.ones(1)[0] * 2).backward()
    # THEN the ledger has the reason of the forward, and that the backward follows it
    forward, backward = (e for e in session.profile().ledger if e.kind is LedgerKind.NOT_GRAPHED)
    assert "cpu device" in forward.reason
    assert backward.reason == AFTER_ITS_FORWARD


@pytest.mark.simgpu
def test_where_nothing_can_be_captured_the_report_says_why_and_an_error_is_raised_if_asked() -> (
    None
):
    # GIVEN code that goes to the host at once
    def on_the_host(x: torch.Tensor) -> torch.Tensor:
        return x.cpu().sum() + 1

    x = torch.ones(4, device="cuda")
    compiled = torch.compile(on_the_host, backend="memprof")
    with memprof.profile() as session:
        compiled(x)
    # THEN the ledger has the first operator, with its line, and so has the report
    (entry,) = (e for e in session.profile().ledger if e.kind is LedgerKind.NOT_GRAPHED)
    line = on_the_host.__code__.co_firstlineno + 1
    assert "no part of it that can be captured: device_put: a tensor on the CPU (" in entry.reason
    assert f"{Path(__file__).name}:{line})" in entry.reason
    text = " ".join(render_text(summarize(session.profile())).split())
    assert "without CUDA graph: 1" in text
    assert "no part of it that can be captured: device_put" in text
    # AND every call raises where graphs or errors are asked for
    options = {"triton.cudagraph_or_error": True}
    torch._dynamo.reset()
    compiled = torch.compile(on_the_host, backend="memprof", options=options)
    for _ in range(2):
        with pytest.raises(Exception, match=r"would run without a CUDA graph, and .*a tensor on"):
            compiled(x)
    # AND none does that launches nothing
    view = torch.compile(lambda x: x.view(2, 2), backend="memprof", options=options)
    assert view(x).shape == (2, 2)


@pytest.mark.simgpu
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_depend_on_data_compile_in_a_training_graph() -> None:
    def rows(x: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = x[torch.nonzero(keep).squeeze(1)]
        return kept.sum(), kept.t().contiguous()

    compiled = torch.compile(rows, backend="memprof", options={"observe_runs": 0})
    with memprof.profile() as session:
        for n in (9, 9, 9, 4, 9):
            x = torch.ones(16, 8, device="cuda", requires_grad=True)
            keep = torch.zeros(16, dtype=torch.long, device="cuda")
            keep[:n] = 1
            loss, turned = compiled(x, keep)
            loss.backward()
            # One gradient for each element that was kept.
            assert x.grad is not None
            same(x.grad.sum(), torch.tensor(8.0 * n))
            if VALUES:
                assert turned.shape == (8, n)
    # THEN the ledger says which part has no graph; the rest has
    ledger = session.profile().ledger
    (entry,) = (e for e in ledger if e.kind is LedgerKind.NOT_GRAPHED)
    assert "part of it: nonzero: sizes that depend on data (" in entry.reason
    assert any(e.kind is LedgerKind.REPLAY for e in ledger)
