"""The time of a step as text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profile_builder import step_time

from memprof.profiler.model import Category, DeviceAccount, Held, KindTime, ModuleTime
from memprof.profiler.views.report.sections.step_time import of_step_time
from memprof.profiler.views.report.text import render

CONVOLUTION = "convolutions"


def said(
    account: DeviceAccount | None = None,
    *,
    measured: bool = True,
    unknown: int = 0,
    at_least: tuple[str, ...] = (),
) -> str:
    kind = KindTime(kind=CONVOLUTION, launches=2, device_ns=4_000_000, flops=10**12, nbytes=10**6)
    time = replace(
        step_time(4_000_000),
        measured=measured,
        kinds=[kind],
        modules=[
            ModuleTime(module="Model > Block", device_ns=3_000_000),
            ModuleTime(module="", device_ns=1_000_000),
        ],
        unknown=unknown,
        at_least=list(at_least),
    )
    section = of_step_time(time, [] if account is None else [account])
    return " ".join(render([section]).split())


@pytest.mark.parametrize(
    ("shown", "first", "sentence"),
    [
        (said(), "about 4.00 ms", "25.0% of the 1,000 TFLOP/s"),
        (said(measured=False), "no faster than 4.00 ms", "what its data sheet allows"),
        (said(unknown=1), "at least 4.00 ms", "of 1 launches the work is not known"),
        (
            said(at_least=(CONVOLUTION,)),
            "at least 4.00 ms",
            "of convolutions some were not measured",
        ),
    ],
)
def test_what_is_not_known_makes_an_estimate_a_bound(shown: str, first: str, sentence: str) -> None:
    assert first in shown
    assert sentence in shown


def test_modules_have_their_memory_beside_their_time() -> None:
    rows = [
        Held(category=Category.ACTIVATION, nbytes=3 << 20, count=1, modules="Model > Block"),
        Held(category=Category.PARAMETER, nbytes=5 << 20, count=1, modules="Model > Block"),
        Held(category=Category.PARAMETER, nbytes=7 << 20, count=1, modules="Model > Head"),
    ]
    shown = said(DeviceAccount("cuda:0", rows=rows))
    assert "3.000 75.0 % 8.00 MiB Model > Block" in shown
    assert "1.000 25.0 % 0 B (outside of modules)" in shown
