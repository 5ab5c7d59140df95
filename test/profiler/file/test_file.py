"""Profile files: what is written comes back, and every bad file gets its own clear error."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import importlib
import json
import os
import re
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from framing import decode_profile, findings, framed, header, packed
from profile_builder import training
from rendering import render_text

from memprof.profiler import model
from memprof.profiler.file.profile_file import (
    encode_profile,
    profile_schema,
    read_profile,
    write_profile,
)
from memprof.profiler.model import Profile
from memprof.profiler.support import writing
from memprof.profiler.support.errors import (
    ProfileInvalidError,
    ProfileNotWritableError,
    ProfileUnreadableError,
)
from memprof.profiler.support.json_text import to_json
from memprof.profiler.support.writing import check_writable
from memprof.profiler.views.export import export_profile
from memprof.profiler.views.report import summarize


@pytest.fixture
def document() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(to_json(training()))
    return result


def only_file(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# What is written comes back


@pytest.mark.parametrize("name", ["run.memprof", "run"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    profile = training()
    profile.options = {"trees": "off"}
    profile.released = {1: 4}
    profile.graphs[0].code_path = "/tmp/ü.py"
    write_profile(profile, tmp_path / name)
    assert read_profile(tmp_path / name) == profile
    assert only_file(tmp_path) == [name]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz", "run.gz"])
def test_a_name_that_promises_another_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProfileNotWritableError, match=r"let its name end in \.memprof"):
        write_profile(training(), tmp_path / name)
    assert only_file(tmp_path) == []


def test_a_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "renamed.json").write_bytes(encode_profile(training()))
    assert read_profile(tmp_path / "renamed.json") == training()


def test_paths_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    profile = training()
    profile.graphs[0].code_path = os.fsdecode(b"/tmp/\xff.py")
    write_profile(profile, tmp_path / "p.memprof")
    assert read_profile(tmp_path / "p.memprof").graphs[0].code_path == "/tmp/\\udcff.py"


def test_subclasses_of_str_and_int_are_written_as_such(tmp_path: Path) -> None:
    class Version(str):
        pass

    class Size(int):
        pass

    profile = training()
    profile.torch = Version("2.13.0")
    profile.graphs[0].compile_ns = Size(3)
    write_profile(profile, tmp_path / "p.memprof")
    found = read_profile(tmp_path / "p.memprof")
    assert (found.torch, found.graphs[0].compile_ns) == ("2.13.0", 3)


def test_a_value_without_json_form_is_refused(tmp_path: Path) -> None:
    profile = training()
    no_text: Any = object()
    profile.options = {"x": no_text}
    with pytest.raises(ProfileInvalidError, match=r"builtins\.object has no JSON form"):
        write_profile(profile, tmp_path / "p.memprof")
    assert only_file(tmp_path) == []


# Bad files


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1}',
        b"3",
        b'{"format":"perfetto"}',
        b"not json",
        b"\x7fELF\x02",
        b"[" * 100_000,
    ],
)
def test_foreign(data: bytes) -> None:
    with pytest.raises(ProfileInvalidError) as e:
        decode_profile(data, "some/file")
    assert str(e.value).startswith("some/file: not a memprof profile: a profile begins with ")


@pytest.mark.parametrize("indent", [None, 2])
def test_json_of_a_profile_is_refused_as_such(tmp_path: Path, indent: int | None) -> None:
    # GIVEN what `memprof export -f json` writes, as it is or as another program lays it out
    export_profile([training()], "json", tmp_path / "p.json")
    text = (tmp_path / "p.json").read_bytes()
    if indent is not None:
        text = json.dumps(json.loads(text), indent=indent).encode()
    with pytest.raises(ProfileInvalidError, match=r"`memprof export -f json` makes.*0\.1\.0"):
        decode_profile(text, "p")


def test_a_profile_in_gzip_is_refused_as_such() -> None:
    with pytest.raises(ProfileInvalidError, match="unpack it"):
        decode_profile(gzip.compress(encode_profile(training())), "p")


@pytest.mark.parametrize(("version", "do"), [(5, "newer memprof"), (2, "again"), (-1, "again")])
def test_other_version(document: dict[str, Any], version: int, do: str) -> None:
    # GIVEN a file of another version, whose content we could not even decode
    document.update(schema_version=version, graphs=["something else"], memprof="9.9")
    with pytest.raises(ProfileInvalidError) as e:
        decode_profile(framed(document))
    assert f"schema version {version}, written by memprof 9.9" in str(e.value)
    assert "reads version 4" in str(e.value)
    assert do in str(e.value)


@pytest.mark.parametrize("version", ["1", None, 1.0, True, [1]])
def test_version_of_wrong_type(document: dict[str, Any], version: object) -> None:
    document["schema_version"] = version
    with pytest.raises(ProfileInvalidError) as e:
        decode_profile(framed(document))
    assert "at `$.schema_version`" in str(e.value)


def test_header_alone_is_a_process_that_has_done_nothing() -> None:
    assert decode_profile(packed([header()])) == Profile(complete=False)


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """An edit: ``put("graphs.0.id", "x")``."""

    def edit(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = document
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[int(last) if isinstance(place, list) else last] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "says", "graphs"),
    [
        (put("graphs.1.kind", "sideways"), "Invalid enum value 'sideways' - at `$.kind`", 1),
        (put("graphs.1.id", "x"), "Expected `int`, got `str` - at `$.id`", 1),
        (
            put("graphs.1.programs.0.storages.1.nbytes", -1),
            "Expected `int` >= 0 - at `$.programs.items[0].storages[1].nbytes`",
            1,
        ),
        (put("graphs.1.calls", 1 << 63), "<= 9223372036854775807 - at `$.calls`", 1),
        (put("ledger.0", 3), "Expected `object`, got `int` - at `$.entries[0][1]`", 3),
        (put("ledger.0.kind", 1), "Expected `str`, got `int` - at `$.entries[0][1].kind`", 3),
        (put("ledger.1.count", 0), "Expected `int` >= 1 - at `$.entries[1][1].count`", 3),
        (put("calls.thread", []), "columns of [9, 9, 9, 9, 0] calls", 3),
        (put("calls.thread.3", -1), "Expected `int` >= 0 - at `$.thread[3]`", 3),
        (put("calls.graph.3", 1 << 63), "<= 9223372036854775807 - at `$.graph[3]`", 3),
        (put("calls.end_ns.2", 0), "Expected `int` >= 0 - at `$.duration_ns[2]`", 3),
        (put("calls.dropped", -1), "Expected `int` >= 0 - at `$.dropped`", 3),
    ],
)
def test_what_a_frame_should_not_hold_ends_what_is_read(
    document: dict[str, Any], edit: Callable[[dict[str, Any]], None], says: str, graphs: int
) -> None:
    edit(document)
    found = decode_profile(framed(document))
    # THEN one line names the path, and what came before is there
    assert len(found.left_out) == 1
    assert says in found.left_out[0]
    assert found.graphs == training().graphs[:graphs] or not len(found.calls)
    assert not found.complete
    assert findings(found) == []
    render_text(summarize(found))


@pytest.mark.parametrize("name", ["created_ns", "resident", "released.1"])
def test_a_profile_of_which_nothing_is_left_is_none(document: dict[str, Any], name: str) -> None:
    document["released"] = {"1": 4}
    put(name, 1 << 63)(document)
    with pytest.raises(
        ProfileInvalidError, match=r"nothing of it can be used: .*<= 9223372036854775807"
    ):
        decode_profile(framed(document), "p.memprof")


def test_releases_after_the_last_call_are_at_the_end(document: dict[str, Any]) -> None:
    document["released"] = {"1": 4, "2": 99}
    assert decode_profile(framed(document)).released == {1: 4, 2: 9}


def test_sums_of_numbers_that_fit_may_not(document: dict[str, Any]) -> None:
    # GIVEN starts, which a file has as differences, that each fit 64 bits
    document["calls"]["start_ns"] = [n << 62 for n in range(9)]
    document["calls"]["end_ns"] = document["calls"]["start_ns"]
    found = decode_profile(framed(document))
    assert "times of calls that do not fit 64 bits" in found.left_out[0]


def test_every_number_of_the_model_has_limits() -> None:
    homes = [importlib.import_module(f"{model.__name__}.{home}") for home in model._HOMES]
    every = [x for home in homes for x in vars(home).values() if dataclasses.is_dataclass(x)]
    kinds = {x.__name__: x for x in every if isinstance(x, type)}
    assert len(kinds) > 50
    for name, kind in kinds.items():
        for field in dataclasses.fields(kind):
            assert not re.search(r"\bint\b", str(field.type)), f"{name}.{field.name}"


# Paths that cannot be read


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p / "missing.json", "No such file or directory; check the path"),
        (lambda p: p, "Is a directory; give a file, not a folder"),
        (lambda p: p / "file" / "below.json", "Not a directory; check the path"),
        (lambda p: p / ("x" * 300), "File name too long; give a shorter name"),
        (lambda p: p / "a\0b", "null byte"),
    ],
)
def test_unreadable(tmp_path: Path, make: Callable[[Path], Path], says: str) -> None:
    (tmp_path / "file").write_text("")
    path = make(tmp_path)
    with pytest.raises(ProfileUnreadableError) as e:
        read_profile(path)
    assert says in str(e.value)
    assert e.value.path == os.fspath(path)


def test_no_permission_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests run as root, whom no mode stops.
    def refuse(path: Path, mode: str) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    (tmp_path / "p.memprof").write_text("")
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ProfileUnreadableError, match="Permission denied; check the permissions"):
        read_profile(tmp_path / "p.memprof")


# Writing whole or not at all


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p / "missing" / "p.memprof", "No such file or directory; check the path"),
        (lambda p: p, "Is a directory; give a file, not a folder"),
        (lambda p: p / "file" / "p.memprof", "Not a directory; check the path"),
        (lambda p: Path("/dev/null"), "not a regular file"),
        (lambda p: Path("/proc/p.json"), "; "),
        (lambda p: p / ("x" * 300), "File name too long"),
        (lambda p: p / "a\0b", "null byte"),
    ],
)
@pytest.mark.parametrize("write", [write_profile, lambda _, path: check_writable(path)])
def test_not_writable(
    tmp_path: Path,
    make: Callable[[Path], Path],
    says: str,
    write: Callable[[Profile, Path], None],
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileNotWritableError) as e:
        write(training(), make(tmp_path))
    assert says in str(e.value)
    assert only_file(tmp_path) == ["file"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("step", ["mkdir", "fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, "No space left on device; make room"),
        (errno.EROFS, "Read-only file system; give a path on a file system that is not read-only"),
        (errno.EACCES, "Permission denied; check the permissions"),
    ],
)
def test_the_system_refuses_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int, says: str
) -> None:
    # GIVEN a profile on disk
    path = tmp_path / "p.memprof"
    write_profile(Profile(memprof="old"), path)

    # WHEN the next write fails at some step
    def refuse(*args: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(writing.os, step, refuse)
        with pytest.raises(ProfileNotWritableError) as e:
            write_profile(training(), path)

    # THEN the error says why, the old profile is whole and nothing else lies there
    assert says in str(e.value)
    assert "Nothing was changed there" in str(e.value)
    assert read_profile(path).memprof == "old"
    assert only_file(tmp_path) == ["p.memprof"]


def test_disk_fills_up_half_way(tmp_path: Path) -> None:
    path = tmp_path / "p.memprof"
    write_profile(Profile(memprof="old"), path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ProfileNotWritableError, match=r"File too large; raise the limit"):
            write_profile(training(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_profile(path).memprof == "old"
    assert only_file(tmp_path) == ["p.memprof"]


def test_interrupt_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.memprof"
    write_profile(Profile(memprof="old"), path)

    def interrupt(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writing.os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_profile(training(), path)
    assert read_profile(path).memprof == "old"
    assert only_file(tmp_path) == ["p.memprof"]


def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.memprof").symlink_to(tmp_path / "real" / "p.memprof")
    write_profile(training(), tmp_path / "link.memprof")
    assert (tmp_path / "link.memprof").is_symlink()
    assert read_profile(tmp_path / "real" / "p.memprof") == training()


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_profile(training(), tmp_path / "p.memprof")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "p.memprof").stat().st_mode) == 0o640


# The schema


def test_schema_accepts_what_is_written(document: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(profile_schema())
    jsonschema.validate(document, profile_schema())


@pytest.mark.parametrize(
    "edit",
    [
        put("schema_version", 5),
        put("format", "x"),
        put("graphs.0.kind", "sideways"),
        put("calls.graph", ["0"]),
        lambda d: d.pop("machine"),
    ],
)
def test_schema_rejects(document: dict[str, Any], edit: Callable[[dict[str, Any]], None]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    edit(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, profile_schema())
