"""``TORCH_LOGS=cudagraphs`` and ``TORCH_TRACE`` have of these trees what they have of torch's own:
the same program is run on both."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from typing import Any

import pytest
import torch

from memprof.cudagraph_trees.call.inductor import use_in_inductor

pytestmark = pytest.mark.simgpu

SENTENCES = {
    "wrapped": r"Recording cudagraph tree for (graph without symints|symint key)",
    "warm-up": r"Running warmup function=.*",
    "recording": r"Recording function=.*cuda_graph_id=\d+, inputs: \[0\]: Tensor\(size=\[4.*",
    "again": r"Re-recording function=.*reason=.*static input data pointer changed",
    "checkpoint": r"Checkpointing cuda caching allocator state\. Number of checkpoints \d+",
    "skip": r"skipping cudagraphs due to mutated inputs",
}


def program() -> None:
    """A forward and a backward, a parameter that moves once, a function that is warmed up after a
    replay, and one that writes to its argument."""
    torch._dynamo.reset()
    layer = torch.nn.Linear(4, 4).cuda()
    model = torch.compile(layer, mode="reduce-overhead", dynamic=False)
    after = torch.compile(lambda y: y * 2, mode="reduce-overhead", dynamic=False)
    for i in range(5):
        if i == 4:
            layer.weight.data = layer.weight.data.clone()
        out = model(torch.ones(4, 4, device="cuda"))
        if i == 3:
            with torch.no_grad():
                after(out)
        out.sum().backward()
        layer.zero_grad()
    write = torch.compile(lambda x: x.add_(1), mode="reduce-overhead", dynamic=False)
    with torch.no_grad():
        write(torch.ones(4, device="cuda"))


class Kept(logging.Handler):
    """Keeps what the two loggers say that ``TORCH_LOGS=cudagraphs`` switches on."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def __enter__(self) -> Kept:
        for logger in self._loggers():
            logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        for logger in self._loggers():
            logger.removeHandler(self)

    @staticmethod
    def _loggers() -> list[logging.Logger]:
        modules = ("cudagraph_trees", "cudagraph_utils")
        return [logging.getLogger(f"torch._inductor.{m}.__cudagraphs") for m in modules]


def said(ours: bool) -> Counter[str]:
    with Kept() as kept, use_in_inductor() if ours else contextlib.nullcontext():
        program()
    found: Counter[str] = Counter()
    for text in kept.said:
        for name, sentence in SENTENCES.items():
            found[name] += bool(re.search(sentence, text, re.DOTALL))
    return found


@pytest.fixture
def _switched_on() -> Any:
    torch._logging.set_logs(cudagraphs=True)
    yield
    torch._logging.set_logs()


@pytest.mark.usefixtures("_switched_on")
def test_torchs_log_has_torchs_sentences() -> None:
    theirs, ours = said(False), said(True)
    assert all(theirs.values()), theirs
    assert +ours == +theirs


def test_nothing_but_skips_is_said_when_it_is_off() -> None:
    assert (+said(True)).keys() == {"skip"}


def test_events_of_wrapping_and_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """And torch's count of the inputs that recordings copy."""
    from torch._dynamo.utils import ChromiumEventLogger, counters

    events: list[dict[str, Any]] = []
    start = ChromiumEventLogger.log_event_start

    def noted(self: Any, name: str, ns: int, metadata: dict[str, Any], *rest: Any) -> None:
        events.append({"name": name, **metadata})
        start(self, name, ns, metadata, *rest)

    monkeypatch.setattr(ChromiumEventLogger, "log_event_start", noted)

    names = ("cudagraphify.get_container", "CUDAGraphNode.record")

    def told(ours: bool) -> tuple[Counter[tuple[str, bool]], int]:
        events.clear()
        counters.clear()
        with use_in_inductor() if ours else contextlib.nullcontext():
            program()
        copied: int = counters["inductor"]["cudagraph_recorded_non_static_inputs"]
        found = Counter((e["name"], e["is_backward"]) for e in events if e["name"] in names)
        return found, copied

    theirs, copied = told(False)
    assert set(theirs) == {(name, backward) for name in names for backward in (True, False)}
    assert copied > 0
    assert told(True) == (theirs, copied)
