"""Training steps of random programs: pairs under autograd, with everything users hang into it.

The oracle is Euler's: see ``program_pairs``. What is hung in counts how often it was called.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from .program_functions import Interrupt, N
from .program_pairs import PAIRS, Pair, PairFunction

if TYPE_CHECKING:
    from .programs import Machine

CHAIN = 3
"""Most pairs in one step."""

MIDDLE = ("", "", "view", "hook", "node", "prehook", "retain", "in place", "in place on a view")
"""What is done between pairs."""


@dataclass(eq=False)
class Seen:
    """What hooks have seen in one backward.

    Attributes:
        counts: calls, by name.
        wanted: calls that there must be, by name.
        retained: tensors that retain their gradients, and after which pair.
    """

    counts: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    retained: list[tuple[Tensor, int]] = field(default_factory=list)

    def check(self) -> None:
        """All of them, and no more."""
        assert self.counts == self.wanted, f"hooks ran {self.counts} times, not {self.wanted}"

    def counter(self, name: str) -> Callable[[], None]:
        """Something that must run once. It holds no tensor: cycles through a hook of a node of
        autograd are never collected."""
        self.wanted[name] = 1
        counts = self.counts

        def count() -> None:
            counts[name] = counts.get(name, 0) + 1

        return count

    def hook(self, name: str, factor: float) -> Callable[..., Any]:
        """A hook that must run once. One of a tensor may multiply its gradient."""
        count = self.counter(name)

        def run(*gradients: Any) -> Any:
            count()
            return None if factor == 1 else gradients[0] * factor

        return run


@dataclass(eq=False)
class Pending:
    """A loss whose backward has not come.

    Attributes:
        loss: of one element.
        expected: for each parameter, what its gradient's inner product with it grows by.
        version: of the parameters' values when it was computed.
        step: in which it was made.
        others: other tensors that get gradients, and what their inner products must be.
        seen: by its hooks.
        twice: it may be run twice.
    """

    loss: Tensor
    expected: dict[int, float]
    version: int
    step: int
    others: list[tuple[Tensor, float]]
    seen: Seen
    twice: bool


class Training:
    """The operations of a machine that train."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        device = machine.device
        rng = torch.Generator().manual_seed(7)

        def parameter() -> torch.nn.Parameter:
            return torch.nn.Parameter((torch.rand(N, generator=rng) + 0.5).to(device))

        self.parameters = [parameter() for _ in range(2 * CHAIN)]
        self.v = (torch.rand(N, generator=rng) + 0.5).to(device)
        # Inner products of parameters with their gradients; a missing one has no gradient.
        self.totals: dict[int, float] = {}
        self.version = 0
        self.pending: list[Pending] = []
        self.buffer_there = torch.zeros(N, device=device)
        self.generators: dict[str, tuple[Generator, Generator]] = {}
        self.handles: list[Any] = []

    # ---- for ``PairFunction``

    def generators_of(self, pair: Pair) -> tuple[Generator, Generator]:
        if pair.name not in self.generators:
            seed = 100 + PAIRS.index(pair)
            self.generators[pair.name] = (
                torch.Generator(self.machine.device).manual_seed(seed),
                torch.Generator(self.machine.device).manual_seed(seed),
            )
        return self.generators[pair.name]

    def call_pair(
        self, pair: Pair, is_backward: bool, inputs: list[Any], generator: Generator | None
    ) -> list[Any]:
        if generator is not None:
            inputs.append(generator)
        machine = self.machine
        machine.begin_call(is_backward)
        static: tuple[int, ...] = (0, 1)
        if is_backward:
            # What a forward saved: a backward of Inductor's expects it where it was.
            static = tuple(range(len(inputs) - 1 - (generator is not None)))
        elif pair.buffer:
            static = (0, 1, 3)
        run = machine.wrapped(
            (pair, is_backward),
            pair.backward if is_backward else pair.forward,
            inputs,
            static,
            writes=(3,) if pair.buffer and not is_backward else (),
            is_backward=is_backward,
            is_forward=not is_backward,
        )
        out = run(inputs)
        assert not inputs, "inputs were left in the list"
        machine.count_call()
        if not is_backward:
            machine.pending = True
        return out

    # ---- operations

    def train(self, p: int) -> None:
        """One loss, and most often its backward at once."""
        rng = random.Random(p)
        late = rng.random() < 0.15 and len(self.pending) < 3
        try:
            pending = self._forward(rng, late)
        except Interrupt:
            pending = None
        if pending is None:
            self._remove_handles()
            # ``checkpoint`` ends when the frames of the exception do.
            gc.collect()
            return
        if late:
            self.pending.append(pending)
            return
        if rng.random() < 0.2:
            self.machine.new_generation()
        self._backward(pending, rng)

    def late_backward(self, p: int) -> None:
        """Of a loss of some former operation. If its step is over, it may raise."""
        if self.pending:
            self._backward(self.pending.pop(p % len(self.pending)), random.Random(p))

    def forget_losses(self, p: int) -> None:
        """Their backwards never come."""
        self.pending.clear()

    def step_of_an_optimizer(self, p: int) -> None:
        """Parameters get other values, in place."""
        with torch.no_grad():
            for k, q in enumerate(self.parameters):
                q.mul_(1.25 if (p + k + self.version) % 2 else 0.8)
        self.zero_grad(p)
        self.version += 1

    def zero_grad(self, p: int) -> None:
        """Zeros, or nothing at all."""
        self.totals.clear()
        for i, q in enumerate(self.parameters):
            if p % 3 == 0 and q.grad is not None:
                q.grad.zero_()
                self.totals[i] = 0.0
            else:
                q.grad = None

    def move_parameter(self, p: int) -> None:
        """Elsewhere, with the same values: offloading, sharding, tied weights."""
        q = self.parameters[p % len(self.parameters)]
        q.data = q.data.clone()
        if p % 3 == 0:
            self.buffer_there = self.buffer_there.clone()

    # ---- one step

    def _index(self, parameter: Tensor) -> int:
        return next(i for i, q in enumerate(self.parameters) if q is parameter)

    def _forward(self, rng: random.Random, late: bool) -> Pending:
        machine, seen = self.machine, Seen()
        how = rng.choice(["", "", "", "", "reentrant", "not reentrant"])
        pairs = [
            rng.choice([q for q in PAIRS if self._can(q, how)])
            for _ in range(rng.randrange(1, CHAIN + 1))
        ]
        first = rng.randrange(CHAIN)
        # What the program holds it may write to before a late backward; and an output of the step
        # that ends now is good for the first call alone.
        x, leaf = self._input(rng, held=not late and not (how and machine.moved))
        if how == "reentrant":  # without a gradient for its input it has none at all
            leaf = x = x.detach().requires_grad_()
        used = [
            (self.parameters[2 * i], self.parameters[2 * i + 1])
            for i in ((first + k) % CHAIN for k in range(len(pairs)))
        ]
        # A hook at a place multiplies the gradients of everything up to it.
        kinds = [rng.choice(MIDDLE) for _ in pairs]
        factors = [
            2.0 ** sum(kind == "hook" for kind in kinds[k:]) if not how else 1.0
            for k in range(len(pairs))
        ]

        def chain(x: Tensor) -> Tensor:
            for k, (pair, (s, w)) in enumerate(zip(pairs, used, strict=True)):
                x = PairFunction.apply(self, pair, s, w, x)
                x = self._between(kinds[k], k, pair, x, seen, bool(how))
            return x

        with self._packing(rng, how):
            y = checkpoint(chain, x, use_reentrant=how == "reentrant") if how else chain(x)
        del x
        loss = (y * self.v).sum()
        value = loss.item()
        if rng.random() < 0.3:
            machine.hold_a_copy_of(y.detach())
        machine.note("loss", [value])
        expected: dict[int, float] = {}
        others: list[tuple[Tensor, float]] = []
        linear = True
        for k in reversed(range(len(pairs))):
            after = factors[k + 1] if k + 1 < len(pairs) else 1.0
            others += [(h, value * after) for h, j in seen.retained if j == k and linear]
            for q in used[k]:
                expected[self._index(q)] = value * factors[k] if linear else math.nan
            linear &= pairs[k].homogeneous
        if leaf is not None and linear:
            others.append((leaf, value * factors[0]))
        # Those of parameters would see other backwards as well.
        if rng.random() < 0.2 and not late:
            self._post_accumulate(used[-1][0], seen)
        if rng.random() < 0.3:
            self._callback(loss, seen)
        if rng.random() < 0.1 and not late:
            self._multi_grad([q for s in used for q in s], seen)
        return Pending(
            loss,
            expected,
            self.version,
            machine.step,
            others,
            seen,
            twice=not any(q.clears for q in pairs) and not seen.wanted and how != "reentrant",
        )

    @staticmethod
    def _between(kind: str, k: int, pair: Pair, h: Tensor, seen: Seen, again: bool) -> Tensor:
        """What is done to the output of pair ``k``; ``again`` if that will be done twice."""
        if kind == "view":
            return h.view(3, N // 3).t().reshape(N)
        if kind.startswith("in place"):
            if not pair.saves_output:
                (h if kind == "in place" else h[: N // 2]).mul_(2)
        elif not again and h.grad_fn is not None:
            name = f"{kind} {k}"
            if kind == "hook":
                h.register_hook(seen.hook(name, 2.0))
            elif kind == "node":
                h.grad_fn.register_hook(seen.hook(name, 1.0))
            elif kind == "prehook":
                h.grad_fn.register_prehook(seen.hook(name, 1.0))
            elif kind == "retain":
                h.retain_grad()
                seen.retained.append((h, k))
        return h

    def _can(self, pair: Pair, how: str) -> bool:
        """What a recomputation does again must be the same."""
        machine = self.machine
        return pair.name not in machine.without and not (how and (pair.buffer or pair.generator))

    def _input(self, rng: random.Random, *, held: bool) -> tuple[Tensor, Tensor | None]:
        """And itself, where it wants a gradient. It may be one that is held."""
        machine = self.machine
        if rng.random() < 0.5 and held:
            t, _ = machine.argument(rng.randrange(1 << 16))
            return (t.clone() if t.is_inference() else t.detach()), None
        x = torch.full((N,), rng.randrange(1, 9) / 4, device=machine.device)
        if rng.random() < 0.5:
            x.requires_grad_()
            return x, x
        return x, None

    def _packing(self, rng: random.Random, how: str) -> contextlib.AbstractContextManager[Any]:
        kind = rng.choice(["", "", "", "same", "copy", "host"])
        if not kind or how:
            return contextlib.nullcontext()
        device = self.machine.device

        def pack(t: Tensor) -> Tensor:
            return t if kind == "same" else t.clone() if kind == "copy" else t.cpu()

        def unpack(t: Tensor) -> Tensor:
            return t.to(device) if kind == "host" else t

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _post_accumulate(self, parameter: Tensor, seen: Seen) -> None:
        count = seen.counter("post-accumulate")

        def hook(q: Tensor) -> None:
            assert q.grad is not None
            count()

        self.handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _multi_grad(self, parameters: list[Tensor], seen: Seen) -> None:
        count = seen.counter("all gradients")
        self.handles.append(
            torch.autograd.graph.register_multi_grad_hook(parameters, lambda gs: count())
        )

    def _callback(self, loss: Tensor, seen: Seen) -> None:
        """A hook asks the engine to be called when the backward is done."""
        count = seen.counter("callback")
        engine = torch.autograd.Variable._execution_engine
        loss.register_hook(lambda g: engine.queue_callback(count))

    def _backward(self, pending: Pending, rng: random.Random) -> None:
        machine = self.machine
        over = pending.step < machine.step or machine.moved
        stale = pending.version != self.version
        times = 2 if pending.twice and rng.random() < 0.3 else 1
        if over or stale:
            self._give_up_gradients()
        try:
            for k in range(times):
                pending.loss.backward(retain_graph=k + 1 < times)
        except Interrupt:
            self._give_up_gradients()
            return
        except RuntimeError as e:
            text = str(e)
            if not (stale and "modified by an inplace operation" in text) and not (
                over and "overwritten by a subsequent run" in text
            ):
                raise
            self._give_up_gradients()
            return
        finally:
            self._remove_handles()
        pending.seen.check()
        if stale:
            self._give_up_gradients()
            return
        for i, value in pending.expected.items():
            self.totals[i] = self.totals.get(i, 0.0) + times * value
        for t, value in pending.others:
            assert t.grad is not None, "a gradient was not retained"
            if not over:
                self._euler(t.detach(), t.grad, times * value, "an input or a retained gradient")
        self.check()
        if over:
            self._give_up_gradients()
        else:
            machine.note("gradients", [g.double().sum().item() for g in self.gradients()])

    def _remove_handles(self) -> None:
        while self.handles:
            self.handles.pop().remove()

    def _give_up_gradients(self) -> None:
        self.totals.clear()
        for q in self.parameters:
            q.grad = None

    # ---- checks

    def check(self) -> None:
        """Gradients are what losses say, however long they are kept."""
        for i, total in self.totals.items():
            q = self.parameters[i]
            assert q.grad is not None, f"parameter {i} has no gradient"
            if total == total:
                self._euler(q, q.grad, total, f"parameter {i}")

    def _euler(self, x: Tensor, g: Tensor, total: float, what: str) -> None:
        if not self.machine.values:
            return
        with torch.no_grad():
            products = x.double() * g.double()
            found, scale = products.sum().item(), products.abs().sum().item()
        assert abs(found - total) <= 1e-4 * (scale + abs(total)) + 1e-5, (
            f"{what}: its inner product with its gradient is {found}, the losses are {total}"
        )

    def gradients(self) -> Iterator[Tensor]:
        """Of the parameters, those that there are."""
        for q in self.parameters:
            if q.grad is not None:
                yield q.grad

    def parts(self) -> list[Tensor]:
        """Tensors of its own."""
        return [*self.parameters, self.v, self.buffer_there]

    def let_go(self) -> None:
        """Of losses and gradients."""
        self.pending.clear()
        self._give_up_gradients()
