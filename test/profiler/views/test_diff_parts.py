"""``memprof diff``: gates that can fail."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from framing import framed
from fuzz.documents import everything as documented
from outputs import invoke
from profile_builder import MIB, training

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import Profile, TrackerMetadata, TrackerRecord
from memprof.profiler.support.json_text import to_json
from memprof.profiler.views.compare.diff import compare

from .test_diff import on


def written(folder: Path, name: str, profile: Profile) -> Path:
    path = folder / name
    write_profile(profile, path)
    return path


def test_nothing_in_common_cannot_pass(tmp_path: Path) -> None:
    # GIVEN what there is no comparison of
    tracked = Profile(tracker=TrackerRecord(TrackerMetadata()))
    a = written(tmp_path, "a.memprof", tracked)
    empty = written(tmp_path, "c.memprof", Profile())
    for before, after in ((empty, empty), (a, empty), (a, a)):
        result = invoke("diff", before, after, "--fail-over", "5%", status=2)
        assert "there is nothing to compare" in result.stderr


def test_a_damaged_file_is_not_judged(tmp_path: Path) -> None:
    # GIVEN a file whose peak was in a part that cannot be used
    after = written(tmp_path, "b.memprof", training())
    data = json.loads(to_json(training()))
    data["graphs"][2]["programs"][0]["storages"][0]["nbytes"] = -5
    after.write_bytes(framed(data))
    before = written(tmp_path, "a.memprof", training())
    invoke("diff", before, after)
    result = invoke("diff", before, after, "--fail-over", "5%", status=2)
    assert "--fail-over cannot judge it" in result.stderr


def move_what_is_saved(profile: Profile, device: str) -> None:
    """Put what the forward saves on another device."""
    for graph, storage in ((0, "buf0"), (1, "mm")):
        program = profile.graphs[graph].programs[0]
        storages = tuple(
            dataclasses.replace(s, device=device) if s.name == storage else s
            for s in program.storages
        )
        profile.graphs[graph].programs[0] = dataclasses.replace(program, storages=storages)


def everything() -> Profile:
    """Compiled code on one GPU, and an account of it."""
    found = on("cuda:0", training())
    found.accounts = documented().accounts[:1]
    return found


def test_memory_on_another_device_has_grown_from_nothing(tmp_path: Path) -> None:
    after = everything()
    move_what_is_saved(after, "cuda:1")
    a, b = written(tmp_path, "a.memprof", everything()), written(tmp_path, "b.memprof", after)
    result = invoke("diff", a, b, "--fail-over", "1MiB", status=1)
    assert "peak, cuda:1 by " in result.stderr
    # AND it is gone the other way round
    invoke("diff", b, a, "--fail-over", "50MiB")


def test_the_cpu_beside_an_accelerator_is_not_compared() -> None:
    after = everything()
    move_what_is_saved(after, "cpu")
    compiled = {"peak", "saved", "allocated", "pool"}
    found = [q for q in compare(everything(), after).quantities if q.name in compiled]
    assert {q.device for q in found} == {""}


def test_a_process_that_did_not_come_to_its_end_is_not_judged(tmp_path: Path) -> None:
    a = written(tmp_path, "a.memprof", everything())
    killed = everything()
    killed.complete = False
    b = written(tmp_path, "b.memprof", killed)
    invoke("diff", a, b)
    for files in ((a, b), (b, a)):
        result = invoke("diff", *files, "--fail-over", "90%", status=2)
        assert f"{b}: its process was killed or still runs" in result.stderr


def test_what_was_not_compared_does_not_pass(tmp_path: Path) -> None:
    note = "accounts of devices: only before"
    after = everything()
    after.accounts = []
    a, b = written(tmp_path, "a.memprof", everything()), written(tmp_path, "b.memprof", after)
    assert f"not compared: {note}\n" in invoke("diff", a, b).output
    result = invoke("diff", a, b, "--fail-over", "5%", status=2)
    assert f"not compared: {note}, so --fail-over cannot judge them" in result.stderr
    # AND what did grow is said first
    after.graphs[0].programs[0] = dataclasses.replace(
        after.graphs[0].programs[0],
        storages=tuple(
            dataclasses.replace(s, nbytes=s.nbytes + MIB)
            for s in after.graphs[0].programs[0].storages
        ),
    )
    invoke("diff", a, written(tmp_path, "c.memprof", after), "--fail-over", "0", status=1)


def test_one_device() -> None:
    found = compare(everything(), everything(), "cuda:0")
    assert {q.device for q in found.quantities} == {"", "cuda:0"}
    with pytest.raises(ValueError, match="no memory on 'mps:0'; devices in it: cuda:0"):
        compare(everything(), everything(), "mps:0")
