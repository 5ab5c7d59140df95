"""What torch's own compiled autograd writes into its logs and traces, memprof's writes too."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch._dynamo.compiled_autograd as torchs

from memprof import compiled_autograd as ca
from memprof.compile_backend.captured_backward_io import lifted_inputs


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    torchs.reset()
    yield
    torch._logging.set_logs()
    torchs.reset()


def collected(logger: logging.Logger, run: Callable[[], Any]) -> list[logging.LogRecord]:
    """Records of ``logger`` while ``run`` runs."""
    handler, level = Collector(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        run()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return handler.records


def program(enabled: Callable[[], AbstractContextManager[Any]]) -> None:
    """Two captures: another number of autograd nodes. Sizes, scalars and dead sizes in both."""
    w = torch.ones(3, 4, requires_grad=True)
    for n in (1, 2):
        with enabled():
            y = torch.ones(2, 3) @ w
            for _ in range(n):
                y = y.relu() * 2.5
            y.sum().backward()


def as_it_is(graph: Any) -> Any:
    return graph


BOTH: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch": lambda: torchs._enable(as_it_is, True),
    "memprof": lambda: ca.enable(as_it_is, True),
}


def both(run: Callable[[Callable[[], AbstractContextManager[Any]]], Any]) -> list[Any]:
    found = []
    for enabled in BOTH.values():
        torchs.reset()
        ca.reset()
        found.append(run(enabled))
    return found


def kinds_of_messages(logger: str) -> list[list[str]]:
    """First words of what is logged, by torch's and by memprof's."""
    torch._logging.set_logs(**{logger: True})
    log = logging.getLogger(f"torch._dynamo.compiled_autograd.__{logger}")

    def first_words(enabled: Callable[[], AbstractContextManager[Any]]) -> list[str]:
        records = collected(log, lambda: program(enabled))
        return [" ".join(r.getMessage().split()[:2]) for r in records]

    return both(first_words)


def test_verbose() -> None:
    """Why a captured graph could not be used, what passes did, the graph."""
    theirs, ours = kinds_of_messages("compiled_autograd_verbose")
    assert {"Cache miss", "DCE removed", "TRACED GRAPH"} <= set(theirs)
    assert ours == theirs


def test_graphs() -> None:
    theirs, ours = kinds_of_messages("compiled_autograd")
    assert theirs == ["TRACED GRAPH"] * 2
    assert ours == theirs


def test_the_verbose_logger_is_not_asked_for_when_nobody_wants_it() -> None:
    torch._logging.set_logs(compiled_autograd_verbose=True)
    program(BOTH["memprof"])
    torch._logging.set_logs()
    ca.reset()
    log = logging.getLogger("torch._dynamo.compiled_autograd.__compiled_autograd_verbose")
    records = collected(log, lambda: program(BOTH["memprof"]))
    assert not [r for r in records if "Cache miss" in r.getMessage()]


def test_trace() -> None:
    """Artifacts and chromium events, in the same order."""
    log = logging.getLogger("torch.__trace")

    def written(enabled: Callable[[], AbstractContextManager[Any]]) -> list[str]:
        torch._logging.set_logs(compiled_autograd_verbose=True)
        found = []
        for record in collected(log, lambda: program(enabled)):
            metadata, payload = record.metadata, record.payload  # type: ignore[attr-defined]
            if "artifact" in metadata:
                found.append(metadata["artifact"]["name"])
            elif "chromium_event" in metadata:
                event = json.loads(payload)
                found.append(f"{event['name']} {event['ph']}")
            elif "compiled_autograd_graph" in metadata:
                found.append("compiled_autograd_graph")
                assert "def forward(self, inputs, sizes, scalars, hooks, packed_data)" in payload
        return found

    theirs, ours = both(written)
    assert {
        "compiled_autograd_compile_reasons",
        "compiled_autograd_graph_pre_reordering",
        "compiled_autograd_graph",
        "compiled_autograd B",
        "compiled_autograd E",
    } <= set(theirs)
    assert sorted(ours) == sorted(theirs)


def test_a_failed_capture_ends_its_event() -> None:
    log = logging.getLogger("torch.__trace")

    def fails() -> None:
        w = torch.ones(3, requires_grad=True)
        with ca.enable(as_it_is), pytest.raises(ca.CaptureError):
            torch.autograd.grad(w * 2, [w], torch.eye(3), is_grads_batched=True)

    phases = [
        json.loads(r.payload)["ph"]  # type: ignore[attr-defined]
        for r in collected(log, fails)
        if "chromium_event" in r.metadata  # type: ignore[attr-defined]
        and json.loads(r.payload)["name"] == "compiled_autograd"  # type: ignore[attr-defined]
    ]
    assert phases == ["B", "E"]


def test_origins_of_what_is_lifted() -> None:
    """GIVEN the verbose logger WHEN captured THEN each input, size and scalar says which autograd
    node it was lifted from, and the graph is otherwise the one without."""
    w = torch.ones(3, 4, requires_grad=True)

    def step() -> None:
        ((torch.ones(2, 3) @ w).relu() * 2.5).sum().backward()

    (plain,) = ca.capture(step, dynamic=True)
    w.grad = None
    torch._logging.set_logs(compiled_autograd_verbose=True)
    (told,) = ca.capture(step, dynamic=True)
    nodes = list(told.graph.graph.nodes)
    assert [str(n) for n in nodes] == [str(n) for n in plain.graph.graph.nodes]
    assert lifted_inputs(told.graph.graph) == lifted_inputs(plain.graph.graph)
    lifted = [
        n
        for n in nodes
        if n.op == "call_function" and n.args and str(n.args[0]) in ("inputs", "sizes", "scalars")
    ]
    assert lifted
    origins = told.origins
    assert all(n.name in origins for n in lifted)
    (leaf,) = [n for n in lifted if "AccumulateGrad" in origins[n.name].autograd_node]
    assert f"{leaf.name} = inputs[" in str(told)
    assert "AccumulateGrad" in next(
        line for line in str(told).split("\n") if line.startswith(f"{leaf.name} = ")
    )
    assert not [n for n in lifted if n.name in plain.origins]


def test_enable_takes_dynamic_by_position_as_torchs_does() -> None:
    w = torch.ones(3, requires_grad=True)
    for dynamic in (False, True):
        with ca.enable(as_it_is, dynamic):
            (w * 2).sum().backward()
