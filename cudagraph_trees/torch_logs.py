"""What ``TORCH_LOGS=cudagraphs`` says: torch's sentences about torch's trees, about these.

They go to the logger of torch's own trees, so that its switches, levels and format hold. Why calls
run without a graph is said by ``_torch_compat.announce_skip``, as a warning. The times of
``dynamo_timed``, which tlparse shows, are ``_torch_compat.timed``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from . import _torch_compat as compat
from .device.protocol import Input
from .spec import CompilationMode, FunctionSpec

_log = compat.graphs_log


def wrapped(compile_id: object, key: Any) -> None:
    """A function is called for the first time with the integers ``key``; None if it has none."""
    if key is None:
        _log.info("[%s] Recording cudagraph tree for graph without symints", compile_id)
    else:
        _log.info("[%s] Recording cudagraph tree for symint key %s", compile_id, key)


def sizes_limit(compile_id: object, mode: CompilationMode, limit: int) -> None:
    """A graph has as many recordings for sizes as it may have."""
    _log.warning(
        "[%s] %s graph hit cudagraph_dynamic_shape_rerecord_limit=%s; already-recorded shapes "
        "still replay, new shapes run eager.",
        compile_id,
        mode.name.lower(),
        limit,
    )


def warm_up(function: FunctionSpec, *, again: bool) -> None:
    """A function is about to be warmed up, perhaps not for the first time."""
    if again:
        _log.debug("[%s] Running eager function=%s", function.compile_id, function.label)
    else:
        _log.debug(
            "[%s] Running warmup function=%s, mode=%s",
            function.compile_id,
            function.label,
            function.mode.name,
        )


def no_recording_fits(function: FunctionSpec, reason: str) -> None:
    """Another recording will be made at this place."""
    _log.debug(
        "[%s] Re-recording function=%s, mode=%s, reason=%s",
        function.compile_id,
        function.label,
        function.mode.name,
        reason,
    )


def recording(function: FunctionSpec, number: int, inputs: Sequence[Input]) -> None:
    """A function is about to be recorded."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "[%s] Recording function=%s, mode=%s, cuda_graph_id=%d, inputs: %s",
            function.compile_id,
            function.label,
            function.mode.name,
            number,
            compat.describe_inputs(inputs),
        )


def books_restored(times: int) -> None:
    """The allocator's books are about to be restored."""
    _log.debug("Checkpointing cuda caching allocator state. Number of checkpoints %d", times)
