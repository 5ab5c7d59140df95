"""Errors for a user who touches memory that was reused, or whose code was not recorded."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch

from .. import _torch_compat as compat
from .spec import CompilationMode, FunctionSpec


def output_origin(function: FunctionSpec, index: int) -> str:
    """Origin of an output in words, as far as is known: FX node, parameter, source line, module."""
    parts = []
    value = function.output_value(index)
    if value is not None and function.record is not None:
        node = function.record.nodes.get(value.name)
        parts.append(f"FX node {value.name}{f' of {value.fqn}' if value.fqn else ''}")
        frame = value.frame or (node.frame.location if node and node.frame else None)
        if frame:
            parts.append(frame)
        if node is not None and node.module_path is not None:
            parts.append(f"module {node.module_path or '(root)'}")
    return ", ".join(parts)


def _stack_trace(function: FunctionSpec, index: int) -> str:
    """The code that makes an output, or where that has no line of its own, a line of its graph."""
    traces = function.stack_traces or ()
    if index < len(traces) and traces[index]:
        return str(traces[index]).strip()
    nodes = function.record.nodes.values() if function.record is not None else ()
    frames = [node.frame.location for node in nodes if node.frame is not None]
    own = next(filter(None, [function.called_at, *frames, *traces]), "").strip()
    return f"[none of its own; its graph is that of {own}]" if own else "[could not be found]"


OverwrittenMessage: TypeAlias = Callable[[int, str], str]
"""The error for an output that was made in a step, overwritten in the next, which began with what
the second argument says."""


def overwritten_message(function: FunctionSpec, index: int, node: int) -> OverwrittenMessage:
    """Make the error for output ``index`` of a node, all but the numbers of the steps."""
    gradient = function.mode is CompilationMode.BACKWARD
    origin = output_origin(function, index)
    before = (
        f"Error: accessing {'gradient ' if gradient else ''}tensor output of CUDAGraphs that "
        "has been overwritten by a subsequent run.\n"
        f"It is output {index} of {function.label}{f' ({origin})' if origin else ''}.\n"
    )
    maker = f"{'recording' if node >= 0 else 'warm-up'} {abs(node)}"
    after = (
        f"Stack trace: {_stack_trace(function, index)}\n"
        f"{_GRADIENT_WAYS_OUT if gradient else _ways_out(function, index)}"
    )

    def message(step: int, by: str) -> str:
        return (
            f"{before}It was made in step {step} ({maker}); step {step + 1}, which "
            f"began with {by}, has reused its memory.\n{after}"
        )

    return message


_GRADIENT_WAYS_OUT = (
    "Ways out: set .grad to None before each backward; or, to accumulate gradients, allocate "
    ".grad before the first compiled backward (zeros will do)."
)
_OPTION = 'or have it done for you: outputs="clone" (options={"outputs": "clone"} of the backend); '
_NO_CLONE = (
    'outputs="clone" could not copy it: what is held is a view of the output, perhaps one that '
    "Inductor made, and torch before 2.12 cannot give views other memory. "
)
_MARK = (
    "if this is one step, say where steps begin with torch.compiler.cudagraph_mark_step_begin()."
)


def _ways_out(function: FunctionSpec, index: int) -> str:
    """Remedies that this torch allows, for a held output that is no gradient."""
    if not function.description.is_visible(index):
        return (
            "It was saved for a backward. Ways out: call that before the next step begins; "
            f"or, {_MARK}"
        )
    # Where storages can be given other memory, nothing of what is to be cloned raises.
    failed = _NO_CLONE if function.clone_outputs else ""
    option = _OPTION if compat.can_swap_storage() else ""
    return f"{failed}Ways out: clone the tensor before the next step begins; {option}or, {_MARK}"


_TORCH = Path(torch.__file__).parent
_TREES = Path(__file__).parents[1]
_NOT_THE_USERS = tuple(f"{p}/" for p in (_TORCH, _TORCH.with_name("triton"), _TREES))


def is_the_users(file: str) -> bool:
    """Tells whether a source file is none of torch, Triton or these trees. Generated code is
    none.
    """
    return not file.startswith(_NOT_THE_USERS)


class UntrackedMemory(RuntimeError):
    """Blocks of the pool are live that no output of the path explains."""


_CAPTURE_INVALIDATED = "due to a previous error during capture"


def _first_error(error: BaseException) -> BaseException:
    """Once an operation has failed in a capture, so does the end of the capture, and that is the
    error which arrives."""
    while _CAPTURE_INVALIDATED in str(error) and error.__context__ is not None:
        error = error.__context__
    return error


def ran_out_of_memory(error: BaseException) -> bool:
    return isinstance(_first_error(error), torch.OutOfMemoryError)


def why_it_failed(error: BaseException) -> str:
    """The error that made a warm-up or a recording fail, on one line, and the last line outside of
    torch, Triton and these trees that raised it: of a custom operator, or of generated code."""
    error = _first_error(error)
    message = str(error)
    if not isinstance(error, UntrackedMemory):
        # CUDA's errors go on with advice on how to debug kernels.
        message = message.partition("\n")[0]
    text = f"{type(error).__name__}: {' '.join(message.split())}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_the_users(f.filename)]
    if not frames:
        return text
    last = frames[-1]
    return f"{text} (at {last.filename}:{last.lineno}{f': {last.line}' if last.line else ''})"
