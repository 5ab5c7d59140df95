"""``memprof diff`` of what the tracker recorded: gates that can fail."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from expecttest import TestCase
from framing import framed
from profile_builder import MIB, training
from rendering import render_diff

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import (
    DeviceSummary,
    MemorySnapshot,
    OperationSummary,
    Profile,
    RunState,
    TrackedDevice,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.support.json_text import to_json
from memprof.profiler.views.compare.diff import NothingToCompare, compare
from memprof.profiler.views.report import Style

from .test_diff import invoke, on


def snapshot(time_ns: int, cpu: int, cuda: int, highest: int | None = None) -> MemorySnapshot:
    return MemorySnapshot(
        time_ns,
        resident_bytes=cpu,
        devices={
            "cpu": TrackedDevice(MIB, 3, cpu // 2, cpu, cpu + MIB, highest_bytes=cpu),
            "cuda:0": TrackedDevice(
                cuda // 2, 5, cuda, 2 * cuda, highest, highest_bytes=max(cuda, highest or 0)
            ),
        },
    )


def tracked() -> Profile:
    """A tracker's record of a training: ``step`` keeps 1 MiB in each of its four invocations."""
    operations = [
        OperationSummary(
            "step",
            count=5,
            tensor_bytes_delta=4 * MIB,
            tensors_delta=4,
            tensors_measured=4,
            devices={
                "cpu": DeviceSummary(5 * MIB, 2 * MIB, 90 * MIB, 5),
                "cuda:0": DeviceSummary(4 * MIB, 2 * MIB, 30 * MIB, 4),
            },
        ),
        OperationSummary(
            "forward", 0, count=5, devices={"cuda:0": DeviceSummary(0, 0, 28 * MIB, 4)}
        ),
        OperationSummary("other", count=1, devices={"cuda:0": DeviceSummary(0, 0, 9 * MIB, 1)}),
    ]
    snapshots = [snapshot(10, 90 * MIB, 10 * MIB), snapshot(20, 80 * MIB, 20 * MIB, 32 * MIB)]
    ended = TrackerMetadata(end_ns=30, state=RunState.EXIT)
    record = TrackerRecord(ended, snapshots, operation_summary=operations)
    return Profile(tracker=record)


def record_of(profile: Profile) -> TrackerRecord:
    assert profile.tracker is not None
    return profile.tracker


def with_snapshot(**figures: int) -> Callable[[Profile], None]:
    def change(profile: Profile) -> None:
        last = record_of(profile).snapshots[-1]
        last.devices["cuda:0"] = dataclasses.replace(last.devices["cuda:0"], **figures)

    return change


GROWN: dict[str, Callable[[Profile], None]] = {
    "tracker peak, cuda:0 by 1.00 MiB": with_snapshot(peak_bytes=33 * MIB),
    "tracker reserved, cuda:0 by 1.00 MiB": with_snapshot(reserved_bytes=41 * MIB),
    "tracker tensors, cuda:0 by 1.00 MiB": with_snapshot(tensor_bytes=11 * MIB),
    "tracker end, cuda:0 by 1.00 MiB": with_snapshot(allocated_bytes=21 * MIB),
}


def written(folder: Path, name: str, profile: Profile) -> Path:
    path = folder / name
    write_profile(profile, path)
    return path


@pytest.mark.parametrize("grown", GROWN)
def test_whatever_grew_fails(grown: str, tmp_path: Path) -> None:
    after = tracked()
    GROWN[grown](after)
    a, b = written(tmp_path, "a.memprof", tracked()), written(tmp_path, "b.memprof", after)
    for limit in ("0", "1%", "511KiB"):
        result = invoke(a, b, "--fail-over", limit)
        assert result.exit_code == 1
        assert grown in result.stderr
    # AND not beyond a limit, nor the other way round
    assert invoke(a, b, "--fail-over", "1MiB").exit_code == 0
    assert invoke(b, a, "--fail-over", "0").exit_code == 0
    assert invoke(a, a, "--fail-over", "0").exit_code == 0


def test_nothing_in_common_cannot_pass(tmp_path: Path) -> None:
    # GIVEN what there is no comparison of
    a = written(tmp_path, "a.memprof", tracked())
    empty = written(tmp_path, "c.memprof", Profile())
    for before, after in ((empty, empty), (a, empty)):
        result = invoke(before, after, "--fail-over", "5%")
        assert result.exit_code == 2
        assert "there is nothing to compare" in result.stderr
    with pytest.raises(NothingToCompare, match="a tracker's record: only before"):
        compare(tracked(), Profile())


def test_a_damaged_file_is_not_judged(tmp_path: Path) -> None:
    # GIVEN a file whose peak was in a part that cannot be used
    after = written(tmp_path, "b.memprof", training())
    data = json.loads(to_json(training()))
    data["graphs"][2]["programs"][0]["storages"][0]["nbytes"] = -5
    after.write_bytes(framed(data))
    before = written(tmp_path, "a.memprof", training())
    assert invoke(before, after).exit_code == 0
    result = invoke(before, after, "--fail-over", "5%")
    assert result.exit_code == 2
    assert "--fail-over cannot judge it" in result.stderr


def with_device(name: str) -> dict[str, Callable[[Profile], None]]:
    """Ways in which 900 MiB can be on another device, by the part that knows."""
    nbytes = 900 * MIB

    def snapshots(profile: Profile) -> None:
        for s in record_of(profile).snapshots:
            s.devices[name] = TrackedDevice(nbytes, 1, nbytes, nbytes, nbytes, highest_bytes=nbytes)

    def compiled(profile: Profile) -> None:
        # What the forward saves is on the other device.
        for graph, storage in ((0, "buf0"), (1, "mm")):
            program = profile.graphs[graph].programs[0]
            storages = tuple(
                dataclasses.replace(s, device=name) if s.name == storage else s
                for s in program.storages
            )
            profile.graphs[graph].programs[0] = dataclasses.replace(program, storages=storages)

    return {
        "tracker peak": snapshots,
        "peak": compiled,
    }


def everything() -> Profile:
    """All parts, compiled code on one GPU."""
    found = on("cuda:0", training())
    found.tracker = tracked().tracker
    return found


@pytest.mark.parametrize("part", with_device("cuda:1"))
def test_memory_on_another_device_has_grown_from_nothing(part: str, tmp_path: Path) -> None:
    after = everything()
    with_device("cuda:1")[part](after)
    a, b = written(tmp_path, "a.memprof", everything()), written(tmp_path, "b.memprof", after)
    result = invoke(a, b, "--fail-over", "1MiB")
    assert result.exit_code == 1, result.output
    assert f"{part}, cuda:1 by " in result.stderr
    # AND it is gone the other way round
    result = invoke(b, a, "--fail-over", "50MiB")
    assert result.exit_code == 0, result.output


def test_the_cpu_beside_an_accelerator_is_compared_when_asked_for() -> None:
    after = everything()
    with_device("cpu")["peak"](after)
    compiled = {"peak", "saved", "allocated", "pool"}
    found = [q for q in compare(everything(), after).quantities if q.name in compiled]
    assert {q.device for q in found} == {""}
    # AND where both have it by then, each device is compared with itself
    (grown,) = [q for q in compare(everything(), after, "cpu").quantities if q.name == "saved"]
    assert (grown.before, grown.change) == (0, 8 * MIB)


def test_a_process_that_did_not_come_to_its_end_is_not_judged(tmp_path: Path) -> None:
    a = written(tmp_path, "a.memprof", everything())
    killed = {"stream": everything(), "tracker": tracked()}
    killed["stream"].complete = False
    killed["tracker"].complete = False
    record_of(killed["tracker"]).metadata.state = RunState.RUNNING
    for name, profile in killed.items():
        b = written(tmp_path, name, profile)
        assert invoke(a, b).exit_code == 0
        for files in ((a, b), (b, a)):
            result = invoke(*files, "--fail-over", "90%")
            assert result.exit_code == 2
            assert f"{b}: its process was killed or still runs" in result.stderr


def without_tracker(profile: Profile) -> None:
    profile.tracker = None


def without_figure(profile: Profile) -> None:
    for s in record_of(profile).snapshots:
        s.devices["cuda:0"] = dataclasses.replace(s.devices["cuda:0"], reserved_bytes=None)


def without_snapshots(profile: Profile) -> None:
    record = record_of(profile)
    record.snapshots, record.operation_summary = [], []


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (without_tracker, "a tracker's record: only before"),
        (without_snapshots, "a tracker's record: of no device after"),
        (without_figure, "tracker reserved, cuda:0: only before"),
    ],
)
def test_what_was_not_compared_does_not_pass(
    change: Callable[[Profile], None], note: str, tmp_path: Path
) -> None:
    after = everything()
    change(after)
    a, b = written(tmp_path, "a.memprof", everything()), written(tmp_path, "b.memprof", after)
    assert f"not compared: {note}\n" in invoke(a, b).output
    result = invoke(a, b, "--fail-over", "5%")
    assert result.exit_code == 2
    assert f"not compared: {note}, so --fail-over cannot judge them" in result.stderr
    # AND what did grow is said first
    after.graphs[0].programs[0] = dataclasses.replace(
        after.graphs[0].programs[0],
        storages=tuple(
            dataclasses.replace(s, nbytes=s.nbytes + MIB)
            for s in after.graphs[0].programs[0].storages
        ),
    )
    assert invoke(a, written(tmp_path, "c.memprof", after), "--fail-over", "0").exit_code == 1


def test_one_device() -> None:
    found = compare(tracked(), tracked(), "cuda:0")
    assert {q.device for q in found.quantities} == {"cuda:0"}
    with pytest.raises(ValueError, match="no memory on 'mps:0'; devices in it: cpu, cuda:0"):
        compare(tracked(), tracked(), "mps:0")
    # Compiled code has nothing there.
    both = training()
    both.tracker = tracked().tracker
    assert compare(both, both, "cuda:0").quantities[0].name == "tracker peak"


class TestLook(TestCase):
    maxDiff = None

    def test_text(self) -> None:
        before, after = tracked(), tracked()
        for change in GROWN.values():
            change(after)
        self.assertExpectedInline(
            render_diff(compare(before, after), Style(ascii_only=True, top=2)),
            """\
                                  before     after     change
----------------------------------------------------------------------
most resident, cpu              91.0 MiB  91.0 MiB        0 B    0.0 %
most in Python tensors, cpu     1.00 MiB  1.00 MiB        0 B    0.0 %
allocated at the end, cpu       40.0 MiB  40.0 MiB        0 B    0.0 %
most allocated, cuda:0          32.0 MiB  33.0 MiB  +1.00 MiB   +3.1 %
most reserved, cuda:0           40.0 MiB  41.0 MiB  +1.00 MiB   +2.5 %
most in Python tensors, cuda:0  10.0 MiB  11.0 MiB  +1.00 MiB  +10.0 %
allocated at the end, cuda:0    20.0 MiB  21.0 MiB  +1.00 MiB   +5.0 %
""",
        )
