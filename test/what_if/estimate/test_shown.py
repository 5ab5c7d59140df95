"""The time of a step as text."""

from __future__ import annotations

import pytest

from memprof.profiler.views.report.text_page import PLAIN, Page
from memprof.what_if.estimate.shown import show
from memprof.what_if.estimate.step_time import KindTime, StepTime
from memprof.what_if.estimate.work import CONVOLUTION


def said(*, measured: bool = True, unknown: int = 0, at_least: tuple[str, ...] = ()) -> str:
    kind = KindTime(kind=CONVOLUTION, launches=2, device_ns=4_000_000, flops=10**12, nbytes=10**6)
    time = StepTime(
        measured=measured,
        device_ns=4_000_000,
        host_ns=0,
        kinds=[kind],
        modules=[],
        launches=2,
        graphs=0,
        unknown=unknown,
        at_least=list(at_least),
        peak_flops=1e15,
        source="a data sheet",
    )
    page = Page(PLAIN)
    show(page, time)
    return " ".join(page.text().split())


@pytest.mark.parametrize(
    ("shown", "first", "sentence"),
    [
        (said(), "about 4 ms", "25.0% of the 1,000 TFLOP/s"),
        (said(measured=False), "no faster than 4 ms", "what its data sheet allows"),
        (said(unknown=1), "at least 4 ms", "of 1 launches the work is not known"),
        (said(at_least=(CONVOLUTION,)), "at least 4 ms", "of convolutions some were not measured"),
    ],
)
def test_what_is_not_known_makes_an_estimate_a_bound(shown: str, first: str, sentence: str) -> None:
    assert first in shown
    assert sentence in shown
