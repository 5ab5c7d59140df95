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
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from torch.fx import GraphModule

from memprof.cudagraph_trees.torch_options import TreeOptions
from memprof.profiler.model import (
    GraphDescription,
    GraphKind,
    GraphRecord,
    LedgerKind,
    NodeProvenance,
)

from . import _torch_compat
from .companion import CacheEntry, Companion, restored, store as store_companion
from .options import Options
from .session.runtime import FORWARDS, RUNTIME, LiveGraph
from .stages.describe.aot_metadata import view_and_mutation_meta
from .stages.describe.comparison import compared
from .stages.describe.dynamo_input import DynamoInput
from .stages.describe.graph_io import GraphIO, describe_graph, undescribed
from .stages.describe.graph_value import RoleInfo
from .stages.graphs import GraphsStage, ObservableModel, UnsafeOperator, operator_outside_of_graphs
from .stages.observe.stage import ObserveStage, SizeInputs, size_inputs
from .stages.pipeline import CompileStage, compile_through
from .stages.provenance.dynamo_lines import DynamoLines
from .stages.provenance.stage import AttributeStage

T = TypeVar("T")

GRAPH_LISTENERS: list[Callable[[GraphRecord, GraphModule], None]] = []
"""Called with each graph before Inductor changes it. While there are any, graphs are traced, where
AOTAutograd's cache would have them compiled: ``memprof.testing``."""


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
        lines: of the Dynamo graph; None where they could not be read.

    Attributes:
        traced_key: the graph's key in AOTAutograd's cache: Note [Warm starts]. None where that has
            not made one, and then nothing is stored for later processes.
    """

    options: Options
    dynamo_inputs: Sequence[DynamoInput]
    graphs: bool
    captured_nodes: Mapping[str, NodeProvenance] | None
    captured_outputs: Mapping[int, RoleInfo] | None
    inductor: Mapping[str, Any]
    not_graphed: str
    lines: DynamoLines | None
    traced_key: str | None = field(default=None, init=False)
    _forward: GraphIO | None = field(default=None, init=False)
    _forward_graph: LiveGraph | None = field(default=None, init=False)
    _forward_box: object = field(default=None, init=False)
    _hits: list[LiveGraph] = field(default_factory=list, init=False)

    def __call__(
        self, gm: GraphModule, example_inputs: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Compile ``gm`` with Inductor and wrap the result.

        The signature of torch's ``compile_fx_inner`` grows from version to version;
        what is not named here is passed on.
        """
        given = {**kwargs, "cudagraphs": _torch_compat.no_cudagraphs()}

        def compile_plainly() -> Any:
            box = kwargs.get("boxed_forward_device_index")
            if box is not None and not kwargs.get("is_backward"):
                # A forward's compilation sets it, and from torch 2.15 on it is a part of the key in
                # Inductor's cache, under which a second compilation would not be found.
                box.set(None)
            with _torch_compat.cache_keyed_by_donation(bool(kwargs.get("is_backward"))):
                return _torch_compat.compile_fx_inner()(gm, example_inputs, *args, **given)

        kind = GraphKind.INFERENCE if kwargs.get("is_inference") else GraphKind.FORWARD
        if kwargs.get("is_backward"):
            kind = GraphKind.BACKWARD
        self._forget_hits()
        try:
            graph = LiveGraph(self._new_record(gm, kind, kwargs))
            for listen in GRAPH_LISTENERS:
                listen(graph.record, gm)
            forward = self._forward_graph if kind is GraphKind.BACKWARD else None
            provenance = AttributeStage(
                gm,
                graph,
                forward.aot_nodes if forward is not None else None,
                self.lines.caller if self.lines is not None else None,
                compile_plainly,
                self.captured_nodes,
            )
            outside = self._read(
                graph.record.id,
                "what no CUDA graph can have",
                lambda: operator_outside_of_graphs(gm) if self.graphs else None,
            )
            sizes = size_inputs(example_inputs)
            stages = self._stages(graph, sizes, outside, kwargs.get("cudagraphs"), given)
            stages.append(RecordStage(graph.record, kind, kwargs))
            # It may compile a second time: it is the innermost.
            stages.append(provenance)
        except Exception as error:
            RUNTIME.ledger.fallback(None, "describing a graph before compilation", error)
            self._run_without_graph(kwargs.get("cudagraphs"), "memprof failed at it")
            return compile_plainly()

        def compile_timed() -> Any:
            begin = time.perf_counter_ns()
            try:
                return compile_plainly()
            finally:
                graph.record.compile_ns = time.perf_counter_ns() - begin

        compiled = compile_through(
            stages, compile_timed, functools.partial(self._left_out, graph.record)
        )
        if kind is GraphKind.FORWARD and self.options.compiled_autograd:
            what = "the number of a graph whose backward is captured"
            aot_id = self._read(graph.record.id, what, _torch_compat.aot_id)
            if aot_id is not None:
                FORWARDS[aot_id] = graph
        entry = self.entry_of(compiled)
        if entry is not None and not graph.record.description.unreadable:
            self._store(graph, sizes, outside, entry)
        RUNTIME.ledger.add(
            LedgerKind.COMPILED,
            graph.record.id,
            f"{graph.record.kind.value} graph, cache: {graph.record.fx_cache}",
        )
        self._add(graph, stages)
        return compiled

    def wrap_hit(
        self,
        known: Companion | None,
        compiled: Any,
        fx_config: Mapping[str, Any],
        post_compile: Callable[[Mapping[str, Any]], Any],
    ) -> Any:
        """Wrap a graph from AOTAutograd's cache as a compiled one: Note [Warm starts].

        Args:
            known: what was learned when it was traced and compiled; None if that is lost.
            compiled: Inductor's object for the graph, as it comes from the cache.
            fx_config: what torch finishes it with.
            post_compile: finishes ``compiled`` with such a configuration.
        """
        given = {**fx_config, "cudagraphs": _torch_compat.no_cudagraphs()}
        try:
            graph = self._restored(known, compiled)
            sizes = known.sizes if known is not None else None
            outside = known.outside if known is not None else None
            if self.graphs:
                graph.complete()  # Recordings of the trees and their errors read the record.
            stages = self._stages(graph, sizes, outside, fx_config.get("cudagraphs"), given)
            how = _torch_compat.how_compiled(compiled)
            stages.append(RecordStage(graph.record, graph.record.kind, how))
        except Exception as error:
            RUNTIME.ledger.fallback(None, "a graph from AOTAutograd's cache", error)
            self._run_without_graph(fx_config.get("cudagraphs"), "memprof failed at it")
            return post_compile(given)
        finished = compile_through(
            stages, lambda: post_compile(given), functools.partial(self._left_out, graph.record)
        )
        self._hits.append(graph)
        self._add(graph, stages)
        return finished

    def entry_of(self, compiled: Any) -> CacheEntry | None:
        """Where a compiled graph stands in AOTAutograd's cache; None if it has no place there."""
        key = _torch_compat.cache_key(compiled)
        if key is None and _torch_compat.entries_have_code():
            key = ""
        if key is None or not self.traced_key:
            return None
        return CacheEntry(self.traced_key, key, _torch_compat.source_code(compiled))

    def _restored(self, known: Companion | None, compiled: Any) -> LiveGraph:
        """The graph of a hit, with its nodes and buffers."""
        id_ = RUNTIME.new_graph_id()
        compile_id = self._compile_id(id_)
        if known is None or self.lines is None:
            why = "it came from a cache, and what describes it was not beside it"
            RUNTIME.ledger.add(LedgerKind.NOT_OBSERVED, id_, why)
            kind = GraphKind(_torch_compat.kind_of_cached(compiled))
            record = GraphRecord(id_, kind, compile_id, fx_cache="hit", unobservable=why)
            record.description = GraphDescription(unreadable=why)
            return LiveGraph(record)
        source = _torch_compat.source_code(compiled)
        return restored(known, self.lines, source, id_, compile_id)

    def note_hits(self) -> None:
        """Say in the ledger which graphs were hits: known when torch has the whole of its entry."""
        for graph in self._hits:
            RUNTIME.ledger.add(
                LedgerKind.CACHE_HIT, graph.record.id, "found in AOTAutograd's cache"
            )

    def _forget_hits(self) -> None:
        """Drop the graphs of hits that were none: torch compiles, since another part of the entry
        was missing."""
        for graph in self._hits:
            RUNTIME.discard(graph)
        self._hits.clear()

    def _stages(
        self,
        graph: LiveGraph,
        sizes: SizeInputs | None,
        outside: UnsafeOperator | None,
        box: Any,
        given: dict[str, Any],
    ) -> list[CompileStage]:
        """The stages around a graph, the first outermost.

        Args:
            sizes: None where nothing can be said of what its calls allocate.
            box: Inductor's own, which says whether it may capture.
            given: what Inductor finishes the graph with, which gets that box in graph trees.
        """
        record = graph.record
        first = self._forward_graph if record.kind is GraphKind.BACKWARD else None
        record.graph_id = first.record.id if first is not None else record.id
        if record.kind is not GraphKind.BACKWARD:
            self._forward_graph = graph
            self._forward_box = box
        stages: list[CompileStage] = []
        models: list[ObservableModel] = []
        if sizes is not None:
            observed = models if self.graphs else None
            stages.append(ObserveStage(graph, self.options, sizes, observed))
        if why := record.description.unreadable:
            reason = f"what it takes and returns is not known: {why}"
            self._run_without_graph(box, reason, record.id)
        elif self.graphs:
            of_forward = record.kind is GraphKind.BACKWARD and box is not None
            trees = GraphsStage(
                record,
                box,
                given,
                models,
                clone_outputs=self.options.outputs == "clone",
                annotate=self.options.annotate_kernels and _torch_compat.can_mark_kernels(),
                inductor=self.inductor,
                of_forward=of_forward and box is self._forward_box,
                outside=outside,
            )
            stages.append(trees)
        return stages

    def _add(self, graph: LiveGraph, stages: Sequence[CompileStage]) -> None:
        """Make a graph part of the profile; raises ``RuntimeError`` if nothing of it can be
        captured where that is an error."""
        # Complete now: other threads make profiles, and write them, at any time.
        RUNTIME.add(graph)
        record = graph.record
        if self.not_graphed:
            RUNTIME.ledger.add(LedgerKind.NOT_GRAPHED, record.id, self.not_graphed)
        found = (s.impossible for s in stages if isinstance(s, GraphsStage))
        impossible = next(found, record.description.unreadable if self.graphs else "")
        if impossible and TreeOptions.of_this_compilation(self.inductor).or_error:
            raise RuntimeError(
                f"{record.label} would run without a CUDA graph, and cudagraph_or_error "
                f"is on: {impossible}"
            )

    def _left_out(
        self, record: GraphRecord, stage: CompileStage, half: str, error: Exception
    ) -> None:
        RUNTIME.ledger.fallback(record.id, f"{half} of stage {stage.name}", error)

    def _store(
        self,
        graph: LiveGraph,
        sizes: SizeInputs,
        outside: UnsafeOperator | None,
        entry: CacheEntry,
    ) -> None:
        """Store what is known of a graph for processes that will not trace it. Without it they
        do."""
        what = "its description beside the cache"
        assert self.lines is not None
        try:
            store_companion(graph, sizes, outside, self.lines, entry)
        except OSError as error:
            why = _torch_compat.why_not_stored(error)
            RUNTIME.ledger.not_stored(graph.record.id, what, why)
        except KeyError as error:
            why = f"a line of it is none of the traced program's: {error.args[0]}"
            RUNTIME.ledger.not_stored(graph.record.id, what, why)
        except Exception as error:
            RUNTIME.ledger.fallback(graph.record.id, f"storing {what}", error)

    def forward_description(self, torchs: Any) -> GraphDescription | None:
        """The description of the forward, or graph without a backward, that was compiled last; None
        if there is none, it is unknown, or torch has changed what it says of it.

        Args:
            torchs: torch's metadata of the graph, as torch's own wrapper gets it; None where
                that counts a tensor subclass as one, of which the graph has the inner tensors.
        """
        forward = self._forward_graph
        if forward is None or forward.record.description.unreadable:
            return None
        found = forward.record.description
        if torchs is None:
            return found
        # A backward decides what it donates when it is compiled, which may have been after this was
        # stored; of a forward's calls nothing depends on it.
        then = replace(found.metadata, bw_donated_idxs=None)
        now = replace(view_and_mutation_meta(torchs), bw_donated_idxs=None)
        if now == then:
            return found
        differ = [f.name for f in fields(now) if getattr(now, f.name) != getattr(then, f.name)]
        why = f"AOTAutograd's word on it has changed: {', '.join(differ)}"
        RUNTIME.ledger.add(LedgerKind.COMPILED, forward.record.id, why)
        return None

    def _run_without_graph(self, box: Any, reason: str, graph: int | None = None) -> None:
        """Keep a graph from being captured, and its backward, which would take what has another
        address each time."""
        if self.graphs:
            _torch_compat.switch_off(box)
            RUNTIME.ledger.add(LedgerKind.NOT_GRAPHED, graph, reason)

    def _read(self, graph: int, what: str, read: Callable[[], T]) -> T | None:
        """Read a private part of torch with ``read``; None where that fails:
        Note [Fields that cannot be read]."""
        try:
            return read()
        except Exception as error:
            RUNTIME.ledger.unknown(graph, what, error)
            return None

    def _compile_id(self, graph: int) -> str | None:
        return self._read(graph, "Dynamo's id of a frame", _torch_compat.compile_id)

    def _new_record(self, gm: GraphModule, kind: GraphKind, kwargs: dict[str, Any]) -> GraphRecord:
        """The record of a graph that is about to be compiled."""
        id_ = RUNTIME.new_graph_id()
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
            compile_id=self._compile_id(id_),
            description=io.description,
        )
