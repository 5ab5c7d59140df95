"""The graphs stage: CUDA code runs in memprof's graph trees.

Note [Whose decision it is to wrap]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Which graphs are safe to capture, how others are cut into partitions, and what these take and write
is left to Inductor: memprof compiles with ``triton.cudagraphs`` on and stands in the place of the
function that Inductor calls for each partition. The box through which a forward tells its backward
that it was not wrapped stays Inductor's too, since a backward whose forward runs without a graph
gets its saved tensors at new addresses each time.

Note [Parameters that are gathered]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
FSDP gathers a module's parameters into memory that the allocator happens to give before each use,
and frees it after. The graph trees would find out in the first step, see
Note [Inputs that keep moving], too late for memory: 8 layers of Llama 8B over 8 ranks reserved a
tenth more than with Inductor for good. Dynamo knows beforehand, so such code is compiled
without graphs, unless ``graphs=True`` asks for them or ``cudagraph_or_error`` for an error.

Note [Observing in the trees]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A graph in the trees is observed in a warm-up of theirs, out of the memory that its recording will
have: a call beside the trees would need all of it a second time, and a job that fills a device
would die of being looked at. So the trees are handed an ``ObservableModel`` for each partition. In
the first call of a graph, which tunes its kernels and is not observed, it asks for another warm-up;
in the next one it runs the instrumented copy of its partition. What the trees themselves allocate
around it is theirs: the recorder is told to look aside.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from memprof.cudagraph_trees.torch_options import TreeOptions
from memprof.profiler.model import GraphKind, GraphRecord, LedgerKind

from .. import _torch_compat
from ..session.runtime import RUNTIME
from .describe.dynamo_input import DynamoInput
from .describe.graph_io import user_frame
from .pipeline import CompileStage

Model = Callable[[list[Any]], Any]


def runs_on_cuda(gm: GraphModule, example_inputs: Any) -> bool:
    """Tells whether a Dynamo graph takes or makes tensors on a CUDA device."""
    made = (n.meta.get("example_value", n.meta.get("val")) for n in gm.graph.nodes)
    values = itertools.chain(example_inputs, made)
    return any(isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in values)


class UnsafeOperator(NamedTuple):
    """An operator that no CUDA graph can have: name of its node, reason, and ``file:line`` of the
    program that calls it, None where that is not known."""

    node: str
    why: str
    frame: str | None

    def __str__(self) -> str:
        return f"{self.node}: {self.why} ({self.frame or 'no line is known'})"


def operator_outside_of_graphs(gm: GraphModule) -> UnsafeOperator | None:
    """The first operator of a graph that no CUDA graph can have; None if there is none."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and (why := _why_outside(node)):
            return UnsafeOperator(node.name, why, user_frame(node.meta.get("stack_trace")))
    return None


def _why_outside(node: torch.fx.Node) -> str:
    if node.meta.get("unbacked_bindings"):
        return "sizes that depend on data"
    if _torch_compat.is_unsafe_in_graphs(node):
        return "no operator for CUDA graphs"
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    # Numbers of the host Inductor takes to the device.
    if any(isinstance(x, torch.Tensor) and x.is_cpu and x.dim() for x in values):
        return "a tensor on the CPU"
    return ""


def why_not_graphed(inputs: Sequence[DynamoInput], inductor: Mapping[str, Any] | None) -> str:
    """Reason why code with these inputs of a Dynamo graph gets no graph: Note [Parameters that are
    gathered]; "" if nothing speaks against one. ``inductor`` are options of this compilation."""
    gathered = sum(i.is_gathered for i in inputs)
    if not gathered or TreeOptions.of_this_compilation(inductor).or_error:
        return ""
    return (
        f"{gathered} of its parameters are sharded by FSDP, which gathers them into other memory "
        "for each use (options={'graphs': True} tries all the same)"
    )


@dataclass(eq=False, repr=False)
class GraphsStage(CompileStage):
    """Hands each partition of one compiled graph to the trees.

    Args:
        record: what the trees know the graph by, in messages and in their ledger.
        box: Inductor's own, through which it is told that it may capture.
        given: arguments of the compilation, which gets that box while this stage stands.
        of_forward: it is also that of the forward whose backward this is.
        models: gets what the trees are handed.
        clone_outputs: option ``outputs="clone"``.
        annotate: option ``annotate_kernels``, where that can be had.
        inductor: options of Inductor that were given to this compilation.
        outside: the first operator of the graph that no CUDA graph can have.

    Attributes:
        impossible: why nothing of the compiled graph can be captured, "" if something can.
    """

    record: GraphRecord
    box: Any
    given: dict[str, Any]
    models: list[ObservableModel]
    _: KW_ONLY
    clone_outputs: bool
    annotate: bool
    inductor: Mapping[str, Any]
    of_forward: bool = False
    outside: UnsafeOperator | None = None
    impossible: str = field(default="", init=False)
    _wrapped: list[dict[str, Any]] = field(default_factory=list, init=False)
    name = "graphs"

    def __post_init__(self) -> None:
        # Asked now: compiling may switch it off for reasons of the code's own.
        self._switched_off = self.box is not None and not self.box

    def pre_compile(self, cleanup: contextlib.ExitStack) -> None:
        """Stand in the place of Inductor's own trees while it compiles this graph."""
        from memprof.cudagraph_trees.call.inductor import use_in_inductor

        cleanup.enter_context(use_in_inductor(self._on_wrap, this_thread=True))
        self.given["cudagraphs"] = self.box

    def _on_wrap(self, model: Model, options: dict[str, Any]) -> Model:
        options["record"] = self.record
        if self.record.kind is GraphKind.BACKWARD:
            # A captured one is a plain function to AOTAutograd, and releases the step all the same.
            options.update(is_backward=True, is_inference=False)
        options["clone_outputs"] = self.clone_outputs
        options["annotate"] = self.annotate
        options["torch_options"] = TreeOptions.of_this_compilation(self.inductor)
        self._wrapped.append(options)
        self.models.append(ObservableModel(model))
        return self.models[-1]

    def post_compile(self, compiled: Any) -> Any:
        """Give the trees the description of each partition."""
        if not self._wrapped:
            disabled = getattr(compiled, "disabled_cudagraphs_reason", None)
            others = _torch_compat.why_others_capture()
            reason = disabled or others or self._why_nothing()
            RUNTIME.ledger.add(LedgerKind.NOT_GRAPHED, self.record.id, reason)
            # What the code itself switches off runs, and what only makes views.
            if (disabled or self.outside) and not (others or self._switched_off):
                self.impossible = reason
            return compiled
        if self.outside:
            reason = f"part of it: {self.outside}"
            RUNTIME.ledger.add(LedgerKind.NOT_GRAPHED, self.record.id, reason)
        for options in self._wrapped:
            options["description"] = self.record.description
        partitions = _torch_compat.partitions(compiled)
        # A graph compiled again, past a cache, was wrapped twice; what counts is the last.
        wrapped = self._wrapped[-len(partitions) :] if partitions else []
        if len(wrapped) != len(partitions) or _torch_compat.wraps_whole_graphs():
            # One function that is the graph, partitions and what is between them, whole.
            return compiled
        for number, (options, (inputs, outputs)) in enumerate(
            zip(wrapped, partitions, strict=True)
        ):
            options["partition"] = number if len(wrapped) > 1 else None
            options["description"] = self.record.description.part(inputs, outputs)
        return compiled

    def _why_nothing(self) -> str:
        if not self._switched_off:
            found = "Inductor found no part of it that can be captured"
            return f"{found}: {self.outside}" if self.outside else found
        # Else this stage would not be: the settings want graphs.
        if self.of_forward:
            return "its forward runs without a graph, and so does what takes what that saved"
        return "the code switches graphs off for it: torch._dynamo.override_cudagraphs"


# --- what the trees run in the first calls of a graph --------------------------------------


@dataclass(slots=True)
class Once:
    """Run ``copy`` once in a model's place, in one thread; None makes it not the last warm-up."""

    copy: Model | None
    runs: int = 0


class ObservableModel:
    """The code of one partition, as the trees see it: Inductor's function, what runs in its place
    where it is captured, None for nothing else, and by thread what does in an observation."""

    __slots__ = ("armed", "marked", "model")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.marked: Model | None = None
        self.armed: dict[int, Once] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        once = self.armed.get(get_ident())
        if once is None and self.marked is not None and torch.cuda.is_current_stream_capturing():
            return self.marked(inputs)
        if once is None:
            return self.model(inputs)
        once.runs += 1
        if once.copy is None or once.runs > 1:
            from memprof.cudagraph_trees import mark_warmup_incomplete

            mark_warmup_incomplete()
            return self.model(inputs)
        return once.copy(inputs)


@contextlib.contextmanager
def running(
    models: Sequence[ObservableModel], copies: Sequence[Model | None]
) -> Iterator[list[Once]]:
    """Within it, the trees run the copies of these; for None Inductor's function, in a warm-up
    that is not the last. Yields how often they do, as it happens: where it is not once, they have
    replayed, or a warm-up failed, and what the call showed is not the graph."""
    armed = list(map(Once, copies))
    try:
        for model, once in zip(models, armed, strict=True):
            model.armed[get_ident()] = once
        yield armed
    finally:
        for model in models:
            model.armed.pop(get_ident(), None)
