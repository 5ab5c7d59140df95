"""No process replaces what another one writes; no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import Profile
from memprof.profiler.support import writing
from memprof.profiler.support.errors import ProfileNotWritableError
from memprof.profiler.support.writing import create_for_streaming

HOLD = """
import sys
from memprof.profiler.support.writing import create_for_streaming
fd, path = create_for_streaming(sys.argv[1])
import os
os.write(fd, b"mine")
print(path, flush=True)
input()
"""


def test_a_file_that_another_process_writes_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "run.0.memprof"
    pipe = subprocess.PIPE
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=pipe, stdout=pipe, text=True
    )
    assert other.stdout is not None
    try:
        assert other.stdout.readline().strip() == str(path)
        # WHEN this process is given the same path THEN its own file lies beside it
        fd, mine = create_for_streaming(path)
        os.write(fd, b"other")
        assert mine == str(tmp_path / f"run.0.{os.getpid()}.memprof")
        again, another = create_for_streaming(path)
        assert another == str(tmp_path / f"run.0.{os.getpid()}-2.memprof")
        # AND a whole profile does not take its place either
        with pytest.raises(ProfileNotWritableError, match="a session is writing it just now"):
            write_profile(Profile(), path)
        assert path.read_bytes() == b"mine"
    finally:
        other.communicate("\n")
    os.close(again)
    os.close(fd)
    # WHEN it has ended, however, THEN the path is free
    fd, mine = create_for_streaming(path)
    os.close(fd)
    assert (mine, path.read_bytes()) == (str(path), b"")


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN that nobody can know who writes a file
    monkeypatch.setattr(writing, "try_lock", lambda fd, **_: None)
    path = tmp_path / "run.memprof"
    fd, mine = create_for_streaming(path)
    os.write(fd, b"x")
    os.close(fd)
    assert mine == str(path)
    # THEN what has content stays
    fd, mine = create_for_streaming(path)
    os.close(fd)
    assert mine == str(tmp_path / f"run.{os.getpid()}.memprof")
    assert path.read_bytes() == b"x"


def test_a_claim_is_of_the_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a file that is replaced between opening and locking it
    path = tmp_path / "f"
    path.write_bytes(b"old")
    lock = writing.try_lock

    def late(fd: int, **_: bool) -> bool | None:
        monkeypatch.setattr(writing, "try_lock", lock)
        (tmp_path / "new").write_bytes(b"new")
        os.replace(tmp_path / "new", path)
        return lock(fd)

    monkeypatch.setattr(writing, "try_lock", late)
    fd = writing.claim(str(path))
    assert fd is not None
    os.write(fd, b"mine")
    os.close(fd)
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("run.memprof", "run.{pid}.memprof"),
        ("run.3.memprof", "run.3.{pid}.memprof"),
        ("run.v2.json", "run.v2.{pid}.json"),
        (".run", ".run.{pid}"),
        ("run", "run.{pid}"),
    ],
)
def test_names_beside_keep_what_says_the_format(name: str, wanted: str) -> None:
    first, second = list(writing.names_beside(f"d/{name}"))[:2]
    assert first == f"d/{wanted}".replace("{pid}", str(os.getpid()))
    assert second == f"d/{wanted}".replace("{pid}", f"{os.getpid()}-2")
