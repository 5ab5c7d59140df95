"""``memprof diff``: totals, places, matching, exit codes."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import pytest
from expecttest import TestCase
from outputs import invoke
from profile_builder import MIB, training
from rendering import render_diff, render_text

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import (
    LedgerEntry,
    LedgerKind,
    NodeProvenance,
    Profile,
    SourceFrame,
    TreeDetail,
)
from memprof.profiler.views.compare.diff import compare
from memprof.profiler.views.compare.diff_model import PlaceChange, Quantity
from memprof.profiler.views.report import Style, summarize

SAVED = ((0, "buf0"), (1, "mm"))
"""The saved activation, in the forward and in the backward."""


def larger(profile: Profile, extra: int, which: tuple[tuple[int, str], ...] = SAVED) -> Profile:
    """The same with these storages, each a graph and a name, larger."""
    out = copy.deepcopy(profile)
    for g, name in which:
        program = out.graphs[g].programs[0]
        storages = tuple(
            dataclasses.replace(s, nbytes=s.nbytes + extra) if s.name == name else s
            for s in program.storages
        )
        out.graphs[g].programs[0] = dataclasses.replace(program, storages=storages)
    return out


def on(device: str, profile: Profile) -> Profile:
    """The same with all memory on another device."""
    for graph in profile.graphs:
        graph.programs[:] = [
            dataclasses.replace(
                p, storages=tuple(dataclasses.replace(s, device=device) for s in p.storages)
            )
            for p in graph.programs
        ]
    return profile


def by_name(before: Profile, after: Profile) -> dict[str, Quantity]:
    return {q.name: q for q in compare(before, after).quantities}


def test_each_module_that_changed_is_named_and_no_other() -> None:
    fewer = larger(larger(training(), -3 * MIB), -MIB // 2, ((0, "buf3"),))
    found = by_name(training(), fewer)["allocated"]
    changes = {c.key: c.change for c in found.views["module"]}
    assert changes == {"l1": -3 * MIB, "l2": -MIB // 2}
    assert found.change == -3 * MIB - MIB // 2


def test_nodes_are_matched_by_place_not_by_name() -> None:
    # GIVEN the same program with all FX names changed and a line inserted above
    def renamed(node: NodeProvenance) -> NodeProvenance:
        stack = tuple(dataclasses.replace(f, line=f.line + 9) for f in node.stack)
        return dataclasses.replace(node, name=f"{node.name}_7", stack=stack)

    after = training()
    for graph in after.graphs:
        graph.nodes = {n.name: n for n in map(renamed, graph.nodes.values())}
        graph.buffers = {
            name: dataclasses.replace(
                b,
                nodes=tuple(f"{n}_7" for n in b.nodes),
                primary=f"{b.primary}_7" if b.primary else None,
            )
            for name, b in graph.buffers.items()
        }
        graph.description = dataclasses.replace(
            graph.description,
            outputs=tuple(
                dataclasses.replace(o, name=f"{o.name}_7" if o.alias_of_input is None else o.name)
                for o in graph.outputs
            ),
        )
    assert all(not c for q in compare(training(), after).quantities for c in q.views.values())
    # WHEN the line itself is another one THEN it is another place
    for graph in after.graphs:
        graph.nodes = {
            name: dataclasses.replace(
                n, stack=tuple(SourceFrame(f.file, f.line, f.function, "other()") for f in n.stack)
            )
            for name, n in graph.nodes.items()
        }
    moved = by_name(training(), after)["saved"].views
    assert not moved["module"]
    assert sum(c.change for c in moved["node"]) == 0
    assert len(moved["node"]) == 2


def test_changes_of_each_view_add_up() -> None:
    before, after = training(), larger(training(), 3 * MIB)
    after.graphs[0].nodes["relu"] = dataclasses.replace(
        after.graphs[0].nodes["relu"], module_path="elsewhere"
    )
    for q in compare(before, after).quantities[:3]:
        for view, changes in q.views.items():
            assert sum(c.change for c in changes) == q.change, (q.name, view)


def test_a_graph_that_is_called_twice_a_step_counts_twice() -> None:
    before, after = training(), training()
    after.calls = dataclasses.replace(
        before.calls,
        **{
            name: [x for x in getattr(before.calls, name) for _ in range(1)]
            for name in ("program", "start_ns", "end_ns", "thread")
        },
        graph=[0, 1, 1] * 3,
    )
    found = by_name(before, after)["allocated"]
    # a second backward, no optimizer step
    assert found.change == 10 * MIB - MIB // 2


def recorded(device: str, marginal: int, pool: int) -> Profile:
    """A run whose graph has 3 MiB of its pool."""
    profile = on(device, training())
    tree = TreeDetail(device, "0/0 forward", pool_after=pool, marginal=marginal)
    profile.ledger = [LedgerEntry(1, LedgerKind.RECORD, 0, "first recording", tree=tree)]
    return profile


def test_the_pool() -> None:
    runs = recorded("cuda:0", 3 * MIB, 10 * MIB), recorded("cuda:0", 5 * MIB, 14 * MIB)
    found = by_name(*runs)["pool"]
    assert (found.before, found.after) == (10 * MIB, 14 * MIB)
    # The rows add up to what changed: what no recording asked for is outputs.
    assert found.views["function"] == (
        PlaceChange("(outputs still held)", 7 * MIB, 9 * MIB),
        PlaceChange("0/0 forward", 3 * MIB, 5 * MIB),
    )
    assert sum(c.change for c in found.views["function"]) == found.change
    assert "pool of graph trees  " in render_diff(compare(*runs))


def test_no_part_of_a_pool_is_negative() -> None:
    """A pool gives memory back: recordings may have had more than it had at its largest."""
    before, after = recorded("cuda:0", 3 * MIB, 2 * MIB), recorded("cuda:0", 3 * MIB, 3 * MIB)
    changed = by_name(before, after)["pool"]
    assert changed.change == MIB
    assert changed.views["function"] == (PlaceChange("0/0 forward", 2 * MIB, 3 * MIB),)
    assert "(outputs still held)" not in render_text(summarize(before))
    assert "pool of graph trees  " in render_diff(compare(before, after))


def test_from_nothing_is_infinite_growth() -> None:
    found = by_name(Profile(), training())
    assert found["peak"].growth == float("inf")
    assert found["peak"].before == 0


class TestLook(TestCase):
    def test_text(self) -> None:
        diff = compare(training(), larger(training(), 4 * MIB))
        self.assertExpectedInline(
            render_diff(diff, Style(ascii_only=True)),
            """\
Memory on cpu
                                  before     after     change
----------------------------------------------------------------------
peak of known live memory       26.0 MiB  30.0 MiB  +4.00 MiB  +15.4 %
saved for the backward, a step  9.00 MiB  13.0 MiB  +4.00 MiB  +44.4 %
allocated, a step               24.5 MiB  28.5 MiB  +4.00 MiB  +16.3 %

peak of known live memory: what changed, by category
   change    before     after  category
-----------------------------------------
+4.00 MiB  8.00 MiB  12.0 MiB  activation

peak of known live memory: what changed, by module
   change    before     after  module
-------------------------------------
+4.00 MiB  18.0 MiB  22.0 MiB  l1

peak of known live memory: what changed, by node
   change    before     after  node
-------------------------------------------------------------------
+4.00 MiB  8.00 MiB  12.0 MiB  mm in l1 at model.py: x = self.l3(x)

saved for the backward, a step: what changed, by category
   change    before     after  category
-----------------------------------------
+4.00 MiB  8.00 MiB  12.0 MiB  activation

saved for the backward, a step: what changed, by module
   change    before     after  module
-------------------------------------
+4.00 MiB  8.00 MiB  12.0 MiB  l1

saved for the backward, a step: what changed, by node
   change    before     after  node
-------------------------------------------------------------------
+4.00 MiB  8.00 MiB  12.0 MiB  mm in l1 at model.py: x = self.l3(x)

allocated, a step: what changed, by category
   change    before     after  category
-----------------------------------------
+4.00 MiB  8.00 MiB  12.0 MiB  activation

allocated, a step: what changed, by module
   change    before     after  module
-------------------------------------
+4.00 MiB  18.0 MiB  22.0 MiB  l1

allocated, a step: what changed, by node
   change    before     after  node
-------------------------------------------------------------------
+4.00 MiB  12.0 MiB  16.0 MiB  mm in l1 at model.py: x = self.l3(x)
""",
        )


# The command


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    write_profile(training(), tmp_path / "a.memprof")
    write_profile(larger(training(), 4 * MIB), tmp_path / "b.memprof")
    return str(tmp_path / "a.memprof"), str(tmp_path / "b.memprof")


@pytest.mark.parametrize(
    ("limit", "code"),
    [("5%", 1), ("60%", 0), ("44 %", 1), ("2MiB", 1), ("4MiB", 0), ("0", 1), ("0%", 1)],
)
def test_fail_over(files: tuple[str, str], limit: str, code: int) -> None:
    result = invoke("diff", *files, "--fail-over", limit, status=code)
    assert ("Grew by more than" in result.stderr) == bool(code)
    # AND the other way round it shrank
    invoke("diff", *reversed(files), "--fail-over", limit)


def test_what_failed_is_said(files: tuple[str, str]) -> None:
    result = invoke("diff", *files, "--fail-over", "20%", status=1)
    assert result.stderr == "Grew by more than 20 %: saved by 4.00 MiB\n"


@pytest.mark.parametrize("limit", ["five", "5", "-1%", "5 percent", ""])
def test_bad_limits(files: tuple[str, str], limit: str) -> None:
    result = invoke("diff", *files, "--fail-over", limit, status=2)
    assert "give a percentage like 5% or bytes like 64MiB" in result.stderr


def test_json(files: tuple[str, str]) -> None:
    result = invoke("diff", *files, "--json")
    found = json.loads(result.output)
    assert [q["name"] for q in found["quantities"]] == ["peak", "saved", "allocated"]
    assert found["quantities"][0]["views"]["module"] == [
        {"key": "l1", "before": 18 * MIB, "after": 22 * MIB}
    ]
