"""Random programs of calls, holds, drops, steps and resets against a simple reference.

The reference knows what each held tensor must be. A tensor of the current step must have its
value. One of a former step must have its value or say that it was overwritten: what may
never happen is a wrong value. After a reset what was held stays valid. Live tensors never
share memory unless they are aliases by construction. At the end nothing is left.

MEMPROF_TREE_PROGRAMS sets how many programs are run (of 40 operations); the default is small.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memprof.cudagraph_trees.container import reset_cudagraph_trees
from memprof.cudagraph_trees.settings import configure

from .support import VALUES, graphed, live_blocks, next_step

pytestmark = pytest.mark.simgpu

PROGRAMS = int(os.environ.get("MEMPROF_TREE_PROGRAMS", "12"))
OPERATIONS = 40
N = 300


@dataclass
class Held:
    tensor: torch.Tensor
    value: torch.Tensor
    step: int
    storage: int
    """Number of the allocation it lies in; aliases share it."""


def split(x: torch.Tensor) -> list[torch.Tensor]:
    y = x * 2
    return [y + 1, y[: N // 2], y[N // 2 :]]


def chain(x: torch.Tensor) -> list[torch.Tensor]:
    for k in range(5):
        x = x + k
    return [x, x * 3]


def alias(x: torch.Tensor) -> list[torch.Tensor]:
    return [x[1:], x + 5]


def add(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [x[: N // 4] + y[: N // 4]]


# name -> (function, number of inputs, groups of outputs that share memory, outputs that are
# views of the input)
FUNCTIONS = {
    "split": (split, 1, [[0], [1, 2]], []),
    "chain": (chain, 1, [[0], [1]], []),
    "alias": (alias, 1, [[1]], [0]),
    "add": (add, 2, [[0]], []),
}


class Machine:
    """A program under way: the trees, and what must be true."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.held: list[Held] = []
        self.step = 0
        self.allocations = 0
        self.weight = torch.full((N,), 0.5, device="cuda")
        self.functions = {
            name: graphed(fn, [self.weight] * inputs)
            for name, (fn, inputs, _, _) in FUNCTIONS.items()
        }
        self.static = graphed(lambda w, x: [w + x], [self.weight] * 2, static=(0,))

    def argument(self) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """A tensor of N elements, its value, and the allocation if it is held."""
        usable = [h for h in self.held if h.step == self.step and h.tensor.numel() == N]
        if usable and self.rng.random() < 0.6:
            h = self.rng.choice(usable)
            return h.tensor, h.value, h.storage
        value = torch.full((N,), float(self.rng.randrange(100)))
        return value.cuda(), value, None

    def call(self) -> None:
        name = self.rng.choice(list(FUNCTIONS))
        fn, count, groups, views = FUNCTIONS[name]
        arguments = [self.argument() for _ in range(count)]
        expected = fn(*(a[1] for a in arguments))
        inputs = [a[0] for a in arguments]
        storage_of_input = arguments[0][2]
        del arguments
        if self.rng.random() < 0.5:
            self.drop()
        out = self.functions[name](inputs)
        assert not inputs
        self.hold(out, expected, groups, views, storage_of_input)

    def call_static(self) -> None:
        value = torch.full((N,), float(self.rng.randrange(100)))
        out = self.static([self.weight, value.cuda()])
        self.hold(out, [value + 0.5], [[0]], [], None)

    def hold(
        self,
        out: list[torch.Tensor],
        expected: list[torch.Tensor],
        groups: list[list[int]],
        views: list[int],
        input_storage: int | None,
    ) -> None:
        number = {}
        for group in groups:
            self.allocations += 1
            number.update(dict.fromkeys(group, self.allocations))
        self.allocations += 1
        for i in views:
            number[i] = input_storage if input_storage is not None else self.allocations
        for i, (t, v) in enumerate(zip(out, expected, strict=True)):
            if self.rng.random() < 0.7:
                self.held.append(Held(t, v, self.step, number[i]))

    def drop(self) -> None:
        if self.held:
            self.held.pop(self.rng.randrange(len(self.held)))

    def new_step(self) -> None:
        self.step += 1
        if self.rng.random() < 0.3:
            torch.compiler.cudagraph_mark_step_begin()
        else:
            next_step()
            # Once a user has marked a step, only marks count.
            torch.compiler.cudagraph_mark_step_begin()

    def reset(self) -> None:
        reset_cudagraph_trees()
        torch.compiler.cudagraph_mark_step_begin()

    def check(self) -> None:
        valid = []
        for h in self.held:
            try:
                value = h.tensor.cpu()
            except RuntimeError as e:
                if "overwritten by a subsequent run" not in str(e):
                    raise
                assert h.step < self.step, "a tensor of the current step was given up"
                continue
            if VALUES:
                assert torch.equal(value, h.value), f"wrong value, {h.step=} {self.step=}"
            valid.append(h)
        spans = sorted(
            (h.tensor.data_ptr(), h.tensor.data_ptr() + h.tensor.numel() * 4, h.storage)
            for h in valid
        )
        for (_, end, a), (begin, _, b) in itertools.pairwise(spans):
            assert a == b or end <= begin, "live tensors overlap"

    def run(self) -> None:
        actions = [self.call] * 8 + [self.call_static, self.drop, self.drop]
        actions += [self.new_step] * 3 + [self.reset] * (self.rng.random() < 0.2)
        for _ in range(OPERATIONS):
            self.rng.choice(actions)()
            self.check()


@pytest.mark.parametrize("outputs", ["error", "clone"])
@settings(
    max_examples=PROGRAMS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=PROGRAMS < 100,
    database=None,
)
@given(seed=st.integers(0, 2**32))
def test_random_programs(outputs: str, seed: int) -> None:
    configure(outputs=outputs)
    reset_cudagraph_trees()
    machine = Machine(random.Random(seed))
    machine.run()
    del machine
    gc.collect()
    reset_cudagraph_trees()
    assert live_blocks() == 0
