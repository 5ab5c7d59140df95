"""The logits of a language model, of which a loss makes several copies.

Note [What are logits]
~~~~~~~~~~~~~~~~~~~~~~
In compiled code what the last matrix product before a log-softmax makes; where the loss is not
compiled, an output whose gradient is more than twice as large as whatever the forward keeps. With
them counts what is live at the peak, is no parameter's, comes after them in the forward, and has
their last dimension, the vocabulary: a copy in another type, the log-probabilities, the gradients
of all of these. Shapes of eager code are not known.

Without the whole of them another instant may be the fullest, so bytes are bounds. The loss alone in
chunks leaves at least the smallest of the copies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memprof.profiler.live.attribution import Attribution, Site
from memprof.profiler.live.live_set import LiveItem
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import Category, GraphRecord, Relief, Role

from . import finding
from .finding import Evidence, Finding, FindingKind, Made, at_peak, made

CHUNKS = 8
"""Number of chunks of a loss's rows for which a finding says what chunking saves."""

_LOSS = "aten._log_softmax."
_PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "convolution"))
"""Words in names of operators that multiply matrices or convolve, as in ``_scaled_mm``."""

_NOT = frozenset({Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE})


def is_product(op: str) -> bool:
    """Whether an operator, e.g. ``aten.mm.default``, multiplies matrices or convolves."""
    namespace, _, rest = op.partition(".")
    words = re.findall("[a-z]+", rest.partition(".")[0])
    return namespace == "aten" and not _PRODUCTS.isdisjoint(words)


def of_compiled(
    timeline: Timeline, attribution: Attribution
) -> Iterator[tuple[Finding, set[Made]]]:
    """Logits at the peak of compiled code, with who made them."""
    at = timeline.peak()
    live = list(at_peak(timeline, attribution))
    graphs = {g.id: g for g in timeline.profile.graphs}
    for kind, head in {_kind(h.shape): h for h in _heads(graphs, live)}.items():
        members = [(i, s) for i, s in live if _is_of(head, graphs.get(i.graph), i, s)]
        if at is None or not members:
            continue
        # Rows may be those of an input: a batch of sequences.
        batches = [_sizes(v.shape) for v in head.graph.inputs if v.role is Role.USER_INPUT]
        shapes = [_shape(graphs.get(i.graph), i) for i, _ in members]
        shapes += [(*batch, head.shape[-1]) for batch in batches]
        longest = max((shape for shape in shapes if _kind(shape) == kind), key=len)
        evidence = [
            Evidence.at(s, attribution.label(s.graph), s.op or s.category.label, i.nbytes, i.count)
            for i, s in members
        ]
        words = " x ".join(f"{n:,}" for n in longest)
        name = f"logits of {head.module or 'the root module'}, {words}"
        least = min(i.storage.nbytes for i, _ in members)
        for found in _finding(name, evidence, least, at.nbytes):
            yield found, {made(i) for i, _ in members}


class _Head(NamedTuple):
    """Logits of a forward: graph and module that make them, their shape, and their ``seq_nr``."""

    graph: GraphRecord
    module: str | None
    shape: tuple[int, ...]
    sequence: int = 0


def _heads(
    graphs: dict[int, GraphRecord], live: Sequence[tuple[LiveItem, Site]]
) -> Iterator[_Head]:
    kept = max((i.storage.nbytes for i, s in live if s.category is Category.ACTIVATION), default=0)
    for item, site in live:
        of = graphs.get(item.graph)
        large = item.storage.nbytes > 2 * kept and site.category is Category.AUTOGRAD_DETAIL
        if of is not None and large and site.frame is not None and _shape(of, item):
            yield _Head(of, site.module, _shape(of, item))
    for graph in graphs.values():
        nodes = list(graph.nodes.values())
        losses = [i for i, n in enumerate(nodes) if (n.original_aten or "").startswith(_LOSS)]
        products = [n for n in nodes[: min(losses, default=0)] if is_product(n.target)]
        for product in products[-1:]:
            shapes = [b.shape for b in graph.buffers.values() if b.primary == product.name]
            for shape in filter(None, map(_sizes, shapes)):
                yield _Head(graph, product.module_path, shape, product.seq_nr or 0)


def _is_of(head: _Head, graph: GraphRecord | None, item: LiveItem, site: Site) -> bool:
    """Whether an item can be the logits of ``head`` or made of them: as many elements, as long a
    last dimension, and not made before them."""
    node = graph.nodes.get(site.node or "") if graph is not None else None
    later = node is None or node.seq_nr is None or node.seq_nr >= head.sequence
    return site.category not in _NOT and later and _kind(_shape(graph, item)) == _kind(head.shape)


def _kind(shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Number of elements, and the last dimension."""
    return math.prod(shape), shape[-1:]


def _shape(graph: GraphRecord | None, item: LiveItem) -> tuple[int, ...]:
    """Shape of an item in ``graph``, which explains it; empty if not known."""
    buffer = graph.buffers.get(item.owner or "") if graph is not None else None
    if graph is None or buffer is not None:
        return _sizes(buffer.shape) if buffer is not None else ()
    return next((_sizes(graph.inputs[i].shape) for i in item.storage.inputs[:1]), ())


def _sizes(shape: Sequence[str]) -> tuple[int, ...]:
    """A shape in numbers; empty where some depend on size symbols."""
    return tuple(map(int, shape)) if all(n.isdigit() for n in shape) else ()


def _finding(name: str, evidence: list[Evidence], least: int, peak: int) -> Iterator[Finding]:
    """The finding about logits that are worth one; ``least`` are bytes of the smallest copy, and
    ``peak`` of all that is live."""
    nbytes = sum(e.nbytes for e in evidence)
    if nbytes < max(finding.MIN_BYTES, finding.MIN_OUTPUT_SHARE * peak):
        return
    rows = f"in {CHUNKS} chunks of rows, each under torch.utils.checkpoint"
    ways = (
        (nbytes, "a fused linear cross-entropy, as Liger-Kernel has one"),
        (nbytes - nbytes // CHUNKS, f"the last matrix product and the loss {rows}"),
        (nbytes - least - (nbytes - least) // CHUNKS, f"the loss alone {rows}"),
    )
    yield Finding(
        FindingKind.LARGE_OUTPUT,
        f"{name}, and what the loss makes of them",
        nbytes,
        "at the peak",
        "compute the loss without ever having all of them; where code is compiled it needs the "
        "last matrix product and the loss in it. At most, that saves",
        tuple(sorted(evidence, key=lambda e: -e.nbytes)),
        tuple(Relief(saved, way) for saved, way in ways if saved),
    )
