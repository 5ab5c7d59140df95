"""What a user is told who touches memory that was reused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .function import CompilationMode

if TYPE_CHECKING:
    from .function import Function


def output_origin(function: Function, index: int) -> str:
    """Where an output comes from, as far as is known: FX node, source line, module."""
    parts = []
    record = function.record
    if record is not None and function.partition is None and index < len(record.outputs):
        value = record.outputs[index]
        node = record.nodes.get(value.name)
        parts.append(f"FX node {value.name}")
        frame = value.frame or (node.frame.location if node and node.frame else None)
        if frame:
            parts.append(frame)
        if node is not None and node.module_path is not None:
            parts.append(f"module {node.module_path or '(root)'}")
    return ", ".join(parts)


def overwritten_message(
    function: Function, index: int, *, made_in: int, node: int, overwritten_in: int, by: str
) -> str:
    """The error for an output whose memory was reused.

    Args:
        function: that returned it.
        index: which output of it.
        made_in: number of the step it comes from.
        node: number of the recording, negative for a warm-up.
        overwritten_in: number of the step that reused the memory.
        by: name of the function that this step began with.
    """
    gradient = function.mode is CompilationMode.BACKWARD
    what = "gradient tensor output" if gradient else "tensor output"
    trace = None
    if function.stack_traces is not None and index < len(function.stack_traces):
        trace = function.stack_traces[index]
    origin = output_origin(function, index)
    lines = [
        f"Error: accessing {what} of CUDAGraphs that has been overwritten by a subsequent run.",
        f"It is output {index} of {function.label}" + (f" ({origin})" if origin else "") + ".",
        f"It was made in step {made_in} ({'recording' if node >= 0 else 'warm-up'} {abs(node)}); "
        f"step {overwritten_in}, which began with {by}, has reused its memory.",
        f"Stack trace: {trace.strip() if trace else '[Could not find stack trace]'}",
    ]
    if gradient:
        lines.append(
            "Ways out: set .grad to None before each backward; or, to accumulate gradients, "
            "allocate .grad before the first compiled backward (zeros will do)."
        )
    else:
        lines.append(
            "Ways out: clone the tensor before the next step begins; or have it done for you: "
            'outputs="clone" (memprof.cudagraph_trees.configure, or options={"graph_outputs": '
            '"clone"} of the backend); or, if this is one step, say where steps begin with '
            "torch.compiler.cudagraph_mark_step_begin()."
        )
    return "\n".join(lines)
