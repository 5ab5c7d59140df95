"""Who captures a CUDA graph: what the stack of the program says when a capture begins."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from dataclasses import dataclass
from types import CodeType

from memprof.profiler.model import SourceFrame

from .where import is_internal

_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)")
_OURS = re.compile(r"[/\\]cudagraph_trees[/\\](capture|device)[/\\]\w+\.py$")
_MEMPROF = "memprof's graph trees"
_TORCH = "torch's graph trees"
_CALLABLES = "make_graphed_callables"


@dataclass(frozen=True, slots=True)
class CaptureSite:
    """Where a capture began.

    Attributes:
        maker: whose code captures: a function of torch, graph trees, or the package of a serving
            engine.
        frame: innermost frame of the program; None if there is none.
        name: what the graph is of, as far as the maker says it.
    """

    maker: str
    frame: SourceFrame | None
    name: str = ""


def capture_site() -> CaptureSite:
    """Who captures now, on this thread."""
    maker, name = "capture_begin", ""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        code = frame.f_code
        found, of = _maker(code, line)
        if found:
            maker, name = found, of or name
        if not is_internal(code.co_filename):
            package = _PACKAGE.search(code.co_filename)
            if package is not None and not maker.endswith("trees") and maker != _CALLABLES:
                maker = package[1]
            text = linecache.getline(code.co_filename, line).strip()
            where = SourceFrame(code.co_filename, line, code.co_name, text)
            return CaptureSite(maker, where, name)
    return CaptureSite(maker, None, name)


def _maker(code: CodeType, line: int) -> tuple[str, str]:
    """What a frame of torch's or memprof's says of a capture below it, and of its graph."""
    file = code.co_filename
    if _OURS.search(file):
        return _MEMPROF, ""
    file = file.replace("\\", "/")
    if file.endswith("torch/_inductor/cudagraph_trees.py"):
        return _TORCH, ""
    if file.endswith("torch/cuda/graphs.py"):
        if code.co_name == _CALLABLES:
            text = linecache.getline(file, line) + linecache.getline(file, line + 1)
            return _CALLABLES, "backward" if "bwd_graph" in text else "forward"
        if code.co_name == "__enter__":
            return "torch.cuda.graph", ""
    return "", ""
