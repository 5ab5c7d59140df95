"""Why compiled code is not handed to the graph trees, in the ledger's words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from memprof.compile_backend import _torch_compat
from memprof.compile_backend.cuda_graphs_stage import GraphsStage
from memprof.compile_backend.ledger import Ledger
from memprof.profiler.model import GraphKind, GraphRecord, LedgerKind


@pytest.mark.parametrize(
    ("on", "own", "says"),
    [
        (True, None, "Inductor found no part of it that can be captured"),
        (True, "skipping due to cpu device (x)", "skipping due to cpu device (x)"),
        (False, None, "the code switches graphs off for it: torch._dynamo.override_cudagraphs"),
        (False, "skipping due to cpu device (x)", "skipping due to cpu device (x)"),
    ],
)
def test_a_graph_that_is_not_captured_says_why(on: bool, own: str | None, says: str) -> None:
    # GIVEN Inductor's box, which an annotation of the code has switched off before compilation, and
    # which Inductor itself switches off meanwhile
    box: Any = _torch_compat.no_cudagraphs()
    box.value = on
    ledger = Ledger()
    record = GraphRecord(3, GraphKind.FORWARD)
    stage = GraphsStage(record, ledger, box, [], clone_outputs=False, inductor={})
    box.value = False
    compiled = SimpleNamespace(disabled_cudagraphs_reason=own)
    state: Any = None
    assert stage.post_compile(compiled, state) is compiled
    (entry,) = ledger.entries_since({})
    assert (entry.kind, entry.graph, entry.reason) == (LedgerKind.NOT_GRAPHED, 3, says)
