"""The time of a step: how long, by kinds of work, by modules beside their memory, and what limits
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from memprof.profiler import model
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.format import format_ns
from memprof.profiler.views.report.section import Note, Section, Table, Tone

_BRIEF = 10
"""Modules in a short text."""


def of_step_time(time: model.StepTime, accounts: Sequence[model.DeviceAccount]) -> Section:
    """The time of a step, and of the first account what its modules have at that instant."""
    total = sum(kind.device_ns for kind in time.kinds)
    kinds = sorted(time.kinds, key=lambda kind: -kind.device_ns)
    tables = [Table(_kind_columns(total), [_kind_row(kind) for kind in kinds], least=len(kinds))]
    if time.modules:
        tables.append(_modules(time, accounts, total))
    return Section("time", "Time of a step", tuple(_notes(time)), tuple(tables))


def _notes(time: model.StepTime) -> Iterator[Note]:
    whole = format_ns(time.step_ns)
    if time.measured:
        word = "at least" if time.unknown or time.at_least else "about"
        yield Note(f"{word} {whole}, from measured kernels of this GPU", Tone.STRONG)
    else:
        yield Note(f"no faster than {whole}: what its data sheet allows", Tone.STRONG)
    if time.flops:
        yield Note(
            f"{time.flops / 1e12:,.3g} TFLOP, {time.utilisation:.1%} of the "
            f"{time.peak_flops / 1e12:,.0f} TFLOP/s of its data sheet for these types; "
            "what is computed again counts"
        )
    if time.host_ns > time.device_ns:
        yield Note(
            f"bound by the host: its {time.launches:,} launches alone take "
            f"{format_ns(time.host_ns)}, the device {format_ns(time.device_ns)}"
        )
    if time.at_least:
        yield Note(
            f"of {' and '.join(time.at_least)} some were not measured on this GPU: they take "
            "longer than here, where they run at the speed of its data sheet"
        )
    if time.unknown:
        yield Note(
            f"of {time.unknown:,} launches the work is not known, or not all: it is missing, and "
            "the step takes longer"
        )


def _kind_columns(total: int) -> tuple[col.Column, ...]:
    return (
        col.Figure("ms"),
        col.share(total),
        col.Count("launches"),
        col.Figure("TFLOP/s"),
        col.Figure("GB/s"),
        col.Text("kind"),
    )


def _kind_row(kind: model.KindTime) -> col.Row:
    seconds = kind.device_ns / 1e9
    flops = f"{kind.flops / seconds / 1e12:,.1f}" if kind.flops and seconds else ""
    moved = f"{kind.nbytes / seconds / 1e9:,.0f}" if kind.nbytes and seconds else ""
    return (_ms(kind.device_ns), kind.device_ns, kind.launches, flops, moved, kind.kind)


def _modules(time: model.StepTime, accounts: Sequence[model.DeviceAccount], total: int) -> Table:
    live: Counter[str] = Counter()
    for row in accounts[0].rows if accounts else ():
        live[row.modules] += row.nbytes
    rows: list[col.Row] = [
        (
            _ms(row.device_ns),
            row.device_ns,
            live[row.module],
            row.module or "(outside of modules)",
        )
        for row in time.modules
    ]
    memory = col.Bytes("live at the peak" if not (accounts and accounts[0].failure) else "live")
    module = col.Path("module, its own and its backward's")
    return Table((col.Figure("ms"), col.share(total), memory, module), rows, brief=_BRIEF)


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.3f}"
