"""Parsing the textual origins that torch keeps on FX nodes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memprof.profiler.model import SourceFrame

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$')
_MARKS = re.compile(r"^[\s^~]+$")
# L['self'].blocks.0.attn, G['model'].fc, L['fn'].__self__.fc …
_ROOT = re.compile(r"^[LG]\['[^']*'\](\.__self__)?\.?")
_INDEX = re.compile(r"\[['\"]?([^'\"\]]*)['\"]?\]")


@functools.lru_cache(maxsize=8192)
def parse_stack_trace(text: str | None) -> tuple[SourceFrame, ...]:
    """Frames of a ``node.meta["stack_trace"]``, outermost first.

    Python 3.11 and later underline the expression with ``^^^^`` lines; they are skipped.
    A frame whose source could not be read has an empty ``code``.
    """
    frames: list[SourceFrame] = []
    for line in (text or "").splitlines():
        if found := _FRAME.match(line):
            frames.append(SourceFrame(found["file"], int(found["line"]), found["function"]))
        elif frames and not frames[-1].code and line.strip() and not _MARKS.match(line):
            frames[-1] = replace(frames[-1], code=line.strip())
    return tuple(frames)


def clean_module_path(source: str) -> str:
    """``L['self'].blocks.0.attn`` → ``blocks.0.attn``; the root module is ``""``."""
    path = _ROOT.sub("", source)
    path = re.sub(r"(^|\.)_modules(?=\[)", "", path)
    path = _INDEX.sub(r".\1", path)
    return path.strip(".")


def innermost_module(stack: Mapping[Any, Any] | None) -> tuple[str, str] | None:
    """Path and type name of the innermost module of a ``node.meta["nn_module_stack"]``."""
    if not stack:
        return None
    source, kind = list(stack.values())[-1]
    type_name = kind if isinstance(kind, str) else kind.__name__
    return clean_module_path(source), type_name.rpartition(".")[2]
