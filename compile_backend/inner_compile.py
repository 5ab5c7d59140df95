"""Inner compile: called by Inductor for each forward, backward and inference graph.

Note [memprof must not break a run]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What Inductor raises about the user's program goes to the user untouched. What memprof raises about
itself stops here: the stage that failed is left out, the ledger says so, and the callable is the
one Inductor made. The compiler is called outside of every ``try`` of ours, so the two are never
confused.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.fx import GraphModule

from memprof.cudagraph_trees.torch_options import TreeOptions
from memprof.profiler.model import (
    GraphKind,
    GraphRecord,
    LedgerKind,
    NodeProvenance,
    ViewAndMutationMeta,
)

from . import _torch_compat
from .captured_backward_io import FORWARDS
from .options import Options
from .session.runtime import RUNTIME, LiveGraph
from .stages.describe.aot_metadata import view_and_mutation_meta
from .stages.describe.comparison import compared
from .stages.describe.dynamo_input import DynamoInput
from .stages.describe.graph_io import GraphIO, describe_graph, undescribed
from .stages.describe.graph_value import RoleInfo
from .stages.graphs import GraphsStage, ObservableModel, operator_outside_of_graphs
from .stages.observe.stage import ObserveStage
from .stages.pipeline import CompileStage, compile_through
from .stages.provenance.stage import AttributeStage

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class RecordStage(CompileStage):
    """Writes down what the compiled graph says of itself, also where nothing else can be found out:
    reports of memory that ran out and the tracker need no more.

    Args:
        kind: what the graph is to AOTAutograd.
        given: keyword arguments of the compilation.
    """

    record: GraphRecord
    kind: GraphKind
    given: Mapping[str, Any]
    name = "record"

    def post_compile(self, compiled: Any) -> Any:
        """Complete the record; the graph is handed on as it is."""
        record = self.record
        lists = _torch_compat.inductors_lists(compiled, self.given)
        record.description, disagreements = compared(record.description, self.kind, *lists)
        for sentence in disagreements:
            RUNTIME.ledger.add(LedgerKind.COMPILED, record.id, sentence)
        record.devices = tuple(sorted(map(str, getattr(compiled, "device_types", None) or ())))
        _torch_compat.mark_graph(compiled, record.id)
        module_globals = _torch_compat.generated_globals(compiled)
        record.code_path = module_globals.get("__file__") if module_globals else None
        return compiled


@dataclass(eq=False, repr=False)
class InnerCompile:
    """The ``inner_compile`` of one call of ``compile_fx``.

    Args:
        dynamo_inputs: what Dynamo knows of the inputs, none outside Dynamo.
        graphs: whether CUDA code is to run in graph trees.
        captured_nodes: provenance of the captured backward's nodes, where it is one that is
            compiled; None where it is not.
        captured_outputs: the gradients that it returns, by position.
        inductor: options of Inductor that were given to this compilation.
        not_graphed: why there will be no graph, though the settings want one.
    """

    options: Options
    dynamo_inputs: Sequence[DynamoInput]
    graphs: bool
    captured_nodes: Mapping[str, NodeProvenance] | None
    captured_outputs: Mapping[int, RoleInfo] | None
    inductor: Mapping[str, Any]
    not_graphed: str
    _forward: GraphIO | None = field(default=None, init=False)
    _forward_graph: LiveGraph | None = field(default=None, init=False)
    _forward_box: object = field(default=None, init=False)

    def __call__(
        self, gm: GraphModule, example_inputs: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Compile ``gm`` with Inductor and wrap the result.

        The signature of torch's ``compile_fx_inner`` grows from version to version;
        what is not named here is passed on.
        """
        given = {**kwargs, "cudagraphs": _torch_compat.no_cudagraphs()}

        def compile_plainly() -> Any:
            with _torch_compat.cache_keyed_by_donation(bool(kwargs.get("is_backward"))):
                return _torch_compat.compile_fx_inner()(gm, example_inputs, *args, **given)

        kind = GraphKind.INFERENCE if kwargs.get("is_inference") else GraphKind.FORWARD
        if kwargs.get("is_backward"):
            kind = GraphKind.BACKWARD
        try:
            graph = LiveGraph(self._new_record(gm, kind, kwargs))
            forward = self._forward_graph if kind is GraphKind.BACKWARD else None
            attribute = AttributeStage(
                graph.record,
                forward.aot_nodes if forward is not None else None,
                compile_plainly,
                self.captured_nodes,
            )
            models: list[ObservableModel] = []
            trees = self._in_trees(graph.record, gm, kwargs.get("cudagraphs"), given, models)
            # The attribute stage may compile a second time: it is the innermost.
            observe = ObserveStage(
                graph, self.options, tuple(example_inputs), models if self.graphs else None
            )
            stages = [observe, trees, RecordStage(graph.record, kind, kwargs), attribute]
        except Exception as error:
            RUNTIME.ledger.fallback(None, "describing a graph before compilation", error)
            return compile_plainly()

        def failed(stage: CompileStage, half: str, error: Exception) -> None:
            RUNTIME.ledger.fallback(graph.record.id, f"{half} of stage {stage.name}", error)

        def compile_timed() -> Any:
            begin = time.perf_counter_ns()
            try:
                return compile_plainly()
            finally:
                graph.record.compile_ns = time.perf_counter_ns() - begin

        present = [stage for stage in stages if stage is not None]
        compiled = compile_through(present, compile_timed, gm, failed)
        if kind is GraphKind.FORWARD:
            graph.aot_nodes = attribute.aot_nodes
            self._forward_graph = graph
            if self.options.compiled_autograd:
                what = "the number of a graph whose backward is captured"
                aot_id = self._read(graph.record.id, what, _torch_compat.aot_id, None)
                if aot_id is not None:
                    FORWARDS[aot_id] = graph
        # Complete now: other threads make profiles, and write them, at any time.
        RUNTIME.add(graph)
        if self.not_graphed:
            RUNTIME.ledger.add(LedgerKind.NOT_GRAPHED, graph.record.id, self.not_graphed)
        RUNTIME.ledger.add(
            LedgerKind.COMPILED,
            graph.record.id,
            f"{graph.record.kind.value} graph, cache: {graph.record.fx_cache}",
        )
        impossible = graph.record.description.unreadable if self.graphs else ""
        if trees is not None:
            impossible = trees.impossible
        if impossible and TreeOptions.of_this_compilation(self.inductor).or_error:
            raise RuntimeError(
                f"{graph.record.label} would run without a CUDA graph, and cudagraph_or_error "
                f"is on: {impossible}"
            )
        return compiled

    def forward_metadata(self) -> ViewAndMutationMeta | None:
        """AOTAutograd's metadata of the forward that was compiled last; None if there is none, or
        it is unknown."""
        found = self._forward.description if self._forward is not None else None
        return None if found is None or found.unreadable else found.metadata

    def _in_trees(
        self,
        record: GraphRecord,
        gm: GraphModule,
        box: Any,
        given: dict[str, Any],
        models: list[ObservableModel],
    ) -> GraphsStage | None:
        """The stage of the graph trees, if code is to run there; ``box`` is Inductor's own, which
        says whether it may capture."""
        if not self.graphs:
            return None
        if record.kind is GraphKind.FORWARD:
            self._forward_box = box
        if why := record.description.unreadable:
            # What its backward would take has another address each time: that runs without, too.
            _torch_compat.switch_off(box)
            reason = f"what it takes and returns is not known: {why}"
            RUNTIME.ledger.add(LedgerKind.NOT_GRAPHED, record.id, reason)
            return None
        of_forward = record.kind is GraphKind.BACKWARD and box is not None
        why = self._read(
            record.id, "what no CUDA graph can have", lambda: operator_outside_of_graphs(gm), ""
        )
        return GraphsStage(
            record,
            box,
            given,
            models,
            clone_outputs=self.options.outputs == "clone",
            inductor=self.inductor,
            of_forward=of_forward and box is self._forward_box,
            outside=why,
        )

    def _read(self, graph: int, what: str, read: Callable[[], T], neutral: T) -> T:
        """Read a private part of torch with ``read``; ``neutral`` where that fails:
        Note [Fields that cannot be read]."""
        try:
            return read()
        except Exception as error:
            RUNTIME.ledger.unknown(graph, what, error)
            return neutral

    def _new_record(self, gm: GraphModule, kind: GraphKind, kwargs: dict[str, Any]) -> GraphRecord:
        """The record of a graph that is about to be compiled."""
        id_ = RUNTIME.new_graph_id()
        read = functools.partial(self._read, id_)

        try:
            found = _torch_compat.forward_metadata()
            on_unknown = functools.partial(RUNTIME.ledger.unknown, id_)
            io = describe_graph(
                gm,
                kind=kind,
                fw_metadata=view_and_mutation_meta(found, on_unknown),
                dynamo_inputs=self.dynamo_inputs,
                forward=self._forward if kind is GraphKind.BACKWARD else None,
                captured_outputs=self.captured_outputs,
            )
        except Exception as error:
            RUNTIME.ledger.unknown(id_, "what a graph takes and returns", error)
            io = GraphIO(undescribed(gm, f"{type(error).__name__}: {error}"))
        if kind is GraphKind.FORWARD:
            self._forward = io
        return GraphRecord(
            id=id_,
            # A captured backward is a plain function to AOTAutograd: captured_backward_io.py.
            kind=GraphKind.BACKWARD if self.captured_nodes is not None else kind,
            compile_id=read("Dynamo's id of a frame", _torch_compat.compile_id, None),
            graph_id=kwargs.get("graph_id"),
            description=io.description,
        )
