"""Says where a device runs out of memory, with what is known of the compiled code that asked."""

from __future__ import annotations

from memprof.profiler.device.out_of_memory import REPORTS, Compiled
from memprof.profiler.model import DeviceAccount, LedgerKind

from .runtime import RUNTIME


def describe(file: str, line: int) -> Compiled | None:
    """What is known of a line of generated code; None if ``file`` is none of ours."""
    for graph in RUNTIME.graphs():
        record = graph.record
        if record.code_path == file:
            name = record.buffer_of_line(line)
            buffer = record.buffers.get(name) if name is not None else None
            node = buffer.primary if buffer is not None else None
            found = record.nodes.get(node) if node is not None else None
            return Compiled(record.label, node or "", found.frame if found is not None else None)
    return None


def _note(account: DeviceAccount) -> str:
    # Reports take a quarter of a second to import, and who compiles seldom needs them.
    from memprof.profiler.report.failure import asked, asker
    from memprof.profiler.report.format import format_bytes

    f = account.failure
    if f is not None and not f.doing:
        graph = next((g.record.id for g in RUNTIME.graphs() if g.record.label == f.graph), None)
        text = f"out of memory on {account.device}: {asked(f, format_bytes)} asked for {asker(f)}"
        RUNTIME.ledger.add(LedgerKind.OUT_OF_MEMORY, graph, text)
    return ""


def report_out_of_memory() -> None:
    """Log a line for each failed allocation from now on, and note it in the ledger."""
    if REPORTS.start():
        REPORTS.describe_with(describe)
        REPORTS.keep_with(_note)
