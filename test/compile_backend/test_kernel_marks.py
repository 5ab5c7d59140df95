"""What kernels of CUDA graphs are annotated with, and that each of them is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import memprof
from memprof.compile_backend import _torch_compat
from memprof.compile_backend.stages.kernel_marks import KernelMarker
from memprof.cudagraph_trees._torch_compat import torch_version
from memprof.profiler.live.launches import launches
from memprof.profiler.model import GraphKind, GraphRecord, Profile


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x)))


def train(steps: int, device: str, **options: object) -> tuple[Profile, list[torch.Tensor]]:
    """The profile, and the gradients of the last step."""
    torch.manual_seed(0)
    model = Net().to(device)
    compiled = torch.compile(model, backend="memprof", options=options)
    x = torch.ones(8, 64, device=device)
    with memprof.profile() as session:
        for _ in range(steps):
            model.zero_grad()
            compiled(x).sum().backward()
    return session.profile(), [p.grad.cpu() for p in model.parameters()]


def marks_of(graph: GraphRecord) -> dict[int, dict[str, str]]:
    return {launch.line: launch.annotation(graph.label) for launch in launches(graph)}


def test_each_launch_has_module_line_and_nodes() -> None:
    profile, _ = train(1, "cpu")
    for graph in profile.graphs:
        marks = marks_of(graph)
        launches = [
            s.line for s in graph.statements if s.text.startswith(("cpp_fused", "extern_kernels."))
        ]
        assert sorted(marks) == sorted(set(launches))
        for mark in marks.values():
            assert mark["graph"] == graph.label
            assert mark["line"].rpartition(":")[0] == __file__
            assert set(mark["nodes"].split(", ")) <= set(graph.nodes)
    forward, backward = profile.graphs
    assert (forward.kind, backward.kind) == (GraphKind.FORWARD, GraphKind.BACKWARD)
    assert {m["name"] for m in marks_of(forward).values()} >= {"up", "down"}
    # No node is claimed by two launches of the forward.
    nodes = [n for m in marks_of(forward).values() for n in m["nodes"].split(", ")]
    assert len(nodes) == len(set(nodes))


def test_annotations_that_fail_end_no_capture(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    @contextlib.contextmanager
    def fails(mark: dict[str, str]) -> Iterator[None]:
        begun.append(mark["name"])
        yield
        raise RuntimeError("no such node")

    monkeypatch.setattr(_torch_compat, "mark_kernels", fails)
    marker = KernelMarker({2: {"name": "a"}, 3: {"name": "b"}})
    for line in (1, 2, 3, 2):
        marker.at(line)
    assert begun == ["a"]
    assert [r.message for r in caplog.records] == [
        "memprof failed to annotate kernels: RuntimeError: no such node."
    ]


@pytest.mark.simgpu
@pytest.mark.skipif(torch_version() < (2, 12), reason="torch 2.12")
def test_each_kernel_of_a_graph_is_captured_in_an_annotation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from memprof.simulated_cuda import control

    # GIVEN torch's scopes, which this machine's driver has no numbers of nodes for
    found: list[tuple[dict[str, str], int]] = []

    @contextlib.contextmanager
    def mark_kernels(annotation: dict[str, str]) -> Iterator[None]:
        before = control.kernels(which="captured")
        yield
        found.append((annotation, control.kernels(which="captured") - before))

    monkeypatch.setattr(_torch_compat, "can_mark_kernels", lambda: True)
    monkeypatch.setattr(_torch_compat, "mark_kernels", mark_kernels)
    # WHEN a training is recorded
    before = control.kernels(which="captured")
    profile, gradients = train(6, "cuda", annotate_kernels=True)
    # THEN each kernel that was captured has an annotation, but for what makes the pool
    assert sum(n for _, n in found) == control.kernels(which="captured") - before > 0
    assert {a["graph"] for a, n in found if n} == {g.label for g in profile.graphs}
    assert all(a["line"].startswith(__file__) for a, n in found if n)
    # AND the values are those without
    torch.compiler.reset()
    assert all(map(torch.equal, gradients, train(6, "cuda")[1]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without")
def test_where_it_cannot_be_had_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    _torch_compat.can_mark_kernels.cache_clear()
    assert not _torch_compat.can_mark_kernels()
    assert not _torch_compat.can_mark_kernels()
    (record,) = caplog.records
    assert record.message.startswith("annotate_kernels does nothing here: it takes torch 2.12")
