"""Random programs through ``torch.compile(backend="memprof")``, against arithmetic alone.

A program is a model (``compiled_blocks``), options, and steps of a training loop with what users
do in one. The oracles need no other compiler:

* by Euler, a parameter's inner product with its gradient is the loss (times what hooks
  multiply gradients by), whatever was drawn, recomputed or replayed;
* in float64 the derivative in a random direction is the difference quotient at one seed;
* the same seed repeats a step, with graphs and without; without, losses of steps differ;
* what is held from former steps has its value or raises;
* hooks and callbacks run as often as they must;
* nothing is left in the end.

Compiling takes most of the time, half a second a model: ``fallback_by_default`` leaves out
code generation in most programs, and each model runs many steps.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from memprof import compiled_autograd
from memprof.cudagraph_trees.call import entry
from memprof.cudagraph_trees.call.container import all_managers, reset_cudagraph_trees
from memprof.cudagraph_trees.device import cuda

from .compiled_blocks import HOW, KINDS, WIDTH, Model

BATCHES = (4, 6, 9)
STEPS = 30

Pool = cuda.CudaPool


class Program:
    """A model and the loop that it is trained in.

    Args:
        seed: of everything.
        device: "cuda" or "cpu".
        without: names of kinds, ways to recompute, options and operations to leave out.

    Attributes:
        log: the operations so far, for messages.
        oracles: how many comparisons were made.
    """

    def __init__(self, seed: int, device: str, without: frozenset[str] = frozenset()) -> None:
        self.rng = rng = random.Random(seed)
        self.device = device
        self.without = without
        self.log: list[str] = []
        self.oracles = self.replays = 0
        torch.manual_seed(seed)
        exact = rng.random() < 0.7
        names = [n for n, k in KINDS.items() if n not in without and (k.exact or not exact)]
        hows = [h for h in HOW if h not in without]
        self.blocks = [(rng.choice(names), rng.choice(hows)) for _ in range(rng.randrange(1, 4))]
        self.breaks = frozenset(k for k in range(len(self.blocks)) if rng.random() < 0.1)
        self.exact = exact
        self.dtype = torch.float64 if exact else torch.float32
        self.marks = rng.random() < 0.3
        self.around = self._choose("", "", "", "checkpoint around", "data parallel")
        self.capture_backward = rng.random() < 0.15 and "captured backward" not in without
        self.options: dict[str, Any] = {}
        if rng.random() < 0.75:
            self.options["fallback_by_default"] = True
        if rng.random() < 0.2:
            self.options["outputs"] = "clone"
        self.dynamic = rng.choice([None, True]) if rng.random() < 0.3 else None
        model = Model(self.blocks, self.breaks, rng.random() < 0.3, self.dtype).to(device)
        self.model = model
        if any(n == "all-reduced" for n, _ in self.blocks) or self.around == "data parallel":
            one_process(device)
        inner: Any = model
        if self.around == "data parallel":
            inner = torch.nn.parallel.DistributedDataParallel(model)
        self.compiled = torch.compile(
            inner, backend="memprof", options=self.options, dynamic=self.dynamic
        )
        self.parameters = [b.p for b in model.blocks]  # type: ignore[union-attr]
        self.v = torch.rand(WIDTH, dtype=self.dtype, device=device) + 0.5
        self.total: dict[int, float] = {}
        self.held: list[tuple[Tensor, Tensor]] = []
        self.losses: set[float] = set()
        self.fault = ""
        self.calls = 0.0
        self.random = any(KINDS[n].random for n, _ in self.blocks)
        # What AOTAutograd draws again it draws from generators that no seed reaches.
        self.repeats = not any(h and KINDS[n].random for n, h in self.blocks)

    def _choose(self, *choices: str) -> str:
        return self.rng.choice([c for c in choices if c not in self.without])

    def __str__(self) -> str:
        return (
            f"{self.blocks}, breaks {sorted(self.breaks)}, {self.dtype}, {self.options}, "
            f"around {self.around!r}, dynamic {self.dynamic}, marks {self.marks}, "
            f"captured backward {self.capture_backward}: {self.log}"
        )

    # ---- one step

    def input(self, size: int) -> Tensor:
        return torch.rand(size, WIDTH, dtype=self.dtype, device=self.device) + 0.5

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Output and loss."""
        if self.marks:
            torch.compiler.cudagraph_mark_step_begin()
        self.calls += 1
        if self.around == "checkpoint around":
            from torch.utils.checkpoint import checkpoint

            y = checkpoint(self.compiled, x, use_reentrant=False)
        else:
            y = self.compiled(x)
        return y, (y * self.v).sum()

    def backward(self, loss: Tensor) -> None:
        with self.captured():
            loss.backward()
        if self.around == "checkpoint around":
            self.calls += 1

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        if not self.capture_backward:
            yield
            return
        compiler = functools.partial(torch.compile, backend="memprof", options=self.options)
        with compiled_autograd.enable(compiler):
            yield

    def zero_grad(self) -> None:
        self.total.clear()
        for p in self.parameters:
            p.grad = None

    def add(self, value: float, factors: dict[int, float] | None = None) -> None:
        """A loss whose backward has run."""
        linear = True
        for k in reversed(range(len(self.blocks))):
            expected = value * (factors or {}).get(k, 1.0) if linear else math.nan
            self.total[k] = self.total.get(k, 0.0) + expected
            linear &= KINDS[self.blocks[k][0]].homogeneous

    def check_gradients(self) -> None:
        """Euler's identity."""
        for k, total in self.total.items():
            p = self.parameters[k]
            assert p.grad is not None, f"parameter {k} has no gradient"
            if math.isnan(total):
                continue
            self.oracles += 1
            with torch.no_grad():
                products = p.double() * p.grad.double()
                found, scale = products.sum().item(), products.abs().sum().item()
            bound = (1e-9 if self.exact else 1e-4) * (scale + abs(total)) + 1e-9
            assert abs(found - total) <= bound, (
                f"parameter {k}, {self.blocks[k]}: its inner product with its gradient is {found}, "
                f"the losses are {total}"
            )

    def one(self, x: Tensor) -> tuple[float, list[Tensor]]:
        """A step from no gradients: the loss, and copies of the gradients."""
        self.zero_grad()
        _, loss = self.forward(x)
        self.backward(loss)
        value = loss.item()
        self.add(value)
        self.check_gradients()
        return value, [p.grad.clone() for p in self.parameters]  # type: ignore[union-attr]

    # ---- operations

    def train(self) -> None:
        """One or more micro-batches, with hooks."""
        rng = self.rng
        if rng.random() < 0.6:
            self.zero_grad()
        for _ in range(rng.choice([1, 1, 2, 3])):
            x = self.input(BATCHES[0])
            y, loss = self.forward(x)
            if rng.random() < 0.3:
                self.hold(y)
            value = loss.item()
            self.differs(value)
            self.backward(loss)
            self.add(value)
            self.check_gradients()

    def train_with_hooks(self) -> None:
        """Hooks that multiply gradients, and others that count."""
        rng = self.rng
        counts: dict[str, int] = {}
        wanted: dict[str, int] = {}
        handles: list[Any] = []
        factors = dict.fromkeys(range(len(self.blocks)), 1.0)

        def count(name: str) -> Callable[[], None]:
            wanted[name] = 1

            def run() -> None:
                counts[name] = counts.get(name, 0) + 1

            return run

        if rng.random() < 0.5:
            k = rng.randrange(len(self.blocks))
            factors[k] *= 3
            called = count("parameter")
            handles.append(self.parameters[k].register_hook(lambda g: (called(), g * 3)[1]))
        if rng.random() < 0.5:
            k = rng.randrange(len(self.blocks))
            after = count("post-accumulate")
            handles.append(self.parameters[k].register_post_accumulate_grad_hook(lambda p: after()))
        packs = rng.random() < 0.3 and self.around != "checkpoint around"
        self.zero_grad()
        x = self.input(BATCHES[0])
        with (
            torch.autograd.graph.saved_tensors_hooks(
                lambda t: t.cpu() if packs else t, lambda t: t.to(self.device)
            )
            if packs
            else contextlib.nullcontext()
        ):
            y, loss = self.forward(x)
        if rng.random() < 0.5:
            out = count("output")
            factors = {k: f * 2 for k, f in factors.items()}
            y.register_hook(lambda g: (out(), g * 2)[1])
        retained = rng.random() < 0.3
        if retained:
            y.retain_grad()
        if rng.random() < 0.5 and "callback" not in self.without:
            back = count("callback")
            engine = torch.autograd.Variable._execution_engine
            loss.register_hook(lambda g: engine.queue_callback(back))
        value = loss.item()
        del x
        try:
            self.backward(loss)
        finally:
            for h in handles:
                h.remove()
        self.log[-1] += f" {sorted(wanted)}"
        assert counts == wanted, f"hooks ran {counts} times, not {wanted}"
        if retained:
            assert y.grad is not None
            factor = 2.0 if "output" in wanted else 1.0
            assert torch.equal(y.grad, (self.v * factor).expand_as(y.grad)), "retained gradient"
        del y, loss
        self.add(value, factors)
        self.check_gradients()

    def repeat(self) -> None:
        """The same seed, the same step; the second time perhaps without graphs."""
        if not self.repeats or (self.model.counts and self.capture_backward):
            return
        x = self.input(BATCHES[0])
        seed = self.rng.randrange(1 << 30)
        torch.manual_seed(seed)
        value, gradients = self.one(x)
        plain = self.rng.random() < 0.5
        self.log[-1] += " without graphs" if plain else " with graphs"
        for again in (plain, False):
            torch.manual_seed(seed)
            with without_graphs() if again else contextlib.nullcontext():
                other, theirs = self.one(x)
            self.oracles += 1
            assert other == value, f"the same seed gives {value} and {other}"
            for k, (a, b) in enumerate(zip(gradients, theirs, strict=True)):
                assert torch.equal(a, b), f"the same seed gives other gradients of {k}"

    def difference(self) -> None:
        """The derivative in a random direction."""
        if not (self.exact and self.repeats):
            return
        x = self.input(BATCHES[0])
        seed = self.rng.randrange(1 << 30)
        torch.manual_seed(seed)
        _, gradients = self.one(x)
        torch.manual_seed(seed + 1)
        directions = [torch.randn_like(p) for p in self.parameters]
        slope = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
        scale = sum((g * d).abs().sum().item() for g, d in zip(gradients, directions, strict=True))
        size = 1e-6
        values = []
        for sign in (1, -2):
            with torch.no_grad():
                for p, d in zip(self.parameters, directions, strict=True):
                    p.add_(d, alpha=sign * size)
            torch.manual_seed(seed)
            values.append(self.one(x)[0])
        with torch.no_grad():
            for p, d in zip(self.parameters, directions, strict=True):
                p.add_(d, alpha=size)
        found = (values[0] - values[1]) / (2 * size)
        self.oracles += 1
        assert abs(found - slope) <= 1e-4 * scale + 1e-5, (
            f"the difference quotient is {found}, the derivative {slope}"
        )
        self.zero_grad()

    def infer(self) -> None:
        """Without gradients, several times, results held."""
        mode = torch.inference_mode if self.rng.random() < 0.5 else torch.no_grad
        train = self.rng.random() < 0.5
        self.model.train(train)
        x = self.input(BATCHES[0])
        with mode():
            for _ in range(self.rng.randrange(1, 4)):
                if self.marks:
                    torch.compiler.cudagraph_mark_step_begin()
                self.calls += train
                y = self.compiled(x)
                assert not y.requires_grad
                if self.rng.random() < 0.5:
                    self.hold(y)
        self.model.train()

    def other_size(self) -> None:
        """Another batch."""
        for size in self.rng.sample(BATCHES, 2):
            self.zero_grad()
            _, loss = self.forward(self.input(size))
            value = loss.item()
            self.backward(loss)
            self.add(value)
            self.check_gradients()

    def abandon(self) -> None:
        """A forward whose backward never comes, and one that comes late."""
        _, first = self.forward(self.input(BATCHES[0]))
        if self.rng.random() < 0.5:
            del first
            return
        self.zero_grad()
        value = first.item()
        _, second = self.forward(self.input(BATCHES[0]))
        other = second.item()
        self.backward(second)
        self.add(other)
        self.check_gradients()
        self.zero_grad()
        try:
            self.backward(first)
        except RuntimeError as e:
            if "overwritten by a subsequent run" not in str(e):
                raise
            self.zero_grad()
        else:
            self.add(value)
            self.check_gradients()

    def optimize(self) -> None:
        """Other values, in place."""
        with torch.no_grad():
            for p in self.parameters:
                p.mul_(self.rng.choice([0.8, 1.25]))
        self.zero_grad()

    def move(self) -> None:
        """Parameters elsewhere."""
        for p in self.parameters:
            if self.rng.random() < 0.7:
                p.data = p.data.clone()

    def fail(self) -> None:
        """The next warm-up or capture fails."""
        self.fault = self.rng.choice(["warm_up", "capture"])

    def reset(self) -> None:
        reset_cudagraph_trees()

    def forget(self) -> None:
        self.held.clear()

    def collect(self) -> None:
        gc.collect()

    def hold(self, y: Tensor) -> None:
        if len(self.held) < 6:
            self.held.append((y.detach(), y.detach().cpu().clone()))

    # ---- checks

    def differs(self, value: float) -> None:
        """Every input is random, so losses differ."""
        assert value not in self.losses, "two steps have the same loss"
        self.losses.add(value)
        self.oracles += 1

    def check_held(self) -> None:
        for t, value in list(self.held):
            try:
                now = t.cpu()
            except RuntimeError as e:
                if "overwritten by a subsequent run" not in str(e):
                    raise
                continue
            self.oracles += 1
            assert torch.equal(now, value), "an output that is held has changed"

    def run(self, steps: int = STEPS) -> None:
        """Compile it, and run so many operations.

        Raises:
            AssertionError: something is not as it must be.
        """
        operations = [
            *([self.train] * 6),
            *([self.train_with_hooks] * 3),
            *([self.repeat] * 3),
            *([self.difference] * 1),
            *([self.infer] * 2),
            self.other_size,
            self.abandon,
            self.optimize,
            self.move,
            self.fail,
            self.reset,
            self.forget,
            self.collect,
        ]
        operations = [o for o in operations if o.__name__ not in self.without]
        with failing(self):
            for _ in range(steps):
                operation = self.rng.choice(operations)
                self.log.append(operation.__name__)
                try:
                    operation()
                    self.check_held()
                    self.check_calls()
                except Exception as e:
                    raise AssertionError(f"{operation.__name__}: {e}\n{self}") from e

    def check_calls(self) -> None:
        if self.model.counts:
            assert self.model.calls.item() == self.calls, (
                f"the buffer has counted {self.model.calls.item()} calls of {self.calls}"
            )

    def let_go(self) -> None:
        """Of everything but the log."""
        self.held.clear()
        self.parameters = []
        self.compiled = None
        del self.model, self.v


def run(
    seed: int, device: str, without: frozenset[str] = frozenset(), steps: int = STEPS
) -> Program:
    """One program from nothing to nothing.

    Args:
        seed, device, without: see ``Program``.
        steps: how many operations.

    Raises:
        AssertionError: something was not as it must be; the message tells the program.
    """
    program = Program(seed, device, without)
    try:
        program.run(steps)
        program.replays = sum(n.replays for m in all_managers() for n in m.nodes())
    finally:
        program.let_go()
        torch._dynamo.reset()
        compiled_autograd.reset()
        reset_cudagraph_trees()
        gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        left = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]
        assert not left, f"{len(left)} segments of pools are left\n{program}"
    return program


@contextlib.contextmanager
def without_graphs() -> Iterator[None]:
    """Compiled code runs as it is."""
    call = entry.ShapeDispatcher.__call__
    entry.ShapeDispatcher.__call__ = lambda self, inputs: list(self.model(inputs))  # type: ignore[method-assign]
    try:
        yield
    finally:
        entry.ShapeDispatcher.__call__ = call  # type: ignore[method-assign]


@contextlib.contextmanager
def failing(program: Program) -> Iterator[None]:
    """Warm-ups and captures fail when the program says so."""
    before = {name: getattr(cuda.CudaPool, name) for name in ("warm_up", "capture")}

    def patched(name: str) -> Callable[..., Any]:
        def run(pool: Pool, model: Any, inputs: list[Any], **how: Any) -> Any:
            if program.fault != name:
                return before[name](pool, model, inputs, **how)
            program.fault = ""

            def fails(args: list[Any]) -> Any:
                model(args)
                raise ArithmeticError("on purpose, when all was done")

            return before[name](pool, fails, inputs, **how)

        return run

    for name in before:
        setattr(cuda.CudaPool, name, patched(name))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(cuda.CudaPool, name, method)


def one_process(device: str) -> None:
    """A process group of one."""
    if dist.is_initialized():
        return
    if device == "cuda":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    else:
        file = os.path.join(tempfile.mkdtemp(prefix="memprof-fuzz-"), "store")
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
