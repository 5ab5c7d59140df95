"""The entry point: ``torch.compile(model, backend="memprof")``.

torch finds it through the entry-point group ``torch_dynamo_backends`` and imports it at
the first such call; nobody has to ``import memprof`` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from memprof.cudagraph_trees.container import reset_cudagraph_trees
from memprof.cudagraph_trees.settings import TreeSettings, restore_settings

from . import _torch_compat, graphs_cpu
from .captured_backward import (
    BackwardCompiler,
    LiftedInputs,
    capturing,
    switch_off,
    without_own_option,
)
from .graphs import runs_on_cuda
from .inner_compile import InnerCompile
from .metadata.dynamo_input import dynamo_inputs
from .options import split_options
from .runtime import RUNTIME


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
    lifted: LiftedInputs | None = None,
) -> Callable[..., Any]:
    """``memprof``, which in a captured backward knows what the ``lifted`` inputs are."""
    own, inductor = split_options(options, mode)
    RUNTIME.options.update(own.non_default())
    if own.tree_settings() != TreeSettings():
        restore_settings(own.tree_settings())
    # Graph trees are memprof's own, see Note [Whose decision it is to wrap] in graphs.py.
    graphs = own.graphs is not False and runs_on_cuda(gm, example_inputs)
    inductor["triton.cudagraphs"] = graphs
    try:
        sources = dynamo_inputs(gm, example_inputs)
        if lifted is not None:
            sources = lifted.describe(sources)
    except Exception as error:
        RUNTIME.ledger.fallback(None, "reading Dynamo's description of the inputs", error)
        sources = None
    inner = InnerCompile(own, sources, RUNTIME, graphs=graphs)
    compiled = _torch_compat.run_compile_fx(gm, example_inputs, inner, inductor)
    if own.compiled_autograd:
        rest = without_own_option(options)

        def backward(gm: GraphModule, inputs: Sequence[Any], lifted: LiftedInputs) -> Any:
            return _compile(gm, inputs, rest, mode, lifted)

        return capturing(compiled, BackwardCompiler(backward, RUNTIME))
    return compiled


def reset() -> None:
    """Called by ``torch._dynamo.reset()``: forget graphs, and drop the trees' recordings."""
    switch_off()
    RUNTIME.reset()
    graphs_cpu.reset()
    reset_cudagraph_trees()


memprof.reset = reset  # type: ignore[attr-defined]
