"""Whatever goes wrong in memprof, the user's program computes what it would have computed."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_threads import run_in_threads
from torch import nn

import memprof
from memprof.compile_backend import _torch_compat, inner_compile
from memprof.compile_backend.session.ledger import Ledger
from memprof.compile_backend.session.runtime import RUNTIME
from memprof.compile_backend.stages.observe import recorder, stage
from memprof.compile_backend.stages.provenance import stage as provenance_stage
from memprof.profiler.model import LedgerKind, Profile


class InternalError(Exception):
    pass


def _broken(*args: Any, **kwargs: Any) -> Any:
    raise InternalError("memprof is broken here")


PLACES = [
    (inner_compile, "describe_graph"),
    (inner_compile, "view_and_mutation_meta"),
    (provenance_stage, "snapshot"),
    (provenance_stage, "tag_nodes"),
    (provenance_stage, "describe_lowerings"),
    (provenance_stage, "read_wrapper"),
    (provenance_stage, "first_lines"),
    (stage, "clone_factory"),
    (stage, "CallRecorder"),
    (stage, "build_program"),
    (stage, "categorizer"),
    (stage.ObserveStage, "post_compile"),
    (recorder, "_storages"),
    (recorder, "Delta"),
    (recorder.AllocatorEvents, "start"),
    (recorder.AllocatorEvents, "mark"),
    (provenance_stage.AttributeStage, "post_compile"),
    (inner_compile.RecordStage, "post_compile"),
]


def _train() -> list[torch.Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    # Without the cache: a place that only a real compilation reaches must be reached.
    compiled = torch.compile(model, backend="memprof", options={"fx_graph_cache": False})
    for _ in range(4):
        compiled(torch.ones(2, 8)).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.fixture(autouse=True)
def _fresh_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is logged the first time it happens in a process: each test is a first time."""
    monkeypatch.setattr(RUNTIME, "ledger", Ledger())


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    return _train()


def test_graphs_that_were_asked_for_on_the_cpu_are_refused_by_name() -> None:
    compiled = torch.compile(lambda x: x.exp() + 1, backend="memprof", options={"graphs": True})
    with memprof.profile() as session:
        compiled(torch.ones(4))
    reasons = [e.reason for e in session.profile().ledger if e.kind is LedgerKind.NOT_GRAPHED]
    assert reasons == ["nothing of it is on a CUDA device"]


def test_a_graph_of_which_no_buffer_is_known_is_known_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN nothing can be found out of where buffers come from
    monkeypatch.setattr(provenance_stage, "snapshot", _broken)
    with memprof.profile() as session:
        _train()
    # THEN what the compiled graphs say of themselves is there
    graphs = session.profile().graphs
    assert len(graphs) == 2
    for graph in graphs:
        assert graph.devices == ("cpu",)
        assert graph.code_path is not None


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_an_internal_failure_changes_nothing_for_the_user(
    owner: Any,
    name: str,
    expected: list[torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # GIVEN memprof breaks in one place
    monkeypatch.setattr(owner, name, _broken)
    # WHEN a model is trained
    with caplog.at_level(logging.WARNING, logger="memprof"), memprof.profile() as session:
        actual = _train()
    # THEN the gradients are right
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a, e)
    # AND the ledger counts it with its reason, and each reason was logged once
    fallbacks = [e for e in session.profile().ledger if e.kind is LedgerKind.FALLBACK]
    assert fallbacks
    assert all("memprof is broken here" in e.reason for e in fallbacks)
    logged = [r for r in caplog.records if r.name == "memprof"]
    assert len(logged) == len({e.reason for e in fallbacks})
    # AND a report can still be made
    session.report(file=open(os.devnull, "w"))  # noqa: SIM115


def test_an_error_of_the_users_program_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a kernel that fails at run time, in an observed call and in a later one
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] + 1

    compiled = torch.compile(f, backend="memprof")
    x = torch.arange(4.0)
    with memprof.profile() as session:
        for _ in range(2):
            with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
                compiled(x, torch.tensor([7]))
        # THEN a good call after it works, and is observed
        for _ in range(3):
            assert torch.equal(compiled(x, torch.tensor([1])), torch.tensor([2.0]))
    profile = session.profile()
    assert not [e for e in profile.ledger if e.kind is LedgerKind.FALLBACK]
    assert profile.graphs[0].programs


def test_an_error_of_the_compiler_is_the_compilers() -> None:
    def broken_pass(graph: torch.fx.Graph) -> None:
        raise InternalError("the user's own pass is broken")

    compiled = torch.compile(
        lambda x: x + 1, backend="memprof", options={"post_grad_custom_pre_pass": broken_pass}
    )
    with pytest.raises(Exception, match="the user's own pass is broken"):
        compiled(torch.ones(2))


def test_a_cache_folder_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(key: str, content: bytes) -> None:
        raise OSError(28, "No space left on device", f"{key}.tmp")

    monkeypatch.setattr(_torch_compat, "write_to_cache", full)
    with memprof.profile() as session:
        for factor in (3, 4):
            torch._dynamo.reset()
            torch.compile(lambda x, n=factor: (x * n).sin(), backend="memprof")(torch.ones(5))
    profile = session.profile()
    # THEN nothing is missing in this process
    assert len(profile.graphs) == 2
    assert all(g.buffers and g.programs for g in profile.graphs)
    # AND what is said is just that, for each graph in the ledger and once in the log
    assert not [e for e in profile.ledger if e.kind is LedgerKind.FALLBACK]
    stored = [e for e in profile.ledger if e.kind is LedgerKind.NOT_STORED]
    assert [e.graph for e in stored] == [g.id for g in profile.graphs for _ in range(2)]
    assert "No space left on device" in stored[0].reason
    said, also_said = [r.getMessage() for r in caplog.records if r.name == "memprof"]
    assert "cannot store provenance beside the cache" in said
    assert "cannot store its description beside the cache" in also_said
    assert "compile them again" in said


def _profile_of(function: Any, *args: torch.Tensor) -> Profile:
    torch._dynamo.reset()
    with memprof.profile() as session:
        torch.compile(function, backend="memprof")(*args)
    return session.profile()


def test_a_cached_graph_whose_provenance_is_gone_is_compiled_again() -> None:
    # GIVEN a graph in the caches of which all that memprof stored was damaged
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 5).cos()

    first = _profile_of(f, torch.ones(6))
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    stored = [path for path in folder.rglob("*-memprof-*/*") if path.is_file()]
    assert stored
    for path in stored:
        path.write_bytes(path.read_bytes()[:-1])
    # WHEN it is compiled again
    again = _profile_of(f, torch.ones(6))
    # THEN it is compiled for real, once, with the same provenance, and stored anew
    assert [e.kind for e in again.ledger if e.kind is LedgerKind.RECOMPILED]
    assert again.graphs[0].nodes == first.graphs[0].nodes
    third = _profile_of(f, torch.ones(6))
    assert [e.kind for e in third.ledger if e.kind is LedgerKind.CACHE_HIT]
    assert third.graphs[0].nodes == first.graphs[0].nodes


def test_threads_that_compile_and_call_at_once() -> None:
    # GIVEN several threads, each with a model of its own and one in common
    shared = torch.compile(nn.Linear(8, 8), backend="memprof")
    errors: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            barrier.wait()
            own = nn.Sequential(nn.Linear(8, 8 + seed), nn.ReLU(), nn.Linear(8 + seed, 2))
            compiled = torch.compile(own, backend="memprof")
            for _ in range(20):
                x = torch.ones(3, 8)
                assert torch.allclose(compiled(x), own(x), atol=1e-6)
                shared(x)
        except BaseException as error:
            errors.append(error)

    with memprof.profile() as session:
        run_in_threads(*(partial(work, i) for i in range(4)))
    # THEN nothing failed and no call was lost
    assert not errors
    profile = session.profile()
    assert not [e for e in profile.ledger if e.kind is LedgerKind.FALLBACK]
    assert sum(g.calls for g in profile.graphs) == 4 * 20 * 2 == len(profile.calls)
    assert len(set(profile.calls.thread)) == 4
