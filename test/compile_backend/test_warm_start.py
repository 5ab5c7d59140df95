"""What comes from AOTAutograd's cache is known, named and run as what was just compiled."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch.compiler._cache import CacheArtifactManager

import memprof
from memprof.compile_backend import companion
from memprof.compile_backend.stages.provenance import stage as provenance_stage
from memprof.profiler.model import GraphRecord, LedgerKind, Profile

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.simgpu)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Caches of the test's own, empty."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    torch._dynamo.reset()


@dataclass
class Run:
    profile: Profile
    results: list[torch.Tensor]
    hits: int

    @property
    def graphs(self) -> list[GraphRecord]:
        """The graphs without what each process has its own."""
        return [
            replace(
                g,
                id=0,
                graph_id=None,
                compile_id=None,
                compile_ns=0,
                fx_cache="",
                code_path=None,
                programs=[],
                nodes={name: replace(node, seq_nr=None) for name, node in g.nodes.items()},
            )
            for g in self.profile.graphs
        ]

    def reasons(self, kind: LedgerKind) -> list[str]:
        return [e.reason for e in self.profile.ledger if e.kind is kind]


class Model(nn.Module):
    """Parameters, a buffer that is written to, random numbers, a view of an input as output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = nn.functional.dropout(self.norm(self.first(x)).relu(), 0.5)
        return self.last(hidden), x.view(-1)


def train(
    make: Callable[[], nn.Module] = Model,
    device: str = "cpu",
    steps: int = 5,
    backend: str = "memprof",
    **how: Any,
) -> Run:
    """Trains a new model as in a process of its own: only caches on the disk are left of others."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = make().to(device)
    x = torch.randn(4, 8, device=device)
    with memprof.profile() as session:
        compiled = torch.compile(model, backend=backend, **how)
        results = []
        for _ in range(steps):
            torch.compiler.cudagraph_mark_step_begin()
            out = compiled(x)
            out = out[0] if isinstance(out, tuple) else out
            out.square().sum().backward()
            results.append(out.detach().clone())
    results += [p.grad for p in model.parameters() if p.grad is not None]
    return Run(session.profile(), results, counters["aot_autograd"]["autograd_cache_hit"])


def assert_same(actual: Run, expected: Run) -> None:
    assert actual.graphs == expected.graphs
    for a, e in zip(actual.profile.graphs, expected.profile.graphs, strict=True):
        assert [p.key for p in a.programs] == [p.key for p in e.programs]
        assert [p.peak() for p in a.programs] == [p.peak() for p in e.programs]
    for a, e in zip(actual.results, expected.results, strict=True):
        assert torch.equal(a, e)


def companions(cache: Path, kind: str = "companion") -> list[Path]:
    found = [path for path in cache.rglob(f"*-memprof-{kind}-*/*") if path.is_file()]
    assert found
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_a_hit_is_known_as_after_a_miss(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a model that was trained once, and plain Inductor's results
    miss = train(device=device)
    assert miss.hits == 0
    expected = train(device=device, backend="inductor")
    # WHEN it is trained again THEN AOTAutograd's cache has it, and its code is not read again
    monkeypatch.delattr(provenance_stage, "read_wrapper")
    hit = train(device=device)
    assert hit.hits == 1
    assert not hit.reasons(LedgerKind.COMPILED)
    assert not hit.reasons(LedgerKind.FALLBACK)
    # AND all is known as before
    assert_same(hit, miss)
    for a, e in zip(hit.results, expected.results, strict=True):
        assert torch.equal(a, e)
    # AND in CUDA graphs it is warmed up, observed, recorded and replayed as often as before
    kinds = (LedgerKind.WARM_UP, LedgerKind.RECORD, LedgerKind.REPLAY, LedgerKind.OBSERVED)
    for kind in kinds:
        counts = [[e.count for e in r.profile.ledger if e.kind is kind] for r in (miss, hit)]
        assert counts[0] == counts[1], kind


SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(8, 8)
        self.two = nn.Linear(8, 8)

    def forward(self, x):
        x = self.one(x).sin()
        x = (x.cos() @ x.t()).exp()
        return self.two(x @ torch.ones(4, 8))
"""


def module(text: str, path: Path) -> Callable[[], nn.Module]:
    """The class ``Model`` of a program with this text."""
    path.write_text(text)
    made = ModuleType("program")
    exec(compile(text, str(path), "exec"), made.__dict__)
    found: Callable[[], nn.Module] = made.__dict__["Model"]
    return found


def lines(run: Run) -> set[tuple[str, int]]:
    """The lines that nodes of all graphs come from, with their operators."""
    nodes = (n for g in run.profile.graphs for n in g.nodes.values())
    return {(n.target, n.frame.line) for n in nodes if n.frame is not None}


def test_a_line_that_moved_is_a_hit_with_todays_line(tmp_path: Path) -> None:
    miss = train(module(SOURCE, tmp_path / "program.py"))
    moved = train(module("# one line more\n" + SOURCE, tmp_path / "program.py"))
    assert moved.hits == 1
    assert lines(moved) == {(target, line + 1) for target, line in lines(miss)}
    frames = [v.frame for g in moved.profile.graphs for v in g.outputs if v.frame is not None]
    assert frames
    assert {f"{tmp_path}/program.py"} == {frame.rpartition(":")[0] for frame in frames}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.one", "self.initial"),
        ("x = self.one(x).sin()", "x = self.one(x)\n        x = x.sin()"),
        ("x = (x.cos() @ x.t()).exp()", "x = (x.cos()\n             @ x.t()).exp()"),
    ],
    ids=["renamed", "two lines", "one statement on two lines"],
)
def test_the_same_graph_of_another_program_has_its_names(
    old: str, new: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN what a program is called where nothing is in a cache
    program = module(SOURCE.replace(old, new), tmp_path / "program.py")
    expected = train(program)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other"))
    # WHEN it runs after another one that computes the same
    train(module(SOURCE, tmp_path / "program.py"))
    program = module(SOURCE.replace(old, new), tmp_path / "program.py")
    for _ in range(2):
        # THEN no name is the other program's, at first and when both are known
        assert train(program).graphs == expected.graphs
    assert train(program).hits == 1


def cut(cache: Path) -> None:
    for path in companions(cache):
        path.write_bytes(path.read_bytes()[:-3])


def remove_companions(cache: Path) -> None:
    for path in companions(cache):
        path.unlink()


def remove_provenance(cache: Path) -> None:
    for path in companions(cache, "provenance"):
        path.unlink()


def remove_all(cache: Path) -> None:
    remove_companions(cache)
    remove_provenance(cache)


def remove_one(cache: Path) -> None:
    companions(cache)[0].unlink()


def remove_entries(cache: Path) -> None:
    found = [path for path in (cache / "aotautograd").rglob("*") if path.is_file()]
    assert found
    for path in found:
        path.unlink()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Run]:
    """Fills a folder with caches of a first run, which it returns; they are made once a device."""
    made: dict[str, tuple[Path, Run]] = {}

    def fill(device: str, folder: Path) -> Run:
        if device not in made:
            first = tmp_path_factory.mktemp("first")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(first))
                made[device] = (first, train(device=device))
        first, run = made[device]
        shutil.copytree(first, folder, dirs_exist_ok=True)
        return run

    return fill


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lose", [cut, remove_companions, remove_all, remove_one, remove_entries])
def test_what_is_lost_is_learned_again(
    lose: Callable[[Path], None],
    device: str,
    cache: Path,
    filled: Callable[[str, Path], Run],
) -> None:
    miss = filled(device, cache)
    lose(cache)
    # WHEN something of it is lost THEN it is a miss, and right
    again = train(device=device)
    assert again.hits == 0
    assert not again.reasons(LedgerKind.FALLBACK)
    assert_same(again, miss)
    # AND it was stored anew
    third = train(device=device)
    assert third.hits == 1
    assert_same(third, miss)


def test_a_hit_needs_its_companion_alone(
    cache: Path, filled: Callable[[str, Path], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    miss = filled("cpu", cache)
    # GIVEN that Inductor's cache is not asked, and that no profile is
    remove_provenance(cache)
    companions = mock.Mock(wraps=companion.STORED._decoder)
    details = mock.Mock(wraps=companion._DETAILS)
    monkeypatch.setattr(companion.STORED, "_decoder", companions)
    monkeypatch.setattr(companion, "_DETAILS", details)
    compiled_anew(Model())(torch.randn(4, 8))
    # THEN what profiles alone show is not read
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert companions.decode.call_count == 2
    assert not details.decode.called
    # AND a profile has all of it
    hit = train()
    assert hit.hits == 1
    assert details.decode.called
    assert_same(hit, miss)


def test_entries_of_plain_inductor_are_apart() -> None:
    plain = train(backend="inductor")
    miss = train()
    assert (plain.hits, miss.hits) == (0, 0)
    assert (train(backend="inductor").hits, train().hits) == (1, 1)


def test_entries_that_contain_their_code_are_hits() -> None:
    with functorch_config.patch(bundled_autograd_cache=True):
        miss, again = train(), train()
    assert (miss.hits, again.hits) == (0, 1)
    assert_same(again, miss)


def test_a_leaf_is_told_from_what_was_computed() -> None:
    def function(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        w.add_(x)
        return w * 2

    def leaves(w: torch.Tensor) -> list[bool]:
        torch._dynamo.reset()
        with memprof.profile() as session, torch.no_grad():
            torch.compile(function, backend="memprof")(w, torch.ones(8))
        (graph,) = session.profile().graphs
        return [info.is_leaf for info in graph.description.metadata.input_info]

    w = torch.ones(8, requires_grad=True)
    for _ in range(2):  # a miss, and a hit
        assert leaves(w.clone()) == [False, True]
        assert leaves(w) == [True, True]


def test_what_a_retained_backward_donates_says_nothing_of_its_forward() -> None:
    def run(*, retain: bool) -> list[str]:
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(Model(), backend="memprof")
        with memprof.profile() as session:
            compiled(torch.randn(4, 8))[0].sum().backward(retain_graph=retain)
        return [e.reason for e in session.profile().ledger if e.kind is LedgerKind.COMPILED]

    run(retain=True)
    # WHEN a later process finds it THEN its word on the forward is as it was
    assert run(retain=False) == []
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


def test_where_a_miss_is_an_error_the_graph_runs_unnamed(cache: Path) -> None:
    with functorch_config.patch(strict_autograd_cache=True):
        miss = train()
        remove_companions(cache)
        run = train()
    assert run.hits == 1
    for a, e in zip(run.results, miss.results, strict=True):
        assert torch.equal(a, e)
    assert run.reasons(LedgerKind.NOT_OBSERVED) == [
        "it came from a cache, and what describes it was not beside it"
    ] * len(run.profile.graphs)


def test_a_failure_to_read_is_a_miss(
    monkeypatch: pytest.MonkeyPatch, cache: Path, filled: Callable[[str, Path], Run]
) -> None:
    miss = filled("cpu", cache)

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("memprof is broken here")

    monkeypatch.setattr(companion.STORED, "read", broken)
    again = train()
    assert again.hits == 0
    assert_same(again, miss)
    (reason,) = set(again.reasons(LedgerKind.FALLBACK))
    assert "memprof is broken here" in reason


def compiled_anew(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """The function as a process of its own compiles it: only what is on the disk is known."""
    torch._dynamo.reset()
    counters.clear()
    return torch.compile(function, backend="memprof", **how)


def run_of(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], **how: Any) -> Run:
    """Calls a function once a step with each of ``inputs``, as in a process of its own."""
    compiled = compiled_anew(function, **how)
    with memprof.profile() as session:
        results = []
        for x in inputs:
            torch.compiler.cudagraph_mark_step_begin()
            results.append(compiled(x).clone())
    return Run(session.profile(), results, counters["aot_autograd"]["autograd_cache_hit"])


def test_sizes_that_vary_are_read_off_as_before() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    inputs = [torch.ones(n) for n in (8, 16, 8, 24)]
    how = {"dynamic": True, "options": {"max_programs": 2}}
    miss = run_of(function, inputs, **how)
    hit = run_of(function, inputs, **how)
    assert (miss.hits, hit.hits) == (0, 1)
    assert_same(hit, miss)
    assert [p.key for p in hit.profile.graphs[0].programs] == [(8,), (16,)]


def test_one_key_of_inductor_has_several_graphs() -> None:
    # GIVEN sizes that Inductor tells apart by guards alone
    def pooled(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool2d(x, 3) + 1

    inputs = [torch.rand(2, 3, n, n) for n in (8, 9, 12)]
    for _ in range(3):
        compiled = compiled_anew(pooled, dynamic=True)
        for x in inputs:
            for _ in range(3):
                torch.testing.assert_close(compiled(x), pooled(x))
    assert counters["aot_autograd"]["autograd_cache_hit"]


def test_one_graph_of_inductor_is_a_part_of_several_programs() -> None:
    def both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a * 2, b * 3

    # GIVEN a forward that is the same whichever of two inputs asks for a gradient
    for _ in range(3):
        compiled = compiled_anew(both)
        for first in (True, False):
            a = torch.ones(4, requires_grad=first)
            b = torch.ones(4, requires_grad=not first)
            for _ in range(3):
                a.grad = b.grad = None
                y, z = compiled(a, b)
                assert (y.requires_grad, z.requires_grad) == (first, not first)
                (5 * y.sum() + 7 * z.sum()).backward()
                expected = torch.full((4,), 10.0 if first else 21.0)
                assert torch.equal(a.grad if first else b.grad, expected)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 2


def test_what_leaves_no_trace_in_a_graph_is_told_apart() -> None:
    def first(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x.sin(), x.cos()
        d = a.detach()
        return d, b

    def second(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x.sin(), x.cos()
        d = b.detach()
        return a, d

    for function, learns in [(first, (False, True)), (second, (True, False))] * 2:
        compiled = compiled_anew(function)
        for _ in range(3):
            x = torch.arange(4.0, requires_grad=True)
            out = compiled(x)
            assert tuple(o.requires_grad for o in out) == learns
            out[learns.index(True)].sum().backward()
            expected = -x.sin() if learns[1] else x.cos()
            torch.testing.assert_close(x.grad, expected.detach())
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


@pytest.mark.simgpu
def test_a_hit_is_cut_into_the_same_parts() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        z = y.cpu().cos().to(x.device)
        return z.exp() + y

    inputs = [torch.arange(8.0, device="cuda") for _ in range(5)]
    miss = run_of(function, inputs)
    hit = run_of(function, inputs)
    assert (miss.hits, hit.hits) == (0, 1)
    assert_same(hit, miss)
    assert hit.reasons(LedgerKind.NOT_GRAPHED) == miss.reasons(LedgerKind.NOT_GRAPHED)
    assert miss.reasons(LedgerKind.NOT_GRAPHED)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * 2 * x


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Square.apply(self.fc(x))  # type: ignore[no-untyped-call]
        return out


@pytest.mark.parametrize(
    "how",
    [
        {"options": {"freezing": True}},
        {"options": {"observe_runs": 0}},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [Model, WithFunction])
def test_with_whatever_option_the_second_run_is_the_first(
    make: Callable[[], nn.Module], how: dict[str, Any]
) -> None:
    miss = train(make, **how)
    again = train(make, **how)
    assert not again.reasons(LedgerKind.FALLBACK)
    assert_same(again, miss)


def test_captured_backwards_are_traced_in_every_process() -> None:
    miss = train(options={"compiled_autograd": True})
    again = train(options={"compiled_autograd": True})
    assert again.hits == 0
    assert not again.reasons(LedgerKind.FALLBACK)
    for a, e in zip(again.results, miss.results, strict=True):
        assert torch.equal(a, e)


PROGRAM = """
import sys
import torch
from torch import nn
from torch._dynamo.utils import counters

torch.compiler.load_cache_artifacts(open(sys.argv[1], "rb").read())
torch.compile(nn.Linear(8, 16))(torch.ones(2, 8)).sum().backward()
print(counters["aot_autograd"]["autograd_cache_hit"], "memprof.compile_backend" in sys.modules)
"""


def test_artifacts_that_torch_saves_carry_it_to_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: str, load: bytes = b"") -> tuple[int, bytes]:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / folder))
        CacheArtifactManager.clear()
        if load:
            torch.compiler.load_cache_artifacts(load)
        hits = train(steps=1).hits
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        return hits, saved[0]

    none, saved = run("first")
    # GIVEN the bytes alone WHEN they are loaded THEN there is a hit, and what it saves is as good
    hits, saved_again = run("second", load=saved)
    assert (none, hits, run("third", load=saved_again)[0]) == (0, 1, 1)
    # AND a process without memprof loads them, too
    (tmp_path / "saved").write_bytes(saved)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "fourth"))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0 False"
