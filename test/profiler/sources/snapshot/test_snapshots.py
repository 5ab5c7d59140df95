"""Snapshots of torch's allocator: what is read of them, and that nothing of them is executed."""

from __future__ import annotations

import gzip
import io
import linecache
import os
import pickle
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from allocator import Allocator
from click.testing import CliRunner
from fuzz.hostile_snapshots import (
    CODE,
    INVALID,
    MIB,
    REFUSED,
    block,
    edited,
    event,
    frame,
    segment,
    settings,
    snapshot,
)
from hypothesis import given
from hypothesis import strategies as st
from rendering import render_accounts

import memprof
from memprof.cli import main
from memprof.profiler.file.profile_file import read_profile, read_profiles, write_profile
from memprof.profiler.model import Category, DeviceAccount, NodeProvenance, Profile, SourceFrame
from memprof.profiler.sources.allocator.where import user_lines
from memprof.profiler.sources.snapshot import names, to_model
from memprof.profiler.sources.snapshot.reading import decode_snapshot, read_snapshot
from memprof.profiler.sources.snapshot.to_model import profile_of
from memprof.profiler.sources.snapshot.trial import PlainUnpickler, loads_within_limits
from memprof.profiler.support.errors import (
    ProfileTooLargeError,
    ProfileUnreadableError,
    SnapshotInvalidError,
    SnapshotRefusedError,
)
from memprof.profiler.views.compare.diff import NothingToCompare, compare
from memprof.profiler.views.compare.ranks import compare_ranks


def of_pickle(data: bytes) -> Profile:
    """The profile that the content of a snapshot's file comes to."""
    return profile_of(decode_snapshot(data, None), None)


def accounts(value: Any) -> dict[str, DeviceAccount]:
    """The accounts of a snapshot, by device."""
    return {a.device: a for a in of_pickle(pickle.dumps(value, 4)).accounts}


def adds_up(account: DeviceAccount, segments: list[dict[str, Any]]) -> None:
    """Every reserved byte is in one part, and they are the snapshot's own totals."""
    used = [b for s in segments for b in s["blocks"]]
    assert account.reserved == sum(s["total_size"] for s in segments)
    assert account.unexplained == 0
    active = [b for b in used if b["state"] == "active_allocated"]
    assert account.live == sum(b["requested_size"] for b in active)
    assert account.live + account.rounding == sum(b["size"] for b in active) == account.allocated
    assert account.free == sum(b["size"] for b in used if b["state"] == "inactive")
    parts = account.live + account.rounding + account.awaiting + account.free
    assert parts == account.reserved


# Reading


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_writes_is_read_as_pickle_reads_it(protocol: int) -> None:
    data = pickle.dumps(snapshot(), protocol)
    assert loads_within_limits(data)
    assert PlainUnpickler(io.BytesIO(data)).load() == snapshot()


@pytest.mark.parametrize("name", [*REFUSED, *INVALID])
def test_nothing_of_a_hostile_pickle_is_executed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a pickle that no snapshot is, some of which would run a program
    path = tmp_path / "s.pickle"
    path.write_bytes((REFUSED | INVALID)[name]())

    def runs(*_: object) -> None:
        raise AssertionError("it was executed")

    for function in ("system", "popen"):
        monkeypatch.setattr(os, function, runs)
    # WHEN it is read
    error = SnapshotRefusedError if name in REFUSED else SnapshotInvalidError
    with pytest.raises(error, match=r"s\.pickle: ") as e:
        read_snapshot(path)
    # THEN one line says what it was
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 500


def test_a_pickle_that_takes_too_much_is_loaded_by_a_process_that_may_not() -> None:
    for name in ("a memo index of 2**32 - 1", "tuples nested a million deep as a key"):
        assert not loads_within_limits(REFUSED[name]())
    # An error is an end: whoever reads finds it again.
    assert loads_within_limits(REFUSED["half a file"]())


def test_without_a_process_to_try_it_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ProfileUnreadableError, match="no process can be started"):
        of_pickle(pickle.dumps(snapshot()))


def test_a_snapshot_of_nothing_says_so_and_how_to_take_one(tmp_path: Path) -> None:
    empty = {"segments": [], "device_traces": [[]], "allocator_settings": {}}
    path = tmp_path / "empty.pickle"
    path.write_bytes(pickle.dumps(empty))
    said = CliRunner().invoke(main, ["report", str(path)]).stdout
    assert "nothing was recorded" in said
    assert "torch.cuda.memory._dump_snapshot(path)" in said
    assert "compiled" not in said
    assert CliRunner().invoke(main, ["diff", str(path), str(path)]).exit_code == 0


def test_gzip_and_segments_alone() -> None:
    plain = accounts(snapshot())
    zipped = of_pickle(gzip.compress(pickle.dumps(snapshot(), 4)))
    assert {a.device: a.reserved for a in zipped.accounts} == {
        d: a.reserved for d, a in plain.items()
    }
    alone = accounts(snapshot()["segments"])
    assert {d: a.live for d, a in alone.items()} == {d: a.live for d, a in plain.items()}
    assert all(a.peak is None for a in alone.values())


def test_too_much_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bomb.pickle").write_bytes(
        gzip.compress(b"\x80\x04X" + struct.pack("<I", 200 * MIB) + bytes(200 * MIB) + b".")
    )
    with pytest.raises(ProfileTooLargeError, match="MEMPROF_MAX_READ"):
        read_snapshot(tmp_path / "bomb.pickle")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProfileUnreadableError, match="a pipe"):
        read_snapshot(tmp_path / "pipe")
    monkeypatch.setenv("MEMPROF_MAX_READ", "100")
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot(), 4))
    with pytest.raises(ProfileTooLargeError, match="more than the 100 that"):
        read_snapshot(tmp_path / "s.pickle")


def test_files_that_frames_name_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN frames of a pipe, which would be waited for, and of a secret
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "secret.py").write_text("PASSWORD = 'x'\n")
    frames = [frame("forward", str(tmp_path / n), 1) for n in ("secret.py", "pipe.py")]
    monkeypatch.setattr(linecache, "getlines", None)
    monkeypatch.setattr(linecache, "getline", None)
    found = accounts({"segments": [segment(0, [block(0, MIB, frames)])]})
    text = render_accounts(list(found.values()))
    assert "secret.py:1" in text
    assert "PASSWORD" not in text


# Accounts


def test_the_account_is_the_snapshots_own() -> None:
    value = snapshot()
    found = accounts(value)
    assert list(found) == ["cuda:0", "cuda:1"]
    for i, account in enumerate(found.values()):
        adds_up(account, [s for s in value["segments"] if s["device"] == i])
    zero = found["cuda:0"]
    assert zero.snapshot
    assert (zero.reserved, zero.live, zero.rounding) == (14 * MIB, 6 * MIB - 100, 100)
    assert (zero.awaiting, zero.free) == (4 * MIB, 4 * MIB)
    assert [(p.name, p.reserved, p.free) for p in zero.pools] == [
        ("general", 12 * MIB, 4 * MIB),
        ("private 0,7", 2 * MIB, 0),
    ]
    # Lines are those of the program, not of C++, generated code or torch.
    assert {r.frame.location for r in zero.rows if r.frame} == {"/home/me/model.py:7"}
    assert [(r.nbytes, r.compiled) for r in zero.rows] == [
        (4 * MIB - 100, True),
        (2 * MIB, False),
    ]
    assert {r.category for r in zero.rows} == {Category.ALLOCATED}
    (failed,) = zero.failed
    assert failed.nbytes == 1 << 33
    assert failed.frame is not None
    assert failed.frame.location == "/home/me/model.py:7"


def test_the_report_begins_with_what_is_reserved() -> None:
    (text, *_) = [render_accounts([a]) for a in accounts(snapshot()).values()]
    assert text.startswith(
        "Snapshot of cuda:0\n"
        "  Reserved when it was taken: 14.0 MiB (14,680,064 B)\n"
        "  6.00 MiB (6,291,456 B) of it allocated\n"
    )
    assert "out of memory: 8.00 GiB asked for" in text
    assert "The fullest instant of the history of cuda:0" in text
    assert "names their FX nodes" in text


def test_a_device_without_stacks_says_so() -> None:
    one = accounts(snapshot())["cuda:1"]
    assert any("the history of the allocator was off" in n for n in one.notes)
    assert any("no history" in n for n in one.notes)
    assert one.rows[0].holder == "(no stack was recorded)"


def test_a_history_that_begins_late_knows_what_was_there() -> None:
    # GIVEN a history in which 4 MiB go that were there before it, and then 1 MiB comes; a segment
    # that goes within it; and one that comes
    kept = [frame("f", "/p/a.py", 1)]
    value = {
        "segments": [
            segment(8 * MIB, [block(8 * MIB, 1 * MIB, kept), block(9 * MIB, 7 * MIB)]),
        ],
        "device_traces": [
            [
                event("free_requested", 10 * MIB, 4 * MIB - 10),
                event("free_completed", 10 * MIB, 4 * MIB - 10),
                event("free_requested", 100 * MIB, 20 * MIB),
                event("free_completed", 100 * MIB, 20 * MIB),
                event("segment_free", 100 * MIB, 20 * MIB),
                event("alloc", 8 * MIB, 1 * MIB, kept),
            ]
        ],
    }
    account = accounts(value)["cuda:0"]
    adds_up(account, value["segments"])
    # THEN its fullest instant is its first
    assert account.peak is not None
    assert (account.peak.reserved, account.peak.allocated) == (28 * MIB, 24 * MIB)
    assert account.peak.live == 24 * MIB - 10
    assert account.peak.rounding == 10
    assert account.peak.unexplained == 0
    assert account.peak.notes == ["after event 0 of 6 of the history"]
    assert account.most_allocated == 24 * MIB


def test_the_peak_within_a_history() -> None:
    line = [frame("f", "/p/a.py", 5)]
    events = [
        event("segment_alloc", 0, 20 * MIB),
        event("alloc", 0, 6 * MIB, line),
        event("alloc", 6 * MIB, 8 * MIB, line),
        event("free_requested", 6 * MIB, 8 * MIB),
        event("free_completed", 6 * MIB, 8 * MIB),
    ]
    value = {
        "segments": [segment(0, [block(0, 6 * MIB, line), block(6 * MIB, 14 * MIB)])],
        "device_traces": [events],
        "allocator_settings": settings(),
    }
    account = accounts(value)["cuda:0"]
    assert account.peak is not None
    assert (account.peak.reserved, account.peak.allocated) == (20 * MIB, 14 * MIB)
    assert [(r.nbytes, r.count) for r in account.peak.rows] == [(14 * MIB, 2)]
    assert account.peak.notes == ["after event 3 of 5 of the history"]
    # A history that was off for a while contradicts the snapshot, and the report says it.
    value["device_traces"][0].append(event("free_completed", 0, 6 * MIB))
    told = accounts(value)["cuda:0"].peak
    assert told is not None
    assert any("contradict" in n for n in told.notes)


def test_what_another_stream_still_uses_at_the_peak_is_not_free() -> None:
    first, second = 0, 64 * MIB
    events = [
        event("segment_alloc", first, 20 * MIB),
        event("alloc", first, 20 * MIB),
        event("free_requested", first, 20 * MIB),
        event("segment_alloc", second, 20 * MIB),
        event("alloc", second, 20 * MIB),
        event("free_completed", first, 20 * MIB),
    ]
    value = {
        "segments": [
            segment(first, [block(first, 20 * MIB)]),
            segment(second, [block(second, 20 * MIB, [frame("f", "/p/a.py", 5)])]),
        ],
        "device_traces": [events],
        "allocator_settings": settings(),
    }
    peak = accounts(value)["cuda:0"].peak
    assert peak is not None
    assert (peak.reserved, peak.allocated) == (40 * MIB, 20 * MIB)
    assert (peak.awaiting, peak.free) == (20 * MIB, 0)


def _used(rnd: random.Random) -> Allocator:
    """An allocator that a random program uses, with the history from somewhere in the midst on."""
    allocator = Allocator(rnd.choice([0, 0, 2, 4, 8, 16]))
    sizes = (1, 700, 1 << 10, 1 << 20, 3 << 20, 12 << 20, 24 << 20)
    steps = rnd.randrange(1, 150)
    begins = rnd.randrange(steps)
    for step in range(steps):
        if step == begins:
            allocator.begin()
        if allocator.live and rnd.random() < 0.47:
            allocator.drop(rnd.choice(list(allocator.live)))
        elif rnd.random() < 0.03:
            allocator.give_back()
        else:
            allocator.take(rnd.choice([rnd.choice(sizes), rnd.randrange(1, rnd.choice(sizes) + 1)]))
    return allocator


def _is_sound(account: DeviceAccount) -> None:
    """No part is negative, they are what is reserved, and nothing is more than that."""
    parts = [n for _, n in account.parts()]
    assert min(parts) >= 0
    assert sum(parts) == account.reserved
    most = max(a.reserved for a in (account, account.peak) if a is not None)
    assert account.live <= account.allocated <= account.most_allocated <= most
    assert all(p.largest_free <= p.free <= p.reserved for p in account.pools)
    assert all(p.with_free <= p.segments for p in account.pools)


@given(st.integers(0, 1 << 30))
def test_a_history_that_begins_anywhere_has_the_true_peak_and_no_doubts(seed: int) -> None:
    rnd = random.Random(seed)
    allocator = _used(rnd)
    value = allocator.snapshot()
    if not (value["segments"] or allocator.events):
        return
    account = accounts(value)["cuda:0"]
    adds_up(account, value["segments"])
    if account.peak is not None:
        _is_sound(account.peak)
        assert account.peak.reserved == allocator.peak[0]
        assert len(account.peak.notes) == 1, account.peak.notes
        # What was not cut off a block of before, with nothing asked for behind it, nobody can know.
        gone = {e["addr"] for e in allocator.events} & allocator.before
        assert 0 <= allocator.peak[1] - account.peak.allocated <= MIB * len(gone)
        assert 0 <= allocator.most - account.peak.most_allocated <= MIB * len(gone)


@given(st.integers(0, 1 << 30))
def test_no_row_is_negative_whatever_a_history_lacks(seed: int) -> None:
    """And no peak is below what the snapshot itself shows."""
    rnd = random.Random(seed)
    allocator = _used(rnd)
    value = allocator.snapshot()
    lacks = rnd.choice([*_KINDS, "some", "segments", "addresses"])
    for e in value["device_traces"][0]:
        if lacks == "addresses":
            e["addr"] = rnd.randrange(1 << 40)
    if lacks == "segments":
        del value["segments"][::2]
    goes = {"some": lambda e: rnd.random() < 0.1}.get(lacks, lambda e: e["action"] == lacks)
    value["device_traces"] = [[e for e in value["device_traces"][0] if not goes(e)]]
    for account in accounts(value).values():
        _is_sound(account)
        if account.peak is not None:
            _is_sound(account.peak)
            assert account.peak.reserved >= account.reserved
            assert account.peak.most_allocated >= account.allocated


_KINDS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free")


@pytest.mark.parametrize("kind", _KINDS)
def test_a_kind_of_event_that_is_missing_is_named(kind: str) -> None:
    """Two times 3 MiB in one place, which is given back in between: the peak is 23 MiB of 40."""
    allocator = Allocator()
    allocator.take(MIB)
    for _ in range(2):
        allocator.give_back()
        first, second = allocator.take(3 * MIB), allocator.take(20 * MIB)
        for address in (first, second):
            allocator.drop(address)
    value = allocator.snapshot()
    value["device_traces"] = [[e for e in allocator.events if e["action"] != kind]]
    account = accounts(value)["cuda:0"]
    assert account.peak is not None
    assert account.peak.reserved == 42 * MIB
    if kind in ("free_requested", "free_completed", "segment_alloc"):
        assert account.peak.allocated == account.most_allocated == 24 * MIB
    named = [n for n in account.peak.notes[1:] if f"no {kind}" in n]
    assert len(named) == (kind != "segment_alloc"), account.peak.notes


def test_a_block_that_was_not_cut_is_whole_though_its_request_came_before() -> None:
    """19 MiB of a segment of 20 keep all of it: what would remain is of no use."""
    allocator = Allocator()
    allocator.drop(allocator.take(20 * MIB))
    address = allocator.take(19 * MIB)
    allocator.begin()
    allocator.drop(address)
    peak = accounts(allocator.snapshot())["cuda:0"].peak
    assert peak is not None
    assert (peak.allocated, peak.live, peak.rounding) == (20 * MIB, 19 * MIB, MIB)


def test_expandable_segments_and_unmapped_ranges() -> None:
    line = [frame("f", "/p/a.py", 5)]
    value = {
        "segments": [
            segment(0, [block(0, 2 * MIB, line), block(2 * MIB, 2 * MIB)], is_expandable=True),
            {**segment(1 << 40, []), "total_size": 0},
        ],
        "device_traces": [
            [
                event("segment_map", 0, 2 * MIB),
                event("segment_map", 2 * MIB, 4 * MIB),
                event("alloc", 0, 2 * MIB, line),
                event("segment_unmap", 4 * MIB, 2 * MIB),
            ]
        ],
    }
    account = accounts(value)["cuda:0"]
    adds_up(account, value["segments"])
    assert account.peak is not None
    assert account.peak.reserved == 6 * MIB
    assert account.peak.notes == ["after event 3 of 4 of the history"]


def test_segments_that_contradict_each_other_cost_a_note() -> None:
    # Each of these once left two segments at one address.
    grown = [event("segment_alloc", 0, 4 * MIB), event("segment_alloc", 0, 4 * MIB)]
    cut = [
        event("segment_alloc", 0, 4 * MIB),
        event("segment_alloc", MIB, MIB),
        event("segment_free", 0, MIB),
    ]
    given_back = [event("segment_unmap", 512 * i, 1000) for i in range(50)]
    gone = [event("segment_free", 0, 4 * MIB), event("segment_free", 0, 4 * MIB)]
    for events in (grown + gone, cut + gone, given_back + gone, gone + grown):
        found = accounts({"segments": [], "device_traces": [events]})["cuda:0"]
        assert found.peak is not None
        assert any("contradict" in n for n in found.peak.notes)
        assert found.reserved == 0


def test_workspaces_of_cublas_are_told_by_the_names_of_c() -> None:
    frames = [
        frame("at::cuda::setWorkspaceForHandle(cublasContext*)", "", 0),
        frame("forward", "/p/a.py", 5),
    ]
    (row,) = accounts({"segments": [segment(0, [block(0, MIB, frames)])]})["cuda:0"].rows
    assert (row.category, row.detail) == (Category.WORKSPACE, "cuBLAS")


def test_nodes_that_torch_itself_has_put_into_frames() -> None:
    named = frame(
        "forward", "/p/fx_generated_1.py", 5, fx_node_name="mm", fx_node_op="call_function"
    )
    (row,) = accounts({"segments": [segment(0, [block(0, MIB, [named])])]})["cuda:0"].rows
    assert row.nodes == "mm"


# Views


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot(), 4))
    return str(tmp_path / "s.pickle")


def invoke(*args: str) -> Any:
    return CliRunner().invoke(main, list(args), env={"COLUMNS": "100"})


def test_the_command_line(path: str, tmp_path: Path) -> None:
    result = invoke("report", path, "--full")
    assert result.exit_code == 0
    assert result.stdout.startswith("Snapshot of cuda:0\n")
    assert "Snapshot of cuda:1\n" in result.stdout
    short = invoke("report", path).stdout
    assert short.startswith("Snapshot of cuda:0\n")
    assert "other devices" in short.splitlines()[-1]
    assert invoke("report", path, "-o", str(tmp_path / "p.html")).exit_code == 0
    assert invoke("report", path, "--json").exit_code == 0
    assert invoke("export", path, "-f", "json", "-o", str(tmp_path / "json")).exit_code == 0
    result = invoke("export", path, "-f", "memory-viz", "-o", str(tmp_path / "x"))
    assert result.exit_code == 2
    assert "the account of one instant" in result.stderr
    assert "cannot tell what grows" in invoke("report", path, "--section", "leaks").stdout


@pytest.mark.parametrize("name", ["os.system by REDUCE", "half a file", "a number"])
def test_a_hostile_file_is_one_line_and_status_2(name: str, tmp_path: Path) -> None:
    (tmp_path / "h.pickle").write_bytes((REFUSED | INVALID)[name]())
    for args in (
        ["report", "H"],
        ["diff", "H", "H"],
        ["export", "H", "-f", "memory-viz", "--profile", "H", "-o", str(tmp_path / "o.pickle")],
    ):
        result = invoke(*(str(tmp_path / "h.pickle") if a == "H" else a for a in args))
        assert result.exit_code == 2
        assert isinstance(result.exception, SystemExit)
        assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "o.pickle").exists()


def test_load_has_the_verbs_of_a_profile(path: str, tmp_path: Path) -> None:
    loaded = memprof.load(path)
    out = io.StringIO()
    loaded.report(file=out)
    assert out.getvalue().startswith("Snapshot of cuda:0\n")
    loaded.to_html(tmp_path / "p.html")
    loaded.export(tmp_path / "o.json", "json")
    # Written as a profile, it is what it was.
    write_profile(loaded.profile(), tmp_path / "again.memprof")
    again = read_profile(tmp_path / "again.memprof")
    assert again.accounts == loaded.profile().accounts
    assert not again.left_out


def test_two_snapshots_are_compared() -> None:
    def grown(d: dict[str, Any]) -> None:
        d["segments"].append(
            segment(1 << 30, [block(1 << 30, 3 * MIB, [frame("f", "/p/n.py", 9)])])
        )

    before, after = (of_pickle(edited(edit)) for edit in (_same, grown))
    found = compare(before, after, "cuda:0").quantities
    assert {q.name: q.change for q in found} == {"reserved": 3 * MIB, "reserved end": 3 * MIB}


def _run(mib: int) -> dict[str, Any]:
    """A program that has 2 MiB in a segment of 16, needs ``mib`` more for a while, and ends."""
    keeps, needs = [frame("f", "/p/n.py", 9)], [frame("g", "/v/site-packages/lib/n.py", 3)]
    events = [
        event("segment_alloc", 16 * MIB, 16 * MIB, keeps),
        event("alloc", 16 * MIB, 2 * MIB, keeps),
        event("alloc", 18 * MIB, mib * MIB, needs),
        event("free_requested", 18 * MIB, mib * MIB, needs),
        event("free_completed", 18 * MIB, mib * MIB, needs),
    ]
    blocks = [block(16 * MIB, 2 * MIB, keeps), block(18 * MIB, 14 * MIB)]
    return {"segments": [segment(16 * MIB, blocks)], "device_traces": [events]}


def test_a_difference_is_one_of_the_fullest_instants(tmp_path: Path) -> None:
    """4 and 12 MiB for a while, by line 3 of a library: in the end nothing is left of either."""
    without = {**_run(12), "device_traces": []}
    before, after, ends = (of_pickle(pickle.dumps(d)) for d in (_run(4), _run(12), without))
    found = {q.name: q for q in compare(before, after).quantities}
    assert {
        view: {c.key: (c.before // MIB, c.after // MIB) for c in changes}
        for view, changes in found["reserved"].views.items()
    } == {
        "category": {"allocated": (6, 14), "(free)": (10, 2)},
        "module": {"(no module)": (6, 14), "(free)": (10, 2)},
        "line": {"lib/n.py:3": (4, 12), "(free)": (10, 2)},
    }
    assert not any(found["reserved end"].views.values())
    # A snapshot without a history has no fullest instant, and no gate passes for the lack of one.
    (alone,) = compare(before, ends).quantities
    assert (alone.name, alone.before, alone.after) == ("reserved end", 16 * MIB, 16 * MIB)
    write_profile(before, tmp_path / "a.memprof")
    write_profile(ends, tmp_path / "b.memprof")
    paths = str(tmp_path / "a.memprof"), str(tmp_path / "b.memprof")
    said = CliRunner().invoke(main, ["diff", *paths, "--fail-over", "5%"])
    assert (said.exit_code, "the peak of cuda:0: only before" in said.stderr) == (2, True)


def test_a_peak_is_not_compared_with_the_end_of_another_run() -> None:
    # GIVEN the account of a run's fullest instant, and a snapshot that knows none
    peak, end = (DeviceAccount("cuda:0", reserved=n * MIB) for n in (80, 10))
    end.snapshot = True
    # WHEN they are compared, in either order
    for first, second in ((peak, end), (end, peak)):
        # THEN there are no figures, and it is said why
        with pytest.raises(NothingToCompare, match="the peak of cuda:0: only"):
            compare(Profile(accounts=[first]), Profile(accounts=[second]))


def test_runs_that_are_no_ranks_are_merged_as_runs(tmp_path: Path) -> None:
    paths = []
    for mib in (4, 12):
        paths.append(str(tmp_path / f"{mib}.pickle"))
        Path(paths[-1]).write_bytes(pickle.dumps(_run(mib)))
    out = str(tmp_path / "both.memprof")
    said = CliRunner().invoke(main, ["export", *paths, "-f", "memprof", "-o", out]).output
    assert said == f"{out}: 2 profiles of runs that are no ranks of a job\n"
    found = compare_ranks(read_profiles(out))
    assert [(r.device, r.peak) for r in found.rows] == [("cuda:0", 16 * MIB)] * 2
    assert [r.categories["allocated"] for r in found.rows] == [6 * MIB, 14 * MIB]
    text = CliRunner().invoke(main, ["report", out]).output
    assert text.startswith("2 runs\n")
    assert "By run" in text


def _same(d: dict[str, Any]) -> None:
    """No change."""


def test_generated_code_is_no_line_of_the_program() -> None:
    frames = [frame("call", CODE, 5)]
    (row,) = accounts({"segments": [segment(0, [block(0, MIB, frames)])]})["cuda:0"].rows
    assert row.frame is None
    assert row.compiled


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("??", 0), ("", 0), ("Allocator.cpp", 0), ("/x/sysdeps/clone3.S", 81),
        ("/x/Python-3.11.7/Python/ceval.c", 7352), ("./Include/pycore_ceval.h", 73),
        ("/x/lib/libpython3.11.so.1.0", 1038786), ("/x/torch/lib/libtorch_cpu.so", 5),
        ("/x/bin/python3.11", 4224), ("/x/site-packages/torch/nn/modules/module.py", 9),
    ],
)  # fmt: skip
def test_frames_of_c_and_of_torch_are_no_line_of_the_program(file: str, line: int) -> None:
    frames = [frame("f", file, line), frame("main", "/usr/bin/train", 3)]
    (row,) = accounts({"segments": [segment(0, [block(0, MIB, frames)])]})["cuda:0"].rows
    assert row.frame is not None
    assert row.frame.location == "/usr/bin/train:3"


SITE = "/env/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("frames", "line", "library"),
    [
        # A function of a library that the program called, and one that torch did.
        (("_backends.py:3 rearrange", "einops.py:5 f", "/me/model.py:7 forward"), 7, 3),
        (("torch/a.py:1 f", "_backends.py:3 g", "/me/run.py:7 main"), 7, 3),
        # The model of a library is where its modules are called, not where the program runs it.
        (("torch/a.py:1 forward", "llama.py:4 forward", "/me/run.py:7 main"), 4, None),
        (("attention.py:2 sdpa", "llama.py:4 forward", "/me/run.py:7 main"), 4, 2),
        # A library alone, and one that its own command runs.
        (("engine.py:6 run", "torch/a.py:1 f"), 6, None),
        (("engine.py:6 run", "main.py:9 main", "/env/bin/serve:8 <module>"), 6, None),
    ],
)
def test_what_a_library_made_is_at_the_line_that_called_it(
    frames: tuple[str, ...], line: int, library: int | None
) -> None:
    found = []
    for text in frames:
        file, _, where = text.partition(":")
        number, name = where.split()
        found.append(frame(name, file if file[0] == "/" else f"{SITE}/{file}", int(number)))
    (row,) = accounts({"segments": [segment(0, [block(0, MIB, found)])]})["cuda:0"].rows
    assert row.frame is not None
    assert (row.frame.line, row.library and row.library.line) == (line, library)
    text = render_accounts([DeviceAccount("cuda:0", snapshot=True, rows=[row], reserved=MIB)])
    assert ("in library" in text) is (library is not None)
    # So it is with compiled code.
    stack = tuple(SourceFrame(f["filename"], f["line"], f["name"]) for f in reversed(found))
    assert NodeProvenance("mm", "aten.mm", stack=stack).frame == row.frame


def test_autograd_without_a_stack_is_not_from_before_the_history() -> None:
    line = [frame("f", "/p/a.py", 5)]
    events = [
        event("alloc", 0, MIB, line),
        event("alloc", 2 * MIB, MIB, []),
        event("alloc", 3 * MIB, MIB, []),
        *(event(action, 3 * MIB, MIB) for action in ("free_requested", "free_completed")),
    ]
    blocks = [block(i * MIB, MIB, stack) for i, stack in enumerate((line, [], []))]
    value = {"segments": [segment(0, [*blocks, block(3 * MIB, MIB)])], "device_traces": [events]}
    account = accounts(value)["cuda:0"]
    assert account.peak is not None
    for a, autograd in ((account, MIB), (account.peak, 2 * MIB)):
        held = {(r.holder, r.frame is None): r.nbytes for r in a.rows}
        assert held == {("", False): MIB, ("", True): autograd, (to_model.NO_STACK, True): MIB}
    assert account.notes == [f"{MIB:,} B have no stack: from before the history began"]
    text = render_accounts([account])
    assert "(no Python was running: autograd)" in text
    # Where the history has no stack at all, nobody knows.
    events[0]["frames"] = []
    account = accounts(value)["cuda:0"]
    assert account.peak is not None
    assert {r.holder for r in account.peak.rows} == {to_model.NO_STACK}


def test_requests_that_fail_in_one_place_cost_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 KB of file took 20 s: each of so many requests went through the same long list."""
    looks = 0

    def counted(frames: Any) -> Any:
        nonlocal looks
        looks += 1
        return user_lines(frames)

    monkeypatch.setattr(to_model, "user_lines", counted)
    frames = [{"name": "f", "filename": "/x/site-packages/torch/a.py", "line": 1}] * 20
    events = [{"action": "oom", "size": 1, "stream": 0, "frames": frames} for _ in range(100)]
    (account,) = accounts({"segments": [], "device_traces": [events]}).values()
    assert [f.count for f in account.failed] == [100]
    assert looks == 1


def test_a_long_name_of_a_file_takes_no_time() -> None:
    """A regular expression took half a minute for 10 KB: this would not come back for days."""
    assert names._file("a" * 1_000_000 + "/") == ""
    assert names._file("/tmp/x\\cab.py") == names._file("cab.py") == "cab.py"


def test_gzip_that_ends_early_is_refused() -> None:
    packed = gzip.compress(pickle.dumps(snapshot(), 4))
    for length in (len(packed) - 1, len(packed) - 8, 100):
        with pytest.raises(SnapshotRefusedError, match="truncated or damaged gzip"):
            of_pickle(packed[:length])
