"""``memprof top``: a file that grows is read as it grows, and what it says of its writer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from outputs import invoke
from profile_builder import MIB, calls, training
from profiler.live.test_growth_rule import GROWTH, tracked

from memprof.profiler import running_job
from memprof.profiler.file.encoding import ProfileEncoder, encode_profile
from memprof.profiler.model import CallColumns, DeviceTotals, Process, Profile
from memprof.profiler.running_job import STALLED_NS, JobFile, Writer
from memprof.profiler.support import writing
from memprof.profiler.support.errors import ProfileError

NOW = 1_700_000_100_000_000_000


def running(reserved: int = 40 * MIB, rank: int = 0) -> Profile:
    profile = training()
    profile.created_ns = NOW - 3_000_000_000
    profile.process = Process(rank, rank, 2 if rank else 1, "host", 77 + rank)
    profile.totals = [DeviceTotals("cuda:0", 80 * MIB, 30 * MIB, reserved, 35 * MIB, 50 * MIB)]
    profile.resident = 9 * MIB
    profile.complete = False
    return profile


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """Of a file that somebody writes."""
    path = str(tmp_path / "run.memprof")
    fd = writing.claim(path)
    assert fd is not None
    os.write(fd, encode_profile(running()))
    yield path
    os.close(fd)


class TestFollowing:
    def test_in_pieces_it_is_what_it_is_at_once(self, tmp_path: Path) -> None:
        # GIVEN a file that grows by some bytes at a time
        encoder = ProfileEncoder()
        whole, profile = b"", running()
        for i in range(3):
            profile.totals = [replace(profile.totals[0], allocated=i)]
            whole += encoder.chunk(profile, calls((0, 0), (1, 0)))
        whole += encoder.chunk(profile, CallColumns(), end=True)
        file = tmp_path / "run.memprof"
        file.write_bytes(b"")
        followed = JobFile(str(file))
        with pytest.raises(ProfileError, match="not one yet"):
            followed.profile()
        seen = []
        for end in range(100, len(whole) + 100, 100):
            with file.open("ab") as out:
                out.write(whole[end - 100 : end])
            try:
                seen.append((len(followed.profile().calls), followed.profile().complete))
            except ProfileError:
                assert end < 1000
        # THEN each look has what was whole by then, and the last one everything
        assert seen == sorted(seen)
        assert seen[-1] == (6, True)
        assert followed.profile().totals[0].allocated == 2

    @pytest.mark.parametrize("tail", [bytes(50), b"no frame"], ids=["zeros", "text"])
    def test_what_is_no_frame_at_the_end_is_nothing_new(self, tmp_path: Path, tail: bytes) -> None:
        # GIVEN a file whose last write did not arrive
        encoder, profile = ProfileEncoder(), running()
        file = tmp_path / "run.memprof"
        file.write_bytes(encoder.chunk(profile, calls((0, 0))) + tail)
        followed = JobFile(str(file))
        for _ in range(2):
            assert len(followed.profile().calls) == 1
        # WHEN it arrives THEN it is seen
        with file.open("r+b") as out:
            out.seek(-len(tail), os.SEEK_END)
            out.write(encoder.chunk(profile, calls((1, 0))))
        assert len(followed.profile().calls) == 2

    def test_a_file_that_is_replaced_is_read_anew(self, tmp_path: Path) -> None:
        file = tmp_path / "run.memprof"
        file.write_bytes(encode_profile(running()))
        followed = JobFile(str(file))
        assert len(followed.profile().calls) == 9
        (tmp_path / "new").write_bytes(encode_profile(training(steps=1)))
        os.replace(tmp_path / "new", file)
        assert len(followed.profile().calls) == 3
        file.write_bytes(b"")  # cut off
        with pytest.raises(ProfileError):
            followed.profile()

    def test_of_a_long_log_the_latest_calls_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(running_job, "KEEP_CALLS", 4)
        file = tmp_path / "run.memprof"
        file.write_bytes(encode_profile(training()))
        found = JobFile(str(file)).profile()
        assert (len(found.calls), found.calls.dropped) == (4, 5)
        assert found.calls.start_ns == training().calls.start_ns[-4:]
        assert [g.calls for g in found.graphs] == [3, 3, 3]


class TestWriter:
    def test_it_lives_as_long_as_it_holds_its_file(self, path: str) -> None:
        assert JobFile(path).look().writer is Writer.ALIVE

    def test_without_an_end_and_without_a_writer_it_has_died(self, tmp_path: Path) -> None:
        file = tmp_path / "run.memprof"
        file.write_bytes(encode_profile(running()))
        followed = JobFile(str(file))
        assert followed.look().writer is Writer.DIED
        file.write_bytes(encode_profile(training()))
        assert followed.look().writer is Writer.ENDED

    def test_where_there_are_no_locks_another_host_cannot_be_told(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "is_locked", lambda path: None)
        assert JobFile(path).look().writer is Writer.UNKNOWN  # it is of `host`


class TestPresent:
    def test_one_process(self, path: str) -> None:
        found = JobFile(path).look(NOW)
        assert (found.writer, found.age_ns, found.stalled) == (Writer.ALIVE, 3_000_000_000, False)
        # three calls in six calls' time of a millisecond
        assert found.rate == pytest.approx(2 / 0.006, rel=0.01)
        assert [d.device for d in found.devices] == ["cuda:0", "host"]
        assert found.devices[-1].reserved == 9 * MIB

    def test_nothing_new_is_said(self, path: str) -> None:
        assert JobFile(path).look(NOW + STALLED_NS).stalled

    def test_a_tracker(self, tmp_path: Path) -> None:
        file = tmp_path / "memory_profile_1.memprof"
        profile = Profile().with_tracker(tracked([i * MIB for i in range(40)]))
        file.write_bytes(encode_profile(profile))
        found = JobFile(str(file)).look(NOW)
        assert found.rate is None
        assert [g.device for g in found.grows] == ["cuda:0"]


class TestCommand:
    def test_one_frame(self, path: str) -> None:
        result = invoke("top", path, "--once")
        assert result.stderr == ""
        head, _, *rows = result.output.splitlines()
        assert head.split()[:5] == ["file", "state", "age", "steps/s", "device"]
        # It is some years old.
        assert re.match(r"run\.memprof +stalled\? +\d+ s +333 +cuda:0 ", rows[0])
        memory = ["40.0", "MiB", "50.0", "MiB", "30.0", "MiB", "35.0", "MiB"]
        assert rows[0].split()[-8:] == memory
        assert rows[1].split()[:3] == ["host", "9.00", "MiB"]
        assert "\x1b" not in result.output

    def test_ranks_stand_below_each_other_with_what_grows(self, tmp_path: Path) -> None:
        files = []
        for rank in (0, 1):
            profile = running(rank=rank)
            profile.growth = [GROWTH] * rank
            files.append(writing.claim(str(tmp_path / f"run.{rank}.memprof")))
            assert files[-1] is not None
            os.write(files[-1], encode_profile(profile))
        output = invoke("top", tmp_path, "--once").output
        for fd in files:
            os.close(fd)
        assert re.findall(r"^(\S+\.memprof) +(\S+)", output, re.MULTILINE) == [
            ("run.0.memprof", "stalled?"),
            ("run.1.memprof", "stalled?"),
        ]
        assert "run.1.memprof: Memory grows: 60.0 MiB are held" in output
        assert "1. 3.00 MiB per optimizer step, 60.0 MiB by now: debug[...]" in output
        assert "run.0.memprof: Memory grows" not in output

    def test_it_ends_with_the_job(self, tmp_path: Path) -> None:
        file = tmp_path / "run.memprof"
        file.write_bytes(encode_profile(replace(running(), complete=True)))
        assert "ended" in invoke("top", file).output
        file.write_bytes(encode_profile(running()))
        assert " died " in invoke("top", file, status=1).output

    def test_a_folder_means_what_is_written_in_it(self, path: str, tmp_path: Path) -> None:
        (tmp_path / "old.memprof").write_bytes(encode_profile(training()))
        frame = invoke("top", tmp_path, "--once").output
        assert re.findall(r"^(\S+\.memprof)", frame, re.MULTILINE) == ["run.memprof"]
        invoke("top", tmp_path / "none", "--once", status=2)
        (tmp_path / "empty").mkdir()
        result = invoke("top", tmp_path / "empty", status=2)
        assert "no .memprof file is in this folder" in result.stderr

    def test_what_is_no_profile(self, tmp_path: Path) -> None:
        (tmp_path / "x.memprof").write_bytes(b"nothing of ours at all, and long enough for a head")
        result = invoke("top", tmp_path / "x.memprof", "--once", status=2)
        assert "not a memprof profile" in result.stderr

    def test_ctrl_c(self, path: str) -> None:
        # GIVEN a job that goes on, watched by a process whose frames go into a pipe
        command = [sys.executable, "-m", "memprof", "top", path, "--interval", "0.1"]
        watching = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith(b"file")
        # WHEN it is interrupted
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate()
        # THEN it ends as a shell expects, without a traceback
        assert watching.returncode == 130
        assert b"Traceback" not in errors
