"""The record of steps: what ends one, what stands in it, and that nothing of it hurts a program."""

from __future__ import annotations

import errno
import json
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import torch
from counting import lines_run
from torch import nn

import memprof
from memprof import cudagraph_trees
from memprof.commands.outputs import schema_of
from memprof.compile_backend.session import steps as module
from memprof.compile_backend.session.runtime import RUNTIME
from memprof.profiler.model import LedgerKind, StepRecord
from memprof.profiler.support.errors import ProfileNotWritableError
from memprof.profiler.support.writing import create_for_streaming, is_locked
from memprof.profiler.views.report.summary import summarize

DOCS = Path(__file__).parents[2] / "docs"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.simgpu)]
mark = torch.compiler.cudagraph_mark_step_begin


def optimizer() -> torch.optim.Optimizer:
    weight = torch.zeros(2, requires_grad=True)
    weight.grad = torch.ones(2)
    return torch.optim.SGD([weight], lr=0.1)


def recorded(act: Callable[[memprof.ProfilingSession], object], **options: Any) -> list[StepRecord]:
    """The steps of a session in which ``act`` runs."""
    found: list[StepRecord] = []
    with memprof.profile(on_step=found.append, **options) as session:
        act(session)
    return found


def read_steps(path: Path) -> list[StepRecord]:
    """The steps of a file, as docs/step-record.md reads them."""
    lines = path.read_text().splitlines(keepends=True)
    return [msgspec.json.decode(x, type=StepRecord) for x in lines if x.endswith("\n")]


def ends(act: Callable[[memprof.ProfilingSession], object]) -> list[str]:
    return [step.ended_by for step in recorded(act)]


def repeat(*acts: Callable[[], object], times: int = 3) -> None:
    for _ in range(times):
        for act in acts:
            act()


@pytest.mark.zero_kernels
@pytest.mark.parametrize("device", DEVICES)
def test_a_line_for_each_step_of_an_optimizer(device: str, tmp_path: Path) -> None:
    # GIVEN a training loop with memory that compiled code and the device know
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    compiled = torch.compile(model, backend="memprof")
    adam = torch.optim.AdamW(model.parameters())
    # WHEN it makes six steps
    path = tmp_path / "steps.{rank}.jsonl"
    with memprof.profile(steps=path) as session:
        for _ in range(6):
            compiled(torch.ones(32, 8, device=device)).sum().backward()
            adam.step()
            adam.zero_grad()
    # THEN there are six lines, as the published schema says
    file = tmp_path / "steps.0.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    schema = json.loads((DOCS / "step-record.schema.json").read_text())
    for line in lines:
        jsonschema.validate(line, schema)
    found = read_steps(file)
    assert [step.step for step in found] == [1, 2, 3, 4, 5, 6]
    assert {step.ended_by for step in found} == {"optimizer"}
    assert [step.time_ns for step in found] == sorted(step.time_ns for step in found)
    # AND their highest peak is the report's
    profile = session.profile()
    summary = summarize(profile)
    assert summary.peak is not None
    # (of a step that is written before its program was observed, nothing is known)
    peaks = [step.peak[summary.device] for step in found if step.peak]
    assert max(sum(peak.values()) for peak in peaks) == summary.peak.nbytes
    assert found[-1].peak[summary.device]["activation"] == 32 * 16 * 4
    # AND what the trees did adds up to the ledger
    done = dict.fromkeys(LedgerKind, 0)
    for entry in profile.ledger:
        done[entry.kind] += entry.count
    assert sum(s.recorded for s in found) == done[LedgerKind.RECORD]
    assert sum(s.replayed for s in found) == done[LedgerKind.REPLAY]
    on_cuda = device == "cuda"
    assert (found[-1].recorded, found[-1].replayed) == ((0, 2) if on_cuda else (0, 0))
    assert [d.device for d in found[-1].devices] == (["cuda:0"] if on_cuda else [])
    for totals in found[-1].devices:
        assert 0 < totals.allocated <= totals.reserved <= totals.most_reserved <= totals.total


@pytest.mark.simgpu
def test_calls_without_a_graph_are_counted() -> None:
    # GIVEN trees that record nothing any more, as where memory ran out
    compiled = torch.compile(lambda x: x + 1, backend="memprof")
    x = torch.ones(8, device="cuda")
    compiled(x)
    manager = cudagraph_trees.get_manager(0)
    assert manager is not None
    manager.owner.stop("there is no memory")

    def act(session: memprof.ProfilingSession) -> None:
        for _ in range(9):
            compiled(x)
            session.step()

    with memprof.profile() as session:
        found = recorded(act)
    ledger = session.profile().ledger
    done = [e.count for e in ledger if e.kind in (LedgerKind.SKIP, LedgerKind.TREE_FAILURE)]
    assert sum(s.fallen_back for s in found) == sum(done) > 0, ledger


def test_optimizers_that_take_turns_end_a_step_together() -> None:
    first, second = optimizer(), optimizer()
    assert ends(lambda _: repeat(first.step, second.step)) == ["optimizer"] * 3


@pytest.mark.parametrize("kept", [False, True])
def test_a_new_optimizer_goes_on_where_the_last_one_stopped(kept: bool) -> None:
    old = []

    def act(session: memprof.ProfilingSession) -> None:
        for steps in (20, 15, 1):
            one = optimizer()
            repeat(one.step, times=steps)
            old.extend([one] if kept else [])
            del one

    # The first step of a new one may be a turn of the old one's, where that lives.
    assert ends(act) == ["optimizer"] * (34 if kept else 36)


def test_an_optimizer_that_steps_now_and_then_ends_no_step_of_its_own() -> None:
    often, seldom = optimizer(), optimizer()

    def act(session: memprof.ProfilingSession) -> None:
        for _ in range(3):
            repeat(often.step, times=5)
            seldom.step()

    assert ends(act) == ["optimizer"] * 15


def test_marks_end_the_steps_of_a_program_without_an_optimizer() -> None:
    assert ends(lambda _: repeat(mark)) == ["mark", "mark", "session"]


def test_an_optimizer_counts_and_not_the_marks_beside_it() -> None:
    assert ends(lambda _: repeat(mark, optimizer().step)) == ["optimizer"] * 3


def test_what_the_program_says_counts_before_all_else() -> None:
    one = optimizer()
    found = ends(lambda session: repeat(mark, one.step, session.step))
    assert found == ["optimizer", "call", "call", "call"]


def test_a_program_without_steps_is_one() -> None:
    assert ends(lambda _: None) == ["session"]


def test_a_compiled_optimizer_is_compiled_as_without_a_record() -> None:
    one = optimizer()
    compiled = torch.compile(one.step, backend="eager")
    assert ends(lambda session: repeat(compiled, session.step)) == ["call"] * 3


def test_nothing_is_noted_when_the_session_has_ended() -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks

    before = dict(_global_optimizer_post_hooks)
    for _ in range(2):
        found = recorded(lambda _: repeat(mark, times=2))
        repeat(mark, optimizer().step)
        assert len(found) == 2
    assert dict(_global_optimizer_post_hooks) == before


def test_a_disk_that_is_full_ends_the_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int, data: bytes) -> None:
        os.write(fd, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "write_all", full)
    path = tmp_path / "steps.jsonl"
    found = recorded(lambda _: repeat(optimizer().step), steps=path)
    # What listens is still told, and a reader stops at the line that is cut.
    assert [step.step for step in found] == [1, 2, 3]
    assert read_steps(path) == []
    assert [r.message for r in caplog.records if "steps.jsonl" in r.message] == [
        f"memprof failed to write {path}: OSError: [Errno 28] No space left on device."
    ]


def test_a_listener_that_raises_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def listen(step: StepRecord) -> None:
        told.append(step.step)
        raise ValueError("a gauge of that name exists")

    path = tmp_path / "steps.jsonl"
    with memprof.profile(steps=path, on_step=listen):
        repeat(optimizer().step)
    assert told == [1]
    assert [step.step for step in read_steps(path)] == [1, 2, 3]
    assert "memprof failed to tell of a step: ValueError: a gauge of that name exists." in [
        r.message for r in caplog.records
    ]


def test_counters_that_cannot_be_read_end_no_program(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "device_counters", lambda *_: 1 / 0)
    one = optimizer()
    assert recorded(lambda _: repeat(one.step)) == []
    assert [r.message for r in caplog.records if "memprof" in r.message] == [
        "memprof failed to note a step: ZeroDivisionError: division by zero."
    ]


def test_a_file_that_cannot_be_written_is_found_before_the_training(tmp_path: Path) -> None:
    threads = threading.active_count()
    with pytest.raises(ProfileNotWritableError), memprof.profile(steps=tmp_path / "no" / "s.jsonl"):
        pytest.fail("the block must not run")
    assert threading.active_count() == threads


def test_two_sessions_of_one_path_write_two_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN another rank's record, which it writes just now
    path = tmp_path / "steps.jsonl"
    fd, _ = create_for_streaming(path)
    try:
        os.write(fd, b"of another\n")
        # WHEN a session is given the same path
        recorded(lambda _: repeat(optimizer().step), steps=path)
    finally:
        os.close(fd)
    # THEN each has its own
    assert path.read_text() == "of another\n"
    beside = tmp_path / f"steps.{os.getpid()}.jsonl"
    assert [step.step for step in read_steps(beside)] == [1, 2, 3]
    assert f"so this one writes {beside}" in caplog.text
    # AND the name is free again when its writer has ended
    recorded(lambda _: repeat(optimizer().step), steps=path)
    assert [step.step for step in read_steps(path)] == [1, 2, 3]


def test_a_listener_that_blocks_holds_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "JOIN_S", 0.1)
    told, blocked, free = [], threading.Event(), threading.Event()

    def listen(step: StepRecord) -> None:
        told.append(step.step)
        blocked.set()
        free.wait(60)

    path = tmp_path / "steps.jsonl"
    with memprof.profile(steps=path, on_step=listen) as session:
        session.step()
        assert blocked.wait(60)
        session.step()
        session.step()
    ours = [t for t in threading.enumerate() if t.name == "memprof steps"]
    assert [r.message for r in caplog.records if "waited" in r.message] == [
        "memprof waited 0.1 s for the record of steps: on_step, or the disk, takes longer, and the "
        "last steps may be missing."
    ]
    free.set()
    for thread in ours:
        thread.join(60)
    # When it is through, the file gets the rest, of which it is not told.
    assert [step.step for step in read_steps(path)] == [1, 2, 3]
    assert told == [1]
    assert is_locked(os.fspath(path)) is False


def test_a_listener_may_end_the_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    ended = threading.Event()
    path = tmp_path / "steps.jsonl"

    def listen(step: StepRecord) -> None:
        told.append(step.step)
        if step.step == 1:
            session.step()
            session.__exit__(None, None, None)
            assert [s.step for s in read_steps(path)] == [1, 2]
            assert is_locked(os.fspath(path)) is False
        else:
            ended.set()

    with memprof.profile(steps=path, on_step=listen) as session:
        session.step()
        assert ended.wait(60)
    assert told == [1, 2]
    assert not [r for r in caplog.records if r.name == "memprof"]


def test_steps_of_all_lengths_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out = []
    peak = {"cpu": {"activation": 1}}
    monkeypatch.setattr(module, "_SEQUENCES", 100)

    def work_out(_: object, calls: tuple[tuple[int, int], ...]) -> dict[str, dict[str, int]]:
        worked_out.append(len(calls))
        return peak

    monkeypatch.setattr(module.StepRecorder, "_known_peak", work_out)
    recorder = module.StepRecorder(RUNTIME, None, None)

    def ask(length: int) -> None:
        assert recorder._peak(tuple((at, 0) for at in range(1_000, 1_000 + length))) == peak

    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for i in range(150):
            ask(2_000 + i)
            ask(2_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 150 * 1024
    # The one that is asked for most is kept, and the eldest of the others is not.
    assert worked_out == [*range(2_000, 2_150)]
    ask(2_001)
    assert worked_out[-1] == 2_001


def test_a_cut_line_ends_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    recorded(lambda _: repeat(optimizer().step), steps=path)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert len(read_steps(path)) == whole[:cut].count(b"\n")


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with memprof.profile(steps=path) as session:
        session.step()
        if (child := os.fork()) == 0:
            session.step()
            session.__exit__(None, None, None)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [step.step for step in read_steps(path)] == [1]


def test_a_step_costs_the_program_few_lines() -> None:
    """Each line of Python takes 0.1 to 0.3 µs; docs/step-record.md has the time."""
    one = optimizer()
    with memprof.profile() as session:
        without = lines_run(one.step)
        plain = lines_run(session.step)
    with memprof.profile(on_step=lambda step: None) as session:
        one.step()
        assert lines_run(one.step) - without <= 50
        assert lines_run(session.step) - plain <= 40


def test_the_published_schema_is_that_of_the_model() -> None:
    """``EXPECTTEST_ACCEPT=1`` writes it."""
    text = json.dumps(schema_of("step"), indent=2) + "\n"
    if "EXPECTTEST_ACCEPT" in os.environ:
        (DOCS / "step-record.schema.json").write_text(text)
    assert text == (DOCS / "step-record.schema.json").read_text()


@pytest.mark.simgpu
def test_counters_in_cpp_are_torchs() -> None:
    from memprof.cudagraph_trees.replay import native
    from memprof.profiler.sources.allocator.totals import counters_of, device_counters

    counters = native.build().counters
    kept = torch.ones(3 << 20, device="cuda")
    assert counters(0) == counters_of(0)
    del kept
    assert device_counters(counters) == [(0, counters_of(0))]
    assert counters(0)[0] < counters(0)[2] <= counters(0)[3]
    with pytest.raises(RuntimeError):
        counters(99)
