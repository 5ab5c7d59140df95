"""Callbacks by which the backend informs the profiler, which must not import it: the run-time
tracker of a tensor's origin and of what was compiled and called; a report of a device out of memory
of the compiled code that asked. ``register()`` is called when the backend is imported,
``report_out_of_memory()`` when it first compiles for a CUDA device.

A tensor is found by its storage where an observed call has seen it (inputs, and outputs of
observed calls), else by its ``grad_fn``: the output of any call of a compiled forward carries the
autograd function of that graph and its position among the outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memprof.profiler.model import GraphRecord, LedgerKind, Role, Storage
from memprof.profiler.sources.allocator.where import Compiled, describe_with
from memprof.profiler.sources.process.naming import TensorOrigin, register as register_with_tracker
from memprof.profiler.support.process_hooks import ForkSafeLock

from .. import _torch_compat
from .runtime import RUNTIME

if TYPE_CHECKING:
    from memprof.profiler.model import DeviceAccount, Profile


# Re-entrant: the tracker's handler of SIGTERM may come by while this thread is inside.
_lock = ForkSafeLock()
_seen: dict[int, int] = {}
"""Programs of each graph that ``_origins`` has."""
_origins: dict[int, TensorOrigin] = {}
"""By storage identity, of observed programs; brought up to date when there are new ones."""


def _find(identity: int) -> TensorOrigin | None:
    """Origin of the storage ``identity``; None if no observed program has seen it."""
    with _lock:
        existing = {g.record.id: g.record for g in RUNTIME.graphs()}
        if not _seen.keys() <= existing.keys():  # torch._dynamo.reset()
            _seen.clear()
            _origins.clear()
        for id, record in existing.items():
            programs = record.programs
            for storage in (s for p in programs[_seen.get(id, 0) :] for s in p.storages):
                # The graph that made it knows more than those that take it.
                is_found = storage.at_entry and storage.identity in _origins
                if storage.identity is not None and not is_found:
                    _origins[storage.identity] = _origin(record, storage)
            _seen[id] = len(programs)
        return _origins.get(identity)


def _origin(record: GraphRecord, storage: Storage) -> TensorOrigin:
    node, name = None, ""
    if storage.at_entry:
        for value in (record.inputs[i] for i in storage.inputs if i < len(record.inputs)):
            node = value.name
            if value.role in (Role.PARAMETER, Role.BUFFER) and value.fqn:
                name = value.fqn
    elif (buffer := record.buffers.get(storage.name)) is not None:
        node = buffer.primary
    return TensorOrigin(record.id, node, storage.category, name)


def origin(tensor: torch.Tensor) -> TensorOrigin | None:
    """Origin of ``tensor`` in a compiled graph; None if it is unknown."""
    try:
        storage = tensor.untyped_storage()
    except RuntimeError:  # an output of a CUDA graph whose memory is somebody else's by now
        return None
    identity = RUNTIME.identities.existing(storage)
    found = _find(identity) if identity is not None else None
    return found or _as_output(tensor)


def _as_output(tensor: torch.Tensor) -> TensorOrigin | None:
    id = _torch_compat.graph_of_operation(tensor.grad_fn)
    record = next((g.record for g in RUNTIME.graphs() if g.record.id == id), None)
    if record is None or tensor.output_nr >= len(record.outputs):
        return None
    value = record.outputs[tensor.output_nr]
    # The position is AOTAutograd's business; that shape and type agree says we read it right.
    same = value.dtype == str(tensor.dtype) and len(value.shape) == tensor.dim()
    sizes = zip(value.shape, tensor.shape, strict=False)
    if not same or any(text.isdigit() and int(text) != size for text, size in sizes):
        return None
    return TensorOrigin(record.id, value.name, value.category)


def compiled() -> tuple[Profile, dict[int, int]]:
    """The profile so far, and the numbers of its threads by ``threading.get_ident()``."""
    threads: dict[int, int] = {}
    return RUNTIME.profile(threads=threads), threads


def register() -> None:
    """Let the tracker ask ``origin`` and ``compiled``."""
    register_with_tracker(origin, compiled)


def describe(file: str, line: int) -> Compiled | None:
    """Graph and FX node of a line of generated code; None if ``file`` is none of ours."""
    record = next((g.record for g in RUNTIME.graphs() if g.record.code_path == file), None)
    if record is None:
        return None
    buffer = record.buffers.get(record.buffer_of_line(line) or "")
    node = (buffer.primary if buffer is not None else None) or ""
    found = record.nodes.get(node)
    again = found is not None and found.recomputed
    return Compiled(record.label, node, found.frame if found is not None else None, again)


def _add_to_ledger(account: DeviceAccount) -> str:
    # Reports take a quarter of a second to import, and who compiles seldom needs them.
    from memprof.profiler.views.report.failure import asked, asker
    from memprof.profiler.views.report.format import format_bytes

    f = account.failure
    if f is not None and not f.activity:
        graph = next((g.record.id for g in RUNTIME.graphs() if g.record.label == f.graph), None)
        text = f"out of memory on {account.device}: {asked(f, format_bytes)} asked for {asker(f)}"
        RUNTIME.ledger.add(LedgerKind.OUT_OF_MEMORY, graph, text)
    return ""


def _line(account: DeviceAccount, kept: list[str]) -> str:
    from memprof.profiler.views.report.failure import in_a_line

    return in_a_line(account, kept)


def report_out_of_memory() -> None:
    """Log a line for each failed allocation from now on, and note it in the ledger."""
    from memprof.profiler.sources.allocator.out_of_memory import REPORTS

    if REPORTS.start(_line):
        describe_with(describe)
        REPORTS.keep_with(_add_to_ledger)
