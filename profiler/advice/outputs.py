"""Outputs so large that what comes after them decides the peak."""

from __future__ import annotations

from collections.abc import Iterator

from ..attribution import Attribution
from ..model import Category, GraphKind
from ..timeline import Timeline
from .finding import MIN_OUTPUT_SHARE, Evidence, Finding, FindingKind

_CHANGE = (
    "make the loss part of the compiled function and compute it in chunks of rows, each under "
    "torch.utils.checkpoint, or with a fused linear cross-entropy: then neither the output "
    "(logits) nor its gradient is there as a whole"
)


def large_outputs(
    timeline: Timeline, attribution: Attribution, threshold: int
) -> Iterator[Finding]:
    """Gradients of outputs at the peak that are larger than whatever the forward keeps."""
    at = timeline.peak()
    if at is None or timeline.profile.graph(timeline.profile.calls.graph[at.call]).kind is not (
        GraphKind.BACKWARD
    ):
        return
    items = timeline.live_at(at.call, at.instant).items
    sites = [(i, attribution.site(i.graph, i.storage, i.owner, i.line)) for i in items]
    kept = max((i.storage.nbytes for i, s in sites if s.category is Category.ACTIVATION), default=0)
    found = [
        (i, s)
        for i, s in sites
        if s.category is Category.AUTOGRAD_DETAIL
        and s.frame is not None
        and i.storage.nbytes > 2 * kept
        and i.storage.nbytes >= max(threshold, MIN_OUTPUT_SHARE * at.nbytes)
    ]
    for item, site in sorted(found, key=lambda f: -f[0].storage.nbytes):
        name = site.module or "the root module"
        graph, text = attribution.label(site.graph), site.op or "gradient of an output"
        yield Finding(
            FindingKind.LARGE_OUTPUT,
            f"the gradient of an output of {name}, which is as large as the output itself",
            item.nbytes,
            "at the peak",
            _CHANGE,
            (Evidence.at(site, graph, text, item.nbytes, item.count),),
            "chunked-loss",
        )
