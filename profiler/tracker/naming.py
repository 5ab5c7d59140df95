"""Where those who know more than the tracker tell it: what a tensor is, what was compiled.

The tracker must not import the backend (``docs/architecture.md``, One profile), so the backend
registers. Nothing here imports torch: registering costs nothing where no tracker runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memprof.profiler.model import Category, Profile


@dataclass(frozen=True, slots=True)
class TensorOrigin:
    """What a tensor is to a compiled graph.

    Attributes:
        graph: ``GraphRecord.id``, None if it belongs to no graph in particular.
        node: the FX node that computed it.
        category: what it is for.
        name: qualified name of a parameter or buffer.
    """

    graph: int | None = None
    node: str | None = None
    category: Category | None = None
    name: str = ""


Namer = Callable[[Any], "TensorOrigin | None"]
"""From a ``torch.Tensor`` to its origin, None if it is not known. Called by the tracker's
thread, for the few largest tensors of each snapshot; must not keep the tensor."""

Compiled = Callable[[], "tuple[Profile, dict[int, int]]"]
"""What this process has compiled and called, and the numbers that the profile's calls use for
threads, by ``threading.get_ident()``."""

_told: dict[Namer, tuple[Compiled, Callable[[], bool]]] = {}
"""Whom to ask, see ``register``."""


def register(namer: Namer, compiled: Compiled, anything: Callable[[], bool]) -> None:
    """Tell the tracker whom to ask; a second registration of the same is ignored.

    Args:
        namer: what a tensor is.
        compiled: the profile of what was compiled.
        anything: whether anything was; cheap, asked with each snapshot.
    """
    _told.setdefault(namer, (compiled, anything))


def anything_compiled() -> bool:
    """Whether memprof has compiled something in this process."""
    return any(anything() for _, anything in _told.values())


def origin(tensor: Any) -> TensorOrigin | None:
    """What the first who knows says of ``tensor``."""
    return next((found for ask in _told if (found := ask(tensor)) is not None), None)


def compiled() -> tuple[Profile, dict[int, int]] | None:
    """The profile of what was compiled, None if nothing was."""
    for ask, _ in _told.values():
        profile, threads = ask()
        if profile.graphs or profile.ledger:
            return profile, threads
    return None
