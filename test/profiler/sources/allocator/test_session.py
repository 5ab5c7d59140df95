"""``memprof.profile(eager=True)``: what the allocator reserved in a stretch of a program.

Each program is a process of its own: the allocator's figures are those of the process.
"""

from __future__ import annotations

import base64
import gzip
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import run_forked

import memprof
from memprof.profiler.model import LedgerKind
from memprof.profiler.sources.allocator import _torch_compat as compat, history_follower
from memprof.profiler.sources.allocator.history_follower import HistoryFollower
from memprof.profiler.sources.allocator.replaced import replace

from .programs import script

simgpu = pytest.mark.simgpu

_BEGIN = """
import contextlib, gc, logging, sys, threading
import torch, memprof
from memprof.profiler.model import LedgerKind, Category
from torch import nn

N = 1024
WEIGHT = 4 * N * N
MIB = 1 << 20


def lines(account, text):
    \"\"\"Bytes of rows whose line has this text.\"\"\"
    return sum(r.nbytes for r in account.rows if r.frame and text in r.frame.code)


def adds_up(account):
    parts = account.live + account.rounding + account.awaiting + account.free
    assert account.unexplained == 0, account.unexplained
    assert parts == account.reserved
    assert not account.notes, account.notes
    return {p.value: n for p, n in account.by_category().items()}


def mib(n):
    return torch.empty(n * MIB, dtype=torch.uint8, device="cuda")


def refusals(session):
    ledger = session.profile().ledger
    return [e.reason for e in ledger if e.kind is LedgerKind.FALLBACK]


class Training:
    \"\"\"Three square weights in fused AdamW, and a list that grows by 8 MiB a step.\"\"\"

    def __init__(self, backend=None):
        layers = [nn.Linear(N, N, bias=False, device="cuda") for _ in range(3)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.run = torch.compile(self.model, backend=backend) if backend else self.model
        self.kept = []

    def step(self):
        self.kept.append(torch.empty(8 * MIB, dtype=torch.uint8, device="cuda"))  # the leak
        loss = self.run(torch.ones(8, N, device="cuda")).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
"""


def _run(program: str, *arguments: str) -> str:
    return run_forked(_BEGIN + program, *arguments)


def _script(tmp_path: Path, program: str, *arguments: str) -> str:
    return script(tmp_path / "program.py", _BEGIN + program, *arguments)


@simgpu
@pytest.mark.parametrize("backend", ["", "memprof"])
def test_a_training_adds_up_to_what_the_allocator_reserved(tmp_path: Path, backend: str) -> None:
    program = """
entry = torch.autograd.graph._engine_run_backward
made, state = torch.optim.Optimizer.__init__, nn.Module.__setstate__
with memprof.profile(sys.argv[1], eager=True) as session:
    training = Training(sys.argv[2])
    for _ in range(4):
        training.step()
    assert session.profile().accounts == []
assert torch.autograd.graph._engine_run_backward is entry
assert torch.autograd._engine_run_backward is entry
assert torch.optim.Optimizer.__init__ is made
assert sys.argv[2] or nn.Module.__setstate__ is state  # Dynamo replaces it when it begins
assert not torch._C._cuda_isHistoryEnabled()
(account,) = session.profile().accounts
found = adds_up(account)
assert account.reserved == torch.cuda.max_memory_reserved()
assert account.most_allocated == torch.cuda.max_memory_allocated()
assert account.steps == 4
assert found["parameter"] == 3 * WEIGHT, found
assert found["optimizer_state"] == 2 * 3 * WEIGHT + 3 * 4, found  # and a step count each
assert lines(account, "# the leak") == account.step * 8 * MIB

# All that a profile can be asked for has it.
loaded = memprof.load(sys.argv[1])
assert loaded.profile().accounts == [account]
with open(sys.argv[1] + ".txt", "w") as f:
    loaded.report(full=True, file=f)
loaded.to_html(sys.argv[1] + ".html")
loaded.export(sys.argv[1] + ".json", "json")
comparison = loaded.diff(loaded)
assert any(q.label.startswith("reserved") and q.change == 0 for q in comparison.result.quantities)
"""
    file = tmp_path / "run.memprof"
    _script(tmp_path, program, str(file), backend)
    text = file.with_name(f"{file.name}.txt").read_text()
    assert text.splitlines()[1].startswith("  Peak reserved on cuda:0: ")
    assert "program.py" in text
    page = file.with_name(f"{file.name}.html").read_text()
    (packed,) = re.findall(r'id="payload">([A-Za-z0-9+/=]+)</script>', page)
    assert "total reserved" in gzip.decompress(base64.b64decode(packed)).decode()


@simgpu
def test_a_session_in_the_midst_of_a_training(tmp_path: Path) -> None:
    program = """
training = Training()
before = [mib(5), mib(7)]
gone = mib(64)
for _ in range(2):
    training.step()
del gone
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
with memprof.profile(eager=True) as session:
    for _ in range(3):
        training.step()
(account,) = session.profile().accounts
found = adds_up(account)
assert account.reserved == torch.cuda.max_memory_reserved()
assert account.most_allocated == torch.cuda.max_memory_allocated()
assert found["parameter"] == 3 * WEIGHT, found
assert found["optimizer_state"] == 2 * 3 * WEIGHT + 3 * 4, found
# Two blocks, two that leaked, and cuBLAS's workspaces; the leak of the session has its line.
unknown = [r for r in account.rows if r.category is Category.UNKNOWN]
assert [r.detail for r in unknown] == ["from before the session"]
assert found["unknown"] >= (5 + 7 + 2 * 8) * MIB
assert lines(account, "# the leak") == account.step * 8 * MIB

# A peak of the process that was before the session is none of its own.
del training, before
gc.collect()
most = mib(1024)
del most
torch.cuda.empty_cache()
with memprof.profile(eager=True) as session:
    mib(3)
(account,) = session.profile().accounts
adds_up(account)
assert account.reserved < 1024 * MIB < torch.cuda.max_memory_reserved()
"""
    _script(tmp_path, program)


@simgpu
def test_the_instant_at_which_a_session_begins_may_be_its_peak() -> None:
    program = """
with memprof.profile(eager=True) as first:
    tensor = mib(100)
with memprof.profile(eager=True) as second:
    del tensor
    torch.cuda.empty_cache()
    mib(1)
(one,), (two,) = first.profile().accounts, second.profile().accounts
assert adds_up(one) == {"input": 100 * MIB}
assert adds_up(two) == {"unknown": 100 * MIB}
assert one.reserved == two.reserved == 100 * MIB
"""
    _run(program)


@simgpu
def test_what_a_stream_still_uses_when_a_session_begins_is_awaiting() -> None:
    program = """
stream = torch.cuda.Stream()
mib(1)
state = torch.cuda.memory._snapshot
tensor = mib(24)
tensor.record_stream(stream)


def pending():
    snapshot = state()
    for block in (b for s in snapshot["segments"] for b in s["blocks"]):
        if block["size"] == 24 * MIB:
            block["state"] = "active_pending_free"
    for segment in snapshot["segments"]:
        segment["allocated_size"] -= 24 * MIB * (segment["total_size"] == 24 * MIB)
    return snapshot


torch.cuda.memory._snapshot = pending
with memprof.profile(eager=True) as session:
    torch.cuda.memory._snapshot = pending
(account,) = session.profile().accounts
adds_up(account)
assert account.awaiting == 24 * MIB
"""
    _run(program)


@simgpu
def test_there_is_one_history() -> None:
    program = """
with memprof.profile(eager=True):
    try:
        with memprof.profile(eager=True):
            raise AssertionError
    except RuntimeError as e:
        assert "eager=True" in str(e)
    with memprof.profile():
        pass
with memprof.profile(eager=True) as after:
    mib(3)  # one that is gone at once may have no workspace's size
assert adds_up(*after.profile().accounts) == {"input": 3 * MIB}

# It is somebody else's: theirs goes on, and the profile says why it has nothing.
torch.cuda.memory._record_memory_history()
mib(1)
with memprof.profile(eager=True) as session:
    mib(2)
assert session.profile().accounts == []
(why,) = refusals(session)
assert "somebody else has the allocator's history on" in why
assert torch._C._cuda_isHistoryEnabled()
(trace,) = torch.cuda.memory._snapshot()["device_traces"]
assert [e["size"] for e in trace if e["action"] == "alloc"] == [MIB, 2 * MIB]

# Or becomes so: from there on it has all that is asked for, during the session and after it.
torch.cuda.memory._record_memory_history(None)
entries = [f for name, f in vars(torch._C).items() if "_record_memory_history" in name]
for begin in (
    lambda: torch.cuda.memory._record_memory_history(),
    lambda: torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=100),
    lambda: torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=100),
):
    with memprof.profile(eager=True) as session:
        mib(1)
        begin()
        mib(3)
        nn.Linear(N, N, device="cuda")(torch.ones(8, N, device="cuda")).sum().backward()
    mib(5)
    assert session.profile().accounts == []
    (why,) = refusals(session)
    assert "begun or ended the allocator's history inside of the session" in why
    assert torch._C._cuda_isHistoryEnabled()
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    sizes = [e["size"] for e in trace if e["action"] == "alloc"]
    assert sizes.count(3 * MIB) == 1 and sizes[-1] == 5 * MIB, sizes
    torch.cuda.memory._record_memory_history(None, clear_history=True)
with memprof.profile(eager=True) as session:
    torch.cuda.memory._record_memory_history(None)
    mib(1)
assert not torch._C._cuda_isHistoryEnabled()
assert len(refusals(session)) == 1
assert entries == [f for name, f in vars(torch._C).items() if "_record_memory_history" in name]
"""
    said = _run(program)
    assert said.count("memprof follows the memory of this process no more") == 4
    assert "There is no account of the device's memory: somebody else has" in said


@simgpu
def test_an_exception_inside_goes_on_and_the_account_is_of_what_was() -> None:
    program = """
entry = torch.autograd.graph._engine_run_backward
model = nn.Linear(N, N, bias=False, device="cuda")
try:
    with memprof.profile(eager=True) as session:
        for _ in range(2):
            kept = model(torch.ones(8, N, device="cuda"))
            kept.sum().backward()
            if _:
                raise KeyError("theirs")
except KeyError:
    pass
(account,) = session.profile().accounts
assert adds_up(account)["parameter"] == WEIGHT
assert account.ended == "by KeyError"
assert torch.autograd.graph._engine_run_backward is entry

try:
    with memprof.profile(eager=True) as session:
        kept = mib(1 << 20)
except torch.OutOfMemoryError:
    pass
(account,) = session.profile().accounts
assert [f.nbytes for f in account.failed] == [1 << 40]
"""
    _run(program)


@simgpu
def test_a_fault_of_ours_costs_the_account_and_not_the_training() -> None:
    program = """
from memprof.profiler.sources.allocator.known import Objects
from memprof.profiler.sources.allocator.allocator_session import AllocatorSession


def fails(*_):
    raise ZeroDivisionError("ours")


entry = torch.autograd.graph._engine_run_backward
training = Training()
for owner, name in (
    (Objects, "of_modules"),
    (AllocatorSession, "_follow"), (AllocatorSession, "_account"), (AllocatorSession, "_start"),
):
    works = getattr(owner, name)
    setattr(owner, name, fails)
    try:
        with memprof.profile(eager=True) as session:
            training.step()
    finally:
        setattr(owner, name, works)
    assert session.profile().accounts == []
    (why,) = refusals(session)
    assert "ZeroDivisionError: ours" in why, why
    assert torch.autograd.graph._engine_run_backward is entry
    assert not torch._C._cuda_isHistoryEnabled()
with memprof.profile(eager=True) as session:
    training.step()
adds_up(*session.profile().accounts)
"""
    _run(program)


@simgpu
def test_inference_without_marks_is_drained_from_outside() -> None:
    program = """
from memprof.profiler.sources.allocator import history_follower
from memprof.profiler.sources.allocator._torch_compat import drain_history

history_follower.DRAIN = 50
drained = threading.Event()


def counted():
    drained.set()
    return drain_history()


model = nn.Linear(N, N, bias=False, device="cuda")
history_follower.compat.drain_history = counted
with memprof.profile(eager=True) as session, torch.inference_mode():
    drained.clear()
    cache = [mib(4)]
    while not drained.is_set():
        model(torch.ones(8, N, device="cuda"))
    cache.append(mib(4))
(account,) = session.profile().accounts
found = adds_up(account)
assert account.reserved == torch.cuda.max_memory_reserved()
assert found["parameter"] == WEIGHT
assert not any(t.name == "memprof drains" for t in threading.enumerate())
"""
    _run(program)


@simgpu
def test_what_another_thread_allocates_while_the_history_is_taken_is_found() -> None:
    program = """
from memprof.profiler.sources.allocator import history_follower

taken = history_follower.compat.drain_history
late = []


def at_a_bad_time():
    snapshot = taken()
    if not late:  # After the first drain, which begins the session: in no history at all.
        late.append(mib(6))
        history_follower.compat.record_history()
    return snapshot


history_follower.compat.drain_history = at_a_bad_time
tensor = mib(2)
with memprof.profile(eager=True) as session:
    pass
(account,) = session.profile().accounts
assert account.unexplained == 0
assert account.reserved == torch.cuda.max_memory_reserved()
assert account.live == 8 * MIB
assert "other blocks than followed" in account.notes[0]
"""
    _run(program)


@simgpu
def test_memory_of_graphs_that_memprof_makes_and_records() -> None:
    """Its trees look at the history for themselves while they record."""
    program = """
training = Training("memprof")
with memprof.profile(eager=True) as session:
    for _ in range(4):
        training.step()
    assert torch._C._cuda_isHistoryEnabled()
(account,) = session.profile().accounts
adds_up(account)
assert account.reserved == torch.cuda.max_memory_reserved()
assert any(p.name.startswith("private") for p in account.pools)
"""
    _run(program)


def test_a_main_thread_that_is_in_c_for_long_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program that asks for a lot, and a main thread that comes to nothing
    asked: list[Any] = []
    monkeypatch.setattr(history_follower, "on_main_thread", lambda do: asked.append(do) or True)
    monkeypatch.setattr(HistoryFollower, "follows", True)
    monkeypatch.setattr(HistoryFollower, "requests", history_follower.DRAIN)
    follower = HistoryFollower()

    def look() -> None:
        rounds = iter([False] * 5 + [True])
        monkeypatch.setattr(follower._stop, "wait", lambda _: next(rounds))
        follower._look_after()

    # THEN it is asked again only once it has come to it
    look()
    assert len(asked) == 1
    asked[0]()
    look()
    assert len(asked) == 2


@simgpu
def test_a_session_without_cuda_says_so() -> None:
    program = """
with memprof.profile(eager=True) as session:
    torch.ones(3)
assert not torch.cuda.is_initialized()
(why,) = refusals(session)
assert "CUDA was not started inside the session" in why
mib(1)  # what waited for CUDA to start does nothing any more
assert not torch._C._cuda_isHistoryEnabled()
"""
    assert "CUDA was not started inside the session" in _run(program)


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="needs a CPU build of torch")
def test_a_build_without_cuda(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry = torch.autograd.graph._engine_run_backward
    with (
        caplog.at_level(logging.WARNING, "memprof"),
        memprof.profile(tmp_path / "run.memprof", eager=True) as session,
    ):
        assert torch.autograd.graph._engine_run_backward is entry
    assert "this build of torch has no CUDA" in caplog.text
    profile = session.profile()
    assert profile.accounts == []
    assert [e.kind for e in profile.ledger] == [LedgerKind.FALLBACK]
    # AND the next one may begin
    with memprof.profile(eager=True):
        pass


def test_existing_objects_are_found_by_their_class_alone() -> None:
    class Hidden(torch.nn.Linear):
        @property
        def __class__(self) -> Any:
            raise AssertionError("asked")

    hidden, plain = Hidden(2, 2), torch.nn.ReLU()
    found = {id(x) for x in compat.existing(torch.nn.Module)}
    assert {id(hidden), id(plain)} <= found


def test_a_tuple_that_is_being_built_meanwhile_can_still_grow() -> None:
    def elements() -> Any:
        yield from range(9)
        compat.existing(torch.nn.Module)
        yield from range(9, 30)

    assert tuple(elements()) == tuple(range(30))


def test_a_function_that_somebody_else_put_over_ours_stays() -> None:
    owner = torch.nn.Module()
    said: list[str] = []

    def function() -> str:
        return "done"

    owner.function = function
    undo = replace([owner], "function", lambda f: lambda: (said.append("ours"), f())[1])
    ours = owner.function
    assert owner.function() == "done"
    owner.function = theirs = lambda: ours()
    undo()
    assert owner.function is theirs
    assert owner.function() == "done"
    assert said == ["ours"]
    owner.function = function
    undo = replace([owner], "function", lambda f: lambda: f())
    undo()
    assert owner.function is function


@simgpu
def test_whose_parameters_and_state_are_and_that_who_is_watched_allocates_the_same(
    tmp_path: Path,
) -> None:
    program = """
BATCH, VOCABULARY, WIDTH = 1024, 6144, 128

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def train():
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        tokens = torch.randint(VOCABULARY, (BATCH,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens)
            loss = torch.nn.functional.cross_entropy(logits.float(), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del logits, loss
    return sum(p.numel() for p in model.parameters())

def counted():
    stats = torch.cuda.memory_stats()
    return stats["allocated_bytes.all.peak"], stats["allocation.all.allocated"]

def once(**options):
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    with memprof.profile(**options) as session:
        parameters = train()
        counts = counted()
    return session.profile(), parameters, counts

once()  # What cuBLAS takes once.
_, _, before = once()
profile, parameters, after = once(eager=True)
assert before == after
(account,) = profile.accounts
adds_up(account)

# What autograd's threads asked for stands with the line that waits for them.
assert account.phase == "backward"
waiting = [r for r in account.rows if r.waits]
assert sum(r.nbytes for r in waiting) > 4 * BATCH * VOCABULARY
assert {(r.nodes, r.frame.code) for r in waiting} == {("", "loss.backward()")}, waiting

# Parameters and AdamW's state are their modules', wherever they were asked for.
for category, times in ((Category.PARAMETER, 1), (Category.OPTIMIZER_STATE, 2)):
    rows = [r for r in account.rows if r.category is category]
    numbers = 4 * times * parameters
    assert numbers <= sum(r.nbytes for r in rows) <= numbers + 4096
    assert {r.modules for r in rows} == {
        "Model > Embedding", "Model > Linear", "Model > Block > Linear", "Model > Block > LayerNorm"
    }, rows
    head = sum(r.nbytes for r in rows if r.modules == "Model > Linear")
    assert head - 4 * times * VOCABULARY * WIDTH in (0, 4)  # AdamW counts steps.
"""
    _script(tmp_path, program)
