"""What a storage really is, from addresses and the phase that made it.

Addresses are read from live tensors after each phase, phases from the clock around each
phase; neither is known to the analysis. A storage made in a phase may have several right
answers: what dies in the forward may be called an activation or a temporary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from memprof.profiler.model import Category
from memprof.profiler.sources.trace.profile import DataFlowProfile

from .models import Case


@dataclass
class Step:
    forward: int
    backward: int
    optimizer: int
    end: int
    gradients: set[int]
    inputs: set[int]


@dataclass
class Truth:
    """Filled in by ``train``."""

    parameters: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    batches: list[torch.Tensor] = field(default_factory=list)

    def right(self, born: int, died: int, ptr: int) -> set[Category]:
        """Right answers for a storage; empty where the truth is not known."""
        step = next((s for s in reversed(self.steps) if s.forward <= born), None)
        if step is None or born > step.end:
            known = (
                (self.parameters, Category.PARAMETER),
                (self.states, Category.OPTIMIZER_STATE),
                (set().union(*(s.inputs for s in self.steps)), Category.INPUT),
                (set().union(*(s.gradients for s in self.steps)), Category.GRADIENT),
            )
            return next(({c} for ptrs, c in known if ptr in ptrs), set())
        if born < step.backward:
            if died > step.backward:
                return {Category.INPUT} if ptr in step.inputs else {Category.ACTIVATION}
            return {Category.ACTIVATION, Category.TEMPORARY}
        if born < step.optimizer:
            if died > step.optimizer and ptr in step.gradients:
                return {Category.GRADIENT}
            return {Category.AUTOGRAD_DETAIL, Category.TEMPORARY}
        if died < step.end:
            return {Category.TEMPORARY}
        return {Category.OPTIMIZER_STATE}


def _ptr(t: torch.Tensor) -> int:
    return int(t.untyped_storage().data_ptr())


def train(
    case: Case,
    opt: torch.optim.Optimizer,
    steps: int,
    model: Any = None,
    step: Callable[[], Any] | None = None,
) -> Truth:
    """Train, and note addresses and times. Batches are made beforehand and kept.

    ``step`` is what to call instead of ``opt.step``.
    """
    truth = Truth(batches=[case.batch() for _ in range(steps)])
    module = case.model
    for x in truth.batches:
        opt.zero_grad()
        t0 = time.time_ns()
        loss = case.loss(module if model is None else model, x)
        t1 = time.time_ns()
        loss.backward()
        t2 = time.time_ns()
        gradients = {_ptr(p.grad) for p in module.parameters() if p.grad is not None}
        t3 = time.time_ns()
        (step or opt.step)()
        t4 = time.time_ns()
        del loss
        truth.steps.append(Step(t0, t1, t3 if t3 > t2 else t2, t4, gradients, {_ptr(x)}))
    truth.parameters = {_ptr(t) for t in (*module.parameters(), *module.buffers())}
    truth.states = {
        _ptr(t) for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)
    }
    return truth


@dataclass
class Verdict:
    """Bytes at the peak."""

    total: int = 0
    right: int = 0
    wrong: int = 0
    unknown: int = 0
    untold: int = 0
    """The truth is not known."""
    mistakes: dict[str, int] = field(default_factory=dict)


def _address(profile: DataFlowProfile, storage: int) -> int:
    keys, allocations = profile.columns.keys, profile.columns.allocations
    if storage < len(keys):
        return int(keys.ptr[storage])
    row = max(profile.storages.created[storage], profile.storages.destroyed[storage])
    return int(allocations.unnamed_ptr[np.flatnonzero(allocations.key < 0).searchsorted(row)])


def judge(
    profile: DataFlowProfile,
    truth: Truth,
    within: tuple[int, int] | None = None,
) -> Verdict:
    """Hold the categories at the peak of the CPU, of all times or of some, against the truth."""
    from memprof.profiler.sources.trace.to_model import by_category, live_rows

    out = Verdict()
    cpu = profile.device_index("cpu")
    table = by_category(profile, "cpu")
    times, live = table.time, table.totals
    if within is not None:
        # Nothing may have changed inside: what was there at its beginning counts.
        first = max(int(times.searchsorted(within[0], side="right")) - 1, 0)
        last = int(times.searchsorted(within[1], side="right"))
        times, live = times[first:last].clip(min=within[0]), live[first:last]
    time = int(times[live.argmax()])
    versions = profile.versions_at(time)
    born, died = profile.storages.born, profile.storages.died
    for s in live_rows(profile, cpu, time).tolist():
        size = int(profile.storages.size[s])
        category = profile.category(s, int(versions[s]))
        right = truth.right(int(born[s]), int(died[s]), _address(profile, s))
        out.total += size
        if not right:
            out.untold += size
        elif category is Category.UNKNOWN:
            out.unknown += size
        elif category in right:
            out.right += size
        else:
            out.wrong += size
        if right and category not in right:
            name = f"{category.name} for {'/'.join(sorted(c.name for c in right))}"
            out.mistakes[name] = out.mistakes.get(name, 0) + size
    return out
