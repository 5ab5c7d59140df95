"""``memprof.profile()``, ``memprof.report()``, and what belongs to which profile."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import memprof
from memprof.compile_backend.session.runtime import (
    RUNTIME,
    CallLog,
    columns,
)
from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import (
    Category,
    GraphKind,
    LedgerKind,
    Origin,
)

pytestmark = pytest.mark.zero_kernels


def _compiled() -> tuple[nn.Module, object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, torch.compile(model, backend="memprof")


def test_a_session_holds_what_was_called_in_it() -> None:
    # GIVEN a model that was compiled and called before, and one that was only compiled before
    _, first = _compiled()
    second = torch.compile(lambda x: x.sin() * 3, backend="memprof")
    x = torch.ones(2, 8)
    for _ in range(3):
        first(x)
        second(x)
    # WHEN only the first is called in a session
    with memprof.profile() as session:
        first(x)
        first(x)
    # THEN the session has that one graph, and those two calls
    profile = session.profile()
    assert [(g.kind, g.calls) for g in profile.graphs] == [(GraphKind.FORWARD, 2)]
    assert profile.calls.graph == [profile.graphs[0].id] * 2
    assert profile.calls.dropped == 0
    # AND the process's own profile has everything
    assert sum(g.calls for g in memprof.current_profile().graphs) == 8


def test_a_disk_that_is_full_at_the_end_does_not_undo_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a disk that fills up while training
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        _, compiled = _compiled()
        compiled(torch.ones(2, 8))
        monkeypatch.setattr(os, "write", full)
    monkeypatch.undo()
    # THEN the block ends without an exception, the log says why, and the file says what it lacks
    assert "No space left on device" in caplog.text
    assert not read_profile(path).complete
    # AND the profile can still be saved
    session.save(path)
    assert read_profile(path) == session.profile()


def test_a_profile_is_written_when_the_training_fails(tmp_path: Path) -> None:
    path = tmp_path / "run.memprof"
    with pytest.raises(ZeroDivisionError), memprof.profile(path):  # noqa: PT012
        _, compiled = _compiled()
        compiled(torch.ones(2, 8))
        raise ZeroDivisionError
    # The backward is there too where it was in a cache.
    assert [g.calls for g in read_profile(path).graphs] in ([1], [1, 0])


def test_a_session_is_used_once() -> None:
    session = memprof.profile()
    with pytest.raises(RuntimeError, match="has not begun"):
        session.profile()
    with session:
        pass
    with pytest.raises(RuntimeError, match="was entered before"), session:
        pass


def test_the_report_prints() -> None:
    _, compiled = _compiled()
    compiled(torch.ones(2, 8))
    out = io.StringIO()
    memprof.report(file=out, full=True)
    assert "unattributed at the peak by category" in out.getvalue()


@pytest.mark.parametrize("top", [0, -1])
def test_tables_have_rows(top: int) -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        memprof.report(top=top)


def test_dynamo_reset_resets_memprof() -> None:
    def resets() -> int:  # of the whole process, other tests' too
        return sum(e.count for e in memprof.current_profile().ledger if e.kind is LedgerKind.RESET)

    _, compiled = _compiled()
    # The same function is compiled again after a reset: the next one concerns memprof as well.
    for _ in range(3):
        compiled(torch.ones(2, 8))
        assert memprof.current_profile().graphs
        before = resets()
        torch._dynamo.reset()
        profile = memprof.current_profile()
        assert profile.graphs == []
        assert len(profile.calls) == 0
        assert resets() == before + 1


def test_a_reset_inside_a_session_keeps_the_sessions_graphs() -> None:
    with memprof.profile() as session:
        _, compiled = _compiled()
        compiled(torch.ones(2, 8))
        torch._dynamo.reset()
        compiled(torch.ones(2, 8))
    assert [g.calls for g in session.profile().graphs if g.calls] == [1, 1]


def test_each_combination_of_sizes_has_its_program() -> None:
    # GIVEN a function with dynamic shapes, and room for two combinations
    compiled = torch.compile(
        lambda x: x.sin() + 1,
        backend="memprof",
        dynamic=True,
        options={"max_programs": 2},
    )
    with memprof.profile() as session:
        for n in (8, 16, 8, 16, 24, 24, 8):
            compiled(torch.ones(n))
    (graph,) = session.profile().graphs
    # THEN the first two are observed, the third is counted as unobserved with its reason
    assert [p.key for p in graph.programs] == [(8,), (16,)]
    assert session.profile().calls.program == [0, 1, 0, 1, -1, -1, 0]
    found = [e for e in session.profile().ledger if e.kind is LedgerKind.NOT_OBSERVED]
    assert [(e.reason, e.count) for e in found] == [("more than 2 combinations of sizes", 2)]
    assert graph.unobservable is None


def test_the_sizes_of_a_jagged_tensor_tell_its_programs_apart(tmp_path: Path) -> None:
    # GIVEN jagged tensors: their ragged size is an input, but no number and never the same
    compiled = torch.compile(lambda x: (x * 2).sin(), backend="memprof")
    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        for rows in (3, 4, 3, 3, 4):
            parts = [torch.ones(rows, 4), torch.ones(2, 4)]
            compiled(torch.nested.nested_tensor(parts, layout=torch.jagged))
    # THEN programs go by the rows of the values, which no integer input gives
    (graph,) = session.profile().graphs
    assert [p.key[:1] for p in graph.programs] == [(5,), (6,)]
    made = [sum(d for d in p.deltas() if d > 0) for p in graph.programs]
    assert made == [4 * 4 * 5, 4 * 4 * 6]
    assert session.profile().calls.program == [0, 1, 0, 0, 1]
    # AND the profile can be written
    assert read_profile(path) == session.profile()


def test_a_profile_is_not_changed_by_what_is_called_after_it() -> None:
    compiled = torch.compile(lambda x: x.sin() + 1, backend="memprof", dynamic=True)
    with memprof.profile() as outer:
        with memprof.profile() as inner:
            compiled(torch.ones(8))
            compiled(torch.ones(8))
        first = inner.profile().graphs[0]
        (observed,) = first.programs
        for n in (8, 9, 10):
            compiled(torch.ones(n))
    assert (first.calls, first.programs) == (2, [observed])
    (whole,) = outer.profile().graphs
    assert (whole.calls, [p.key for p in whole.programs]) == (5, [(8,), (9,), (10,)])


@pytest.mark.parametrize(
    ("function", "calls"),
    [(torch.sin, 1), (lambda x: torch.sort(x)[0], 2)],
    ids=["named", "scratch"],
)
def test_what_allocates_only_what_its_code_names_is_observed_once(
    function: Callable[[torch.Tensor], torch.Tensor], calls: int
) -> None:
    run = torch.compile(lambda x: function(x) + 1, backend="memprof")
    with memprof.profile() as session:
        for call in (1, 2):
            run(torch.rand(64))
            profile = session.profile()
            (graph,) = profile.graphs
            (program,) = graph.programs
            scratch = any(s.origin is Origin.INTERNAL for s in program.storages)
            assert scratch == (calls == 2)
            settled = any(e.kind is LedgerKind.OBSERVED for e in profile.ledger)
            assert settled == (call >= calls)


@pytest.mark.parametrize("option", ["observe_runs", "max_programs"])
def test_observation_can_be_turned_off(option: str) -> None:
    with memprof.profile() as session:
        compiled = torch.compile(torch.sin, backend="memprof", options={option: 0})
        compiled(torch.ones(4))
    (graph,) = session.profile().graphs
    assert graph.programs == []
    assert graph.calls == 1
    assert graph.unobservable == f"observation is off ({option}=0)"
    assert session.profile().options == {option: "0"}


def test_the_call_log_is_bounded_and_says_what_it_dropped() -> None:
    log = CallLog(capacity=3)
    for i in range(5):
        log.record((7, 0, 100 + i, 101 + i, 1234))
    found = columns(log.after(), [7], returned=5)
    assert found.start_ns == [102, 103, 104]
    assert found.thread == [0, 0, 0]
    assert found.dropped == 2
    log.resize(4)
    log.record((7, 0, 105, 106, 99))
    assert columns(log.after(), [7]).thread == [0, 0, 0, 1]
    assert len(columns(log.after(), [8])) == 0


def test_the_call_log_is_short_again_after_the_last_session() -> None:
    before = RUNTIME.calls.capacity
    with memprof.profile(max_calls=before + 2):
        with memprof.profile(max_calls=before + 1):
            pass
        assert RUNTIME.calls.capacity == before + 2
    assert RUNTIME.calls.capacity == before


def test_a_session_ends_once(tmp_path: Path) -> None:
    """Nor does one end that was not entered: each would end somebody else's."""
    before, many = RUNTIME.calls.capacity, 300_000
    with memprof.profile(max_calls=many) as outer:
        with memprof.profile(tmp_path / "run.memprof", eager=True) as inner:
            pass
        ended = inner.profile()
        inner.__exit__(None, None, None)
        memprof.profile().__exit__(None, None, None)
        assert inner.profile() is ended
        assert RUNTIME.calls.capacity == many
    assert RUNTIME.calls.capacity == before
    outer.__exit__(None, None, None)
    with memprof.profile(max_calls=many):
        assert RUNTIME.calls.capacity == many


SECOND_PROCESS = """
import json, sys, torch, memprof
from torch import nn
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        x = self.a(x).sigmoid()
        return self.b(x)
compiled = torch.compile(Model(), backend="memprof")
with memprof.profile() as session:
    for _ in range(3):
        compiled(torch.ones(2, 8)).sum().backward()
profile = session.profile()
def known(g):
    buffers = [(b.name, b.primary, b.nbytes) for b in g.buffers.values()]
    nodes = [(n.name, n.module_path, n.original_aten) for n in g.nodes.values()]
    events = [(e.kind.value, e.line, e.owner) for e in g.programs[0].events]
    return sorted(buffers), sorted(nodes), events
def lines(g):
    return sorted((n.name, n.frame.line) for n in g.nodes.values() if n.frame)
print(json.dumps([[g.fx_cache, lines(g), known(g)] for g in profile.graphs]))
"""


def test_provenance_in_a_second_process_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "script.py"
    # GIVEN two processes that compile the same model with one cache, the second at other lines
    path.write_text(SECOND_PROCESS)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(path))
    path.write_text("\n\n\n" + SECOND_PROCESS)
    out = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    # Inputs that die inside an observed call must not make torch's allocator complain.
    assert "CPUAllocator" not in out.stderr
    first, second = (json.loads(t.splitlines()[-1]) for t in (printed.getvalue(), out.stdout))
    # THEN the second takes every graph from the cache and knows as much of it
    assert [g[0] for g in first] == ["miss", "miss"]
    assert [g[0] for g in second] == ["hit", "hit"]
    assert [g[2] for g in second] == [g[2] for g in first]
    # AND its source lines are its own
    for a, b in zip(first, second, strict=True):
        assert a[1]
        assert b[1] == [[name, line + 3] for name, line in a[1]]


def test_importing_memprof_does_not_import_torch() -> None:
    code = "import sys, memprof; assert 'torch' not in sys.modules; print(dir(memprof))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'profile'" in out.stdout
    assert "TYPE_CHECKING" not in out.stdout  # only what there is to use


def test_whatever_is_imported_first_ledgers_of_managers_outlive_the_reset_that_ends_these() -> None:
    code = """
import memprof.compile_backend.session.profiling
from memprof.compile_backend.backend import memprof as backend
from memprof.compile_backend.session.runtime import RUNTIME
from memprof.cudagraph_trees.call import container
from memprof.cudagraph_trees.explain import history

called = []
history.forget_the_dead = lambda: called.append("ledgers of dead managers are dropped")
family = container.family
container.family = lambda: called.append("managers die") or family()
backend.reset()
assert called == ["ledgers of dead managers are dropped", "managers die"], called
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_data_flow_stands_in_the_file_on_the_clock_of_the_calls(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 512))
    compiled = torch.compile(model, backend="memprof")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        compiled(torch.ones(4, 512)).sum().backward()
        optimizer.step()

    # GIVEN a session in which some steps ran under torch.profiler
    with memprof.profile(tmp_path / "run.memprof") as session:
        for _ in range(3):
            step()
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
        ) as run:
            for _ in range(5):
                step()
        session.add_dataflow(run, modules=model, optimizers=optimizer)
    # WHEN its file is read
    profile = read_profile(tmp_path / "run.memprof")
    # THEN it has them
    assert profile.dataflow is not None
    (device,) = profile.dataflow.devices
    assert device.device == "cpu"
    assert device.bytes_at(device.peak or 0) > 4 * 1024 * 1024
    assert Category.GRADIENT in device.bytes
    times, starts = device.time_ns, profile.calls.start_ns
    assert starts[6] < times[-1] <= profile.calls.end_ns[-1] + 10**9
    assert len([start for start in starts if times[0] <= start <= times[-1]]) >= 9
