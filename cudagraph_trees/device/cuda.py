"""CUDA graphs over a private pool of the caching allocator."""

from __future__ import annotations

import bisect
import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from memprof.profiler.doing import name_graphs

from .. import _torch_compat as compat
from .. import native
from . import _torch_compat as allocator
from .generators import GeneratorStates, generators_among
from .protocol import (
    AllocatorEvent,
    Block,
    Checkpoint,
    Input,
    Model,
    Output,
    Segment,
    StoragePointer,
    TensorSpec,
)


class CudaCapturedRun:
    """A CUDA graph and the outputs of its capture; ``graph`` is None if it has no kernel."""

    __slots__ = ("graph", "launch", "outputs", "ran")

    def __init__(self, graph: torch.cuda.CUDAGraph | None, outputs: list[Output]) -> None:
        self.graph = graph
        self.outputs: list[Output] | None = outputs
        self.ran = graph is None
        self.launch: Callable[[], object] | None = (
            allocator.graph_launch(graph) if graph is not None else _nothing
        )

    def replay(self, inputs: list[Input]) -> list[Output] | None:
        assert self.launch is not None
        self.launch()
        return None

    def release(self) -> None:
        self.graph = None
        self.launch = _released


def replaced(tensor: torch.Tensor, twin: torch.Tensor, message: str) -> torch.Tensor:
    """``CudaPool.replace`` in Python."""
    allocator.set_tensor_message(tensor, message)
    return compat.another(tensor, twin)


def _nothing() -> None:
    """What a function that launches nothing has to do again."""


def _released() -> None:
    raise RuntimeError("this recording was released; it cannot be replayed any more")


class CudaPool:
    """See ``protocol.Pool``.

    One stream serves all warm-ups and captures: the allocator keeps a segment for the
    stream it was allocated on, so a second stream would not share memory with the first.
    """

    def __init__(self, index: int, initial_bytes: int = 0) -> None:
        self.index = index
        self.device = torch.device("cuda", index)
        self._native = native.load()
        with torch.cuda.device(index):
            torch.cuda.synchronize()
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.stream.wait_stream(torch.cuda.current_stream())
            self.handle: Any = torch.cuda.graph_pool_handle()
            self.damaged = False
            # For the first graph, torch makes two small tensors on its stream. If there is no
            # memory for them, the graph's destructor ends the process. Where there is room for
            # this one there is room for them.
            with torch.cuda.stream(self.stream):
                room = torch.empty(1, device=self.device)
            # The allocator keeps a pool for as long as a graph that was captured into it.
            self._keep_alive: torch.cuda.CUDAGraph | None = torch.cuda.CUDAGraph()
            caller, before = torch.cuda.current_stream(), GeneratorStates.now(self.device, ())
            try:
                self._capture_nothing(self._keep_alive, initial_bytes)
            except BaseException:
                self._end_failed_capture(self._keep_alive, caller, ())
                before.restore()
                raise
            del room

    def _capture_nothing(self, graph: torch.cuda.CUDAGraph, initial_bytes: int) -> None:
        with (
            warnings.catch_warnings(),
            name_graphs("keeps the pool"),
            torch.cuda.graph(
                graph, pool=self.handle, stream=self.stream, capture_error_mode="thread_local"
            ),
        ):
            warnings.simplefilter("ignore")  # "the graph is empty"
            if initial_bytes:
                # Freed at once; the segment stays in the pool.
                torch.empty(initial_bytes, dtype=torch.uint8, device=self.device)

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        torch.cuda.synchronize()
        caller = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(caller)
        try:
            with torch.cuda.stream(self.stream), torch.device(self.device):
                allocator.begin_allocate_to_pool(self.index, self.handle)
                try:
                    yield
                finally:
                    allocator.end_allocate_to_pool(self.index, self.handle)
                    allocator.release_pool(self.index, self.handle)
        finally:
            # After a failure as well: its kernels may be running when the call is made again.
            caller.wait_stream(self.stream)

    def warm_up(self, model: Model, inputs: list[Input]) -> list[Output]:
        with (
            torch.cuda.device(self.index),
            allocator.keep_conv_cache(),
            allocator.fresh_cublas_workspaces(),
            self.allocating(),
        ):
            allocator.publish_current_stream()
            with allocator.control_flow_warm_up():
                return list(model(inputs))

    def capture(
        self, model: Model, inputs: list[Input], *, kernel_free: bool = False
    ) -> CudaCapturedRun:
        if kernel_free:
            return CudaCapturedRun(None, self.warm_up(model, inputs))
        graph = torch.cuda.CUDAGraph()
        caller = torch.cuda.current_stream(self.device)
        before = GeneratorStates.now(self.device, inputs)
        generators = [g for g in generators_among(inputs) if g.device == self.device]
        with (
            torch.cuda.device(self.index),
            allocator.fresh_cublas_workspaces(),
        ):
            if generators:
                with torch.cuda.stream(self.stream):
                    allocator.register_generators(graph, generators)
            capture = torch.cuda.graph(
                graph, pool=self.handle, stream=self.stream, capture_error_mode="thread_local"
            )
            try:
                with capture:
                    allocator.publish_current_stream()
                    with allocator.control_flow_capture():
                        outputs: Any = model(inputs)
            except BaseException:
                self._end_failed_capture(graph, caller, generators)
                before.restore()
                raise
        if not isinstance(outputs, (list, tuple)):
            outputs = [outputs]
        return CudaCapturedRun(graph, list(outputs))

    def _end_failed_capture(
        self,
        graph: torch.cuda.CUDAGraph,
        caller: torch.cuda.Stream,
        generators: Sequence[torch.Generator],
    ) -> None:
        """Put streams, the allocator and generators back after a capture that failed."""
        with torch.cuda.stream(self.stream):
            # It has begun, and what failed is a question that torch asked about it.
            if torch.cuda.is_current_stream_capturing():
                with contextlib.suppress(RuntimeError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # "the graph is empty"
                    graph.capture_end()
        torch.cuda.set_stream(caller)
        self.damaged |= allocator.end_failed_capture(
            self.index, self.handle, graph, self.stream, generators
        )

    @contextlib.contextmanager
    def observing(self) -> Iterator[list[AllocatorEvent]]:
        out: list[AllocatorEvent] = []
        with allocator.allocator_history() as history:
            yield out
            segments = [(s.address, s.address + s.nbytes) for s in self.segments()]
            for e in history(self.index):
                if e["action"] not in ("alloc", "free_completed"):
                    continue
                address = e["addr"]
                if any(a <= address < b for a, b in segments):
                    frames = _frames(e["frames"])
                    out.append(AllocatorEvent(e["action"] == "alloc", address, e["size"], frames))

    def checkpoint(self) -> Checkpoint:
        return allocator.pool_checkpoint(self.index, self.handle)

    def restore(
        self, checkpoint: Checkpoint, live: Sequence[StoragePointer], dead: Iterable[int]
    ) -> None:
        allocator.restore_pool(self.index, checkpoint, [], list(live))
        for address in dead:
            allocator.raw_delete(address)

    def release_storage(self, storage: StoragePointer) -> None:
        if allocator.has_standard_deleter(storage):
            allocator.free_and_remove_deleter(storage)

    def invalidate(
        self, tensor: torch.Tensor | None, storage: StoragePointer, message: str
    ) -> None:
        if tensor is not None:
            allocator.set_tensor_message(tensor, message)
        allocator.set_storage_message(storage, message)

    def replace(self, tensor: torch.Tensor, twin: torch.Tensor, message: str) -> torch.Tensor:
        if self._native is not None:
            try:
                other: torch.Tensor = self._native.replace(tensor, twin, message)
                return other
            except RuntimeError:  # cached tensors were switched off: Python switches them on
                pass
        return replaced(tensor, twin, message)

    def move_out(self, storage: StoragePointer) -> bool:
        source = compat.storage_from_weak(storage)
        if source is None:
            return False  # the garbage collector has come by since it was found alive
        nbytes = source.nbytes()
        if not compat.can_swap_storage():
            # Resizing to the same size allocates and copies; the old memory goes back
            # through its own deleter. A storage over borrowed memory cannot be resized.
            if not source.resizable():
                return False
            source.resize_(nbytes)
            return True
        with torch.cuda.device(self.index):
            fresh = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
            view = torch.empty(0, dtype=torch.uint8, device=self.device)
            fresh.copy_(view.set_(source, 0, (nbytes,), (1,)))
            del view
        # If the old memory owned its block, it frees it when ``fresh`` dies, right here.
        allocator.swap_storage(source, fresh.untyped_storage())
        return True

    def tensor_at(
        self, spec: TensorSpec, storage: torch.UntypedStorage | None = None
    ) -> torch.Tensor:
        if storage is None:
            storage = compat.storage_at(spec.address, spec.device, spec.nbytes)
        return allocator.cuda_tensor(
            {
                "nbytes": spec.nbytes,
                "data_ptr": spec.address,
                "size": spec.shape,
                "stride": spec.stride,
                "dtype": spec.dtype,
                "device": spec.device,
                "storage_offset": spec.offset,
            },
            storage,
        )

    def extent(self) -> Callable[[int], bool]:
        segments = sorted(
            (s["address"], s["address"] + s["total_size"])
            for s in allocator.memory_snapshot(self.handle)
        )
        begins = [begin for begin, _ in segments]

        def contains(address: int) -> bool:
            i = bisect.bisect_right(begins, address) - 1
            return i >= 0 and address < segments[i][1]

        return contains

    def live_addresses(self) -> set[int]:
        return {b.address for s in self.segments() for b in s.blocks if b.live}

    def only_live(self, addresses: set[int]) -> bool:
        return allocator.pool_has_only(self.index, self.handle, addresses)

    def segments(self) -> list[Segment]:
        out = []
        for s in allocator.memory_snapshot(self.handle):
            blocks = []
            address = s["address"]
            for b in s["blocks"]:
                live = b["state"] == "active_allocated"
                requested = b["requested_size"] if live else 0
                frames = _frames(b.get("frames", ())) if live else ()
                blocks.append(Block(address, b["size"], requested, live, frames))
                address += b["size"]
            out.append(Segment(s["address"], s["total_size"], tuple(blocks)))
        return sorted(out, key=lambda s: s.address)

    def reserved_bytes(self) -> int:
        return sum(s["total_size"] for s in allocator.memory_snapshot(self.handle))

    def release(self) -> None:
        self._keep_alive = None


def _frames(stack: Iterable[dict[str, Any]]) -> tuple[tuple[str, int, str], ...]:
    return tuple((f["filename"], f["line"], f["name"]) for f in stack)


class CudaDevice:
    """See ``protocol.Device``."""

    address_bound = True

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)

    def create_pool(self, initial_bytes: int = 0) -> CudaPool:
        return CudaPool(self.device.index, initial_bytes)

    def empty_cache(self) -> int:
        before = torch.cuda.memory_reserved(self.device)
        torch.cuda.empty_cache()
        return before - torch.cuda.memory_reserved(self.device)

    def unclaimed_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(self.device))
        return min(free, max(0, allowed - torch.cuda.memory_reserved(self.device)))

    def available_bytes(self) -> int:
        cached: int = sum(
            s["total_size"] - s["allocated_size"]
            for s in allocator.memory_snapshot(allocator.GENERAL_POOL)
            if s["device"] == self.device.index
            and tuple(s["segment_pool_id"]) == allocator.GENERAL_POOL
        )
        return self.unclaimed_bytes() + cached

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)
