"""What forwards keep for their backwards now and did not before, value by value.

Note [How saved values are matched]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Between versions of torch, precisions and settings, names of nodes and numbers of graphs differ, and
so do lines inside of torch. What stays is the program: a value is known by its operator, its module
with numbers of layers left out, and the text of the line of the program that made it. Values alike
are counted together. What is left on one side alone, and on the other one of the same line,
type and bytes was made by another operator there: a decomposition that has changed.

Bytes are those of the tensor, not of the block that the allocator handed out for it: how blocks are
split differs between runs that keep the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ._text import without_numbers
from .attribution import Attribution
from .diff_model import SavedChange, SavedKind, place_of
from .live import LiveItem
from .model import Profile

_Key = tuple[str, str, str]
"""Operator, module and line."""


@dataclass(slots=True)
class _Value:
    """Bytes and tensors a step, by type."""

    nbytes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    count: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def sums(self) -> tuple[int, int]:
        """Bytes and tensors, of all types."""
        return round(sum(self.nbytes.values())), round(sum(self.count.values()))

    @property
    def types(self) -> str:
        """Types without torch's prefix, most bytes first."""
        ordered = sorted(self.nbytes, key=lambda t: (-self.nbytes[t], t))
        return ", ".join(t.removeprefix("torch.") for t in ordered)


Saved = dict[_Key, _Value]


def saved_values(
    profile: Profile, attribution: Attribution, items: Iterable[tuple[LiveItem, float]]
) -> Saved:
    """Values that are saved in a step: of each item that forwards leave for their backwards, how
    often a step."""
    graphs = {g.id: g for g in profile.graphs}
    found: Saved = defaultdict(_Value)
    for item, weight in items:
        site = attribution.site(item.graph, item.storage, item.owner, item.line)
        graph = graphs.get(item.graph)
        buffer = graph.buffers.get(item.owner or "") if graph is not None else None
        nbytes, dtype = item.storage.nbytes, buffer.dtype if buffer is not None else None
        if buffer is not None and buffer.nbytes is not None:
            nbytes = min(nbytes, buffer.nbytes)
        elif graph is not None and item.storage.at_entry:
            values = [graph.inputs[i] for i in item.storage.inputs if i < len(graph.inputs)]
            dtype = next((v.dtype for v in values if v.dtype), None)
            nbytes = max((v.nbytes for v in values if v.nbytes), default=nbytes)
        op = (site.op or site.node or "?").removeprefix("aten.").removesuffix(".default")
        key = (
            f"({site.outside})" if site.outside else op,
            "?" if site.module is None else without_numbers(site.module) or "(root)",
            site.fqn or "" if site.outside else place_of(site.frame),
        )
        found[key].nbytes[dtype or "?"] += nbytes * item.count * weight
        found[key].count[dtype or "?"] += item.count * weight
    return found


def saved_changes(before: Saved, after: Saved, device: str) -> list[SavedChange]:
    """What is saved on one side alone, or otherwise: lines with most bytes first."""
    gone = {k: v for k, v in before.items() if k not in after}
    new = {k: v for k, v in after.items() if k not in before}
    pairs = [(k, v, k, after[k]) for k, v in before.items() if k in after]
    for k, v in list(gone.items()):
        other = next((n for n, w in new.items() if n[1:] == k[1:] and _same(v, w)), None)
        if other is not None:
            pairs.append((k, gone.pop(k), other, new.pop(other)))
    pairs += [(k, v, k, _Value()) for k, v in gone.items()]
    pairs += [(k, _Value(), k, v) for k, v in new.items()]
    found = [_change(k, a, n, b, device) for k, a, n, b in pairs if k != n or not _same(a, b)]
    by_line: dict[tuple[str, str], int] = defaultdict(int)
    for c in found:
        by_line[c.module, c.line] += max(c.before, c.after)

    def order(c: SavedChange) -> tuple[int, str, str, int, str]:
        return (-by_line[c.module, c.line], c.module, c.line, -abs(c.change), c.op)

    return sorted(found, key=order)


def _same(a: _Value, b: _Value) -> bool:
    return a.types == b.types and a.sums() == b.sums()


def _change(k: _Key, a: _Value, n: _Key, b: _Value, device: str) -> SavedChange:
    (old, old_count), (now, now_count) = a.sums(), b.sums()
    if not old_count:
        kind = SavedKind.NEW
    elif not now_count:
        kind = SavedKind.GONE
    elif k != n:
        kind = SavedKind.OPERATOR
    elif a.types != b.types:
        kind = SavedKind.TYPE
    else:
        kind = SavedKind.SIZE
    op = f"{k[0]} → {n[0]}" if k != n else k[0]
    types = a.types if a.types == b.types else " → ".join(t for t in (a.types, b.types) if t)
    return SavedChange(kind, op, k[1], k[2], types, old, now, max(old_count, now_count), device)
