"""What people call memory by name, in a session that follows the allocator: state, checkpointed
inputs, batches, buffers of DDP and FSDP, workspaces; and the lines of backwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.profiler.model import SourceFrame
from memprof.profiler.sources.allocator.allocator_session import AllocatorSession
from memprof.profiler.sources.allocator.marks import Phase
from memprof.profiler.sources.allocator.where import line_of_caller

from .programs import script

simgpu = pytest.mark.simgpu

_BEGIN = """
import copy, sys
import torch, memprof
from memprof.profiler.model import Category
from torch import nn
from torch.utils.checkpoint import checkpoint

N = 512
WEIGHT = 4 * N * N


def account_of(session):
    (account,) = session.profile().accounts
    assert account.unexplained == 0, account.unexplained
    assert account.live + account.rounding + account.awaiting + account.free == account.reserved
    assert not account.notes, account.notes
    return account


def lines(account, category, detail=""):
    found = {}
    for r in account.rows:
        if r.category is category and detail in r.detail:
            code = r.frame.code if r.frame else None
            found[code] = found.get(code, 0) + r.nbytes
    return found
"""

_TRAINING = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(N, N, bias=False) for _ in range(3))
        self.norm = nn.BatchNorm1d(N)
        self.register_buffer("cache", torch.zeros(64, N))
        self.register_buffer("table", torch.ones(128, N).mul_(2))

    def forward(self, x):
        with torch.no_grad():
            self.cache[:4].copy_(x[:4])
        y = self.norm(x).exp()  # first
        y = checkpoint(self.a, y, use_reentrant=False)
        y = y.sin()  # second
        y = checkpoint(self.b, y, use_reentrant=True)
        return self.c(y.cos()).relu() + self.table[0]


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, i):
        return {"x": torch.zeros(1000, N), "y": [torch.zeros(7)]}


from torch.utils.checkpoint import CheckpointFunction

entry = vars(CheckpointFunction)["forward"]
with memprof.profile(eager=True) as session:
    net = Net().cuda()  # model
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    average = copy.deepcopy(net)  # average
    teacher = copy.deepcopy(net)  # teacher
    for i, batch in zip(range(4), torch.utils.data.DataLoader(Data(), batch_size=None)):
        x = batch["x"].to("cuda")
        mask = torch.ones(1000, N, device="cuda")
        net(x).sum().backward()  # backward
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, p in 4 * [*zip(average.parameters(), net.parameters())]:
                kept.lerp_(p, 0.1)  # 16 times in all
account = account_of(session)
STATISTICS = 2 * 4 * N + 8
OWN = 3 * WEIGHT + 2 * 4 * N
CONSTANT = 128 * N * 4

state = lines(account, Category.PERSISTENT_STATE)
assert state.pop("net = Net().cuda()  # model") == 64 * N * 4 + STATISTICS
assert state.pop("average = copy.deepcopy(net)  # average") == STATISTICS
assert state.pop("teacher = copy.deepcopy(net)  # teacher") == STATISTICS
assert not state, state
parameters = lines(account, Category.PARAMETER)
assert parameters["net = Net().cuda()  # model"] == OWN + CONSTANT
for copy_of in ("average", "teacher"):
    code = f"{copy_of} = copy.deepcopy(net)  # {copy_of}"
    assert parameters[code] == OWN + CONSTANT + 64 * N * 4

inputs = lines(account, Category.CHECKPOINTED_INPUT)
assert set(inputs) == {"y = self.norm(x).exp()  # first", "y = y.sin()  # second"}, inputs
assert set(inputs.values()) == {4 * 1000 * N}
assert lines(account, Category.INPUT)['x = batch["x"].to("cuda")'] == 4 * 1000 * N
assert lines(account, Category.INPUT)['mask = torch.ones(1000, N, device="cuda")'] == 4 * 1000 * N
workspaces = [r for r in account.rows if r.category is Category.WORKSPACE]
assert workspaces and {r.detail for r in workspaces} == {"cuBLAS"}
assert not [r for r in account.rows if r.category is Category.UNKNOWN or r.frame is None]
waits = {r.frame.code for r in account.rows if r.waits}
assert waits == {"net(x).sum().backward()  # backward"}, waits
(outside,) = account.outside
assert outside.nbytes > 0 and not outside.estimated
assert vars(CheckpointFunction)["forward"] is entry
"""


@simgpu
def test_a_training_with_all_of_them(tmp_path: Path) -> None:
    script(tmp_path / "program.py", _BEGIN + _TRAINING)


_DISTRIBUTED = """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

kind = sys.argv[1]
BUFFER = Category.COMMUNICATION_BUFFER
with memprof.profile(eager=True) as session:
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    model = nn.Sequential(*(nn.Sequential(nn.Linear(N, N), nn.ReLU()) for _ in range(4))).cuda()
    if kind.startswith("ddp"):
        model = nn.parallel.DistributedDataParallel(
            model, device_ids=[0], bucket_cap_mb=1, gradient_as_bucket_view=kind == "ddp-view"
        )

        def reduce(_, bucket):  # a fake group has no result
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        model.register_comm_hook(None, reduce)
    elif kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        for i in range(4):
            model[i] = FullyShardedDataParallel(model[i], device_id=0)
        model = FullyShardedDataParallel(model, device_id=0)
    else:
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh("cuda", (4,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for i in range(4):
        model(torch.ones(16, N, device="cuda")).sum().backward()
        optimizer.step()
account = account_of(session)
WHOLE = 4 * (WEIGHT + 4 * N)
found = {}
for r in account.rows:
    found[r.what] = found.get(r.what, 0) + r.nbytes
buffers = {what: n for what, n in found.items() if what.startswith("communication buffer")}
if kind == "ddp":
    assert buffers["communication buffer (DDP's buckets)"] == WHOLE, found
    assert found["gradient"] == WHOLE, found
elif kind == "ddp-view":
    # Two sets until the first ones go: gradients of the first step are views of them.
    held = buffers["communication buffer (DDP's buckets: gradients are views of them)"]
    assert held in (WHOLE, 2 * WHOLE), found
    assert "gradient" not in found, found
elif kind == "fsdp1":
    assert buffers["communication buffer (parameters gathered by FSDP1)"] >= WHOLE // 4, found
    assert found["parameter"] == WHOLE // 4, found
else:
    assert buffers["communication buffer (all-gather of FSDP)"] >= WHOLE // 4, found
    assert found["parameter"] == WHOLE // 4, found
    assert found["parameter (all-gathered by FSDP)"] >= WHOLE // 4, found
assert not [r for r in account.rows if r.category is Category.UNKNOWN or r.frame is None]
# What modules asked for that FSDP or DDP had called is theirs.
assert all(r.category is not BUFFER for r in account.rows if "ReLU" in r.modules)
"""


@simgpu
@pytest.mark.parametrize("kind", ["ddp", "ddp-view", "fsdp1", "fsdp2"])
def test_buffers_of_distributed_training(tmp_path: Path, kind: str) -> None:
    script(tmp_path / "program.py", _BEGIN + _DISTRIBUTED, kind)


_RECOMPUTED = """
MIB = 1 << 20
BATCH, WIDE = 1024, 4096  # 16 MiB of what is wide, 1 MiB of what is narrow
RECOMPUTED = "activation (recomputed)"


def full(gradient):
    torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, WIDE), nn.Linear(WIDE, 256)

    def forward(self, x):
        y = nn.functional.gelu(self.up(x))
        if y.requires_grad and not torch.compiler.is_compiling():
            y.register_hook(full)  # where the GELU's backward begins, most is reserved
        return self.down(y)


def sums(account):
    found = {}
    for r in account.rows:
        found[r.what] = found.get(r.what, 0) + r.nbytes
    return found


def train(layers, steps=2, **how):
    net = nn.ModuleList(layers).cuda()
    with memprof.profile(eager=True) as session:
        for _ in range(steps):
            x = torch.randn(BATCH, 256, device="cuda", requires_grad=True)
            for layer in net:
                x = checkpoint(layer, x, **how)
            x.sum().backward()
            net.zero_grad()
    return sums(account_of(session))


# At that instant there are what the GELU saved, which is an activation, the gradient of its
# output, which is none, and what the hook asks for.
for reentrant in (True, False):
    found = train([Layer(), Layer()], use_reentrant=reentrant)
    # A reentrant checkpoint has run the whole layer again, and holds its output and gradient.
    narrow = MIB if reentrant else 0
    assert found[RECOMPUTED] == 16 * MIB + narrow, found
    assert found["temporary"] == 616 * MIB + narrow, found
    assert "activation" not in found, found
    assert found["gradient"] <= 2 * 2 * 4 * 256 * WIDE + MIB, found


# What of a recomputation is never let go of (pytorch#115255) is no gradient: of each step x,
# x.grad, and 1 + 4 MiB of recomputed activations stay.
class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(512, 512), nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        x = torch.relu(self.a(x))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            x = torch.relu(self.b(x))
        return self.c(x)


net = Hooked().cuda()
with memprof.profile(eager=True) as session:
    for _ in range(6):
        x = torch.randn(512, 512, device="cuda", requires_grad=True)
        checkpoint(net, x, use_reentrant=False).sum().backward()
        net.zero_grad()
    full(None)
found = sums(account_of(session))
assert found[RECOMPUTED] == 6 * 5 * MIB, found
assert found["gradient"] == 6 * MIB, found

# A checkpoint inside of what is compiled: the output of the first linear is computed again, and
# that of the GELU, which some versions let go of before the gradient that is as large.
net = nn.Sequential(Layer()).cuda()
torch.compiler.reset()
compiled = torch.compile(
    lambda x: checkpoint(net[0], x, use_reentrant=False).sum(),
    backend="memprof", options={"graphs": False},
)
for _ in range(2):  # Without what autotuning asks for.
    compiled(torch.randn(BATCH, 256, device="cuda", requires_grad=True)).backward()
torch.cuda.empty_cache()
with memprof.profile(eager=True) as session:
    compiled(torch.randn(BATCH, 256, device="cuda", requires_grad=True)).backward()
rows = [r for r in account_of(session).rows if r.compiled and r.nbytes >= 16 * MIB]
# Products of torch 2.15 have workspaces as well.
rows = [r for r in rows if not r.what.startswith("workspace")]
assert sum(r.nbytes for r in rows if r.what == RECOMPUTED) in (16 * MIB, 32 * MIB), rows
assert {r.what for r in rows} == {RECOMPUTED, "temporary"}, rows
assert {"aten.gelu" in r.nodes for r in rows if r.what == RECOMPUTED} == {True}, rows
assert {"aten.gelu" in r.nodes for r in rows if r.what == "temporary"} == {False}, rows
"""


@simgpu
def test_what_a_checkpoint_computes_again(tmp_path: Path) -> None:
    script(tmp_path / "program.py", _BEGIN + _RECOMPUTED)


_CACHE = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(N, N)

    def forward(self, x, cache):
        cache.keys[:4] = x[:4]
        return self.linear(x) + cache.keys.sum()


class Cache:
    def __init__(self):
        self.keys = torch.zeros(1000, N, device="cuda")  # cache
        torch._dynamo.mark_static_address(self.keys)


def serve():
    model = torch.compile(Attention().cuda(), backend="memprof")
    cache = Cache()
    with torch.no_grad():
        for _ in range(4):
            model(torch.ones(8, N, device="cuda"), cache)
    return cache


with memprof.profile(eager=True) as session:
    cache = serve()
state = lines(account_of(session), Category.PERSISTENT_STATE)
assert state['self.keys = torch.zeros(1000, N, device="cuda")  # cache'] == 4000 * N, state

with memprof.profile() as session:
    cache = serve()
from memprof.profiler.views.report.summary import summarize
(account,) = session.profile().accounts
(peak,) = summarize(session.profile()).at_peak
assert account.present
assert account.by_category()[Category.PERSISTENT_STATE] == 4000 * N
parts = dict(peak.parts)
assert parts["persistent state"] == 4000 * N, parts
rest = peak.eager + peak.rounding + peak.free + peak.unattributed
assert sum(parts.values()) + rest == peak.reserved
assert account.reserved == torch.cuda.max_memory_reserved()
assert account.outside
"""


@simgpu
def test_a_static_cache_that_is_no_buffer_of_a_module(tmp_path: Path) -> None:
    script(tmp_path / "program.py", _BEGIN + _CACHE)


_WRITTEN = """
from memprof.profiler.views.report.summary import summarize


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(N, N)
        self.register_buffer("buffer", torch.zeros(1001, N))
        self.own = torch.zeros(1002, N, device="cuda")

    def forward(self, x, at, given, made=None):
        if made is None:
            made = torch.zeros(1004, N, device="cuda")
        y = self.linear(x)
        for cache in (self.buffer, self.own, given, made):
            cache[at] = y
        return y + given.sum() + made.sum(), made


def serve(compiled):
    model = Attention().cuda()
    f = model
    if compiled:
        f = torch.compile(model, backend="memprof", options={"graphs": False}, dynamic=False)
    given = torch.zeros(1003, N, device="cuda")
    x, at = torch.ones(1, N, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")
    with torch.no_grad():
        _, made = f(x, at, given)
        for _ in range(17):
            _, made = f(x, at, given, made)
    return model, given, made


CACHES = {4 * N * n for n in (1001, 1002, 1003, 1004)}
for compiled in (False, True) if sys.argv[1] == "watched" else ():
    with memprof.profile(eager=True) as session:
        kept = serve(compiled)
    state = {r.nbytes for r in account_of(session).rows if r.category is Category.PERSISTENT_STATE}
    assert state == CACHES, (compiled, state)
    kept = None
    torch.compiler.reset()
if sys.argv[1] == "watched":
    sys.exit()

with memprof.profile() as session:
    kept = serve(True)
(account,) = session.profile().accounts
assert account.by_category()[Category.PERSISTENT_STATE] == sum(CACHES)
assert "kept[...], global of program.py" in {r.holder for r in account.rows}, account.rows
(peak,) = summarize(session.profile()).at_peak
assert dict(peak.parts)["persistent state"] == sum(CACHES), peak.parts
"""


@simgpu
@pytest.mark.parametrize("kind", ["watched", "at the end"])
def test_caches_that_nobody_marked(tmp_path: Path, kind: str) -> None:
    script(tmp_path / "program.py", _BEGIN + _WRITTEN, kind)


_FROZEN = """
import gc

with memprof.profile(eager=True) as session:
    model = nn.Linear(N, N, bias=False).cuda()
    gc.freeze()
assert account_of(session).by_category() == {Category.PARAMETER: WEIGHT}
"""


@simgpu
def test_modules_of_a_program_that_has_frozen_the_collector(tmp_path: Path) -> None:
    script(tmp_path / "program.py", _BEGIN + _FROZEN)


_TRANSFORMERS = """
from transformers import DynamicCache

with memprof.profile(eager=True) as session, torch.no_grad():
    cache = DynamicCache()
    for i in range(4):
        new = torch.ones(1, 8, 1000, 64, device="cuda")
        cache.update(new, new, 0)
state = [r for r in account_of(session).rows if r.category is Category.PERSISTENT_STATE]
assert {r.detail for r in state} <= {"cache of transformers", ""}, state
assert sum(r.nbytes for r in state) >= 2 * 4 * 8 * 4000 * 64, state

with memprof.profile() as session:
    pass
(account,) = session.profile().accounts
assert account.by_category()[Category.PERSISTENT_STATE] == 2 * 4 * 8 * 4000 * 64
"""


@simgpu
def test_caches_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    script(tmp_path / "program.py", _BEGIN + _TRANSFORMERS)


_CAPTURE = """
with memprof.profile(eager=True) as session:
    model = nn.Linear(N, N).cuda()
    x = torch.ones(8, N, device="cuda")
    with torch.no_grad():
        model(x)
    torch._C._cuda_clearCublasWorkspaces()
(account,) = session.profile().accounts
workspaces = [r for r in account.rows if r.detail == "cuBLAS"]
assert workspaces and all(r.category is Category.WORKSPACE for r in workspaces), account.rows
"""


@simgpu
def test_workspaces_that_were_given_back_before_the_end(tmp_path: Path) -> None:
    """As they are around the capture of a CUDA graph."""
    script(tmp_path / "program.py", _BEGIN + _CAPTURE)


_IN_GRAPH_TREES = """
compiled = torch.compile(nn.Linear(N, N).cuda(), backend="memprof")
with memprof.profile(eager=True) as session, torch.no_grad():
    for _ in range(4):
        compiled(torch.ones(8, N, device="cuda"))
(account,) = session.profile().accounts
(workspace,) = [r for r in account.rows if r.detail == "cuBLAS"]
assert workspace.category is Category.WORKSPACE, account.rows
assert workspace.nbytes >= 1 << 20  # kept, or from 2.15 on of the one operation
"""


@simgpu
def test_workspaces_that_graph_trees_gave_back(tmp_path: Path) -> None:
    script(tmp_path / "program.py", _BEGIN + _IN_GRAPH_TREES)


def test_who_waits_is_the_innermost_line_of_the_program() -> None:
    code = compile("def calls(f):\n    return f()\n", "/home/me/train.py", "exec")
    names: dict[str, object] = {}
    exec(code, names)
    line = names["calls"](line_of_caller)  # type: ignore[operator]
    assert (line.file, line.line, line.function) == ("/home/me/train.py", 2, "calls")


BACKWARD = SourceFrame("/home/me/train.py", 2, "step")


def test_what_is_said_during_a_backward_leaves_it_one() -> None:
    """Workspaces are given back, and a checkpointed function may call another one, inside of it."""
    watch = AllocatorSession()
    watch._installed = True
    watch._mark(Phase.BACKWARD, line=BACKWARD)
    watch._clears(True)
    watch.mark()
    assert [(m.phase, m.line) for m in watch.marks[1:]] == [(Phase.BACKWARD, BACKWARD)] * 3
    assert watch.marks[2].clears
    watch._mark(Phase.FORWARD)
    watch._clears(True)
    assert (watch.marks[-1].phase, watch.marks[-1].line) == (Phase.FORWARD, None)
