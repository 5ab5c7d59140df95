"""Program text that asked for a block: a source line, the classes of modules, an FX node.

Note [Frames of compiled code]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
While the allocator keeps Python frames, torch puts the stack trace of the model's own source
between the frame of Inductor's generated code and the one that called it. So a block of compiled
code has its source line like one of eager code. The generated code says more: above the call that
first uses a buffer stands a comment with the FX nodes from which it was made ("Topologically Sorted
Source Nodes").
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memprof.profiler.model import SourceFrame
from memprof.profiler.model.provenance import line_and_library

_GENERATED = re.compile(r"[/\\]c[a-z0-9]{40,}\.py$")
"""A file of Inductor's code cache: a ``c`` and a hash."""

_INTERNAL = re.compile(
    r"[/\\](site|dist)-packages[/\\](torch|triton|memprof)[/\\]|^<frozen "
    r"|[/\\]simulated_cuda[/\\]runtime[/\\]|[/\\]lib[/\\]python3\.\d+[/\\](?!site-packages|dist-packages)"
)
_NO_PYTHON = re.compile(
    r"\.(c|cc|cpp|cxx|cu|cuh|h|hpp|inc|s|asm|rs)$|\.so(\.|$)|^(\?\?)?$|[/\\]python3?(\.\d+)?$",
    re.IGNORECASE,
)
"""Files of frames of C++, which a history with ``stacks="all"`` has among those of Python."""
_OWN = str(Path(os.path.abspath(__file__)).parents[3]) + os.sep
"""Folder that memprof is in, installed or not."""

_NODES = re.compile(r"# Topologically Sorted Source Nodes: \[(.*?)\], Original ATen: \[(.*?)\]")
MODULE_IN_MODULE = " > "
"""Stands between the classes of modules in one text."""
_TARGET = re.compile(r"^\s*(\w+) = ")
_NO_USE = re.compile(r"^\s*(#|del |assert_|\w+ = empty_strided|\w+ = tracked_empty|with )")


@dataclass(frozen=True, slots=True)
class Where:
    """Place in the program that asked for a block.

    Attributes:
        line, library: of the program, and of the library that it called for that; see
            ``line_and_library``. None where no Python was running, as in autograd's own threads.
        modules: names of the module classes whose ``forward`` was running, outermost first.
        generated: line of Inductor's code, None for eager code.
        nodes: FX nodes of the kernel that first uses the block, with what of ATen they are;
            empty if unknown or eager.
        recomputed: whether a forward ran, or what stands for one in generated code, inside of a
            backward if that was running: a checkpoint, a module that was called, an FX node that
            ``describe_with`` says so of. Not what a backward asked for that such a forward began.
    """

    line: SourceFrame | None
    library: SourceFrame | None
    modules: tuple[str, ...]
    generated: SourceFrame | None
    nodes: str
    recomputed: bool

    @property
    def innermost(self) -> SourceFrame | None:
        """The line that asked itself, whoever called it."""
        return self.library or self.line

    @property
    def module_path(self) -> str:
        """The modules in one text."""
        return MODULE_IN_MODULE.join(self.modules)


_CALLS_FORWARD = re.compile(r"[/\\]torch[/\\](utils[/\\]checkpoint|nn[/\\]modules[/\\]module)\.py$")
_ENGINE = "_engine_run_backward"
"""Function of torch that waits for autograd's engine."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A line of generated code: the label of its graph, the FX node whose memory it asks for, empty
    if unknown, the program's line of that node, and whether it is one of the forward that a
    backward runs again."""

    graph: str
    node: str = ""
    frame: SourceFrame | None = None
    recomputed: bool = False


Describe = Callable[[str, int], Compiled | None]
"""Looks a line of a file up as generated code; None if it is not known."""

_describe: list[Describe] = []


def describe_with(describe: Describe) -> None:
    """Ask ``describe`` about generated code from now on."""
    _describe[:] = [describe]


def compiled_at(generated: SourceFrame | None) -> Compiled:
    """Graph and FX node of a line of generated code; empty for None."""
    found = _describe[0](generated.file, generated.line) if _describe and generated else None
    return found or Compiled("")


@functools.lru_cache(maxsize=8192)
def is_internal(file: str) -> bool:
    """Tells whether a file belongs to torch, Triton, memprof or Python's own machinery of
    running.
    """
    return file.startswith(_OWN) or bool(_INTERNAL.search(file) or _GENERATED.search(file))


def line_of_caller() -> SourceFrame | None:
    """The innermost line of the program on this thread's stack; None if it has none."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        code = frame.f_code
        if not is_internal(code.co_filename):
            return SourceFrame(code.co_filename, line, code.co_name)
    return None


def source_of(line: SourceFrame | None) -> SourceFrame | None:
    """The line with its source text, where that can be read."""
    return line and replace(line, code=linecache.getline(line.file, line.line).strip())


@functools.lru_cache(maxsize=8192)
def is_generated(file: str) -> bool:
    """Tells whether a file is of Inductor's code."""
    return _GENERATED.search(file) is not None


def nodes_of_buffer(file: str, name: str) -> str:
    """FX nodes of the kernel that first uses a buffer of generated code; empty if not known."""
    assigns = re.compile(rf"^\s*{re.escape(name)} = ")
    for number, line in enumerate(linecache.getlines(file), 1):
        if assigns.match(line):
            return _nodes(SourceFrame(file, number, ""))
    return ""


def where(frames: Sequence[SourceFrame]) -> Where:
    """Place in the program of a request with these frames, innermost first."""
    generated = next((f for f in frames if is_generated(f.file)), None)
    inner = itertools.takewhile(lambda f: f.function != _ENGINE, frames)
    recomputed = compiled_at(generated).recomputed or any(
        _CALLS_FORWARD.search(f.file) for f in inner
    )
    nodes = _nodes(generated) if generated is not None else ""
    lines = line_and_library(user_lines(frames))
    return Where(*lines, modules_in(frames), generated, nodes, recomputed)


def modules_in(frames: Sequence[SourceFrame]) -> tuple[str, ...]:
    """Classes whose ``forward`` is among the frames, outermost first."""
    modules: list[str] = []
    for frame in reversed(frames):
        if frame.function == "forward" and is_of_program(frame.file):
            name = _class_at(frame.file, frame.line)
            if name and (not modules or modules[-1] != name):
                modules.append(name)
    return tuple(modules)


def is_of_program(file: str) -> bool:
    """Tells whether a class of modules of this file is one that a program calls: its own, or
    torch's."""
    return _INTERNAL.search(file) is None or "/torch/nn/modules/" in file


def user_lines(frames: Iterable[SourceFrame]) -> Iterator[SourceFrame]:
    """The frames that are of the program and its libraries."""
    python = (f for f in frames if f.line > 0 and _NO_PYTHON.search(f.file) is None)
    return (f for f in python if not is_internal(f.file))


def _nodes(generated: SourceFrame) -> str:
    lines = linecache.getlines(generated.file)
    at = generated.line - 1
    if not 0 <= at < len(lines):
        return ""
    target = _TARGET.match(lines[at])
    use = at
    if target is not None and _NO_USE.match(lines[at]):
        named = re.compile(rf"\b{target[1]}\b")
        later = (i for i in range(at + 1, len(lines)) if named.search(lines[i]))
        use = next((i for i in later if not _NO_USE.match(lines[i])), at)
    # The comment is of the call right below it: a few lines up, and not beyond another call.
    for i in range(use, max(-1, use - 4), -1):
        found = _NODES.search(lines[i])
        if found is not None:
            nodes, operators = found.groups()
            return f"{nodes} ({operators})" if nodes else operators
    return ""


@functools.lru_cache(maxsize=4096)
def _class_at(file: str, line: int) -> str:
    """The class in whose body a line stands; empty if there is none or the file cannot be read."""
    inside = [(begin, name) for begin, end, name in _classes(file) if begin <= line <= end]
    return max(inside)[1] if inside else ""


@functools.lru_cache(maxsize=512)
def _classes(file: str) -> list[tuple[int, int, str]]:
    """First and last line of each class, and its name."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    return [
        (node.lineno, node.end_lineno or node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
