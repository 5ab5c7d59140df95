"""Sees every capture of a CUDA graph in this process, whoever makes it.

Note [Wrapped, not hooked]
~~~~~~~~~~~~~~~~~~~~~~~~~~
Everything in Python that captures comes by ``CUDAGraph.capture_begin`` and ``capture_end``, which
are wrapped. The hooks that torch has there from 2.14 on
(``torch.cuda.graphs.register_graph_capture_start_hook``) tell neither the pool nor that a capture
failed, and run when the first allocations are done.

Note [What a capture is asked]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
At its begin and its end a mark is set, and the segments of its pool are looked up: to take the
history at each of the thousands of captures of an engine would take seconds.
"""

from __future__ import annotations

import functools
import re
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import torch

from memprof.profiler.model import GraphCapture, GraphPool, SourceFrame
from memprof.profiler.model.address_ranges import Range, has, merged
from memprof.profiler.support.thread_activity import HERE

from . import _torch_compat as compat
from .allocator_session import AllocatorSession
from .captures import Device, WatchedCapture, describe
from .history import AllocatorBlock
from .replaced import replace, undo_all
from .where import is_internal, source_of

_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)")
_API = "torch.cuda.graph"
_MAKERS = (
    (re.compile(r"cudagraph_trees/(record|device)/\w+\.py:"), "memprof's graph trees"),
    (re.compile(r"torch/_inductor/cudagraph_trees\.py:"), "torch's graph trees"),
    (re.compile(r"torch/cuda/graphs\.py:make_graphed_callables$"), "make_graphed_callables"),
    (re.compile(r"torch/cuda/graphs\.py:__enter__$"), _API),
)
"""Who captures, by the file and function of a frame on the stack; the outermost counts."""


class GraphWatch:
    """Follows captures from ``install`` to ``uninstall``, with an ``AllocatorSession`` that follows
    the rest; ``captures`` has them in the order in which they began."""

    def __init__(self, watch: AllocatorSession) -> None:
        watch.on_block = self.made
        self._watch = watch
        self.captures: list[WatchedCapture] = []
        # By ``id`` of the graph.
        self._open: dict[int, WatchedCapture] = {}
        self._graphs: dict[int, WatchedCapture] = {}
        self._blocks: dict[int, list[AllocatorBlock]] = {}
        self._frames: dict[tuple[Any, ...], Any] = {}
        self._ranges: dict[int, list[Range]] = {}
        self._undo = undo_all()

    def install(self) -> None:
        """Begin; the ``AllocatorSession`` is installed."""
        graph = [torch.cuda.CUDAGraph]
        self._undo = undo_all(
            replace(graph, "capture_begin", self._around_begin),
            replace(graph, "capture_end", self._around_end),
        )

    def uninstall(self) -> None:
        self._undo()

    def made(self, device: int, block: AllocatorBlock) -> None:
        """Keep a block of the history if it may be of a capture, or of a pool that has graphs."""
        if not self._open and not has(self._ranges.get(device, ()), block.address):
            return
        # The same few stacks, by thousands: as they come each is a list of its own.
        key = tuple((f["filename"], f["line"], f["name"]) for f in block.raw_frames)
        block.raw_frames = self._frames.setdefault(key, block.raw_frames)
        self._blocks.setdefault(device, []).append(block)

    def pools(self) -> list[GraphPool]:
        """Private pools that were captured into, as they are at the end.

        Raises:
            RuntimeError: the history was not followed.
        """
        watch = self._watch
        if watch.why_not:
            raise RuntimeError(watch.why_not)
        for c in list(self._open.values()):
            self._finish(c, "it had not ended when the session did")
        watch.drain()
        for c in self._graphs.values():
            graph = c.reference()
            if graph is not None and compat.pool_of(graph) is None:  # It was reset.
                _gone(c)
        held = compat.storage_addresses()
        found = []
        for number, history in watch.histories.items():
            blocks, sizes = self._blocks.get(number, []), compat.workspace_sizes(number)
            device = Device(f"cuda:{number}", history, blocks, held, sizes)
            found += describe(device, [c for c in self.captures if c.device == number])
        return found

    def _around_begin(self, begin: Callable[..., None]) -> Callable[..., None]:
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            capture = self._watch.guarded(self._before, graph, args, kwargs)
            try:
                begin(graph, *args, **kwargs)
            except BaseException as e:
                if capture is not None:
                    self._watch.guarded(self._finish, capture, _text(e))
                raise

        return capture_begin

    def _around_end(self, end: Callable[..., None]) -> Callable[..., None]:
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> None:
            capture = self._open.get(id(graph))
            # A body that raises ends the capture all the same, and what was captured is a part.
            inside = sys.exc_info()[1]
            raised = inside is not None and (capture is None or id(inside) != capture.handled)
            failed = _text(inside) if inside is not None and raised else ""
            ended = None
            try:
                end(graph, *args, **kwargs)
                ended = graph
            except BaseException as e:
                failed = failed or _text(e)
                raise
            finally:
                if capture is not None:
                    self._watch.guarded(self._finish, capture, failed, ended)

        return capture_end

    def _before(self, graph: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WatchedCapture:
        device = torch.cuda.current_device()
        pool = compat.pool_id(kwargs.get("pool", args[0] if args else None))
        maker, frame = _who_captures()
        number, began = len(self.captures) + 1, time.perf_counter_ns()
        record = GraphCapture(number, HERE.graphs, maker, frame, start_ns=began)
        before = self._graphs.pop(id(graph), None)
        if before is not None and before.reference() is graph:
            _gone(before)  # It is captured anew.
        found = self._look(device, pool) if pool is not None else ()
        begin = self._watch.mark()
        handled = id(sys.exc_info()[1])
        capture = WatchedCapture(record, device, pool, begin, found=found, handled=handled)
        self.captures.append(capture)
        self._open[id(graph)] = capture
        return capture

    def _finish(self, c: WatchedCapture, failed: str, graph: Any = None) -> None:
        self._open = {key: one for key, one in self._open.items() if one is not c}
        c.graph.duration_ns = time.perf_counter_ns() - c.graph.start_ns
        c.graph.failed = failed
        if graph is not None:
            c.pool = c.pool or compat.pool_of(graph)
            c.reference = weakref.ref(graph, functools.partial(_gone, c))
            self._graphs[id(graph)] = c
        else:
            c.deleted_ns = c.graph.start_ns
        if c.pool is not None:
            c.segments = self._look(c.device, c.pool)
        c.end = self._watch.mark()

    def _look(self, device: int, pool: tuple[int, int]) -> tuple[Range, ...]:
        own = [s for s in compat.pool_segments(pool) if s["device"] == device and s["total_size"]]
        found = sorted((s["address"], s["address"] + s["total_size"]) for s in own)
        self._ranges[device] = merged([*self._ranges.get(device, ()), *found])
        return tuple(found)


def _gone(c: WatchedCapture, _: object = None) -> None:
    c.deleted_ns = time.perf_counter_ns()


def _text(error: BaseException) -> str:
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _who_captures() -> tuple[str, SourceFrame | None]:
    """The library or API that captures now on this thread, and the innermost frame of the
    program."""
    maker = "capture_begin"
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        place = f"{file}:{function}".replace("\\", "/")
        maker = next((name for pattern, name in _MAKERS if pattern.search(place)), maker)
        if not is_internal(file):
            package = _PACKAGE.search(file)
            if package is not None and maker in ("capture_begin", _API):
                maker = package[1]
            return maker, source_of(SourceFrame(file, line, function))
    return maker, None
