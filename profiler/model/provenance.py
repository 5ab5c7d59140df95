"""Origin of a buffer of generated code: FX nodes, user source, module."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .limits import Count, Int

IN_TORCH = "-packages/torch/"
"""Part of the path of every file of torch."""


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One frame of user code: the path as Python reported it, the line from 1, the function, and
    the text of the line, "" where it could not be read."""

    file: str
    line: Int
    function: str
    code: str = ""

    @property
    def location(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\](bin|Scripts)[/\\][^/\\.]+$")
"""Files of installed packages, and the scripts by which their commands are called."""


def line_and_library(
    frames: Iterable[SourceFrame],
) -> tuple[SourceFrame | None, SourceFrame | None]:
    """The line of the program, and the line of the library that it called for that, if it did:
    the innermost frame that is of no installed package, or in the ``forward`` of a module of one,
    and the innermost of all. Without such a frame the innermost counts as the program's.

    Args:
        frames: innermost first.
    """
    innermost = None
    for frame in frames:
        innermost = innermost or frame
        if frame.function == "forward" or _LIBRARY.search(frame.file) is None:
            return frame, None if frame is innermost else innermost
    return innermost, None


@dataclass(frozen=True, slots=True)
class NodeProvenance:
    """One FX node of a compiled graph, after Inductor's post-grad passes.

    Attributes:
        name: unique in its graph.
        target: e.g. ``aten.mm.default``.
        original_aten: the aten operator that decomposition started from.
        seq_nr: autograd sequence number, which links forward and backward.
        stack: user frames, outermost first; the last is where the operator was called.
            In a backward graph these are the frames of the forward operator.
        module_path: e.g. ``blocks.0.attn.qkv``; "" is the root module, None is unknown.
        module_type: class of that module.
        recomputed: a forward operator that a backward runs again, for a checkpoint or since the
            partitioner saved something smaller.
    """

    name: str
    target: str
    original_aten: str | None = None
    seq_nr: Int | None = None
    stack: tuple[SourceFrame, ...] = ()
    module_path: str | None = None
    module_type: str | None = None
    recomputed: bool = False

    @property
    def frame(self) -> SourceFrame | None:
        """The line of the program that called the operator, see ``line_and_library``; of torch's
        (a collective or an optimizer has some) if there is no other."""
        users = (f for f in reversed(self.stack) if IN_TORCH not in f.file)
        return line_and_library(users)[0] or (self.stack[-1] if self.stack else None)


@dataclass(frozen=True, slots=True)
class BufferProvenance:
    """One buffer that generated code names.

    Attributes:
        name: in the generated code, e.g. ``buf7``.
        kind: what makes it, Inductor's IR class, e.g. ``ComputedBuffer``.
        nodes: names of the FX nodes computed into it, in graph order.
        primary: the node whose value the buffer holds; bytes are attributed to it.
        dtype: e.g. ``torch.float32``, or None for what is no tensor.
        shape: numbers, or expressions over size symbols.
        nbytes, nbytes_expr: None where it depends on size symbols; the same as an expression.
        line: 1-based line of the generated code that first assigns it, None if none does.
    """

    name: str
    kind: str
    nodes: tuple[str, ...] = ()
    primary: str | None = None
    dtype: str | None = None
    shape: tuple[str, ...] = ()
    device: str | None = None
    nbytes: Count | None = None
    nbytes_expr: str = ""
    line: Int | None = None
