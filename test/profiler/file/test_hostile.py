"""Files that nobody should hand to a reader: no hang, no traceback, no memory without end, and
nothing in a terminal that it would obey."""

from __future__ import annotations

import json
import os
import stat
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner
from framing import decode_profile, records_of
from fuzz.hostile import CONTROLS, CORPUS, ESCAPES, with_every_text
from fuzz.views import CONTRADICTS, check_json, check_text, read_and_show
from outputs import invoke
from profile_builder import MIB, training

from memprof.cli import main
from memprof.commands._common import json_text
from memprof.profiler.file import reading
from memprof.profiler.file.profile_file import (
    read_profile,
    write_profile,
    write_profiles,
)
from memprof.profiler.model import Profile
from memprof.profiler.support.errors import (
    ProfileError,
    ProfileInvalidError,
    ProfileUnreadableError,
)
from memprof.profiler.support.text import LONGEST, visible

ENDS = {
    "deep JSON": "ProfileInvalidError",
    "a deep version": "ProfileInvalidError",
    "a version of thousands of digits": "ProfileInvalidError",
    "a version that is an escape": "ProfileInvalidError",
    "a format that is an escape": "ProfileInvalidError",
    "a file of memprof 0.1.0": "ProfileInvalidError",
    "a bomb": "ProfileInvalidError",
    "beginnings of frames without end": "ProfileInvalidError",
    "a million magic numbers": "ProfileInvalidError",
    "nothing but magic numbers": "ProfileInvalidError",
    "graphs of one id": CONTRADICTS,
    "operations in a circle": CONTRADICTS,
    "frames of many processes": "ProfileInvalidError",
    "numbers of thousands of digits": "ProfileInvalidError",
    "text that is no UTF-8": "ProfileInvalidError",
    "noise": "ProfileInvalidError",
    "noise in gzip": "ProfileInvalidError",
}
"""Files of the corpus of which nothing can be shown. All others lose their end at most."""


@pytest.mark.parametrize("name", CORPUS)
def test_hostile_files_are_refused_or_shown(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CORPUS[name]())
    assert read_and_show(tmp_path / "file") == ENDS.get(name)


# What reaches a terminal


def test_text_for_a_terminal() -> None:
    assert visible("plain, ünïcödé, 漢字, 😀") == "plain, ünïcödé, 漢字, 😀"
    assert visible("a\x1b[31mb\r\nc\td") == r"a\x1b[31mb\r\nc\td"
    assert visible("\u202egnp.exe\u2066\x9b\u2028\ufeff\U000e0041") == (
        r"\u202egnp.exe\u2066\x9b\u2028\ufeff\U000e0041"
    )
    assert visible(os.fsdecode(b"/tmp/\xff")) == r"/tmp/\udcff"
    assert visible("x" * 10**6) == "x" * LONGEST + f"… ({10**6 - LONGEST:,} more characters)"
    for c in CONTROLS:
        assert visible(f"a{c}b").isprintable()


def test_json_for_a_terminal_says_the_same() -> None:
    value = {"a": ["ü漢😀" + ESCAPES.encode("utf-8", "replace").decode(), 1]}
    shown = json_text(value)
    check_json(shown)
    assert json.loads(shown) == value
    assert shown.isascii()


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """A file with escapes in every text."""
    (tmp_path / "p.memprof").write_bytes(with_every_text(ESCAPES))
    return str(tmp_path / "p.memprof")


@pytest.mark.parametrize(
    "args",
    [
        ["report", "FILE"],
        ["report", "FILE", "--json"],
        ["report", "FILE", "--top", "500", "--bytes"],
        ["report", "FILE", "-o", "OUT"],
        ["report", "FILE", "--device", ESCAPES],
        ["report", "FILE", "--section", "ledger"],
        ["diff", "FILE", "FILE"],
        ["diff", "FILE", "FILE", "--json"],
        ["top", "FILE", "--once", "--json"],
        *(["export", "FILE", "-f", f, "-o", "OUT"] for f in ("perfetto", "json")),
        ["export", "FILE", "-f", "memprof", "-o", "OUT.memprof"],
        ["report", "\x1b]0;title\x07.memprof"],
        ["report", "FILE\x1b[2J\nforged", "--section", "ledger"],
        ["\x1b[2J"],
    ],
)
def test_no_command_hands_a_terminal_an_escape(
    args: list[str], hostile: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out\x1b[2J\u202e")
    given = [a.replace("FILE", hostile).replace("OUT", out) for a in args]
    result = CliRunner().invoke(main, given, env={"COLUMNS": "100"})
    assert isinstance(result.exception, SystemExit | None)
    check_text(result.stdout.replace("\n", " ") if "--json" in args else result.stdout)
    check_text(result.stderr)
    assert result.exit_code in (0, 2)
    if "--json" in args:
        check_json(result.stdout)


def test_names_forge_no_rows(tmp_path: Path) -> None:
    # GIVEN names that hold what a row of the report looks like
    (tmp_path / "p.memprof").write_bytes(with_every_text("\n99.9 GiB  100.0 %  forged"))
    plain = with_every_text(" 99.9 GiB  100.0 %  forged")
    (tmp_path / "plain.memprof").write_bytes(plain)
    for section in ((), ("--section", "ledger")):
        lines = [
            invoke("report", tmp_path / f, *section).stdout.splitlines()
            for f in ("p.memprof", "plain.memprof")
        ]
        assert not [line for line in lines[0] if line.startswith("99.9 GiB")]
        if not section:
            assert len(lines[0]) == pytest.approx(len(lines[1]), abs=12)  # lines are folded


def test_merged_ranks_of_hostile_names(tmp_path: Path, hostile: str) -> None:
    ranks = [read_profile(hostile) for _ in range(2)]
    for rank, profile in enumerate(ranks):
        assert profile.process is not None
        profile.process = type(profile.process)(rank, 0, 2, ESCAPES, 7)
    write_profiles(ranks, tmp_path / "all.memprof")
    for more in ([], ["--json"]):
        result = invoke("report", tmp_path / "all.memprof", *more)
        check_text(result.stdout.replace("\n", " ") if more else result.stdout)
    # Errors of the library are as fit to be printed.
    with pytest.raises(ProfileError) as e:
        read_profile(tmp_path / "all.memprof")
    check_text(str(e.value))


# What is read


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for path, says in (
        (tmp_path / "pipe", "it is a pipe, which may never end: write it to a file first"),
        (tmp_path / "link", "it is a pipe"),
        (Path("/dev/zero"), "it is a device"),
        (Path("/dev/full"), "it is a device"),
    ):
        with pytest.raises(ProfileUnreadableError, match=says):
            read_profile(path)


def test_a_file_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.memprof"
    write_profile(training(), path)
    size = path.stat().st_size
    unpacked = sum(len(payload) for _, payload in records_of(path.read_bytes()))
    monkeypatch.setattr(reading, "LIMIT", unpacked - 1)
    with pytest.raises(
        ProfileUnreadableError, match=f"unpack to more than the {unpacked - 1:,} that memprof reads"
    ):
        read_profile(path)
    monkeypatch.setattr(reading, "LIMIT", unpacked)
    assert read_profile(path) == training()
    monkeypatch.setattr(reading, "LIMIT", size - 1)
    with pytest.raises(ProfileUnreadableError, match=f"it has {size:,} bytes, more than the "):
        read_profile(path)


def test_of_a_file_that_grows_no_more_is_read_than_there_was() -> None:
    # A file of /proc says that it is empty, whatever comes out of it.
    with pytest.raises(ProfileInvalidError, match="truncated: the file is empty"):
        read_profile("/proc/self/status")


def test_what_unpacks_to_too_much_is_refused_while_it_unpacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a stream and a plain file, both some thousand times as large as they look
    monkeypatch.setattr(reading, "LIMIT", 64 * MIB)
    for name in ("a bomb", "many bombs"):
        data = CORPUS[name]()
        tracemalloc.start()
        try:
            with pytest.raises(
                ProfileUnreadableError, match=r"bytes unpack to more than the [\d,]+ that memprof"
            ):
                decode_profile(data, "p")
            # THEN no more was unpacked than the limit, which zlib has twice for a moment
            assert tracemalloc.get_traced_memory()[1] < 2 * 64 * MIB + 8 * MIB
        finally:
            tracemalloc.stop()
    # AND what the limit allows is read
    monkeypatch.undo()
    assert decode_profile(CORPUS["many bombs"](), "p") == Profile(complete=False)


def test_what_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    path = tmp_path / "p.memprof"
    write_profile(training(), path)
    for bits in (0o600, 0o640, 0o400, 0o604, 0o666):
        path.chmod(bits)
        write_profile(training(), path)
        assert mode(path) == bits
    path.chmod(0o4755)  # a file that we write runs as nobody else
    write_profile(training(), path)
    assert mode(path) == 0o755
    # AND so do pages and exports
    for args in (["report", str(path), "-o"], ["export", str(path), "-f", "perfetto", "-o"]):
        out = tmp_path / args[0]
        out.write_bytes(b"")
        out.chmod(0o600)
        invoke(*args, out)
        assert mode(out) == 0o600


def test_what_is_being_replaced_is_for_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a file of another group, which this process cannot give files to
    path = tmp_path / "p.memprof"
    write_profile(training(), path)
    path.chmod(0o644)
    os.chown(path, -1, 54_321)
    seen: list[int] = []
    real = os.fsync

    def look(fd: int) -> None:
        seen.append(stat.S_IMODE(Path(f"/proc/self/fd/{fd}").resolve().parent.stat().st_mode))
        real(fd)

    def refuse(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fsync", look)
    monkeypatch.setattr(os, "chown", refuse)
    write_profile(training(), path)
    # THEN nobody else can enter the folder meanwhile, and the file is its owner's alone
    assert seen == [0o700]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
