"""Rows of an account: bytes and holder of a device's blocks, one row for all that are alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .category import Category
from .limits import Count, Positive
from .provenance import SourceFrame

BEFORE = "from before the session"
"""``Held.detail`` of blocks that were there when somebody began to watch."""

RECOMPUTED = "recomputed"
"""``Held.detail`` of activations that a backward computes again: to save them helps nobody."""


class Fate(str, Enum):
    """State, after a capture, of memory that the capture allocated."""

    SCRATCH = "scratch"
    """Let go of within the capture: later captures into the pool take the same place."""
    GIVEN_BACK = "given_back"
    """Let go of after it: an output that nobody keeps."""
    HELD = "held"
    """Still allocated, and a tensor in Python refers to it: an output, a buffer."""
    WORKSPACE = "workspace"
    """Still allocated, held by nobody in Python, and of the size of cuBLAS's workspace, which torch
    allocates once for each handle and stream: in the first capture that needs it."""
    UNEXPLAINED = "unexplained"
    """Still allocated, and nobody in Python refers to it."""
    KEPT = "kept"
    """Allocated when the last capture had ended. All graphs of the pool have been deleted since,
    and nobody looked at who held it."""

    @property
    def label(self) -> str:
        return _LABELS.get(self, self.value.replace("_", " "))

    @property
    def stays(self) -> bool:
        """Whether the memory stays after its capture, so that no other capture can reuse it."""
        return self not in (Fate.SCRATCH, Fate.GIVEN_BACK)


_LABELS = {
    Fate.GIVEN_BACK: "given back after the capture",
    Fate.HELD: "held by a tensor",
    Fate.WORKSPACE: "cuBLAS workspace, by its size",
    Fate.UNEXPLAINED: "held by nobody in Python",
    Fate.KEPT: "kept as long as there were graphs",
}


@dataclass(frozen=True, slots=True)
class Held:
    """Blocks that are for the same and that the same text asked for.

    Attributes:
        nbytes, count: bytes that were asked for, in so many blocks.
        modules: classes whose ``forward`` was running, outermost first, ``a > b``; outside of those
            of the module whose own it is, a parameter say; empty of others.
        frame: the line of the program that asked; None where no Python was running, or nobody
            watched.
        waits: whether ``frame`` did not ask itself, but waits in ``backward()`` for autograd's
            threads.
        nodes: FX nodes of the kernel that first uses such a block; empty for eager code.
        compiled: whether Inductor's code asked.
        detail: more on the category, such as ``all-gathered by FSDP``; mostly empty.
        holder: who has them, where that was asked and the history does not tell what they are;
            mostly empty.
        library: the line of an installed package that ``frame`` called for that; None if none was.
        fate: what became of memory that a capture of a CUDA graph asked for; None of other memory.
    """

    category: Category
    nbytes: Count
    count: Positive
    modules: str = ""
    frame: SourceFrame | None = None
    nodes: str = ""
    compiled: bool = False
    detail: str = ""
    holder: str = ""
    waits: bool = False
    library: SourceFrame | None = None
    fate: Fate | None = None

    @property
    def what(self) -> str:
        """The category with its detail, or of a capture's memory its fate, in words for reports."""
        if self.fate is not None:
            return self.fate.label
        return self.category.label + (f" ({self.detail})" if self.detail else "")
