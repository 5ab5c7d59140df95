"""The entry point: ``torch.compile(model, backend="memprof")``.

torch finds it through the entry-point group ``torch_dynamo_backends`` and imports it at
the first such call; nobody has to ``import memprof`` first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from memprof.profiler.support import process_hooks

from . import _torch_compat
from .inner_compile import GRAPH_LISTENERS, InnerCompile
from .options import split_options
from .session import profiler_callbacks
from .session.runtime import RUNTIME
from .stages.describe.dynamo_input import DynamoInput, dynamo_inputs
from .stages.describe.graph_value import RoleInfo
from .stages.graphs import runs_on_cuda, why_not_graphed
from .stages.provenance.dynamo_lines import DynamoLines
from .straight_calls import straight_calls
from .warm_start import serving_hits

if TYPE_CHECKING:
    from .captured_backward_io import CapturedBackwardIO

profiler_callbacks.register()


def memprof(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Compile a Dynamo graph with Inductor and keep track of its memory.

    Args:
        gm: the graph that Dynamo captured; Inductor takes it over.
        example_inputs: its inputs.
        options: memprof's options (``compile_backend/options.py``) and Inductor's.
        mode: as for the inductor backend, e.g. ``max-autotune``.

    Returns:
        The compiled function.

    Raises:
        OptionError: unknown option, or a value of the wrong type.

    Anything else that torch passes to backends (``name``, from 2.15) is ignored.
    """
    return _compile(gm, example_inputs, options, mode)


def _compile(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any] | None,
    mode: str | None,
    captured: CapturedBackwardIO | None = None,
) -> Callable[..., Any]:
    """``memprof``; a Dynamo graph of a captured backward comes with what is known of it."""
    own, inductor = split_options(options, mode)
    _torch_compat.subscribe_to_reset(memprof)
    RUNTIME.options.update(own.non_default())
    # Graph trees are memprof's own: Note [Whose decision it is to wrap] in stages/graphs.py.
    wanted = inductor.get("triton.cudagraphs", True) if own.graphs is None else own.graphs
    on_cuda = runs_on_cuda(gm, example_inputs)
    if on_cuda:
        profiler_callbacks.report_out_of_memory()
    graphs = wanted and on_cuda
    not_graphed = "nothing of it is on a CUDA device" if own.graphs and not graphs else ""
    sources: Sequence[DynamoInput] = ()
    captured_outputs: Mapping[int, RoleInfo] | None = None
    note_names_of: Callable[[Sequence[Any]], None] = lambda args: None  # noqa: E731
    lines: DynamoLines | None = None
    try:
        sources = dynamo_inputs(gm, example_inputs)
        if captured is not None:
            sources = captured.inputs(gm, sources)
            captured_outputs = captured.outputs(gm, sources)
        if graphs and own.graphs is None:
            not_graphed = why_not_graphed(sources, inductor)
        if own.compiled_autograd:
            from .captured_backward_io import note_names

            note_names_of = note_names(sources, example_inputs)
        lines = DynamoLines(gm, sources)
    except Exception as error:
        RUNTIME.ledger.fallback(None, "reading a Dynamo graph", error)
    graphs = graphs and not not_graphed
    inductor["triton.cudagraphs"] = graphs
    # Where backwards are captured each process needs the graph of the backward, which a hit in
    # AOTAutograd's cache does not trace.
    capturing = own.compiled_autograd or captured is not None
    warm = lines is not None and not (capturing or GRAPH_LISTENERS)
    warm = warm and bool(_torch_compat.aot_loadables())
    inner = InnerCompile(
        options=own,
        dynamo_inputs=sources,
        graphs=graphs,
        captured_nodes=captured.nodes if captured is not None else None,
        captured_outputs=captured_outputs,
        inductor=inductor,
        not_graphed=not_graphed,
        lines=lines,
    )
    with contextlib.ExitStack() as stack:
        describe, wanted = inner.forward_description, own.straight_calls
        stack.enter_context(straight_calls(RUNTIME.ledger, example_inputs, describe, wanted=wanted))
        if warm:
            stack.enter_context(serving_hits(inner))
        compiled = _torch_compat.run_compile_fx(
            gm, example_inputs, inner, inductor, autograd_cache=warm
        )
    if own.compiled_autograd:
        from .captured_backward import compiler_with, switch_on, without_own_option

        rest = without_own_option(options)

        def backend(gm: GraphModule, inputs: Sequence[Any], captured: CapturedBackwardIO) -> Any:
            return _compile(gm, inputs, rest, mode, captured)

        compile_backward = compiler_with(backend)

        def run(*args: Any) -> Any:
            switch_on(compile_backward)
            note_names_of(args)
            return compiled(*args)

        return run
    return compiled


# First: it drops ledgers of managers of graph trees that are gone, and those that go in this reset
# are reported until the next one.
process_hooks.on_reset_first(RUNTIME.reset)
# Called by torch._dynamo.reset(): forget graphs, recordings, and what options set.
memprof.reset = process_hooks.reset  # type: ignore[attr-defined]
