"""What the graph trees run in the first calls of a graph.

Note [Observing in the trees]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A graph in the trees is observed in a warm-up of theirs, so that what it allocates comes out of
the memory that its recording will have: a call beside the trees would need all of it a second
time while the pool holds it already, and a job that fills a device would die of being looked at.

So the trees are handed an ``ObservableModel`` for each partition. In the first call of a graph,
which tunes its kernels and is not observed, it asks for another warm-up. In the next one it runs
the instrumented copy of its partition. What the trees themselves allocate around it is theirs:
the recorder is told to look aside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from memprof.cudagraph_trees import mark_warmup_incomplete

Model = Callable[[list[Any]], Any]


class NotRun(Exception):
    """The trees replayed, or ran a partition twice: what the call showed is not the graph."""


@dataclass(slots=True)
class _Once:
    """What one thread's next run of a model does; for None it is not the last warm-up."""

    copy: Model | None
    runs: int = 0


class ObservableModel:
    """The code of one partition, as the trees see it.

    Attributes:
        model: Inductor's function.
        armed: what runs in its place, by thread.
    """

    __slots__ = ("armed", "model")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.armed: dict[int, _Once] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        once = self.armed.get(get_ident())
        if once is None:
            return self.model(inputs)
        once.runs += 1
        if once.copy is None or once.runs > 1:
            mark_warmup_incomplete()
            return self.model(inputs)
        return once.copy(inputs)


@contextlib.contextmanager
def running(
    models: Sequence[ObservableModel], copies: Sequence[Model | None]
) -> Iterator[list[_Once]]:
    """Within it, the trees run the copies of these; for None Inductor's function, in a warm-up
    that is not the last. Yields how often they do, as it happens."""
    armed = list(map(_Once, copies))
    try:
        for model, once in zip(models, armed, strict=True):
            model.armed[get_ident()] = once
        yield armed
    finally:
        for model in models:
            model.armed.pop(get_ident(), None)


def check_runs(armed: Sequence[_Once]) -> None:
    """Check, after an observed call, that it showed what the graph does.

    Raises:
        NotRun: a copy did not run, or it failed and Inductor's function ran after it.
    """
    if any(once.runs != 1 for once in armed):
        raise NotRun(
            "its graphs were replayed, or a warm-up failed, in each call that was to be observed"
        )
