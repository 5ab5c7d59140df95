"""When memory that outlives its step is growth: the rule, what profiles tell, what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fuzz.documents import everything
from outputs import invoke

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.live.growth import LEAST, MIN_A_STEP, growth, looked, rate_of
from memprof.profiler.model import (
    Category,
    DeviceAccount,
    Growth,
    GrowthSource,
    Held,
    MemorySnapshot,
    Profile,
    SnapshotKind,
    SourceFrame,
    TensorInfo,
    TrackedDevice,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.views.report.html.payload import report_payload

KIB = 1 << 10
MIB = 1 << 20


class TestRule:
    def test_since_a_step(self) -> None:
        # A leak that begins in an epoch's middle is known by its first step.
        assert rate_of(dict.fromkeys(range(7, 31), MIB), 30) == (MIB, 7)

    @pytest.mark.parametrize("steps", range(20, 28))
    def test_two_sizes_by_turns(self, steps: int) -> None:
        held = {step: MIB + 2 * MIB * (step % 2) for step in range(1, steps + 1)}
        assert rate_of(held, steps) == (2 * MIB, 1)

    @pytest.mark.parametrize("room", [12, 15, 19])
    def test_a_full_buffer(self, room: int) -> None:
        held = dict.fromkeys(range(41 - room, 41), MIB)
        gone = [(step, step + room, MIB) for step in range(1, 41 - room)]
        assert rate_of(held, 40) is not None
        assert rate_of(held, 40, gone) is None
        # Beside it the same line leaves something behind, at every step.
        leaks = {step: held.get(step, 0) + MIB for step in range(1, 41)}
        found = rate_of(leaks, 40, gone)
        assert found is not None
        assert found[0] == pytest.approx(MIB, rel=0.05)

    def test_what_went_before_the_window_does_not_hide_growth(self) -> None:
        held = dict.fromkeys(range(1, 21), MIB)
        assert rate_of(held, 20, [(1, 8, 100 * MIB), (12, 15, 100 * MIB)]) == (MIB, 1)

    def test_what_is_there_from_the_beginning_does_not_make_it_larger(self) -> None:
        held = {1: 100 * MIB} | dict.fromkeys(range(2, 21), MIB)
        assert rate_of(held, 20) == (MIB, 1)

    @pytest.mark.parametrize("period", [2, 3, 4])
    def test_every_few_steps(self, period: int) -> None:
        held = dict.fromkeys(range(period, 49, period), period * MIB)
        found = rate_of(held, 48)
        assert found == (MIB, period)

    @pytest.mark.parametrize(
        "held",
        [
            {},
            {1: 100 * MIB},  # parameters, optimizer state
            {19: MIB, 20: MIB, 21: MIB},  # the last steps
            {17: MIB, 18: MIB, 19: MIB, 20: MIB},  # fetched ahead
            {1: MIB, 2: MIB, 5: MIB},  # a cache of three shapes
            {1: MIB, 4: MIB, 12: MIB},  # the last of them late
            {3: MIB, 6: MIB, 9: MIB, 10: MIB},  # it ended in the middle
            dict.fromkeys(range(1, 21), MIN_A_STEP - 1),  # losses as numbers
            dict.fromkeys(range(1, 21), 0),
        ],
    )
    def test_healthy(self, held: dict[int, int]) -> None:
        assert rate_of(held, 20) is None

    def test_few_steps_tell_nothing(self) -> None:
        assert rate_of(dict.fromkeys(range(1, LEAST), MIB), LEAST - 1) is None
        assert rate_of(dict.fromkeys(range(1, LEAST + 1), MIB), LEAST) == (MIB, 1)


LINE = SourceFrame("/home/me/train.py", 12, "step", "debug.append(probs)")


def tracked(sizes: list[int]) -> TrackerRecord:
    def snapshot(i: int, nbytes: int) -> MemorySnapshot:
        tensors = tuple(
            TensorInfo((512, 512), "torch.float32", "cuda:0", MIB, operation="step")
            for _ in range(nbytes // MIB)
        )
        return MemorySnapshot(
            i * 10**9,
            SnapshotKind.PERIODIC,
            devices={"cuda:0": TrackedDevice(tensor_bytes=nbytes)},
            largest=tensors[:10],
        )

    return TrackerRecord(TrackerMetadata(), [snapshot(i, n) for i, n in enumerate(sizes)])


class TestProfiles:
    def test_the_tracker(self) -> None:
        # Up and down in each step, with a floor that rises.
        sizes = [(i // 2 + (i % 2) * 5) * MIB for i in range(40)]
        (found,) = growth(Profile(tracker=tracked(sizes)))
        assert found.source is GrowthSource.TRACKER
        assert found.a_step == pytest.approx(MIB / 2, rel=0.3)
        assert growth(Profile(tracker=tracked([(5 + i % 3) * MIB for i in range(40)]))) == []
        # Growing, then stable.
        assert growth(Profile(tracker=tracked([min(i, 10) * MIB for i in range(40)]))) == []
        few = Profile(tracker=tracked([i * MIB for i in range(LEAST - 1)]))
        assert growth(few) == looked(few) == []

    def test_alike_tensors_are_one_part(self) -> None:
        (found,) = growth(Profile(tracker=tracked([i * MIB // 4 for i in range(36)])))
        (part,) = found.parts
        assert part.detail == "512 x 512 float32, made in step"
        assert part.count == 4  # of those that were looked at

    def test_who_knows_best_is_believed(self) -> None:
        held = Growth(GrowthSource.ALLOCATOR, "cuda:0", MIB, KIB, "optimizer step", 1, 20)
        on_cpu = Growth(GrowthSource.TRACKER, "cpu", MIB, 4 * KIB, "call", 1, 20)
        profile = Profile(growth=[held, on_cpu], tracker=tracked([i * MIB for i in range(40)]))
        assert growth(profile) == [on_cpu, held]


GROWTH = Growth(
    GrowthSource.ALLOCATOR,
    "cuda:0",
    60 * MIB,
    3 * MIB,
    "optimizer step",
    2,
    20,
    "debug[...], global of train.py",
    LINE,
    (Held(Category.ACTIVATION, 60 * MIB, 20, "Net > Head", LINE, "softmax"),),
)


class TestReports:
    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        profile = everything()
        profile.growth, profile.accounts = [GROWTH], profile.accounts[:1]
        profile.dataflow = profile.tracker = None
        write_profile(profile, tmp_path / "run.memprof")
        return str(tmp_path / "run.memprof")

    def test_it_is_the_first_thing_that_is_said(self, path: str) -> None:
        fallback, _, text = invoke("report", "--full", path).output.partition("\n\n")
        assert fallback.startswith("memprof fell back to plain Inductor, times: 1 ")
        assert text.startswith(
            """\
Memory grows: 60.0 MiB are held that every step adds to
  1. 3.00 MiB per optimizer step, 60.0 MiB by now: debug[...], global of train.py
    made at /home/me/train.py:12: debug.append(probs)
    on cuda:0, since optimizer step 2 of 20; every block that is still there was counted
    60.0 MiB · 20 blocks · softmax · Net > Head · /home/me/train.py:12
"""
        )
        assert text.startswith(invoke("report", path, "--section", "leaks").output)

    def test_json_of_both_says_the_same(self, path: str) -> None:
        found = json.loads(invoke("report", "--json", path).output)
        (grown,) = found["growth"]
        assert grown == json.loads(invoke("report", "--section", "leaks", "--json", path).output)[0]
        assert (grown["a_step"], grown["holder"]) == (3 * MIB, GROWTH.holder)

    def test_exit_codes(self, path: str, tmp_path: Path) -> None:
        empty, healthy = str(tmp_path / "empty.memprof"), str(tmp_path / "healthy.memprof")
        profile = everything()
        profile.growth, profile.dataflow, profile.tracker = [], None, tracked([MIB] * LEAST)
        write_profile(profile, healthy)
        write_profile(Profile(), empty)
        for file, code, said in (
            (path, 1, "Memory grows"),
            (healthy, 0, "Nothing grows, by "),
            (empty, 2, "eager=True"),
        ):
            leaks = ("report", "--section", "leaks", "--fail-on-leaks", file)
            assert said in invoke(*leaks, status=code).output
            invoke("report", file)
        assert looked(Profile()) == []

    @pytest.mark.parametrize(
        ("steps", "simulated", "tells"),
        [(LEAST, False, True), (LEAST - 1, False, False), (20, True, False)],
    )
    def test_few_steps_and_a_simulated_run_tell_nothing(
        self, steps: int, simulated: bool, tells: bool
    ) -> None:
        account = DeviceAccount("cuda:0", steps=steps, simulated=simulated)
        assert bool(looked(Profile(accounts=[account]))) == tells


def test_a_page_begins_with_what_failed_then_with_what_grows() -> None:
    profile = everything()  # of which one account is of a failure
    for accounts, first in ((profile.accounts, "accounts"), (profile.accounts[:1], "growth")):
        profile.accounts = accounts
        sections = [s.plain() for s in report_payload(profile)["sections"]]
        ids = [s["id"] for s in sections if s["id"] in ("accounts", "growth")]
        assert (len(ids), ids[0]) == (2, first)
        (device,) = (s for s in sections if s["id"] == "accounts")
        titles = [part["title"] for part in device["parts"]]
        failed = "Out of memory on cuda:1: 1.00 MiB asked for by mm at train.py:"
        assert any(t.startswith(failed) for t in titles) is (first == "accounts")
