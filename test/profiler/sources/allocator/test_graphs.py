"""``memprof.watch_graphs()``: what CUDA graphs hold, whoever captures them.

Each program is a process of its own, and the arithmetic is the oracle: the parts of every pool add
up to what ``torch.cuda.memory_snapshot()`` has of it.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import memprof

from .programs import run, script

pytestmark = pytest.mark.simgpu

_ENGINE = Path(__file__).parents[4] / "examples" / "serving"

_BEGIN = (
    f"import sys; sys.path.append({str(Path(__file__).parents[3])!r})"
    + """
import contextlib, gc, logging
import torch, memprof
from memprof.profiler.model import Fate, LedgerKind
from framing import findings
from torch import nn

N = 512
MIB = 1 << 20
BEGIN, END = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end
x = torch.ones(256, N, device="cuda")


def mib(n):
    return torch.empty(n * MIB, dtype=torch.uint8, device="cuda")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(N, 4 * N), nn.ReLU(), nn.Linear(4 * N, N)).cuda()


def reserved():
    found = {}
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment["segment_pool_id"])
        if pool != (0, 0):
            name = f"private {pool[0]},{pool[1]}"
            found[name] = found.get(name, 0) + segment["total_size"]
    return found


def ended(session):
    \"\"\"The pools of a session that has just ended; torch is as it was.\"\"\"
    assert (torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end) == (BEGIN, END)
    assert not torch._C._cuda_isHistoryEnabled()
    profile = session.profile()
    pools = profile.graph_pools
    assert not findings(profile), findings(profile)
    assert {p.name: p.at_end for p in pools if p.at_end} == reserved()
    for p in pools:
        assert p.gone or p.reserved == p.at_end
        assert p.reserved == p.grew_outside + sum(g.grew for g in p.graphs)
        used = sum(s.nbytes for s in p.shares) + p.other_shares
        assert p.reserved == used + p.live_outside + p.unused
        for g in p.graphs:
            assert g.peak == g.rounding + sum(r.nbytes for r in g.at_peak)
            assert g.alone <= g.used <= max(p.most_reserved, p.reserved)
            assert g.peak <= g.used
    return pools


def left(graph):
    found = {}
    for row in graph.left:
        found[row.fate] = found.get(row.fate, 0) + row.nbytes
    return found


def refusals(session):
    ledger = session.profile().ledger
    return [e.reason for e in ledger if e.kind is LedgerKind.FALLBACK]
"""
)


def _run(program: str, *arguments: str) -> str:
    # Nothing that is looked at here depends on values, and computing takes time.
    return run(_BEGIN + program, *arguments, SIMGPU_VALUES="0")


def _script(tmp_path: Path, program: str, *arguments: str) -> str:
    return script(tmp_path / "program.py", _BEGIN + program, *arguments)


def test_an_engine_that_captures_as_vllm_does(tmp_path: Path) -> None:
    program = """
sys.path.insert(0, sys.argv[1])
from engine import SIZES, Decoder, Engine

model = Decoder(vocabulary=64_000, width=256, layers=2, heads=8, batch=64, length=64).cuda()


def pool_of(engine):
    return reserved()[f"private {engine.pool[0]},{engine.pool[1]}"]


sizes = sorted(SIZES, reverse=True)
for weak in (True, False):
    with memprof.watch_graphs(sys.argv[2]) as session:
        engine = Engine(model, weak=weak)
        engine.capture()
    (pool,) = ended(session)
    assert pool.reserved == pool_of(engine)
    assert [g.number for g in pool.graphs] == list(range(1, len(sizes) + 1))
    assert {g.frame.code for g in pool.graphs} == {
        "with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):"
    }
    first, *others = pool.graphs
    logits = [r for r in first.at_peak if "self.head(x)" in r.frame.code]
    assert {r.modules for r in logits} == {"Decoder > Linear"}
    # From 2.14 on workspaces are let go of within the capture, and are asked for by the same line.
    assert 4 * 64 * 64_000 <= sum(r.nbytes for r in logits) <= 4 * 64 * 64_000 + 40 * MIB
    if weak:  # All fit into what the largest has left, and nothing stays.
        assert first.grew == pool.reserved
        assert sum(g.grew for g in others) == 0
        assert all(g.stays == 0 for g in pool.graphs)
        assert all(g.alone < g.used / 4 for g in others), [(g.alone, g.used) for g in others]
        assert any(set(s.graphs) == {g.number for g in pool.graphs} for s in pool.shares)
    else:  # Each has logits of its own.
        for size, g in zip(sizes, pool.graphs):
            held = left(g)
            assert held.pop(Fate.HELD) == 4 * size * 64_000
            assert not held, held
    del engine
    gc.collect()
    torch.cuda.empty_cache()
"""
    file = tmp_path / "run.memprof"
    _run(program, str(_ENGINE), str(file))
    # AND the file has it, in the report, the JSON and the page
    loaded = memprof.load(file)
    (pool,) = loaded.profile().graph_pools
    command = [sys.executable, "-m", "memprof", "report", "--full", str(file)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    text = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    assert f"\nCUDA graphs in pool {pool.name} on cuda:0\n" in text
    assert "#1 torch.cuda.graph" in text
    assert "held by a tensor" in text
    out = subprocess.run([*command, "--json"], env=environment, capture_output=True).stdout
    (data,) = json.loads(out)["graph_pools"]
    assert sum(g["grew"] for g in data["graphs"]) + data["grew_outside"] == data["reserved"]
    loaded.to_html(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    (packed,) = re.findall(r'id="payload">([A-Za-z0-9+/=]+)</script>', page)
    assert "CUDA graphs in pool" in gzip.decompress(base64.b64decode(packed)).decode()


def test_pools_of_one_graph_of_two_and_of_none(tmp_path: Path) -> None:
    program = """
graphs, kept = [], []
spare = torch.cuda.MemPool()
unused = torch.cuda.MemPool()
other = torch.cuda.Stream()


def capture(*sizes, keep=False, **where):
    graphs.append(torch.cuda.CUDAGraph())
    with torch.cuda.graph(graphs[-1], **where):
        tensors = [mib(n) for n in sizes]
        if keep:
            kept.append(tensors.pop())
        del tensors
    return graphs[-1]


with memprof.watch_graphs() as session:
    with memprof.name_graphs("own"):
        capture(6, 40)
    shared = capture(32, 12, keep=True).pool()
    capture(30, pool=shared)
    capture(20, pool=shared, stream=other)
    with torch.cuda.use_mem_pool(spare):
        kept.append(mib(14))
    capture(16, pool=spare.id)
    with torch.cuda.use_mem_pool(unused):
        kept.append(mib(10))
pools = {tuple(g.number for g in p.graphs): p for p in ended(session)}
own, two, mixed, none = (pools[numbers] for numbers in ((1,), (2, 3, 4), (5,), ()))
(graph,) = own.graphs
assert (graph.name, graph.frame.function) == ("own", "capture")
assert (graph.maker, graph.failed, graph.deleted) == ("torch.cuda.graph", "", False)
assert (graph.peak, graph.used, graph.asked, graph.requests) == (*[46 * MIB] * 3, 2)
assert (graph.grew, graph.stays) == (60 * MIB, 0)

# The second graph has the 32 MiB that the first one let go of, not the 12 that it keeps, and
# nothing of what lies on another stream is for the third.
first, second, third = two.graphs
assert left(first) == {Fate.HELD: 12 * MIB}
assert (first.grew, second.grew, third.grew) == (44 * MIB, 0, 20 * MIB)
by_graphs = {s.graphs: s.nbytes for s in two.shares}
assert by_graphs == {
    (first.number, second.number): 30 * MIB,
    (first.number,): 14 * MIB,
    (third.number,): 20 * MIB,
}
assert "on 2 streams" in two.notes[0]

# What was in the pool before its first capture is no graph's.
(graph,) = mixed.graphs
assert (mixed.grew_outside, graph.grew) == (14 * MIB, 16 * MIB)
assert [(r.fate, r.nbytes) for r in mixed.outside] == [(Fate.HELD, 14 * MIB)]
assert mixed.outside[0].frame.function == "mib"
assert (mixed.live_outside, graph.alone) == (14 * MIB, 16 * MIB)
assert [(r.fate, r.nbytes) for r in none.outside] == [(Fate.HELD, 10 * MIB)]
"""
    _script(tmp_path, program)


def test_a_graph_that_is_deleted_and_captures_that_fail(tmp_path: Path) -> None:
    program = """
class Broken(Exception):
    pass


def capture(n, graph=None, error=None, **where):
    graph = graph or torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **where):
        tensor = mib(n)
        if error is Broken:
            raise Broken("theirs\\nand more")
        if error:
            torch.cuda.synchronize()
        del tensor
    return graph


with memprof.watch_graphs() as session:
    gone = capture(40)
    del gone
    torch.cuda.empty_cache()
    one = capture(30)
    shared = one.pool()
    two = capture(24, pool=shared)
    del one  # its pool stays, for the other one
    two_reset = capture(26)
    two_reset.reset()
    again = capture(22)
    keeps = again.pool()
    other = capture(12, pool=keeps)
    again.reset()
    capture(18, graph=again)
    for pool in (None, shared):
        with contextlib.suppress(Broken):
            capture(28, error=Broken, pool=pool)
    with contextlib.suppress(RuntimeError):
        capture(44, error=RuntimeError)
    torch.cuda.set_stream(torch.cuda.default_stream())  # torch 2.11 leaves its own one
    gc.collect()
    torch.cuda.empty_cache()
pools = ended(session)
by = {g.asked // MIB: (g, p) for p in pools for g in p.graphs if not g.failed}
graph, pool = by[40]
assert (pool.gone, pool.reserved, pool.at_end) == (True, 40 * MIB, 0)
assert (graph.deleted, graph.alone) == (False, 40 * MIB)  # as it was then
graph, pool = by[30]
assert (graph.deleted, pool.gone, pool.reserved) == (True, False, 30 * MIB)
assert [s.nbytes for s in pool.shares] == [24 * MIB]
assert pool.unused == 6 * MIB
assert by[26][1].gone
# The same object, captured twice: two graphs, of which the first is deleted.
assert by[22][0].deleted and not by[22][1].gone
assert not by[18][0].deleted and by[18][1] is not by[22][1]
failed = [(g.failed, g.asked // MIB, g.deleted) for p in pools for g in p.graphs if g.failed]
by_python = [f for f in failed if f[0] == "Broken: theirs"]
assert [f[1] for f in by_python] == [28, 28], failed
(by_cuda,) = (f for f in failed if f not in by_python)
# It failed before it had said where it allocates.
assert by_cuda[1] == 0 and "capturing" in by_cuda[0], by_cuda
"""
    _script(tmp_path, program)


def test_callables_that_are_graphed(tmp_path: Path) -> None:
    program = """
model = mlp()
sample = torch.ones(256, N, device="cuda", requires_grad=True)
with memprof.watch_graphs() as session:
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
graphed(sample).sum().backward()
(pool,) = ended(session)
forward, backward = pool.graphs
assert {g.maker for g in pool.graphs} == {"make_graphed_callables"}
assert "make_graphed_callables(model" in backward.frame.code
assert pool.grew_outside == 0
# The hidden layer is made in the forward and let go of in the backward; outputs and gradients stay.
hidden = [(r.nbytes, r.fate) for r in forward.at_peak if r.modules == "Sequential > ReLU"]
assert hidden == [(4 * 256 * 4 * N, Fate.GIVEN_BACK)], forward.at_peak
assert left(forward)[Fate.HELD] == 4 * 256 * N, left(forward)
gradients = sum(p.numel() * 4 for p in model.parameters()) + sample.numel() * 4
assert left(backward)[Fate.HELD] == gradients, left(backward)
assert set(left(forward)) | set(left(backward)) <= {Fate.HELD, Fate.WORKSPACE}
"""
    _script(tmp_path, program)


_COMPILED = """
def train(run, model, batches=(256, 128)):
    for n in batches:
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            model.zero_grad()
            run(x[:n]).sum().backward()


def recorded(pool, maker):
    \"\"\"Recordings of a pool of trees, and the one that only keeps it.\"\"\"
    keeper, *found = pool.graphs
    assert {g.maker for g in pool.graphs} == {maker}
    assert keeper.requests == 0 and all(g.requests for g in found)
    return found
"""


@pytest.mark.parametrize("how", ["reduce-overhead", "cudagraphs"])
def test_graph_trees_of_torch(how: str, tmp_path: Path) -> None:
    program = """
model = mlp()
how = sys.argv[1]
with memprof.watch_graphs() as session:
    if how == "cudagraphs":
        run = torch.compile(model, backend=how)
    else:
        run = torch.compile(model, mode=how)
    train(run, model, (256, 128) if how != "cudagraphs" else (256,))
(pool,) = ended(session)
found = recorded(pool, "torch's graph trees")
assert len(found) == (4 if how == "reduce-overhead" else 2)
# Warm-ups made the pool grow, and the recordings fit into what they left.
assert pool.grew_outside > 0.9 * pool.reserved
assert pool.shared > 0
forward = found[0]
assert "run(x[:n])" in forward.frame.code
rows = [r for r in forward.at_peak if r.frame is not None]
assert rows
if how == "reduce-overhead":
    assert any("addmm" in r.nodes for r in rows if r.compiled), rows
    assert all(r.compiled for r in rows if "cuBLAS" not in r.fate.label), rows
del run
torch._dynamo.reset()
gc.collect()
torch.cuda.empty_cache()
assert sum(reserved().values()) < pool.reserved
"""
    _script(tmp_path, _COMPILED + program, how)


def test_memprofs_own_trees_are_there_once(tmp_path: Path) -> None:
    program = """
from memprof.cudagraph_trees.explain.history import managers

model = mlp()
with memprof.watch_graphs(sys.argv[1]) as session:
    train(torch.compile(model, backend="memprof"), model)
(pool,) = ended(session)
found = recorded(pool, "memprof's graph trees")
assert [g.name for g in found] == [
    "0/0 forward #0", "0/0 backward #1", "0/1 forward #2", "0/1 backward #3"
], found
(manager,) = managers()
assert manager.pool.reserved_bytes() == pool.reserved
# The ledger has the same recordings, by the same numbers.
entries = [e.tree for e in session.profile().ledger if e.kind is LedgerKind.RECORD]
assert [f"{t.function} #{t.node}" for t in entries] == [g.name for g in found]
assert any(r.nodes for g in found for r in g.at_peak)
"""
    file = tmp_path / "run.memprof"
    _script(tmp_path, _COMPILED + program, str(file))
    assert len(memprof.load(file).profile().graph_pools) == 1


def test_what_stays_from_capture_to_capture() -> None:
    program = """
from memprof.profiler.live.graph_pools import leaks, left_behind

cache, graphs = [], []


weight = torch.ones(MIB, device="cuda", requires_grad=True)
with memprof.watch_graphs() as session:
    pool = torch.cuda.graph_pool_handle()
    for _ in range(3):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], pool=pool):
            y = weight.exp()
            cache.append(y.grad_fn)  # has saved y, where Python does not see it
            cache.append(mib(2))
            del y
(pool,) = ended(session)
for g in pool.graphs:
    assert left(g) == {Fate.UNEXPLAINED: 4 * MIB, Fate.HELD: 2 * MIB}, left(g)
(leak, graphs), (held, of_held) = left_behind(pool)
assert leaks(leak, graphs) and (leak.nbytes, graphs) == (12 * MIB, (1, 2, 3))
assert not leaks(held, of_held) and held.nbytes == 6 * MIB
"""
    _run(program)


def test_sessions_inside_each_other_and_of_both_kinds() -> None:
    program = """
import threading

graph = torch.cuda.CUDAGraph()
for outer in (memprof.watch_graphs, lambda: memprof.profile(eager=True)):
    for inner in (memprof.watch_graphs, lambda: memprof.profile(eager=True)):
        with outer():
            try:
                with inner():
                    raise AssertionError
            except RuntimeError as e:
                assert "watch_graphs" in str(e)
            assert torch._C._cuda_isHistoryEnabled()

# One session for both, of which neither changes the other.
with memprof.profile(eager=True, graphs=True) as session:
    with torch.cuda.graph(graph):
        kept = [mib(12), mib(22)]
        kept.pop()
(pool,) = ended(session)
(account,) = session.profile().accounts
assert account.unexplained == 0 and not account.notes
assert [(p.name, p.reserved) for p in account.pools if p.name != "general"] == [
    (pool.name, pool.reserved)
]
del graph, kept
gc.collect()
torch.cuda.empty_cache()

# A capture that began before the session is not seen, one that the session ends in is said to be.
graph, late = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    graph.capture_begin()
    with memprof.watch_graphs() as session:
        graph.capture_end()
        late.capture_begin(torch.cuda.graph_pool_handle())
        tensor = mib(24)
    late.capture_end()
pools = session.profile().graph_pools
(seen,) = [g for p in pools for g in p.graphs]
assert (seen.maker, seen.asked) == ("capture_begin", 24 * MIB)
assert seen.failed == "it had not ended when the session did"
assert not findings(session.profile())
assert torch.cuda.CUDAGraph.capture_begin is BEGIN

# Two threads capture at once, each into a pool of its own.
def capture(n, barrier):
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
        barrier.wait()
        mib(n)
        barrier.wait()
        graph.capture_end()
    graphs.append(graph)


graphs = []
with memprof.watch_graphs() as session:
    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=capture, args=(n, barrier)) for n in (30, 40)]
    [t.start() for t in threads]
    [t.join() for t in threads]
found = [g for p in session.profile().graph_pools for g in p.graphs]
assert sorted(g.asked // MIB for g in found) == [30, 40]
assert sorted(g.grew // MIB for g in found) == [30, 40]
"""
    _run(program)


def test_why_there_is_nothing() -> None:
    program = """
from memprof.profiler.sources.allocator.graph_watch import GraphWatch

with memprof.watch_graphs() as session:
    mib(1)
(why,) = refusals(session)
assert why == "no account of CUDA graphs: nothing was captured, and no pool was made"

torch.cuda.memory._record_memory_history()
with memprof.watch_graphs() as session:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        mib(1)
(why,) = refusals(session)
assert "somebody else has the allocator's history on" in why
assert torch._C._cuda_isHistoryEnabled()
torch.cuda.memory._record_memory_history(None)


def fails(*_):
    raise ZeroDivisionError("ours")


for name in ("_before", "_finish", "_look", "made", "pools"):
    works = getattr(GraphWatch, name)
    setattr(GraphWatch, name, fails)
    try:
        with memprof.watch_graphs() as session:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
                tensor = mib(1)
            graph.replay()
    finally:
        setattr(GraphWatch, name, works)
    assert session.profile().graph_pools == []
    (why,) = refusals(session)
    assert "ZeroDivisionError: ours" in why, (name, why)
    assert torch.cuda.CUDAGraph.capture_begin is BEGIN
    assert not torch._C._cuda_isHistoryEnabled()

try:
    with memprof.watch_graphs() as session:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            mib(12)
        raise KeyError("theirs")
except KeyError:
    pass
assert [g.asked for p in ended(session) for g in p.graphs] == [12 * MIB]
"""
    err = _run(program)
    assert "There is no account of CUDA graphs: somebody else has" in err


def test_random_captures_add_up() -> None:
    program = """
import random


def play(seed):
    # Captures of a random program into one pool.
    rng = random.Random(seed)
    pool = torch.cuda.graph_pool_handle()
    streams = [torch.cuda.Stream() for _ in range(2)] if seed % 2 else [torch.cuda.Stream()]
    graphs, outputs = [], {}
    for number in range(rng.randint(3, 7)):
        steps, stream = rng.random(), rng.choice(streams)
        graph, live = torch.cuda.CUDAGraph(), []
        units = [rng.choice([9_000, 700_000, 3 * MIB, 12 * MIB]) for _ in range(9)]
        sizes = [unit * rng.randint(1, 5) for unit in units]
        order = [rng.randrange(3) for _ in range(9)]
        keep = rng.random() < 0.4
        if order[0]:  # whoever captures in between
            outputs.pop(number - 2, None)
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            for size, action in zip(sizes, order):
                live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                if action and len(live) > 1:
                    live.pop(-action)
            if keep:
                outputs[number] = live[0]
            del live
        graphs.append(graph)
    return graphs, outputs, pool


def nbytes(pool):
    return reserved()[f"private {pool[0]},{pool[1]}"]


for seed in range(int(sys.argv[1])):
    with memprof.watch_graphs() as session:
        graphs, outputs, pool = play(seed)
    (found,) = ended(session)
    assert found.reserved == nbytes(pool), seed
    assert found.reserved == found.grew_outside + sum(g.grew for g in found.graphs), seed
    used = sum(s.nbytes for s in found.shares) + found.other_shares
    assert found.reserved == used + found.live_outside + found.unused, seed
    assert all(0 < g.alone <= g.used or not g.alone for g in found.graphs), seed
    del graphs, outputs
    gc.collect()
    torch.cuda.empty_cache()
"""
    _run(program, "25")


_SERVE = """
import torch

def main():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = torch.empty(30 << 20, dtype=torch.uint8, device='cuda')
    print('served')

main()
"""


@pytest.mark.parametrize("ending", ["", "raise KeyError('theirs')"])
def test_run_graphs(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "serve.py"
    path.write_text(_SERVE + f"{ending}\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "memprof", "run", "--graphs", str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "served\n", done.stderr
    assert done.returncode == bool(ending)
    (file,) = tmp_path.glob("cuda_graphs_*.memprof")
    assert f"memprof run: CUDA graphs are in ./{file.name}" in done.stderr.replace(
        str(tmp_path), "."
    )
    (pool,) = memprof.load(file).profile().graph_pools
    # What was a variable of main() is gone at the end, and is described as it was.
    assert pool.gone
    assert [(g.grew, g.stays) for g in pool.graphs] == [(30 << 20, 30 << 20)]
    refused = subprocess.run(
        [sys.executable, "-m", "memprof", "run", "--graphs", "--interval", "1", str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "--interval: of the tracker, which --graphs runs without" in refused.stderr
