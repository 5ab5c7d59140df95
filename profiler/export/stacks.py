"""Bytes by stack: module → FX node → source line, of a live set or of all allocations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..attribution import Attribution, Site, View, module_parts
from ..live import Instant, LiveItem
from ..model import DataFlowDevice, DeviceAccount, SourceFrame
from ..timeline import Timeline


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of a stack.

    Attributes:
        name: what to show.
        file, line: of user code, None where there is none.
    """

    name: str
    file: str | None = None
    line: int | None = None


Stack = tuple[Frame, ...]


class Stacks:
    """Adds up bytes by stack. Every byte is in exactly one stack: what compiled code did not
    make, and what nothing is known of, have stacks of their own, named in parentheses."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._attribution = Attribution(timeline.profile)
        self._known: dict[LiveItem, Stack] = {}

    def live_at(self, call: int, instant: int) -> Counter[Stack]:
        """Live bytes; they add up to ``timeline.live_at(call, instant).nbytes``."""
        return self._add(
            (i, i.nbytes) for i in self._timeline.live_at(call, instant).items if i.nbytes
        )

    def allocated(self, calls: range) -> Counter[Stack]:
        """Bytes allocated inside ``calls``, freed since or not."""
        kinds: Counter[int] = Counter()
        example: dict[int, int] = {}
        for call in calls:
            kind = self._timeline.kind(call)
            kinds[kind] += 1
            example.setdefault(kind, call)
        return self._add(
            (after, after.nbytes * count)
            for kind, count in kinds.items()
            for before, after in self._timeline.changes(example[kind])
            if before is None and after is not None and after.nbytes
        )

    def _add(self, items: Iterable[tuple[LiveItem, int]]) -> Counter[Stack]:
        sums: Counter[Stack] = Counter()
        for item, nbytes in items:
            stack = self._known.get(item)
            if stack is None:
                site = self._attribution.site(item.graph, item.storage, item.owner, item.line)
                stack = self._known[item] = _stack(site, item)
            sums[stack] += nbytes
        return sums


def peak_between(timeline: Timeline, calls: range) -> Instant:
    """The first instant of ``calls``, of which there is one, with the most live bytes."""
    peaks = timeline.bytes_over_time().peak[calls.start : calls.stop]
    best = max(peaks)
    call = calls.start + peaks.index(best)
    now = timeline.live_at(call, 0).nbytes
    if now == best:
        return Instant(call, 0, best)
    for i, (before, after) in enumerate(timeline.changes(call), 1):
        now += (after.nbytes if after else 0) - (before.nbytes if before else 0)
        if now == best:
            return Instant(call, i, best)
    raise AssertionError(f"call {call} has no instant with its peak of {best} bytes")


def data_flow_stacks(device: DataFlowDevice) -> Counter[Stack]:
    """What was live at the peak of a data-flow profile, eager memory included."""
    sums: Counter[Stack] = Counter()
    for s in device.live:
        module = _module(s.module) if s.module is not None else (Frame("(module unknown)"),)
        op = s.op or f"({s.category.label})"
        sums[(*module, Frame(op), *_source(s.frame))] += s.nbytes
    return sums


def account_stacks(account: DeviceAccount) -> Counter[Stack]:
    """What was reserved: purpose → modules → FX nodes → source line. They add up to ``reserved``
    but where more is explained than that, and what is no block has stacks of its own."""
    sums: Counter[Stack] = Counter()
    for r in account.rows:
        modules = tuple(Frame(m) for m in r.modules.split(" > ") if m)
        nodes = (Frame(r.nodes),) if r.nodes else ()
        sums[(Frame(r.what), *modules, *nodes, *_source(r.frame))] += r.nbytes
    for name, nbytes in account.other_parts():
        sums[(Frame(f"({name})"),)] += max(nbytes, 0)
    return +sums


def _stack(site: Site, item: LiveItem) -> Stack:
    if site.module is not None:
        module = _module(site.module)
    elif site.outside:
        module = (Frame(f"({site.outside})"),)
    else:
        module = (Frame("(module unknown)"), Frame(f"({site.why.get(View.MODULE, 'unknown')})"))
    if site.outside:
        # A parameter of a known module stands below it, and is still no memory the module made.
        node = Frame(f"({site.outside}) {site.fqn or site.node or item.storage.name}".strip())
    elif site.node is not None:
        node = Frame(f"{site.node} {site.op or ''}".strip())
    else:
        node = Frame(f"(node unknown: {site.why.get(View.NODE, 'unknown')})")
    return (*module, node, *_source(site.frame))


def _module(path: str) -> Stack:
    parts = module_parts(path)
    return (Frame("(root)"), *(Frame(".".join(parts[: i + 1])) for i in range(len(parts))))


def _source(frame: SourceFrame | None) -> Stack:
    if frame is None:
        return ()
    text = frame.code.strip() or frame.function
    name = f"{frame.file.rpartition('/')[2]}:{frame.line} {text}".strip()
    return (Frame(name, frame.file, frame.line),)
