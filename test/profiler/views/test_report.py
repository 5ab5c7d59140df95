"""What reports look like. Run with EXPECTTEST_ACCEPT=1 to accept a new look."""

from __future__ import annotations

import dataclasses
import io
import re
from typing import Any

import msgspec
import pytest
from expecttest import TestCase
from hypothesis import given, strategies as st
from profile_builder import MIB, ProgramBuilder, calls, node, training
from rendering import render_ledger, render_text, render_tracker_record

from memprof.profiler.live.trees import graphed_functions, pool_bytes, pool_rest
from memprof.profiler.model import (
    LedgerEntry,
    LedgerKind,
    MemorySnapshot,
    Profile,
    SourceFrame,
    TrackedDevice,
    TrackerRecord,
    TreeCause,
    TreeDetail,
)
from memprof.profiler.verbs import report_text
from memprof.profiler.views.report import Style, summarize
from memprof.profiler.views.report.format import (
    fit_path,
    format_bytes,
    format_ns,
    format_share,
    shorten_path,
)
from memprof.profiler.views.report.summary import Summary
from memprof.profiler.views.report.text_page import printable, style_of


def troubled() -> Profile:
    """A profile in which things went wrong."""
    profile = training()
    profile.options = {"observe_runs": "3"}
    profile.graphs[0].nodes["mm"] = node("mm", "aten.mm.default", None, None)
    profile.graphs[2].unobservable = "generated code is C++ (cpp_wrapper)"
    profile.graphs[2].programs = []
    log = calls(*[(0, 0), (1, 0), (2, -1)] * 2)
    profile.calls = type(log)(log.graph, log.program, log.start_ns, log.end_ns, log.thread, 40)
    profile.ledger += [
        LedgerEntry(5_000_000_000, LedgerKind.NOT_OBSERVED, 2, "generated code is C++", 2),
        LedgerEntry(6_000_000_000, LedgerKind.FALLBACK, 1, "KeyError: 'buf7' [observe]"),
        LedgerEntry(7_000_000_000, LedgerKind.RESET, None, "torch._dynamo.reset()"),
    ]
    return profile


class TestLook(TestCase):
    # expecttest writes ASCII only; what differs otherwise is in test_utf8 below.

    def test_training(self) -> None:
        text = render_text(summarize(training()), Style(ascii_only=True))
        self.assertExpectedInline(
            text,
            """\
memprof 0.1.0 | torch 2.13.0+cpu | Python 3.11.4
Linux-6.1 | Some CPU | 2 cores | 8.00 GiB memory
3 graphs, 9 calls in 8.50 ms
taken 2023-11-14 22:13:20 UTC

Peak of known live memory on cpu: 26.0 MiB (27,262,976 B)
  in call 5 of 9, 0/0 backward, 4.00 ms after the first call began
  after line 20 of the generated code
  for FX node mul, zoo/model.py:3

Live at the peak, by category
   bytes    share  storages  category         that is
---------------------------------------------------------------------------------------
8.00 MiB   30.8 %         1  activation       what a backward needs of its forward
6.00 MiB   23.1 %         2  parameter        parameters and buffers of modules
6.00 MiB   23.1 %         1  temporary        made and let go of inside one call
4.00 MiB   15.4 %         1  optimizer state  what an optimizer keeps from step to step
1.00 MiB    3.8 %         1  autograd detail  gradients of outputs, random-number state
1.00 MiB    3.8 %         1  input            what the program hands in
     0 B    0.0 %            unattributed
26.0 MiB  100.0 %            total

What to change
  1. up to 8.00 MiB at the peak: mm in l1: kept for the backward
    compute it again in the backward: call parts of the model through
    torch.utils.checkpoint.checkpoint(use_reentrant=False), or let the compiler choose with
    torch._functorch.config.activation_memory_budget below 1.0
    8.00 MiB | mm | 0/0 forward | mm | l1 | zoo/model.py:3

Live at the peak, by source line
  12.0 MiB, 46.2 %, have no line: compiled code did not make them
   bytes    share  storages  source line        code
--------------------------------------------------------------
14.0 MiB   53.8 %         2  zoo/model.py:3     x = self.l3(x)
6.00 MiB   23.1 %         2  (parameter)
4.00 MiB   15.4 %         1  (optimizer state)
1.00 MiB    3.8 %         1  (autograd detail)
1.00 MiB    3.8 %         1  (input)
     0 B    0.0 %            unattributed
26.0 MiB  100.0 %            total

Live at the peak, by module
   bytes    share  storages  module
----------------------------------------------
18.0 MiB   69.2 %         3  l1
4.00 MiB   15.4 %         1  (optimizer state)
2.00 MiB    7.7 %         1  l2
1.00 MiB    3.8 %         1  (autograd detail)
1.00 MiB    3.8 %         1  (input)
     0 B    0.0 %            unattributed
26.0 MiB  100.0 %            total

Live at the peak, by FX node
   bytes    share  storages  FX node       graph          operator or name
--------------------------------------------------------------------------
8.00 MiB   30.8 %         1  mm            0/0 forward    aten.mm.default
6.00 MiB   23.1 %         1  mul           0/0 backward   aten.mul.Tensor
4.00 MiB   15.4 %         1  arg2_1        1/0 inference  exp_avg
4.00 MiB   15.4 %         1  primals_1     0/0 forward    l1.weight
2.00 MiB    7.7 %         1  primals_2     0/0 forward    l2.bias
1.00 MiB    3.8 %         1  primals_3     0/0 forward    L['x']
1.00 MiB    3.8 %         1  tangents_1    0/0 backward   -
     0 B    0.0 %            unattributed
26.0 MiB  100.0 %            total

Graphs; bytes of one call of the most called program
graph          calls  median  allocated      peak     saved  programs
---------------------------------------------------------------------
0/0 forward        3  500 us   14.0 MiB  20.0 MiB  9.00 MiB         1
0/0 backward       3  500 us   10.0 MiB  20.0 MiB       0 B         1
1/0 inference      3  500 us    512 KiB  12.5 MiB       0 B         1

Ledger
  compiled 2, found in a cache 1, compiled again past a cache 0, observed 1, reset 0
  no fallbacks to plain Inductor

What is not counted
  Of the bytes that compiled code allocates in one call of each program, 98.0 % have an FX node and
  98.0 % a source line or module.
  Tensors that eager code makes or keeps outside compiled calls are never seen: an eager loss,
  gradients between a backward and an eager optimizer, outputs that the program keeps. What is live
  between calls is a lower bound.
  A program is observed once and stands for all later calls with the same sizes, replays included:
  their memory is reconstructed, not measured again.
  unattributed at the peak by category: 0 B (0.0 %)
  unattributed at the peak by module: 0 B (0.0 %)
  unattributed at the peak by FX node: 0 B (0.0 %)
  unattributed at the peak by source line: 0 B (0.0 %)
  unattributed at the peak by graph: 0 B (0.0 %)
  of what is allocated, without an FX node or a source line:
    2.0 % | the generated code's buffer has no provenance

Inputs and outputs
  0/0 forward
    inputs: 3
       0 parameter l1.weight | static
       1 parameter l2.bias | static
       2 user input L['x']
    outputs: 4
       0 user output add
       1 saved for backward mm
       2 saved for backward primals_1 | memory of input 0
       3 saved for backward primals_3 | memory of input 2
  0/0 backward
    inputs: 4
       0 saved for backward primals_1 | output 2 of the forward
       1 saved for backward primals_3 | output 3 of the forward
       2 saved for backward mm | output 1 of the forward
       3 tangent tangents_1
    outputs: 1
       0 parameter gradient l1.weight
  1/0 inference
    inputs: 3
       0 parameter l1.weight
       1 parameter gradient l1.weight
       2 optimizer state exp_avg
    outputs: 0
""",
        )

    def test_trouble_narrow_ascii_exact(self) -> None:
        text = render_text(
            summarize(troubled()), Style(top=2, width=80, ascii_only=True, exact=True)
        )
        self.assertExpectedInline(
            text,
            """\
memprof 0.1.0 | torch 2.13.0+cpu | Python 3.11.4
Linux-6.1 | Some CPU | 2 cores | 8.00 GiB memory
3 graphs, 6 calls in 5.50 ms (40 earlier calls are no longer in the log)
taken 2023-11-14 22:13:20 UTC
options: observe_runs=3

Peak of known live memory on cpu: 23,068,672 B
  in call 2 of 6, 0/0 backward, 1.00 ms after the first call began
  after line 20 of the generated code
  for FX node mul, zoo/model.py:3
  2 of 6 calls were not observed: what they allocate is not counted

Live at the peak, by category
       bytes    share  storages  category         that is
-------------------------------------------------------------------------------------------
 8,388,608 B   36.4 %         1  activation       what a backward needs of its forward
 6,291,456 B   27.3 %         2  parameter        parameters and buffers of modules
 6,291,456 B   27.3 %         1  temporary        made and let go of inside one call
 1,048,576 B    4.5 %         1  autograd detail  gradients of outputs, random-number state
 1,048,576 B    4.5 %         1  input            what the program hands in
         0 B    0.0 %            unattributed
23,068,672 B  100.0 %            total

What to change
  1. up to 8,388,608 B at the peak: mm in an unknown module: kept for the backward
    compute it again in the backward: call parts of the model through
    torch.utils.checkpoint.checkpoint(use_reentrant=False), or let the compiler choose with
    torch._functorch.config.activation_memory_budget below 1.0
    8,388,608 B | mm | 0/0 forward | mm

Live at the peak, by source line
  8,388,608 B, 36.4 %, have no line: compiled code did not make them
       bytes    share  storages  source line     code
---------------------------------------------------------------
 6,291,456 B   27.3 %         2  (parameter)
 6,291,456 B   27.3 %         1  zoo/model.py:3  x = self.l3(x)
 2,097,152 B    9.1 %         2  2 smaller
 8,388,608 B   36.4 %            unattributed
23,068,672 B  100.0 %            total

Live at the peak, by module
       bytes    share  storages  module
---------------------------------------------
10,485,760 B   45.5 %         2  l1
 2,097,152 B    9.1 %         1  l2
 2,097,152 B    9.1 %         2  2 smaller
 8,388,608 B   36.4 %            unattributed
23,068,672 B  100.0 %            total

Live at the peak, by FX node
       bytes    share  storages  FX node       graph         operator or name
-----------------------------------------------------------------------------
 8,388,608 B   36.4 %         1  mm            0/0 forward   aten.mm.default
 6,291,456 B   27.3 %         1  mul           0/0 backward  aten.mul.Tensor
 8,388,608 B   36.4 %         4  4 smaller
         0 B    0.0 %            unattributed
23,068,672 B  100.0 %            total

Graphs; bytes of one call of the most called program
graph          calls  median     allocated          peak        saved  programs
-------------------------------------------------------------------------------
0/0 forward        2  500 us  14,680,064 B  20,971,520 B  9,437,184 B         1
0/0 backward       2  500 us  10,485,760 B  20,971,520 B          0 B         1
1/0 inference      2  500 us             -             -            -         0
  Calls that were not observed: what they allocate is not counted
    2 calls | 1/0 inference | generated code is C++ (cpp_wrapper)

Ledger
  compiled 2, found in a cache 1, compiled again past a cache 0, observed 1, reset 1
  not observed: 2
    2 times | generated code is C++ | 1/0 inference
  fallbacks to plain Inductor: 1
    KeyError: 'buf7' [observe] | 0/0 backward

What is not counted
  Of the bytes that compiled code allocates in one call of each program, 100.0 % have an FX node and
  66.7 % a source line or module.
  Tensors that eager code makes or keeps outside compiled calls are never seen: an eager loss,
  gradients between a backward and an eager optimizer, outputs that the program keeps. What is live
  between calls is a lower bound.
  A program is observed once and stands for all later calls with the same sizes, replays included:
  their memory is reconstructed, not measured again.
  unattributed at the peak by category: 0 B (0.0 %)
  unattributed at the peak by module: 8,388,608 B (36.4 %)
    8,388,608 B | the FX node belongs to no known module
  unattributed at the peak by FX node: 0 B (0.0 %)
  unattributed at the peak by source line: 8,388,608 B (36.4 %)
    8,388,608 B | the FX node has no user source line
  unattributed at the peak by graph: 0 B (0.0 %)
  of what is allocated, without an FX node or a source line:
    33.3 % | the FX node has no user source line

Inputs and outputs
  0/0 forward
    inputs: 3
       0 parameter l1.weight | static
       1 parameter l2.bias | static
       2 user input L['x']
    outputs: 4
       0 user output add
       1 saved for backward mm
       2 saved for backward primals_1 | memory of input 0
       3 saved for backward primals_3 | memory of input 2
  0/0 backward
    inputs: 4
       0 saved for backward primals_1 | output 2 of the forward
       1 saved for backward primals_3 | output 3 of the forward
       2 saved for backward mm | output 1 of the forward
       3 tangent tangents_1
    outputs: 1
       0 parameter gradient l1.weight
  1/0 inference
    inputs: 3
       0 parameter l1.weight
       1 parameter gradient l1.weight
       2 optimizer state exp_avg
    outputs: 0
""",
        )

    def test_nothing_happened(self) -> None:
        text = render_text(
            summarize(Profile(memprof="0.1.0", torch="2.13.0", python="3.11")),
            Style(ascii_only=True),
        )
        self.assertExpectedInline(
            text,
            """\
memprof 0.1.0 | torch 2.13.0 | Python 3.11
0 graphs, 0 calls in 0 ns

No call of a compiled graph was recorded, so there is no peak.
""",
        )

    def test_ledger(self) -> None:
        self.assertExpectedInline(
            render_ledger(troubled(), Style(width=80, ascii_only=True)),
            """\
time (UTC)    what          graph          count  why
----------------------------------------------------------------------------
00:00:01.000  compiled      0/0 forward        1  first compilation
00:00:02.000  compiled      0/0 backward       1  first compilation
00:00:03.000  cache hit     1/0 inference      1  FX graph cache
00:00:04.000  observed      0/0 forward        1  new sizes ()
00:00:05.000  not observed  1/0 inference      2  generated code is C++
00:00:06.000  fallback      0/0 backward       1  KeyError: 'buf7' [observe]
00:00:07.000  reset         -                  1  torch._dynamo.reset()
""",
        )

    def test_empty_ledger(self) -> None:
        self.assertExpectedInline(
            render_ledger(Profile()),
            """\
The ledger is empty: nothing was compiled.
""",
        )


def _entry(kind: LedgerKind, reason: str, function: str = "0/0 forward", **d: Any) -> LedgerEntry:
    return LedgerEntry(0, kind, None, reason, 1, TreeDetail("cuda:0", function, **d))


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from("abc"), st.booleans()),
        max_size=20,
    )
)
def test_functions_never_have_more_of_a_pool_than_there_was(
    steps: list[tuple[int, int, str, bool]],
) -> None:
    """A pool loses some and grows some at each step, or is gone and another one begins."""
    pool = largest = 0
    ledger = []
    for loses, grows, function, gone in steps:
        before = 0 if gone else max(0, pool - loses)
        pool = before + grows
        largest = max(largest, pool)
        ledger.append(_entry(LedgerKind.WARM_UP, "", function, pool_before=before, pool_after=pool))
    of = {f.function: f.marginal_bytes for f in graphed_functions(ledger)}
    assert all(n >= 0 for n in of.values())
    assert pool_rest(graphed_functions(ledger), pool_bytes(ledger)) == (
        {"cuda:0": largest - sum(of.values())} if ledger else {}
    )
    assert sum(of.values()) <= largest
    if not any(loses for loses, *_ in steps):  # Nothing but whole pools went: all of it is known.
        assert sum(of.values()) == largest


def test_pools_of_models_that_are_gone_are_not_added_up() -> None:
    """Five models, one after the other, each with 34 MiB of which the backward has 4."""
    mib = 2**20
    ledger = []
    for model in range(5):
        grown = ((f"{model}/0 forward", 0, 30), (f"{model}/0 backward", 30, 34))
        for function, before, after in grown:
            sizes = {"pool_before": before * mib, "pool_after": after * mib}
            ledger.append(_entry(LedgerKind.WARM_UP, "first run", function, **sizes))
            sizes["pool_before"] = after * mib
            ledger.append(_entry(LedgerKind.RECORD, "first recording", function, **sizes))
    summary = summarize(Profile(ledger=ledger))
    of = {f.function: f.marginal_bytes for f in summary.trees if f.marginal_bytes}
    assert of == {"0/0 forward": 30 * mib, "0/0 backward": 4 * mib}
    assert summary.pools == {"cuda:0": 34 * mib}


def test_a_pool_that_warm_ups_made_is_theirs() -> None:
    entry = _entry
    # GIVEN recordings that find all they need in what the warm-up of their sizes left
    mib = 2**20
    after = 36 * mib
    profile = Profile(
        ledger=[
            entry(LedgerKind.WARM_UP, "first run", key=(8,), pool_before=0, pool_after=34 * mib),
            entry(LedgerKind.RECORD, "first recording", key=(8,), pool_after=34 * mib),
            entry(
                LedgerKind.RECORD, "first recording", key=(9,), marginal=2 * mib, pool_after=after
            ),
            entry(LedgerKind.REPLAY, "replayed", key=(9,), marginal=2 * mib),
        ]
    )
    # THEN the table's column adds up to the pool, and the ledger says which sizes it went to
    assert [f.marginal_bytes for f in summarize(profile).trees] == [36 * mib]
    why = [line.partition("1  ")[2] for line in render_ledger(profile).splitlines()[2:]]
    assert why == [
        "first run; sizes 8; the pool grew by 34.0 MiB",
        "first recording; sizes 8",
        "first recording; sizes 9; the pool grew by 2.00 MiB",
        "replayed; sizes 9",
    ]


def test_inputs_that_moved_have_the_users_names_and_one_line() -> None:
    # GIVEN an input of the graph that moved twice, beside others that are not known
    def moved(to: int, *inputs: int) -> LedgerEntry:
        lines = [
            f"input name: {profile.graphs[0].inputs[i].name}. data pointer changed from 1 to {to}."
            for i in inputs
        ]
        reason = "\n".join(["static input data pointer changed.", *lines])
        tree = TreeDetail("cuda:0", "0/0 forward", cause=TreeCause.MOVED, inputs=inputs)
        return LedgerEntry(0, LedgerKind.RERECORD, 0, reason, 1, tree)

    profile = training()
    first = profile.graphs[0].inputs[0]
    more = [dataclasses.replace(first, index=3 + i, name=f"x{i}", fqn=None) for i in range(7)]
    profile.graphs[0].description = dataclasses.replace(
        profile.graphs[0].description, inputs=(*profile.graphs[0].inputs[:3], *more)
    )
    profile.ledger = [moved(2, 0), moved(3, 0), moved(2, *range(3, 10))]
    # THEN one line says so, without addresses
    (function,) = summarize(profile).trees
    told = [(r.count, r.reason) for r in function.reasons]
    assert told == [
        (2, "static input data pointer changed: l1.weight"),
        (1, "static input data pointer changed: x0, x1, x2, x3, x4 and 2 more"),
    ]
    assert told[0][1] in render_ledger(profile)


def test_outputs_of_which_the_same_is_said_are_one_reason() -> None:
    # GIVEN a backward whose gradients were held, and a forward's loss
    def held(kind: LedgerKind, function: str, output: int, why: str, count: int) -> LedgerEntry:
        reason = f"output {output} is held beyond its step{why}"
        cause = TreeCause.HELD_GRADIENT if "gradient" in why else TreeCause.HELD
        tree = TreeDetail("cuda:0", function, cause=cause, outputs=(output,))
        return LedgerEntry(0, kind, 0, reason, count, tree)

    profile = training()
    moved = [held(LedgerKind.MOVED_OUT, "0/0 backward", i, ": a gradient", 2) for i in range(30)]
    loss = held(LedgerKind.INVALIDATED, "0/0 forward", 7, "; its use raises", 3)
    profile.ledger = [*moved, loss]
    # THEN the report has a line for each, and the ledger names all outputs
    lines = [line for line in render_text(summarize(profile)).splitlines() if " held " in line]
    assert lines == [
        "    60 times · moved out · 30 outputs are held beyond their step: a gradient · "
        "0/0 backward",
        "    3 times · invalidated · output 7 is held beyond its step; its use raises · "
        "0/0 forward",
    ]
    assert "output 29 is held" in render_ledger(profile)


def test_recordings_of_branches_are_told_apart() -> None:
    # GIVEN a forward with a backward for each of two orders of calls
    def recorded(function: str, node: int, parent: int | None) -> LedgerEntry:
        tree = TreeDetail("cuda:0", function, node=node, parent=parent, duration_ns=9)
        return LedgerEntry(node, LedgerKind.RECORD, None, "first recording", 1, tree)

    profile = training()
    profile.ledger = [
        recorded("0/0 forward", 0, None),
        recorded("0/0 backward", 1, 0),
        recorded("1/0 forward", 2, 0),
        recorded("0/0 backward", 3, 2),
    ]
    # THEN the ledger says after which each was recorded
    text = render_ledger(profile)
    for where in ("#0 first", "#1 after #0", "#2 after #0", "#3 after #2"):
        assert text.count(f"first recording; {where}") == 1


def test_utf8() -> None:
    plain, ascii_only = (
        render_text(summarize(training()), Style(ascii_only=a)) for a in (False, True)
    )
    assert plain.startswith("memprof 0.1.0 · torch 2.13.0+cpu · Python 3.11.4\n")
    assert plain.replace("·", "|").replace("─", "-") == ascii_only


def test_a_run_that_fell_back_says_so_in_its_first_line() -> None:
    first = report_text([troubled()], Style(width=100)).splitlines()[0]
    assert first == "memprof fell back to plain Inductor, times: 1 (why: --section ledger)"
    assert "fell back" not in report_text([training()], Style())


def test_a_ledger_of_several_days_has_dates() -> None:
    profile = training()
    assert re.search(r"^00:00:01\.000  ", render_ledger(profile), re.MULTILINE)
    profile.ledger.append(LedgerEntry(86_400_000_000_000, LedgerKind.RESET, None, "again"))
    text = render_ledger(profile)
    assert re.search(r"^1970-01-01 00:00:01\.000  ", text, re.MULTILINE)
    assert re.search(r"^1970-01-02 00:00:00\.000  ", text, re.MULTILINE)


def test_reasons_there_is_no_room_for_are_added_up() -> None:
    # GIVEN scratch memory at more lines than the report has rows, all unknown, graphs that were
    # never observed, and trees with reasons of their own
    profile = training()
    graph = profile.graphs[0]
    graph.statements = ()
    builder = ProgramBuilder()
    for line in range(10, 16):
        builder.alloc(f"s{line}", MIB, line, internal=True)
    graph.programs = [builder.build()]
    for other in profile.graphs[1:]:
        other.programs = []
    profile.calls.program[:] = [0 if g == 0 else -1 for g in profile.calls.graph]
    tree = TreeDetail("cuda:0", "0/0 forward")
    profile.ledger += [LedgerEntry(1, LedgerKind.SKIP, 0, f"why {i}", 1, tree) for i in range(5)]
    text = render_text(summarize(profile), Style(top=1))
    # THEN what is cut is said, so that everything adds up
    assert "1.00 MiB · line 10 of the generated code computes no known buffer" in text
    assert text.count("5.00 MiB · 5 more reasons") == 3  # nodes, modules and lines
    assert "83.3 % · 5 more reasons" in text  # of all programs
    assert "3 calls · 0/0 backward · " in text
    assert "3 calls · 1 more graphs" in text
    assert "4 times · 4 more reasons: memprof report FILE --section ledger" in text


def test_scratch_memory_that_was_not_measured_is_said_to_be_missing() -> None:
    profile = training()
    graph = profile.graphs[0]
    graph.programs = [dataclasses.replace(graph.programs[0], internal_observed=False)]
    line = "  Scratch memory inside kernels of 1 of 3 programs is not counted: another profiler ran"
    assert line in render_text(summarize(profile), Style(width=120))
    assert "Scratch memory inside kernels of" not in render_text(summarize(training()))


# Whatever the profile, whatever the terminal


@pytest.mark.parametrize("make", [training, troubled, Profile])
@pytest.mark.parametrize("width", [40, 80, 90, 100, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_every_line_fits(make: object, width: int, ascii_only: bool) -> None:
    profile: Profile = make()  # type: ignore[operator]
    style = Style(width=width, ascii_only=ascii_only)
    for text in (
        render_text(summarize(profile), style),
        render_ledger(profile, style),
    ):
        assert text.endswith("\n")
        assert max(map(len, text.splitlines())) <= max(width, 80)
        assert "\x1b" not in text
        assert text.isascii() or not ascii_only
        assert not re.search(r"[ \t]$", text, re.MULTILINE)


def test_numbers_are_whole_also_where_they_are_wider_than_the_page() -> None:
    # GIVEN a process with eight GPUs, so a table of twelve columns of numbers
    memory = {f"cuda:{i}": TrackedDevice(allocated_bytes=(100 + i) << 30) for i in range(8)}
    snapshot = MemorySnapshot(
        3_000_000_000, total_bytes=900 << 30, resident_bytes=200 << 30, devices=memory
    )
    record = TrackerRecord(snapshots=[snapshot])
    for exact in (False, True):
        text = render_tracker_record(record, Style(width=80, exact=exact))
        for nbytes in ((100 + i) << 30 for i in range(8)):
            assert format_bytes(nbytes, exact) in text
        # AND what is no table is as wide as the page
        assert max(map(len, text.split("Memory over time")[0].splitlines())) <= 100


@pytest.mark.parametrize("width", [80, 100])
def test_long_names_cut_text_and_never_numbers(width: int) -> None:
    # GIVEN names, paths and code that are all too long
    profile = training()
    graph = profile.graphs[0]
    graph.compile_id = "1234567/89"
    frame = SourceFrame("/x/" + "deep/" * 30 + "model.py", 123, "f", "y = " + "f(" * 100)
    graph.nodes["mm"] = type(graph.nodes["mm"])(
        "mm", "aten." + "long_operator_name" * 10, stack=(frame,), module_path="layers.7." * 30
    )
    text = render_text(summarize(profile), Style(width=width, exact=width == 100))
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    # THEN every number of a report with room for everything is still there, in full
    wide = render_text(summarize(profile), Style(width=5000, exact=width == 100))
    for number in re.findall(r"[\d,.]+ (?:B|KiB|MiB|%|us)", wide):
        assert number in text
    assert "model.py:123" in text
    for header in ("share", "storages", "median", "allocated"):
        assert header in text


def test_unicode_in_the_profile_survives_ascii() -> None:
    profile = training()
    frame = SourceFrame("/x/modèle.py", 3, "forward", "x = 'Ω'")
    old = profile.graphs[0].nodes["mm"]
    profile.graphs[0].nodes["mm"] = type(old)("mm", old.target, stack=(frame,), module_path="Ω")
    assert "modèle.py" in render_text(summarize(profile))
    text = render_text(summarize(profile), Style(ascii_only=True))
    assert text.isascii()
    assert "mod\\xe8le.py" in text


def test_brackets_are_not_markup() -> None:
    profile = training()
    frame = SourceFrame("/x/m.py", 3, "forward", "x[bold] = y[/red]")
    old = profile.graphs[0].nodes["mm"]
    profile.graphs[0].nodes["mm"] = type(old)("mm", old.target, stack=(frame,), module_path="l1")
    profile.ledger.append(LedgerEntry(1, LedgerKind.FALLBACK, 0, "[bold]no[/bold] markup"))
    text = render_text(summarize(profile))
    assert "x[bold] = y[/red]" in text
    assert "[bold]no[/bold] markup" in text


def test_colour_only_where_asked() -> None:
    text = render_text(summarize(troubled()), Style(color=True))
    assert "\x1b[1m" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    squeeze = re.compile(r"[ \t]+$", re.MULTILINE)
    assert squeeze.sub("", plain) == render_text(summarize(troubled()))


def test_what_is_unattributed_stands_out() -> None:
    # GIVEN a profile in which some tables leave nothing without a name, and some do
    text = render_text(summarize(troubled()), Style(color=True))
    rows = [line for line in text.splitlines() if re.search(r"unattributed\b(?! at)", line)]
    plain = {row: re.sub(r"\x1b\[[0-9;]*m", "", row) for row in rows}
    none = [row for row in rows if re.search(r"\b0 B\b", plain[row])]
    some = [row for row in rows if row not in none]
    # THEN the row of what has none is yellow, and dim where that is nothing
    assert none
    assert all("\x1b[2m" in row for row in none)
    assert some
    assert all("\x1b[33m" in row for row in some)


@pytest.mark.parametrize("top", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("make", [training, troubled])
def test_rows_of_each_table_add_up(make: object, top: int) -> None:
    text = render_text(summarize(make()), Style(top=top, exact=True))  # type: ignore[operator]
    sections = re.split(r"\n\n(?=Live|Saved)", text)[1:]
    titles = []
    for section in sections:
        title, *rows = section.splitlines()
        if not title.startswith("Live"):
            continue
        while not rows[0].startswith("─"):  # notes and headings
            del rows[0]
        titles.append(title)
        # The own column of the module table, the bytes column of the others.
        column = 1 if title.endswith("module") else 0
        shown = []
        for row in rows[1:]:
            found = re.findall(r"([\d,]+) B", row)
            if not found:
                break
            number = found[column] if len(found) > column else found[0]
            shown.append(int(number.replace(",", "")))
        *parts, total = shown
        assert sum(parts) == total, title
    assert len(titles) == 4


def test_the_rows_of_a_pool_add_up_to_it() -> None:
    tree = TreeDetail("cuda:0", "0/0 forward", pool_after=10 * MIB, marginal=3 * MIB)
    profile = training()
    profile.ledger = [LedgerEntry(1, LedgerKind.RECORD, 0, "first recording", tree=tree)]
    text = render_text(summarize(profile), Style(exact=True))
    rows = text[text.index("  Functions") :].split("\n\n")[0].splitlines()
    rows = [row for row in rows if re.search(r"\d B", row)]
    numbers = [int(row.split()[-2].replace(",", "")) for row in rows]
    assert [row.split("  ")[0] for row in rows] == [
        "0/0 forward",
        "(outputs still held)",
        "largest pool",
    ]
    assert numbers == [3 * MIB, 7 * MIB, 10 * MIB]


def test_forwards_without_a_backward_are_said() -> None:
    # GIVEN three forwards in a row, of which the last alone has its backward
    profile = training()
    profile.calls = calls((0, 0), (0, 0), (0, 0), (1, 0))
    text = " ".join(render_text(summarize(profile)).split())
    assert "2 of 3 calls of 0/0 forward had no backward: what each saved, 9.00 MiB" in text
    assert "had no backward" not in render_text(summarize(training()))


def test_summary_is_json_and_back() -> None:
    summary = summarize(troubled())
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary


# Terminals


class Stream(io.StringIO):
    def __init__(self, encoding: str | None, terminal: bool = False) -> None:
        super().__init__()
        self._encoding, self._terminal = encoding, terminal

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("encoding", "ascii_only"),
    [
        ("utf-8", False),
        ("UTF8", False),
        (None, False),
        ("utf-16", False),
        ("ascii", True),
        ("latin-1", True),
        ("cp1252", True),
    ],
)
def test_streams_get_what_they_can_show(
    monkeypatch: pytest.MonkeyPatch, encoding: str | None, ascii_only: bool
) -> None:
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain = style_of(Stream(encoding))
    assert plain == Style(width=100, ascii_only=ascii_only)
    assert style_of(Stream(encoding, terminal=True)).color
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "83")
    terminal = style_of(Stream(encoding, terminal=True))
    assert terminal == Style(width=83, ascii_only=ascii_only)


def test_whatever_the_text_holds_can_be_written() -> None:
    strange = "a\udcff é"
    assert printable(strange, Stream("utf-8")) == "a\\udcff é"
    assert printable(strange, Stream("ascii")) == "a\\udcff \\xe9"


# Numbers and paths


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 1024 - 1, "10.0 KiB"),
        (100 * 1024 - 1, "100 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (27_262_976, "26.0 MiB"),
        (5 << 40, "5.00 TiB"),
        (5000 << 40, "5,000 TiB"),
    ],
)
def test_format_bytes(n: int, text: str) -> None:
    assert format_bytes(n) == text
    assert format_bytes(n, exact=True) == f"{n:,} B"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "-"),
        (0, 10, "0.0 %"),
        (1, 100_000, "<0.1 %"),
        (1, 3, "33.3 %"),
        (99_999, 100_000, ">99.9 %"),
        (7, 7, "100.0 %"),
    ],
)
def test_format_share(part: int, whole: int, text: str) -> None:
    assert format_share(part, whole) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.00 us"),
        (999.6, "1.00 us"),
        (12_345, "12.3 us"),
        (999_499, "999 us"),
        (999_600, "1.00 ms"),
        (123_456_789, "123 ms"),
        (2e9, "2.00 s"),
        (3.6e12, "3600 s"),
    ],
)
def test_format_ns(ns: float, text: str) -> None:
    assert format_ns(ns) == text


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/me/project/model.py", "model.py"),
        ("/home/me/projects/model.py", "/home/me/projects/model.py"),
        ("/usr/lib/python3.11/ast.py", "ast.py"),
        ("/v/lib/python3.11/site-packages/torch/nn/linear.py", "torch/nn/linear.py"),
        ("<string>", "<string>"),
        ("", ""),
    ],
)
def test_shorten_path(path: str, short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": "/usr/lib/python3.11"})
    monkeypatch.setattr("os.getcwd", lambda: "/home/me/project/")
    assert shorten_path(path) == short


def test_shorten_path_in_the_root_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/")
    assert shorten_path("/home/me/model.py") == "/home/me/model.py"


def test_fit_path_keeps_the_end() -> None:
    assert fit_path("a/b/model.py:12", 40) == "a/b/model.py:12"
    assert fit_path("aaaa/bbbb/model.py:12", 15) == ".../model.py:12"
    assert len(fit_path("a" * 50 + "/model.py:12", 20)) == 20
    assert fit_path("a" * 50 + "/model.py:12", 20).endswith("/model.py:12")
