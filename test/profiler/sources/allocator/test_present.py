"""Without ``eager=True`` the first line is the allocator's figure all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from profile_builder import ProgramBuilder, calls
from rendering import render_accounts
from torch.torch_version import TorchVersion

from memprof.profiler.model import (
    Category,
    DeviceAccount,
    GraphKind,
    GraphRecord,
    Held,
    LedgerEntry,
    LedgerKind,
    Profile,
)
from memprof.profiler.sources.allocator.present import optimizer_state
from memprof.profiler.views.report.parts import device_peak
from memprof.profiler.views.report.summary import summarize

MIB = 1 << 20


def _account(most_allocated: int) -> DeviceAccount:
    rows = [
        Held(Category.PARAMETER, 40, 2),
        Held(Category.OPTIMIZER_STATE, 80, 4),
        Held(Category.GRADIENT, 40, 2),
        Held(Category.TENSOR, 10, 1),
    ]
    return DeviceAccount(
        "cuda:0", reserved=400, most_allocated=most_allocated, rows=rows, present=True
    )


def test_the_peak_is_the_sum_of_what_both_sources_know() -> None:
    compiled = {Category.PARAMETER: 30, Category.ACTIVATION: 100, Category.INPUT: 4}
    peak = device_peak(_account(300), compiled)
    assert peak is not None
    assert peak.parts == (
        ("activation", 100), ("optimizer state", 80), ("parameter", 40), ("other tensors", 6),
        ("input", 4),
    )  # fmt: skip
    assert peak.unattributed == 300 - 230
    assert peak.free == 100
    assert sum(n for _, n in peak.parts) + peak.unattributed + peak.free == peak.reserved
    text = render_accounts([_account(300)], peaks=[peak])
    assert "What was reserved at the peak" in text
    assert "70 B   17.5 %  not attributed: eager code" in text


def test_a_cache_that_the_graphs_take_for_an_input_is_counted_once() -> None:
    account = _account(300)
    account.rows.append(Held(Category.PERSISTENT_STATE, 70, 1))
    compiled = {Category.PARAMETER: 40, Category.ACTIVATION: 100, Category.INPUT: 74}
    peak = device_peak(account, compiled)
    assert peak is not None
    assert dict(peak.parts) == {
        "activation": 100, "optimizer state": 80, "persistent state": 70, "parameter": 40,
        "other tensors": 6, "input": 4,
    }  # fmt: skip
    assert peak.unattributed == 0
    # Parameters that the look alone knows are no reason to count an input as state.
    account.rows = [r for r in account.rows if r.category is not Category.PERSISTENT_STATE]
    peak = device_peak(account, {**compiled, Category.PARAMETER: 10})
    assert peak is not None
    assert dict(peak.parts)["input"] == 74


def test_what_is_left_is_eager_where_every_compiled_call_is_known() -> None:
    compiled = {Category.PARAMETER: 30, Category.ACTIVATION: 100, Category.INPUT: 4}
    account = _account(300)
    account.most_requested = 290
    peak = device_peak(account, compiled, all_observed=True)
    assert peak is not None
    assert (peak.eager, peak.rounding, peak.unattributed, peak.free) == (60, 10, 0, 100)
    assert sum(n for _, n in peak.parts) + 60 + 10 + 100 == peak.reserved
    text = render_accounts([account], peaks=[peak])
    assert "60 B   15.0 %  eager tensors: made or kept outside of compiled calls" in text
    assert "10 B    2.5 %  rounding" in text
    # Of what a call did that nobody observed it is not known how much there is of it.
    peak = device_peak(account, compiled)
    assert peak is not None
    assert (peak.eager, peak.rounding, peak.unattributed) == (0, 10, 60)


def _run(**entries: int) -> Profile:
    """An observed graph that is called twice; the allocator had 100 bytes beyond it."""
    builder = ProgramBuilder().alloc("buf0", 50, 1).free("buf0", 2)
    builder.storages = [replace(s, device="cuda:0") for s in builder.storages]
    graph = GraphRecord(0, GraphKind.INFERENCE, "0/0", devices=("cuda:0",))
    graph.programs.append(builder.build())
    ledger = [LedgerEntry(1, LedgerKind(kind), 0, "", count) for kind, count in entries.items()]
    account = DeviceAccount("cuda:0", reserved=200, most_allocated=150, present=True)
    return Profile(graphs=[graph], calls=calls((0, 0), (0, 0)), ledger=ledger, accounts=[account])


def _eager(profile: Profile) -> int:
    (peak,) = summarize(profile).at_peak
    assert peak.eager + peak.unattributed == 100
    return peak.eager


def test_every_compiled_call_is_known() -> None:
    assert _eager(_run(compiled=1)) == 100
    assert _eager(_run(cache_hit=1)) == 100


def test_not_every_compiled_call_is_known() -> None:
    assert _eager(_run()) == 0  # compiled, and so maybe called, before the session
    assert _eager(_run(compiled=1, fallback=1)) == 0
    dropped = _run(compiled=1)
    dropped.calls = replace(dropped.calls, dropped=1)
    assert _eager(dropped) == 0
    unobserved = _run(compiled=1)
    unobserved.calls = calls((0, 0), (0, -1))
    assert _eager(unobserved) == 0
    unobserved.ledger.append(LedgerEntry(1, LedgerKind.WARM_UP, 0, "", 1))
    assert _eager(unobserved) == 100
    waits = _run(compiled=1)
    waits.graphs[0].kind, waits.graphs[0].graph_id = GraphKind.FORWARD, 0
    assert _eager(waits) == 0


def test_state_and_workspaces_are_of_the_peak_as_well() -> None:
    rows = [
        Held(Category.PARAMETER, 70, 3),  # with a cache of 30 that graphs write to
        Held(Category.PERSISTENT_STATE, 10, 1),  # running statistics, in eager code
        Held(Category.WORKSPACE, 32, 1),
    ]
    account = DeviceAccount("cuda:0", reserved=400, most_allocated=200, rows=rows, present=True)
    compiled = {Category.PARAMETER: 40, Category.PERSISTENT_STATE: 30, Category.ACTIVATION: 50}
    peak = device_peak(account, compiled, kept=33)
    assert peak is not None
    assert peak.parts == (
        ("parameter", 50), ("activation", 50), ("workspace", 33), ("persistent state", 30),
    )  # fmt: skip
    assert peak.unattributed == 200 - 163
    # What a library kept need not have been there at the peak: not more than there was.
    peak = device_peak(account, compiled, kept=32 + 39)
    assert peak is not None
    assert dict(peak.parts)["workspace"] == 32


def test_no_sum_is_made_of_sources_that_do_not_fit_together() -> None:
    assert device_peak(_account(200), {Category.ACTIVATION: 100}) is None
    assert "at the peak" not in render_accounts([_account(200)])


_PROGRAM = """
import sys, torch, memprof
from memprof.profiler.model import Category
from torch import nn

N, MIB = 1024, 1 << 20
layers = [nn.Linear(N, N, bias=False, device="cuda") for _ in range(3)]
model = nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
run = torch.compile(model, backend="memprof")
kept = []
with memprof.profile(sys.argv[1]) as session:
    for _ in range(4):
        run(torch.ones(8, N, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.empty(8 * MIB, dtype=torch.uint8, device="cuda"))
    if sys.argv[2]:
        scratch = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        del scratch
        torch.cuda.empty_cache()
(account,) = session.profile().accounts
assert account.present
assert account.reserved == torch.cuda.max_memory_reserved()
assert account.most_allocated == torch.cuda.max_memory_allocated()
assert account.unexplained == 0
assert account.explained == account.reserved
gone = torch.cuda.max_memory_reserved() - torch.cuda.memory_reserved()
assert account.given_back == gone and (gone > 0) is bool(sys.argv[2])
found = account.by_category()
assert found[Category.PARAMETER] == 3 * 4 * N * N, found
assert found[Category.OPTIMIZER_STATE] == 2 * 3 * 4 * N * N + 3 * 4, found
held = [r for r in account.rows if "kept" in r.holder]
assert sum(r.nbytes for r in held) == 4 * 8 * MIB, account.rows

loaded = memprof.load(sys.argv[1])
assert loaded.profile().accounts == [account]
loaded.report(full=True)
loaded.to_html(sys.argv[1] + ".html")
loaded.export(sys.argv[1] + ".json", "json")
loaded.diff(loaded).report()
"""


@pytest.mark.simgpu
@pytest.mark.parametrize("given_back", ["", "given back"])
def test_a_session_ends_with_everything_that_is_reserved(tmp_path: Path, given_back: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(tmp_path / "a.memprof"), given_back],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert "GPU" in first
    assert "Peak reserved on cuda:0" in second
    if not given_back:
        # From 2.15 on a product's workspace comes and goes with it, and made this peak.
        unseen = TorchVersion(torch.__version__) >= "2.15"
        said = "of which nobody took note" if unseen else "What was reserved at the peak"
        assert said in done.stdout
    assert ("given back to the device since the peak" in done.stdout) is bool(given_back)


def test_state_that_is_views_of_one_tensor_counts_once() -> None:
    before = optimizer_state()
    parameters = [torch.nn.Parameter(torch.zeros(256)) for _ in range(4)]
    optimizer = torch.optim.SGD(parameters)
    flat = torch.zeros(4 * 256)
    for p, moment in zip(parameters, flat.split(256), strict=True):
        optimizer.state[p]["momentum_buffer"] = moment
    assert optimizer_state().get("cpu", 0) - before.get("cpu", 0) == flat.nbytes
