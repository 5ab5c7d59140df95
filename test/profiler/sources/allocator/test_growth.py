"""Leaks that were planted, each the first finding; and none in programs that are healthy."""

from __future__ import annotations

from pathlib import Path

import pytest
from outputs import invoke

from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.live.growth import growth
from memprof.profiler.model import Growth, GrowthSource

from .programs import script

MIB = 1 << 20
STEPS = 24

_BEGIN = '''
import collections, copy, functools, itertools, os, queue, sys, threading
import torch, memprof
from torch import nn

MIB = 1 << 20
N = 512
STEPS = 24
os.chdir(sys.argv[1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(N, N, device="cuda")
        self.down = nn.Linear(N, N, device="cuda")
        self.cache = {}

    def forward(self, x):
        h = self.up(x).relu()
        self.note(h)
        return self.down(h)

    def note(self, h):
        pass


class Loop:
    """A training loop, with places to go wrong."""

    rows = 512  # of which an activation takes 1 MiB
    retain = False

    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def batch(self, i):
        return torch.ones(self.rows, N, device="cuda")

    def step(self, i):
        loss = self.net(self.batch(i)).square().mean()  # the loss
        self.after(loss, i)
        loss.backward(retain_graph=self.retain)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def after(self, loss, i):
        pass

    def run(self, name):
        with memprof.profile(f"{name}.memprof", eager=True):
            for i in range(STEPS):
                self.step(i)


def main(programs):
    for program in programs:
        loop = program()
        loop.run(program.__name__)
        del loop
        losses.clear()
        debug.clear()
        errors.clear()
        torch.cuda.empty_cache()


losses, debug, errors = [], [], []
'''

_LEAKS = """
class KeptLosses(Loop):
    retain = True

    def after(self, loss, i):
        losses.append(loss)


class KeptViews(Loop):
    def step(self, i):
        probs = self.net(self.batch(i)).softmax(-1)  # the whole of it
        debug.append(probs[:, -1].detach())
        super().step(i)


class Closure(Loop):
    def __init__(self):
        super().__init__()
        self.calls = []

    def after(self, loss, i):
        big = torch.ones(MIB // 2, device="cuda")  # two MiB

        def later():
            return big

        self.calls.append(later)


class Hook(Loop):
    def __init__(self):
        super().__init__()
        kept = []

        def hook(module, inputs, output):
            kept.append(output.detach() * 2)  # in the hook

        self.net.up.register_forward_hook(hook)


class Metric(Loop):
    retain = True

    def __init__(self):
        super().__init__()
        self.total = 0

    def after(self, loss, i):
        self.total = self.total + loss  # the metric


class CacheByShape(Loop):
    def batch(self, i):
        x = torch.ones(self.rows + i, N, device="cuda")
        if x.shape not in self.net.cache:
            self.net.cache[x.shape] = torch.ones_like(x)  # the cache
        return x


class Traceback(Loop):
    def after(self, loss, i):
        try:
            self.check()
        except ValueError as e:
            errors.append(e)

    def check(self):
        wide = torch.ones(MIB // 4, device="cuda")  # one MiB
        raise ValueError("no")


class EveryThird(Loop):
    def after(self, loss, i):
        if i % 3 == 0:
            debug.append(torch.ones(3 * MIB // 4, device="cuda"))  # at every third


class GradientsWithGraphs(Loop):
    def step(self, i):
        loss = self.net(self.batch(i)).square().mean()
        loss.backward(create_graph=True)  # with graphs
        self.optimizer.step()


class ListedGradients(Loop):
    def step(self, i):
        self.net(self.batch(i)).square().mean().backward(create_graph=True)  # with graphs, too
        debug.append([p.grad for p in self.net.parameters()])
        self.optimizer.step()
        self.optimizer.zero_grad()


class Circle(Loop):  # a model and its gradients refer to each other, and nobody to them
    def after(self, loss, i):
        net = nn.Sequential(nn.Linear(N, N, device="cuda"), nn.ReLU())
        net(self.batch(i)).square().mean().backward(create_graph=True)  # in a circle


@functools.lru_cache(maxsize=None)
def table(n):
    angles = torch.arange(n * 1024, device="cuda", dtype=torch.float32)
    return angles.cos(), angles.sin()  # the tables


class CacheByNumber(Loop):
    def after(self, loss, i):
        table(256 + i)


@functools.lru_cache(maxsize=None)
def normalized(x):
    return x / x.norm()


class CacheByTensor(Loop):
    def after(self, loss, i):
        x = torch.ones(MIB // 4, device="cuda")  # the key
        normalized(x)


class Copies(Loop):
    def after(self, loss, i):
        net = copy.deepcopy(self.net.up)
        debug.append(net)


class RunningGraph(Loop):
    # What the sum has of each step begins at a leaf that has no name any more.

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(512, N, device="cuda")

    def after(self, loss, i):
        x = torch.randn(512, N, device="cuda", requires_grad=True)
        self.total = self.total + x.sigmoid()  # the sum


class BesideBuffer(Loop):  # the same line makes what a full buffer has and what is kept for good
    def __init__(self):
        super().__init__()
        self.recent = collections.deque(maxlen=5)

    def after(self, loss, i):
        for kept in self.recent, debug:
            kept.append(torch.ones(MIB // 4, device="cuda"))  # for both


def made(n):
    return torch.ones(n * MIB // 4, device="cuda")  # for everybody


class ByTurns(Loop):  # two sizes
    def after(self, loss, i):
        debug.append(made(1 + 2 * (i % 2)))


class OneMaker(Loop):  # two leaks and what is well, by one line
    def __init__(self):
        super().__init__()
        self.seen = []

    def after(self, loss, i):
        debug.append(made(1))
        self.seen.append(made(2))
        self.last = made(4)


main([
    KeptLosses, KeptViews, Closure, Hook, Metric, CacheByShape, Traceback, EveryThird,
    GradientsWithGraphs, ListedGradients, Circle, CacheByNumber, CacheByTensor, Copies,
    RunningGraph, BesideBuffer, ByTurns, OneMaker,
])
"""

_PLANTED = {
    # name: bytes a step, text of one of its lines, the variable that leads to it
    "KeptLosses": (3 * MIB, "self.up(x).relu()", "losses[...], global of program.py"),
    "KeptViews": (MIB, "# the whole of it", "debug[...], global of program.py"),
    "Closure": (2 * MIB, "# two MiB", ""),
    "Hook": (MIB, "# in the hook", ""),
    "Metric": (3 * MIB, "self.up(x).relu()", "self.total, local of run"),
    "CacheByShape": (1.035 * MIB, "# the cache", "self.net.cache[...], local of run"),
    "Traceback": (MIB, "# one MiB", ""),
    "EveryThird": (MIB, "# at every third", "debug[...], global of program.py"),
    "GradientsWithGraphs": (5 * MIB, "# with graphs", "self.net._modules[...]"),
    "ListedGradients": (7 * MIB, "# with graphs, too", "debug[...][...], global of program.py"),
    "Circle": (5 * MIB, "# in a circle", ""),
    "CacheByNumber": (2.13 * MIB, "# the tables", ""),
    "CacheByTensor": (2 * MIB, "# the key", ""),
    "Copies": (MIB, "copy.deepcopy", "debug[...]"),
    "RunningGraph": (2 * MIB, "# the sum", "self.total, local of run"),
    "BesideBuffer": (MIB, "# for both", "debug[...], global of program.py"),
    "ByTurns": (2 * MIB, "# for everybody", "debug[...], global of program.py"),
}


def _found(folder: Path, name: str) -> list[Growth]:
    return growth(read_profile(folder / f"{name}.memprof"))


@pytest.mark.simgpu
def test_planted_leaks_are_the_first_finding(tmp_path: Path) -> None:
    script(tmp_path / "program.py", _BEGIN + _LEAKS, str(tmp_path))
    for name, (a_step, code, holder) in _PLANTED.items():
        first, *others = _found(tmp_path, name)
        assert first.source is GrowthSource.ALLOCATOR, name
        assert first.a_step == pytest.approx(a_step, rel=0.05), name
        lines = [part.frame.code for part in first.parts if part.frame is not None]
        assert any(code in line for line in lines), (name, lines)
        assert first.holder.startswith(holder), (name, first.holder)
        assert bool(first.holder) is bool(holder), (name, first.holder)
        assert (first.step, first.since, first.steps) == ("optimizer step", 1, STEPS), name
        assert not others, name

    most, least = _found(tmp_path, "OneMaker")
    assert most.a_step == 2 * MIB
    assert most.holder.startswith("self.seen[...], local of run")
    assert least.a_step == MIB
    assert least.holder == "debug[...], global of program.py"

    path = str(tmp_path / "KeptViews.memprof")
    # Terminal, JSON and page say the same, and the command says nothing else.
    report = invoke("report", "--full", path).output
    leaks = invoke("report", path, "--section", "leaks").output
    assert report.startswith("Memory grows: ")
    assert report.startswith(leaks)
    assert "# the whole of it" in leaks
    assert "debug[...], global of program.py" in " ".join(leaks.split())
    invoke("report", path, "--fail-on-leaks", status=1)


_CIRCLES = """
import gc


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 2  # what it returns
        ctx.x, ctx.y = x, y
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Circle(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(N, N, device="cuda"))

    def note(self, gradient):
        pass

    def forward(self, x):
        self.result = self.weight * x
        self.result.register_hook(self.note)


gc.disable()
with memprof.profile("Keeps.memprof", eager=True):
    for _ in range(STEPS):
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        Keeps.apply(x).sum().backward()
with memprof.profile("Circle.memprof", eager=True):
    x = torch.ones(N, N, device="cuda")
    for _ in range(STEPS):
        Circle()(x)
"""


@pytest.mark.simgpu
def test_what_no_variable_leads_to_is_one_finding_if_it_came_in_the_same_steps(
    tmp_path: Path,
) -> None:
    script(tmp_path / "program.py", _BEGIN + _CIRCLES, str(tmp_path))
    # GIVEN a ctx that keeps its input and its output, and so their graph, and by it the gradient
    (keeps,) = _found(tmp_path, "Keeps")
    assert (keeps.a_step, keeps.step, keeps.steps) == (3 * MIB, "backward", STEPS)
    assert keeps.nbytes == 3 * STEPS * MIB
    assert (keeps.holder, len(keeps.parts)) == ("", 3)
    # AND modules that keep a result whose hook keeps the module: a weight and a result of each
    # THEN without steps of a training each place is one
    found = _found(tmp_path, "Circle")
    assert sum(circle.nbytes for circle in found) == 2 * STEPS * MIB
    assert [circle.holder for circle in found] == ["", ""]
    assert all(circle.step.endswith(" allocator events") for circle in found)


_HEALTHY = '''
class Plain(Loop):
    pass


class GradientsKept(Loop):
    def step(self, i):
        self.optimizer.zero_grad(set_to_none=False)
        self.net(self.batch(i)).square().mean().backward()
        self.optimizer.step()


class LossesAsNumbers(Loop):
    def after(self, loss, i):
        losses.append(loss.detach())


class Ema(Loop):
    def __init__(self):
        super().__init__()
        self.ema = [p.detach().clone() for p in self.net.parameters()]

    def after(self, loss, i):
        self.ema = [e * 0.9 + p.detach() * 0.1 for e, p in zip(self.ema, self.net.parameters())]


class Accumulation(Loop):
    def step(self, i):
        for _ in range(4):
            (self.net(self.batch(i)).square().mean() / 4).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Scheduler(Loop):
    def __init__(self):
        super().__init__()
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)

    def after(self, loss, i):
        self.scheduler.step()


class Evaluation(Loop):
    def after(self, loss, i):
        if i % 5 == 4:
            with torch.no_grad():
                self.best = self.net(self.batch(i))


class Prefetch(Loop):
    def __init__(self):
        super().__init__()
        self.ready = queue.Queue(maxsize=3)
        self.todo = iter(range(10 * STEPS))
        for _ in range(3):
            self.fetch()

    def fetch(self):
        self.ready.put(super().batch(next(self.todo)))

    def batch(self, i):
        x = self.ready.get()
        thread = threading.Thread(target=self.fetch)
        thread.start()
        thread.join()
        return x


class ThreeShapes(Loop):
    def batch(self, i):
        x = torch.ones(self.rows + (0, 64, 0, 128)[i % 4], N, device="cuda")
        if x.shape not in self.net.cache:
            self.net.cache[x.shape] = torch.ones_like(x)
        return x


class Generation(Loop):
    """Without a backward: a cache of fixed size, and one that is made anew with each token."""

    def run(self, name):
        with torch.no_grad(), memprof.profile(f"{name}.memprof", eager=True):
            static = torch.zeros(400, N, device="cuda")
            grown = torch.zeros(1, N, device="cuda")
            for i in range(400):
                y = self.net(torch.ones(1, N, device="cuda"))
                static[i] = y[0]
                grown = torch.cat([grown, y])


class Averaged(Loop):
    def __init__(self):
        super().__init__()
        self.average = torch.optim.swa_utils.AveragedModel(
            self.net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )

    def after(self, loss, i):
        self.average.update_parameters(self.net)


class AccumulationOverSteps(Loop):  # an optimizer's step, and a scheduler's, at every fourth
    def __init__(self):
        super().__init__()
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def step(self, i):
        (self.net(self.batch(i)).square().mean() / 4).backward()
        if i % 4 == 3:
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()

    def run(self, name):
        with memprof.profile(f"{name}.memprof", eager=True):
            for i in range(4 * STEPS):
                self.step(i)


class LastLogits(Loop):  # a metric over what came last
    def __init__(self):
        super().__init__()
        self.last = collections.deque(maxlen=4)

    def step(self, i):
        y = self.net(self.batch(i))
        self.last.append(y.detach())
        y.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.mean = torch.stack(list(self.last)).mean()


class Cached(Loop):  # by tensor, with room for a few
    def __init__(self):
        super().__init__()
        self.cached = functools.lru_cache(maxsize=2)(torch.ones_like)

    def after(self, loss, i):
        self.cached(self.batch(i))


class Recent(Loop):  # buffers that are full before the end, by age and by slot
    def __init__(self):
        super().__init__()
        self.recent = collections.deque(maxlen=10)
        self.slots = [None] * 7

    def after(self, loss, i):
        loss.backward(retain_graph=True)
        self.recent.append((self.batch(i), [p.grad for p in self.net.parameters()]))
        self.slots[i % 7] = torch.ones_like(self.batch(i))


class Replay(Loop):
    """Without a backward, and long enough that the history is taken in parts."""

    def run(self, name):
        recent = collections.deque(maxlen=3000)
        with torch.no_grad(), memprof.profile(f"{name}.memprof", eager=True):
            for i in range(8_000):
                recent.append(torch.zeros(4096, device="cuda"))
                torch.ones(1, device="cuda").exp()


main([
    Plain, GradientsKept, LossesAsNumbers, Ema, Accumulation, Scheduler, Evaluation, Prefetch,
    ThreeShapes, Generation, Averaged, AccumulationOverSteps, LastLogits, Cached, Recent,
    Replay,
])
'''


@pytest.mark.simgpu
def test_nothing_is_found_in_healthy_programs(tmp_path: Path) -> None:
    script(tmp_path / "program.py", _BEGIN + _HEALTHY, str(tmp_path))
    names = sorted(p.stem for p in tmp_path.glob("*.memprof"))
    assert len(names) == 16
    for name in names:
        assert not _found(tmp_path, name), name
        file = tmp_path / f"{name}.memprof"
        done = invoke("report", file, "--section", "leaks", "--fail-on-leaks")
        assert done.output.startswith("Nothing grows, by every block of cuda:0 over "), name
