"""Why compiled code is not handed to the graph trees, in the ledger's words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import memprof
from memprof.compile_backend import _torch_compat
from memprof.compile_backend.cuda_graphs_stage import GraphsStage
from memprof.compile_backend.ledger import Ledger
from memprof.compile_backend.runtime import RUNTIME
from memprof.profiler.model import GraphKind, GraphRecord, LedgerKind

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
        record, box, {}, [], clone_outputs=False, inductor={}, of_forward=of_forward
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
