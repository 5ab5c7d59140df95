"""Registry of those who know more than the tracker: what a tensor is, what was compiled.

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
    """Role of a tensor in a compiled graph: ``GraphRecord.id`` (None if it belongs to none in
    particular), the FX node that computed it, its category, the name of a parameter."""

    graph: int | None = None
    node: str | None = None
    category: Category | None = None
    name: str = ""


Namer = Callable[[Any], TensorOrigin | None]
Compiled = Callable[[], tuple[Profile, dict[int, int]]]

_registered: tuple[Namer, Compiled] | None = None


def register(namer: Namer, compiled: Compiled) -> None:
    """Tell the tracker whom to ask.

    Args:
        namer: from a ``torch.Tensor`` to its origin, None if it is not known. Called by the
            tracker's thread, for the few largest tensors of a snapshot; must not keep the tensor.
        compiled: what this process has compiled and called, and the numbers that the profile's
            calls use for threads, by ``threading.get_ident()``.
    """
    global _registered
    _registered = namer, compiled


def origin(tensor: Any) -> TensorOrigin:
    return (_registered and _registered[0](tensor)) or TensorOrigin()


def compiled() -> tuple[Profile, dict[int, int]] | None:
    """The profile of what was compiled, None if nothing was."""
    found = _registered[1]() if _registered is not None else None
    return found if found and (found[0].graphs or found[0].ledger) else None
