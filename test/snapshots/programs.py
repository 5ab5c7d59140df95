"""Allocation programs as text.

Note [What a stable program text leaves out]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Lines of the generated code, devices, storage identities and times differ from run to run or
from version to version; buffers are numbered in order of appearance (``buf0``, ``buf1``, ...)
and inputs are named ``input0``, ``input1``, ... by position (``input0+2`` where two inputs share
a storage). Scratch memory inside library
kernels belongs to the library's build, not to the graph, and is left out unless asked for; the
totals in the first line are over what is printed.
"""

from __future__ import annotations

from memprof.profiler.model import (
    AllocationProgram,
    EventKind,
    GraphRecord,
    Origin,
    Storage,
)


def program_text(program: AllocationProgram | GraphRecord, *, internal: bool = False) -> str:
    """What a call does to memory, one event a line; sizes in bytes.

    A ``GraphRecord`` prints all programs observed for it, with the operator that each
    allocated buffer belongs to. The text is the same on every supported torch version and
    device where the program is the same; see Note [What a stable program text leaves out].
    It ends with a newline.

    Args:
        program: a program, or a graph with its programs.
        internal: print scratch memory inside kernels too.

    Raises:
        TypeError: ``program`` is neither.
        ValueError: a graph of which no program has been observed.
    """
    if isinstance(program, AllocationProgram):
        return _text(program, None, internal)
    if not isinstance(program, GraphRecord):
        raise TypeError(
            "program_text wants an AllocationProgram or a GraphRecord, "
            f"got {type(program).__name__}"
        )
    if not program.programs:
        raise ValueError(
            f"no program of graph {program.id} ({program.label}) was observed: "
            + (program.unobservable or "it has not been called yet")
        )
    return "\n".join(_text(p, program, internal) for p in program.programs)


def _text(program: AllocationProgram, record: GraphRecord | None, internal: bool) -> str:
    names = _Names(program)
    rows: list[tuple[str, str, str, str, str]] = []  # what, name, bytes, category, remark
    entry = live = peak = allocated = peak_at = step = 0
    for storage in program.storages:
        if storage.at_entry:
            entry += storage.nbytes
            rows.append(_row("live", names.of(storage), storage, _outputs(storage)))
    live = peak = entry
    for event in program.events:
        storage = program.storages[event.storage]
        if storage.origin is Origin.INTERNAL and not internal:
            continue
        step += 1
        if event.kind is EventKind.ALLOC:
            live += storage.nbytes
            allocated += storage.nbytes
            name = names.own(storage, event.owner)
            operator = _operator(record, event.owner)
            rows.append(_row("alloc", name, storage, " ".join((operator, _outputs(storage)))))
        elif event.kind is EventKind.REUSE:
            before = names.of(storage)
            after = names.own(storage, event.owner)
            rows.append(("reuse", f"{before} as {after}", "", "", _operator(record, event.owner)))
        else:
            live -= storage.nbytes
            rows.append(("free", names.of(storage), str(storage.nbytes), "", ""))
        if live > peak:
            peak, peak_at = live, step
    title = f"{record.kind.value} program" if record else "program"
    if program.key:
        title += f" for {program.key}"
    head = (
        f"{title}: live at entry {entry}, allocates {allocated}, peak {peak} after event {peak_at}"
    )
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines = [
        f"    {what:<{widths[0]}} {name:<{widths[1]}} {size:>{widths[2]}} "
        f"{category:<{widths[3]}} {remark}".rstrip()
        for what, name, size, category, remark in rows
    ]
    return "\n".join([head, *lines]) + "\n"


def _row(what: str, name: str, storage: Storage, remark: str) -> tuple[str, str, str, str, str]:
    return what, name, str(storage.nbytes), storage.category.label, remark.strip()


def _outputs(storage: Storage) -> str:
    return " ".join(f"-> output{i}" for i in storage.outputs)


def _operator(record: GraphRecord | None, owner: str | None) -> str:
    """The operator whose value the buffer holds, e.g. ``aten.mm.default``."""
    buffer = record.buffers.get(owner or "") if record else None
    node = record.nodes.get(buffer.primary or "") if record and buffer else None
    return (node.original_aten or node.target) if node else ""


class _Names:
    """Canonical names of a program's storages, following their owners."""

    def __init__(self, program: AllocationProgram) -> None:
        self._buffers: dict[str, str] = {}
        self._owner: dict[int, str] = {}
        external = 0
        for storage in program.storages:
            if storage.origin is Origin.INPUT:
                self._owner[storage.id] = "input" + "+".join(map(str, storage.inputs))
            elif storage.at_entry:
                self._owner[storage.id] = f"external{external}"
                external += 1

    def of(self, storage: Storage) -> str:
        return self._owner[storage.id]

    def own(self, storage: Storage, owner: str | None) -> str:
        """The name from here on, when the buffer ``owner`` takes the storage."""
        if storage.origin is Origin.INTERNAL or owner is None:
            name = "(scratch)"
        else:
            name = self._buffers.setdefault(owner, f"buf{len(self._buffers)}")
        self._owner[storage.id] = name
        return name
