"""Out of memory, provoked in many places: the report of each names who asked and what was there.

Each program is a process of its own, on a simulated device of 1.25 GiB whose context takes half.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

import memprof
from memprof.cli import main
from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import AllocationFailure, Category, DeviceAccount, LedgerKind, WhyNot
from memprof.profiler.sources.allocator._torch_compat import transient_workspace_sizes
from memprof.profiler.support.errors import ProfileNotWritableError

from .programs import script

MIB = 1 << 20

_BEGIN = '''
import contextlib, gc, os, sys, threading
import torch, memprof
from torch import nn

MIB = 1 << 20
FOLDER, EAGER = sys.argv[1], sys.argv[2] == "eager"
os.chdir(FOLDER)


def mib(n):
    return torch.empty(n * MIB, dtype=torch.uint8, device="cuda")


@contextlib.contextmanager
def fails(name):
    """What runs inside runs out of memory; the report is NAME.memprof."""
    with memprof.profile(on_oom=f"{name}.memprof", eager=EAGER):
        try:
            yield
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError(f"{name}: there was enough memory")
    torch.cuda.empty_cache()


class Net(nn.Module):
    def __init__(self, n=1024):
        super().__init__()
        self.up = nn.Linear(n, 4 * n, device="cuda")
        self.down = nn.Linear(4 * n, n, device="cuda")

    def forward(self, x):
        h = torch.nn.functional.gelu(self.up(x))  # the widest
        return self.down(h)  # the way back


def batch(rows):
    return torch.randn(rows, 1024, device="cuda")
'''

_EAGER = '''
held = []


def forward():
    net = Net()
    x = batch(1024)
    held.append(mib(650))
    with fails("forward"):
        net(x[:8])
        net(x.repeat(4, 1))


def backward():
    net = Net()
    x = batch(2048)
    with fails("backward"):
        loss = net(x).square().sum()
        held.append(mib(torch.cuda.mem_get_info()[0] // MIB))
        loss.backward()  # the backward


def optimizer():
    net = Net(2048)
    step = torch.optim.AdamW(net.parameters(), foreach=False)
    net(torch.randn(8, 2048, device="cuda")).sum().backward()
    torch.cuda.empty_cache()
    held.append(mib(torch.cuda.mem_get_info()[0] // MIB - 100))
    with fails("optimizer"):
        step.step()  # the first step


def caught():
    with memprof.profile(on_oom="caught.memprof", eager=EAGER):
        for rows in (1 << 20, 1 << 19, 1 << 10):
            with contextlib.suppress(torch.OutOfMemoryError):
                batch(rows)


def prefetch():
    held.append(mib(400))

    def load():
        with contextlib.suppress(torch.OutOfMemoryError):
            ready = [mib(64) for _ in range(10)]  # the prefetch

    with memprof.profile(on_oom="prefetch.memprof", eager=EAGER):
        thread = threading.Thread(target=load, name="prefetch")
        thread.start()
        thread.join()


def checkpoint():
    weights = {f"layers.{i}.weight": torch.empty(64 * MIB, dtype=torch.uint8) for i in range(13)}
    torch.save(weights, "net.pt")
    with fails("checkpoint"):
        state = torch.load("net.pt", map_location="cuda")  # the checkpoint


def fraction():
    held.append(mib(200))
    torch.cuda.set_per_process_memory_fraction(0.4)
    try:
        with fails("fraction"):
            mib(330)  # beyond the limit
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def too_large():
    with fails("too_large"):
        mib(4096)


def survives():
    """What the allocator has cached it gives back, and goes on."""
    with memprof.profile(on_oom="survives.memprof", eager=EAGER):
        mib(500)
        mib(600)


def lets_go():
    """Nothing that was there at that moment is kept by the report, without any collection."""
    gc.collect()
    gc.disable()
    before = torch.cuda.memory_allocated()

    def inner(big):
        again = big
        w = torch.ones(MIB, device="cuda", requires_grad=True)
        loss = (w * 2).sum()
        with contextlib.suppress(torch.OutOfMemoryError):
            mib(700)
        del big, again

    with memprof.profile(on_oom="lets_go.memprof", eager=EAGER):
        inner(mib(500))
        assert torch.cuda.memory_allocated() == before, torch.cuda.memory_allocated()
    gc.enable()


for program in (
    lets_go,
    *(forward, backward, optimizer, caught, prefetch, checkpoint, fraction, too_large),
    survives,
):
    program()
    held.clear()
    torch.cuda.empty_cache()
'''


@dataclass(frozen=True)
class Report:
    """What a program left behind."""

    account: DeviceAccount
    failure: AllocationFailure
    text: str

    @property
    def code(self) -> str:
        return self.failure.frame.code if self.failure.frame is not None else ""

    def holds(self, category: Category) -> int:
        return self.account.by_category().get(category, 0)


class Reports:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Report:
        path = self.folder / f"{name}.memprof"
        (account,) = read_profile(path).accounts
        assert account.failure is not None
        assert account.unexplained == 0, name
        assert account.explained == account.reserved
        return Report(account, account.failure, _text(path))


def _text(path: Path) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["report", "--full", str(path)])
    assert done.exit_code == 0, done.output
    return done.output


def _run(folder: Path, program: str, eager: bool, mib: int = 1280, **environment: str) -> str:
    environment["SIMGPU_MEM_MB"] = str(mib)
    arguments = (str(folder), "eager" if eager else "")
    return script(folder / "program.py", _BEGIN + program, *arguments, **environment)


@pytest.mark.simgpu
@pytest.mark.parametrize("eager", [False, True], ids=["", "eager"])
def test_eager_code(tmp_path: Path, eager: bool) -> None:
    log = _run(tmp_path, _EAGER, eager)
    found = Reports(tmp_path)

    report = found["forward"]
    assert "the widest" in report.code
    assert report.account.rows[0].nbytes == 650 * MIB
    words = " ".join(report.text.split())
    assert words.startswith("Out of memory on cuda:0: ")
    asked, _, rest = words.partition("it did not fit: ")
    assert "program.py" in asked
    assert rest.startswith("everything is in use")
    if not transient_workspace_sizes(0):
        assert report.holds(Category.WORKSPACE) > 0  # which the first call has made
    if not eager:
        assert report.account.rows[0].holder == "held[...], global of program.py"

    report = found["backward"]
    assert report.failure.operation.endswith("Backward0")
    assert report.failure.called_from is not None
    assert "the backward" in report.failure.called_from.code
    assert report.holds(Category.ACTIVATION) >= 2048 * 4096 * 4

    report = found["optimizer"]
    assert "the first step" in report.code
    assert report.holds(Category.PARAMETER) >= 2 * 4 * 2048 * 2048 * 4
    assert report.holds(Category.GRADIENT) >= 2 * 4 * 2048 * 2048 * 4

    report = found["caught"]
    assert report.failure.count == 2  # of the same line
    assert "torch.randn" in report.code

    report = found["prefetch"]
    assert report.failure.thread == "prefetch"
    assert "the prefetch" in report.code or "torch.empty" in report.code

    assert "the checkpoint" in found["checkpoint"].code
    report = found["fraction"]
    assert report.failure.why is WhyNot.LIMIT
    assert found["too_large"].failure.why is WhyNot.TOO_LARGE
    assert not (tmp_path / "survives.memprof").exists()
    lines = [line for line in log.splitlines() if line.startswith("Out of memory on cuda:0")]
    assert len(lines) == 10  # the two sizes that were tried are two
    assert all("memprof report " in line for line in lines)
    if eager:
        assert found["too_large"].failure.requested == 4096 * MIB


_COMPILED = '''
torch._inductor.config.triton.autotune_pointwise = False  # Each try computes 64 MiB.

torch._dynamo.config.automatic_dynamic_shapes = False
rest = []


def fill(leave=0):
    """Take what the device has left, but for so many MiB."""
    torch.cuda.empty_cache()
    rest.append(mib(torch.cuda.mem_get_info()[0] // MIB - leave))


def compiled(net, graphs=False):
    return torch.compile(net, backend="memprof", options={"graphs": graphs})


def forward():
    net = compiled(Net())
    x = batch(2048)
    net(x).sum().backward()
    fill(leave=24)
    with fails("forward"):
        net(x)


def backward():
    net = compiled(Net())
    x = batch(2048)
    net(x).sum().backward()
    loss = net(x).sum()
    fill()
    with fails("backward"):
        loss.backward()  # the backward


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return self.net(x)  # the outer call


def by_inductor():
    net = torch.compile(Outer())
    x = batch(2048)
    net(x).sum().backward()
    fill(leave=24)
    with fails("by_inductor"):
        net(x)


def inference():
    net = compiled(Net())
    with torch.no_grad():
        net(batch(2048))
        fill(leave=24)
        with fails("inference"):
            net(batch(2048))  # of which nobody else has anything


def in_pieces():
    """200 MiB that are free in the general pool, and nothing else."""
    torch.cuda.empty_cache()
    big = mib(300)
    del big
    rest.append(mib(100))  # which fits nowhere else
    torch.cuda.empty_cache()
    rest.append(mib(torch.cuda.mem_get_info()[0] // MIB - 16))


def warm_up():
    f = compiled(lambda x: x.sin() * 2, graphs=True)
    x = torch.randn(16 * MIB, device="cuda")
    in_pieces()
    with memprof.profile("warm_up_run.memprof", on_oom="warm_up.memprof", eager=EAGER):
        f(x)


def recording():
    f = compiled(lambda x: x.cos() * 2, graphs=True)
    g = compiled(lambda x: x.cos() * 3, graphs=True)
    x = torch.randn(16 * MIB, device="cuda")
    for _ in range(2):  # the second warm-up comes since the first one was observed
        torch.compiler.cudagraph_mark_step_begin()
        f(x)
        g(x)  # in the memory that f had
    in_pieces()
    with memprof.profile(on_oom="recording.memprof", eager=EAGER):
        torch.compiler.cudagraph_mark_step_begin()
        y = f(x)
        g(x)  # beside it
        del y


def uncaught():
    net = compiled(Net())
    x = batch(1 << 17)
    with memprof.profile("run.memprof", on_oom="uncaught.memprof", eager=EAGER):
        net(x)


# The first two first: a pool of graphs that are gone is given back where there is no more memory.
for program in (warm_up, recording, forward, backward, by_inductor, inference, uncaught):
    try:
        program()
    except torch.OutOfMemoryError:
        assert program is uncaught
    rest.clear()
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
'''


@pytest.mark.simgpu
@pytest.mark.parametrize(
    "eager", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "eager"]
)
def test_compiled_code(tmp_path: Path, eager: bool) -> None:
    log = _run(tmp_path, _COMPILED, eager)
    found = Reports(tmp_path)

    report = found["forward"]
    assert report.failure.graph.endswith("forward")
    assert report.failure.nodes
    assert "the widest" in report.code or "the way back" in report.code

    report = found["backward"]
    assert report.failure.graph.endswith("backward")
    assert report.failure.operation == "CompiledFunctionBackward"
    assert report.failure.called_from is not None
    assert "the backward" in report.failure.called_from.code
    assert report.holds(Category.ACTIVATION) >= 2048 * 4096 * 4

    report = found["by_inductor"]
    assert report.failure.modules == "Outer > Net"
    assert "the widest" in report.code or "the way back" in report.code

    if not eager:  # Nothing is kept for a backward, so none could compute it again.
        report = found["inference"]
        assert report.failure.graph.endswith("inference")
        assert not report.holds(Category.ACTIVATION)
        assert report.holds(Category.INPUT)

    for name, activity in (("warm_up", "warming up "), ("recording", "recording ")):
        report = found[name]
        assert report.failure.activity.startswith(activity)
        assert report.failure.why is WhyNot.POOLS
        assert report.failure.free_of_pools >= 64 * MIB
        assert "made again without" in " ".join(report.text.split())
    # The call was made again, and went well: the ledger says it once.
    profile = read_profile(tmp_path / "warm_up_run.memprof")
    kinds = [e.kind for e in profile.ledger]
    assert LedgerKind.TREE_FAILURE in kinds
    assert LedgerKind.OUT_OF_MEMORY not in kinds

    assert "up(x)" in found["uncaught"].code
    profile = read_profile(tmp_path / "run.memprof")
    (entry,) = [e for e in profile.ledger if e.kind is LedgerKind.OUT_OF_MEMORY]
    assert entry.reason.startswith("out of memory on cuda:0: ")
    assert "a device ran out of memory, times: 1" in _text(tmp_path / "run.memprof")
    # One each, and three of the recording, which is tried once more before it runs plainly.
    assert log.count("Out of memory on cuda:0") == 9


_PIECES = """
blocks = [mib(20) for _ in range(torch.cuda.mem_get_info()[0] // MIB // 20)]
halves = []
for i in range(0, len(blocks), 2):
    blocks[i] = None
    halves.append(mib(12))  # in the place of the one before, of which the rest is left over
with fails("pieces"):
    mib(90)  # in one piece
"""


@pytest.mark.simgpu
def test_fragmentation(tmp_path: Path) -> None:
    _run(tmp_path, _PIECES, eager=False, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False")
    report = Reports(tmp_path)["pieces"]
    assert report.failure.why is WhyNot.PIECES
    assert report.failure.largest_free < 20 * MIB < 90 * MIB < report.failure.free
    assert "halves[...], global of program.py" in report.text


_TWICE = """
where = ""


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if where == "forward":
            full = mib(300), mib(1000)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if where == "backward":
            full = mib(300), mib(1000)
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Net(256), Net(256)

    def forward(self, x):
        return self.last(Fails.apply(self.first(x)))


def step(net, optimizer):
    x = torch.randn(2048, 256, device="cuda", requires_grad=True)
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def sums(account):
    found = {}
    for r in account.rows:
        found[r.what] = found.get(r.what, 0) + r.nbytes
    return found


for begun in (0, 2):
    for fails_in in ("forward", "backward"):
        for goes_on in (True, False):
            session = memprof.profile(on_oom="oom.memprof", eager=True)
            with contextlib.suppress(torch.OutOfMemoryError), session:
                net = Model()
                optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
                for _ in range(begun):
                    step(net, optimizer)
                where = fails_in
                try:
                    step(net, optimizer)
                except torch.OutOfMemoryError:
                    if not goes_on:
                        raise
                where = ""
                torch.cuda.empty_cache()  # so that most was reserved at the failure
                step(net, optimizer)
            where = ""
            ((run,), (failure,)) = (
                p.accounts for p in (session.profile(), memprof.load("oom.memprof").profile())
            )
            assert run.reserved >= failure.reserved > 300 * MIB
            assert sums(run) == sums(failure), (begun, fails_in, goes_on, sums(run), sums(failure))
            # Of the first network its input and what GELU and linear saved: 8 MiB twice; of the
            # second as much, where the forward came to it and the backward has not been there.
            assert sums(run)["activation"] >= 16 * MIB, sums(run)
            assert "persistent state" not in sums(run), sums(run)
            if fails_in == "backward":
                assert sums(run)["temporary"] >= 300 * MIB, sums(run)
            net = optimizer = None
            gc.collect()
            torch.cuda.empty_cache()
"""


@pytest.mark.simgpu
def test_the_file_of_a_failure_and_the_account_of_the_run_say_the_same(tmp_path: Path) -> None:
    """Most is reserved where a request fails, in a forward or in a backward, before any backward
    or later, and the program goes on or does not."""
    _run(tmp_path, _TWICE, eager=True)


def test_a_place_for_the_report_is_checked_on_entry(tmp_path: Path) -> None:
    for wrong in (str(tmp_path / "no" / "oom.memprof"), str(tmp_path / "oom.json")):
        with pytest.raises(ProfileNotWritableError, match=re.escape(wrong)):
            memprof.profile(on_oom=wrong).__enter__()
    path = tmp_path / "run.memprof"
    with pytest.raises(ValueError, match="the profile's own path"):
        memprof.profile(path, on_oom=path).__enter__()
    assert not list(tmp_path.iterdir())
