"""The caching allocator's own history, with the lines that allocate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from .. import _torch_compat as compat


@contextlib.contextmanager
def allocator_history() -> Iterator[None]:
    """Within it the caching allocator keeps the Python lines that allocate, unless the user has
    switched a history on, which goes on as it was."""
    theirs = compat.history_enabled()
    if not theirs:
        torch.cuda.memory._record_memory_history("all", context="all", stacks="python")
    try:
        yield
    finally:
        if not theirs:
            torch.cuda.memory._record_memory_history(None)
