"""``memprof export --profile``: names of a profile in the frames of a snapshot."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fuzz.hostile_snapshots import CODE, MIB, OTHER_CODE, event, frame, snapshot
from profile_builder import training

import memprof
from memprof.cli import main
from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import (
    Category,
    Event,
    Profile,
    Statement,
    StatementKind,
)
from memprof.profiler.sources.snapshot.enrich import BARE, EAGER, Enriched, enrich
from memprof.profiler.sources.snapshot.names import CodeNames
from memprof.profiler.sources.snapshot.shape import Snapshot
from memprof.profiler.support.errors import SnapshotRefusedError


def known() -> Profile:
    """A profile whose forward is the code of the snapshot."""
    profile = training()
    profile.graphs[0].code_path = CODE
    return profile


def named(
    value: dict[str, Any] | None = None, *profiles: Profile, fields: bool = True
) -> tuple[dict[str, Any], Enriched]:
    """A snapshot with names, and what they are."""
    found = Snapshot(pickle.loads(pickle.dumps(value or snapshot())), None)
    done = enrich(found, CodeNames(profiles or (known(),)), fields=fields)
    return found.raw, done


def generated(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Frames of generated code, each once, by line."""
    holders = [b for s in raw["segments"] for b in s["blocks"]]
    holders += [e for t in raw["device_traces"] for e in t]
    frames = {id(f): f for h in holders for f in h.get("frames", ()) if "/c" in f["filename"]}
    return sorted(frames.values(), key=lambda f: (f["filename"], f["line"]))


def test_a_frame_says_what_it_made_in_every_viewer() -> None:
    raw, done = named()
    made, scratch, foreign = generated(raw)
    # THEN memory_viz's fields, and the name for viewers that have none
    assert made["fx_node_name"] == "mm"
    assert made["fx_node_op"] == "call_function"
    assert made["fx_node_target"] == "aten.mm.default"
    assert made["fx_original_trace"] == (
        '  File "/nowhere/site-packages/zoo/model.py", line 3, in forward\n    x = self.l3(x)'
    )
    assert made["name"] == "call [mm, activation, l1, 0/0 forward]"
    assert (made["memprof_role"], made["memprof_module"]) == ("activation", "l1")
    assert (made["filename"], made["line"]) == (CODE, 10)
    # A kernel's scratch memory is its node's.
    assert scratch["name"] == "call [relu, temporary, (root), 0/0 forward]"
    # What the profile does not know stays as it is.
    assert foreign == frame("call", OTHER_CODE, 9)
    assert done.frames == {"0/0 forward": 2}
    assert done.blocks == {"0/0 forward": 1, OTHER_CODE: 1, EAGER: 2, BARE: 1}
    made, other = 2 * MIB - 100, 2 * MIB
    assert done.nbytes == {"0/0 forward": made, OTHER_CODE: other, EAGER: 6 * MIB, BARE: 2 * MIB}
    assert done.events == {"0/0 forward": 4}
    assert done.unnamed == {OTHER_CODE: 1}


def test_events_have_graph_role_and_colour() -> None:
    raw, _ = named()
    first, second, failed, *_ = raw["device_traces"][0]
    assert first["compile_context"] == second["compile_context"] == "0/0 forward"
    assert first["user_metadata"] == "memprof: mm, activation, l1, 0/0 forward"
    assert (first["category"], second["category"]) == ("activation", "temporary")
    assert failed["compile_context"] == "N/A"
    assert "category" not in failed
    # One is unknown, or memory_viz draws nothing: here the eager allocation is.
    assert [e.get("category") for e in raw["device_traces"][0]].count("unknown") == 1
    assert raw["segments"][0]["blocks"][1]["user_metadata"].startswith("memprof: mm")
    # What was there stays in front.
    value = snapshot()
    value["device_traces"][0][0] |= {"user_metadata": "mine", "compile_context": "7/1"}
    raw, _ = named(value)
    assert raw["device_traces"][0][0]["user_metadata"].startswith("mine; memprof: mm")
    assert raw["device_traces"][0][0]["compile_context"] == "7/1"


def test_a_trace_in_which_all_is_known_has_one_unknown() -> None:
    made = [frame("call", CODE, 10)]
    for more in ([], [event("snapshot", 0, 0)]):
        value = {"segments": [], "device_traces": [[event("alloc", 0, MIB, made), *more]]}
        raw, _ = named(value)
        assert [e["category"] for e in raw["device_traces"][0]] == ["activation", "unknown"]


def test_nothing_else_changes() -> None:
    before, (after, _) = snapshot(), named()
    ours = ("user_metadata", "compile_context", "category")
    for old, new in zip(before["device_traces"][0], after["device_traces"][0], strict=True):
        assert {k: v for k, v in old.items() if k not in (*ours, "frames")} == {
            k: v for k, v in new.items() if k not in (*ours, "frames")
        }
    assert after["allocator_settings"] == before["allocator_settings"]
    assert after["external_annotations"] == before["external_annotations"]
    # Twice is once.
    again = Snapshot(copy.deepcopy(after), None)
    enrich(again, CodeNames([known()]))
    assert again.raw == after


def test_frames_for_mosaic_have_three_fields() -> None:
    raw, _ = named(fields=False)
    made, *_ = generated(raw)
    assert made == frame("call [mm, activation, l1, 0/0 forward]", CODE, 10)


def test_code_is_known_by_its_name_in_any_folder_and_by_its_function() -> None:
    value = snapshot()
    made, _, _ = generated(value)
    made["filename"] = "/elsewhere/zz/" + CODE.rpartition("/")[2]
    assert named(value)[1].frames == {"0/0 forward": 2}
    # A line of another function of the file makes nothing that is known.
    made["name"] = "benchmark_compiled_module"
    raw, done = named(value)
    assert [f["name"] for f in generated(raw) if "/zz/" in f["filename"]] == [made["name"]]
    assert done.frames == {"0/0 forward": 1}


def test_graphs_of_the_same_code_are_all_named_and_say_what_they_agree_on() -> None:
    profile = known()
    twin = training().graphs[0]
    twin.id, twin.compile_id, twin.code_path = 9, "1/0", CODE
    twin.nodes["mm"] = replace(twin.nodes["mm"], module_path="l9")
    profile.graphs.append(twin)
    raw, done = named(None, profile)
    made, *_ = generated(raw)
    assert made["name"] == "call [mm, activation, 0/0 forward, 1/0 forward]"
    assert "memprof_module" not in made
    assert done.frames == {"0/0 forward, 1/0 forward": 2}


def test_what_a_line_lets_go_of() -> None:
    profile = known()
    delete = Statement(12, StatementKind.DELETE, ("buf0",), (), "del buf0", "Runner.call")
    first, last = profile.graphs[0].statements
    profile.graphs[0].statements = (first, delete, last)
    profile.graphs[0].programs = []
    name = CodeNames([profile]).name(CODE, 12, "call")
    assert name is not None
    assert (name.node, name.category) == ("mm", None)
    # Without an observed call the code still tells the node of a line.
    name = CodeNames([profile]).name(CODE, 13, "call")
    assert name is not None
    assert (name.node, name.category, name.words()) == ("relu", None, "relu, (root), 0/0 forward")
    assert CodeNames([profile]).name(CODE, 3, "call") is None


def test_the_account_of_a_named_snapshot(tmp_path: Path) -> None:
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot(), 4))
    write_profile(known(), tmp_path / "p.memprof")
    loaded = memprof.load(tmp_path / "s.pickle", profile=tmp_path / "p.memprof")
    (row,) = [r for r in loaded.profile().accounts[0].rows if r.nodes]
    assert (row.category, row.nodes) == (Category.ACTIVATION, "mm (aten.mm.default)")
    assert (row.modules, row.nbytes) == ("l1", 2 * MIB - 100)
    with pytest.raises(SnapshotRefusedError, match="no snapshot of torch's allocator"):
        memprof.load(tmp_path / "p.memprof", profile=tmp_path / "p.memprof")


# The command


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot(), 4))
    write_profile(known(), tmp_path / "p.memprof")
    return tmp_path


def invoke(folder: Path, *args: str) -> Any:
    given = [str(folder / a) if "." in a and not a.startswith("-") else a for a in args]
    return CliRunner().invoke(main, given)


def export(folder: Path, profile: str, output: str) -> Any:
    """What the command says that writes the snapshot with names of a profile."""
    options = ("-f", "memory-viz", "--profile", profile, "-o", output)
    return invoke(folder, "export", "s.pickle", *options)


def test_the_command_says_what_was_named_and_what_was_not(files: Path) -> None:
    result = export(files, "p.memprof", "o.pickle")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "0/0 forward: 2 frames named, in 1 block of 2.00 MiB and 4 events"
    assert lines[1].startswith("not known: 1 frame of ")
    assert lines[1].endswith(".py, in 1 block of 2.00 MiB")
    assert lines[2] == "no generated code: 2 blocks of 6.00 MiB; no stack: 1 block of 2.00 MiB"
    assert lines[3].endswith("o.pickle: 0.0 MB, for memory_viz and others")
    # The file is an ordinary pickle of the protocol that memory_viz reads.
    data = (files / "o.pickle").read_bytes()
    assert data[:2] == b"\x80\x04"
    assert generated(pickle.loads(data))[0]["fx_node_name"] == "mm"
    report = invoke(files, "report", "o.pickle").stdout
    assert "mm (aten.mm.default)" in report
    assert report == invoke(files, "report", "s.pickle", "--profile", "p.memprof").stdout
    packed = export(files, "p.memprof", "o.pickle.gz")
    assert packed.exit_code == 0
    assert invoke(files, "report", "o.pickle.gz").stdout == report


def test_a_profile_that_knows_nothing_of_it(files: Path) -> None:
    write_profile(training(), files / "other.memprof")
    result = export(files, "other.memprof", "o.pickle")
    assert result.stdout.startswith("Nothing was named: ")
    assert pickle.loads((files / "o.pickle").read_bytes()) == snapshot()


def test_what_is_there_is_kept(files: Path) -> None:
    (files / "train.py").write_text("print()\n")
    before = {p.name: p.read_bytes() for p in files.iterdir()}
    for output, words in (
        ("s.pickle", "would be overwritten"),
        ("p.memprof", "would be overwritten"),
        ("train.py", "is no snapshot"),
        ("no.folder/o.pickle", "the folder must exist"),
    ):
        result = export(files, "p.memprof", output)
        assert result.exit_code == 2
        assert words in " ".join(result.stderr.split())
    for args, words in (
        (["s.pickle", "--profile", "s.pickle"], "a snapshot, which names nothing"),
        (["p.memprof", "--profile", "p.memprof"], "no snapshot of torch's allocator"),
    ):
        result = invoke(files, "export", "-f", "memory-viz", *args, "-o", "o.pickle")
        assert result.exit_code == 2
        assert words in result.stderr
    assert {p.name: p.read_bytes() for p in files.iterdir()} == before


class Counted(list[Event]):
    """A list that counts who goes through it."""

    walks = 0

    def __iter__(self) -> Iterator[Event]:
        self.walks += 1
        return super().__iter__()


def test_all_lines_of_a_graph_take_one_walk_through_its_programs() -> None:
    """Graphs of large models have thousands of lines, and thousands of events a program."""
    profile = known()
    graph = profile.graphs[0]
    programs = [replace(p, events=Counted(p.events)) for p in graph.programs]
    graph.programs = list(programs)
    names = CodeNames([profile])
    before = [p.events.walks for p in programs]  # type: ignore[attr-defined]
    found = [names.name(CODE, s.line, s.function.rpartition(".")[2]) for s in graph.statements]
    assert sum(name is not None for name in found) > 1
    # THEN what each allocates is known from the beginning.
    assert [p.events.walks for p in programs] == before  # type: ignore[attr-defined]
