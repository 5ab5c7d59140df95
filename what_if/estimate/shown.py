"""The time of a step as text."""

from __future__ import annotations

from memprof.profiler.views.report.text_page import Page

from .step_time import StepTime

_MODULES = 10
"""Most modules that are shown."""
_SECONDS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def show(page: Page, time: StepTime) -> None:
    """Add the time of a step to a page: how long, by kinds, and what limits it."""
    page.section("Time of a step")
    whole = in_words(time.step_ns)
    if time.measured:
        word = "at least" if time.unknown or time.at_least else "about"
        page.line(f"  {word} {whole}, from measured kernels of this GPU")
    else:
        page.line(f"  no faster than {whole}: what its data sheet allows")
    table = page.table(">ms", ">share", ">launches", ">TFLOP/s", ">GB/s", "kind")
    total = sum(kind.device_ns for kind in time.kinds) or 1
    for kind in sorted(time.kinds, key=lambda k: -k.device_ns):
        seconds = kind.device_ns / 1e9
        flops = f"{kind.flops / seconds / 1e12:,.1f}" if kind.flops and seconds else ""
        moved = f"{kind.nbytes / seconds / 1e9:,.0f}" if kind.nbytes and seconds else ""
        share = f"{kind.device_ns / total:.1%}"
        table.add_row(
            f"{kind.device_ns / 1e6:,.3f}", share, f"{kind.launches:,}", flops, moved, kind.kind
        )
    page.show(table)
    if time.modules:
        modules = page.table(">ms", ">share", "module, its own and its backward's")
        for row in time.modules[:_MODULES]:
            modules.add_row(
                f"{row.device_ns / 1e6:,.3f}",
                f"{row.device_ns / total:.1%}",
                row.module or "outside of modules",
            )
        page.show(modules)
    if time.flops:
        page.line(
            f"  {time.flops / 1e12:,.3g} TFLOP, {time.utilisation:.1%} of the "
            f"{time.peak_flops / 1e12:,.0f} TFLOP/s of its data sheet for these types; "
            "what is computed again counts"
        )
    if time.host_ns > time.device_ns:
        page.indented(
            f"bound by the host: its {time.launches:,} launches alone take "
            f"{in_words(time.host_ns)}, the device {in_words(time.device_ns)}",
            2,
        )
    if time.at_least:
        page.indented(
            f"of {' and '.join(time.at_least)} some were not measured on this GPU: they take "
            "longer than here, where they run at the speed of its data sheet",
            2,
        )
    if time.unknown:
        page.indented(
            f"of {time.unknown:,} launches the work is not known, or not all: it is missing, and "
            "the step takes longer",
            2,
        )


def in_words(ns: int) -> str:
    """A time with its unit: ``47.2 ms``."""
    for size, unit in _SECONDS:
        if ns >= size:
            return f"{ns / size:,.3g} {unit}" if ns < 1000 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns} ns"
