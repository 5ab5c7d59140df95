"""CUDA graphs over a private pool of the caching allocator.

Note [Random numbers]
~~~~~~~~~~~~~~~~~~~~~
A generator of a CUDA device is a handle to a *state*: a seed and an offset. The handle can be
pointed to another state, and compiled code does that: what checkpointing recomputes has to draw
the numbers of its forward, so the code points the device's default generator to the state of a
generator that it got as an input, calls the operator, and, unless that raises, points it back.

* A *warm-up* is the call itself and moves states as the call does. If it fails and the call is
  made again, they have to be where they were. First each handle is put back, then the content of
  each state: that of the default state would otherwise be written over the one that it was swapped
  for.
* A *capture* moves no state of the device. The graph keeps those states that were drawn from, and
  a replay reads seed and offset from them and moves the offset. So there is nothing to put back
  when it has succeeded. Numbers of the host that the code took are part of the graph.
* Up to torch 2.13 a capture only knows the default generator and those that were registered with
  the graph before; drawing from any other raises. So those among the inputs are registered.
* A replay that fails when it is launched has moved the states: a recording puts them back, too,
  before the call is made again.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from memprof.profiler.sources.allocator._torch_compat import pool_segments
from memprof.profiler.support.thread_activity import name_graphs

from .. import _torch_compat as compat
from .protocol import (
    Checkpoint,
    Frames,
    Input,
    Model,
    Output,
    PoolBlock,
    StoragePointer,
    TensorSpec,
)


def generators_among(inputs: Iterable[Input]) -> list[torch.Generator]:
    return list({id(x): x for x in inputs if isinstance(x, torch.Generator)}.values())


class GeneratorStates:
    """States of all generators that a call may draw from, see Note [Random numbers]: the default
    ones of the host and of ``device``, and those in ``inputs``."""

    def __init__(self, device: torch.device, inputs: Iterable[Input] = ()) -> None:
        found = [torch.default_generator, *generators_among(inputs)]
        found.append(torch.cuda.default_generators[device.index])
        self._before = [
            (g, g.graphsafe_get_state() if g.device.type == "cuda" else None, g.get_state())
            for g in found
        ]

    def restore(self) -> None:
        """Point each generator back to the state that it had, and give that its content."""
        for generator, handle, _ in self._before:
            if handle is not None:
                generator.graphsafe_set_state(handle)
        for generator, _, content in self._before:
            generator.set_state(content)


def _nothing() -> None:
    """Launch nothing: the replay of a function without kernels."""


def released() -> None:
    """Stands for the launch of a graph that is gone."""
    raise RuntimeError("this recording was released; it cannot be replayed any more")


class CudaPool:
    """Memory that the nodes of one manager share, see Note [Who does what: manager and device].

    Attributes:
        handle: the allocator's name for it, as ``torch.cuda.graph_pool_handle()`` gives.
        stream: serves all warm-ups and captures: the allocator keeps a segment for the stream that
            it was allocated on.
        damaged: nothing more can be recorded in it: a failed capture has left it so, or memory in
            it is held that the manager does not know of.
    """

    def __init__(self, index: int, initial_bytes: int = 0) -> None:
        """Start with one free segment of at least ``initial_bytes``, if these are not 0."""
        self.index = index
        self.device = torch.device("cuda", index)

        def begin(_: list[Input]) -> list[Output]:
            if initial_bytes:
                # Freed at once; the segment stays in the pool.
                torch.empty(initial_bytes, dtype=torch.uint8, device=self.device)
            return []

        with torch.cuda.device(index), warnings.catch_warnings(), name_graphs("keeps the pool"):
            warnings.simplefilter("ignore")  # "the graph is empty"
            torch.cuda.synchronize()
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.stream.wait_stream(torch.cuda.current_stream())
            self.handle: Any = torch.cuda.graph_pool_handle()
            self.damaged = False
            # For the first graph, torch makes two small tensors on its stream: if they do not fit,
            # its destructor ends the process. Where this one has room they have.
            with torch.cuda.stream(self.stream):
                room = torch.empty(1, device=self.device)
            # The allocator keeps a pool for as long as a graph that was captured into it.
            self._keep_alive: object = self.capture(begin, [])
            del room

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        """Within it, allocations of the calling thread come out of this pool. Its work is ordered
        after what the caller has enqueued, and what follows after it."""
        torch.cuda.synchronize()
        caller = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(caller)
        try:
            with torch.cuda.stream(self.stream), torch.device(self.device):
                compat.begin_allocate_to_pool(self.index, self.handle)
                try:
                    yield
                finally:
                    compat.end_allocate_to_pool(self.index, self.handle)
                    compat.release_pool(self.index, self.handle)
        finally:
            # After a failure as well: its kernels may be running when the call is made again.
            caller.wait_stream(self.stream)

    def warm_up(self, model: Model, inputs: list[Input]) -> list[Output]:
        """Run ``model`` for real, allocating from the pool; keep nothing."""
        with (
            torch.cuda.device(self.index),
            compat.keep_conv_cache(),
            compat.fresh_cublas_workspaces(),
            self.allocating(),
        ):
            compat.publish_current_stream()
            with compat.control_flow("ControlFlowOpWarmupDispatchMode"):
                return list(model(inputs))

    def capture(
        self,
        model: Model,
        inputs: list[Input],
        *,
        kernel_free: bool = False,
        annotate: bool = False,
    ) -> tuple[Callable[[], object], list[Output]]:
        """Run ``model`` on the inputs that replays will read so that it can be repeated, without
        computing anything. Returns what launches it, which alone holds the graph, and what the run
        returned. One that is ``kernel_free`` launches nothing; with ``annotate`` torch keeps what
        the model marks its kernels with."""
        if kernel_free:
            return _nothing, self.warm_up(model, inputs)
        graph = torch.cuda.CUDAGraph()
        caller = torch.cuda.current_stream(self.device)
        before = GeneratorStates(self.device, inputs)
        generators = [g for g in generators_among(inputs) if g.device == self.device]
        with (
            torch.cuda.device(self.index),
            compat.fresh_cublas_workspaces(),
        ):
            if generators:
                with torch.cuda.stream(self.stream):
                    compat.register_generators(graph, generators)
            capture = torch.cuda.graph(
                graph,
                pool=self.handle,
                stream=self.stream,
                capture_error_mode="thread_local",
                **compat.annotated(annotate),
            )
            began = False
            try:
                with capture:
                    began = True
                    compat.publish_current_stream()
                    with compat.control_flow("CUDAGraphCaptureControlFlowOpDispatchMode"):
                        outputs: Any = model(inputs)
            except BaseException:
                self._end_failed_capture(graph, caller, generators, began=began)
                before.restore()
                raise
        if not isinstance(outputs, (list, tuple)):
            outputs = [outputs]
        return compat.graph_launch(graph), list(outputs)

    def _end_failed_capture(
        self,
        graph: torch.cuda.CUDAGraph,
        caller: torch.cuda.Stream,
        generators: Sequence[torch.Generator],
        *,
        began: bool,
    ) -> None:
        with torch.cuda.stream(self.stream):
            # It has begun, and what failed is a question that torch asked about it.
            if torch.cuda.is_current_stream_capturing():
                with contextlib.suppress(RuntimeError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # "the graph is empty"
                    graph.capture_end()
        torch.cuda.set_stream(caller)
        self.damaged |= compat.end_failed_capture(
            self.index,
            self.handle,
            graph,
            self.stream,
            generators,
            began=began,
        )

    def checkpoint(self) -> Checkpoint:
        return compat.pool_checkpoint(self.index, self.handle)

    def restore(
        self, checkpoint: Checkpoint, live: Sequence[StoragePointer], dead: Iterable[int]
    ) -> None:
        """Put the allocator's books back.

        Args:
            live: storages, one for each block that was live at the checkpoint and still
                is. From here on they own their block. No two share an address.
            dead: addresses of the blocks that were live then and are no more. They are freed.
        """
        compat.restore_pool(self.index, checkpoint, [], list(live))
        for address in dead:
            compat.raw_delete(address)

    def release_storage(self, storage: StoragePointer) -> None:
        """Free the block that ``storage`` owns, if it does: ``invalidate`` follows."""
        if compat.has_standard_deleter(storage):
            compat.free_and_remove_deleter(storage)

    def invalidate(
        self, tensor: torch.Tensor | None, storage: StoragePointer, message: str
    ) -> None:
        """Make every later use of ``storage``'s data raise ``RuntimeError(message)``, and that of
        ``tensor``, which the user was given, if it still exists."""
        if tensor is not None:
            compat.set_tensor_message(tensor, message)
        compat.set_storage_message(storage, message)

    def move_out(self, storage: StoragePointer) -> bool:
        """Give a live storage, and so all tensors over it, memory outside the pool with the same
        content, and free its block if it owned that. False if this torch cannot do that for it, or
        it has died meanwhile: nothing changed."""
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
        compat.swap_storage(source, fresh.untyped_storage())
        return True

    def tensor_at(
        self, spec: TensorSpec, storage: torch.UntypedStorage | None = None
    ) -> torch.Tensor:
        """A tensor over ``storage``, by default over one of its own that owns nothing. Hot."""
        if storage is None:
            storage = compat.storage_at(spec.address, spec.device, spec.nbytes)
        return compat.cuda_tensor(
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
        """Tells whether an address lies in a segment that the pool has now. Not hot."""
        segments = [
            range(s["address"], s["address"] + s["total_size"]) for s in pool_segments(self.handle)
        ]
        return lambda address: any(address in segment for segment in segments)

    def live_addresses(self) -> set[int]:
        return {b.address for b in self.live_blocks()}

    def live_blocks(self) -> list[PoolBlock]:
        """Blocks that are allocated, by address."""
        blocks = [
            PoolBlock(b["address"], b["size"], b["requested_size"], _frames(b.get("frames", ())))
            for segment in pool_segments(self.handle)
            for b in segment["blocks"]
            if b["state"] == "active_allocated"
        ]
        return sorted(blocks, key=lambda block: block.address)

    def reserved_bytes(self) -> int:
        """Bytes that the pool has from the system."""
        return sum(s["total_size"] for s in pool_segments(self.handle))

    def unclaimed_bytes(self) -> int:
        """Bytes of the pool's device that nobody has."""
        free, total = torch.cuda.mem_get_info(self.device)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(self.device))
        return min(free, max(0, allowed - torch.cuda.memory_reserved(self.device)))

    def release(self) -> None:
        """Give up this handle. Memory goes back to the system when the last captured run and the
        last live block are gone too."""
        self._keep_alive = None


def _frames(stack: Iterable[dict[str, Any]]) -> Frames:
    return tuple((f["filename"], f["line"], f["name"]) for f in stack)
