"""Findings: changes that would save memory in a profile, at most five, most bytes first.

Note [When something is worth a finding]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A finding costs its reader minutes, so it must be worth them: it names bytes that a change can
save, at least ``MIN_SHARE`` (2 %) of the peak and at least ``MIN_BYTES`` (1 MiB). Bytes are an
upper bound: a change can cost others elsewhere. A kind gives at most ``PER_KIND`` findings and all
together at most ``MOST``, largest first. Where nothing is worth it there are none.

* **recompute**: activations in the live set of the peak, by the module to checkpoint for them, with
  layer numbers left out, or by source line. Bytes are those that are kept: what a checkpoint keeps
  all the same, its inputs, and whether another instant is the fullest then, nobody looks at. A
  module whose matrix products a backward computes again is checkpointed already.
* **static input**: inputs that a replayed graph copies into its own buffer in every replay although
  they stay where they are: module or optimizer state that was not declared static, memory that the
  graph writes to (which keeps it from being recorded at all). A batch that is new at every step is
  neither.
* **address that moves**: functions recorded again at least ``MIN_TIMES`` times because the address
  of an input was another one; the bytes are the input's. And functions that the trees have stopped
  recording because inputs keep moving, whatever their bytes: that costs time in each step.
* **large output**: logits and what a loss makes of them, from ``MIN_OUTPUT_SHARE`` (10 %) of the
  peak on: Note [What are logits] in ``logits.py``. They are in no other finding.
"""

from __future__ import annotations

from itertools import islice

from memprof.profiler.live.attribution import Attribution
from memprof.profiler.live.timeline import Timeline

from .finding import MIN_BYTES, MIN_SHARE, MOST, PER_KIND, Evidence, Finding, FindingKind
from .graph_trees import moving_addresses, static_inputs
from .logits import of_compiled
from .recompute import recompute

__all__ = ["Evidence", "Finding", "FindingKind", "advise"]


def advise(timeline: Timeline, attribution: Attribution) -> list[Finding]:
    """At most five findings, most bytes first, by the timeline of one device and the attribution of
    the same profile."""
    peak = timeline.peak()
    threshold = max(MIN_BYTES, int(MIN_SHARE * (peak.nbytes if peak else 0)))
    compiled = list(of_compiled(timeline, attribution))
    kinds = (
        (finding for finding, _ in compiled),
        recompute(timeline, attribution, threshold, {m for _, of in compiled for m in of}),
        static_inputs(timeline.profile, threshold),
        moving_addresses(timeline.profile, threshold),
    )
    findings = [finding for kind in kinds for finding in islice(kind, PER_KIND)]
    return sorted(findings, key=lambda f: -f.nbytes)[:MOST]
