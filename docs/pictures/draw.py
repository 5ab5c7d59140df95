"""Draws the pictures of docs/cuda-graphs-explained.md from a profile that ``take.py`` took.

python docs/pictures/draw.py docs/pictures/explained.memprof docs/pictures
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.live.trees import CallMode, call_modes
from memprof.profiler.model import LedgerKind, Profile
from memprof.profiler.views.report.format import format_bytes

WIDTH = 760
COLORS = {
    "parameter": "#5b7f95",
    "activation": "#d9822b",
    "temporary": "#b9a7d6",
    "gradient": "#3f72af",
    "input": "#6b7280",
    "output": "#4a9d6e",
    "autograd_detail": "#9ec5e8",
}
MODES = {
    CallMode.WARM_UP: ("#d9822b", "warm-up"),
    CallMode.RUN: ("#b9a7d6", "observed"),
    CallMode.RECORD: ("#c0392b", "recorded"),
    CallMode.REPLAY: ("#4a9d6e", "replayed"),
}


class Svg:
    """A picture, top left is (0, 0)."""

    def __init__(self, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="system-ui, sans-serif" font-size="13" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def text(self, x: float, y: float, text: str, anchor: str = "start", **style: str) -> None:
        extra = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in style.items())
        style_of = "" if "fill" in style else ' fill="#1f2933"'
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style_of}{extra}>'
            f"{escape(text)}</text>"
        )

    def rect(self, x: float, y: float, w: float, h: float, fill: str, tip: str = "") -> None:
        title = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="2" '
            f'fill="{fill}">{title}</rect>'
        )

    def line(self, points: Iterable[tuple[float, float]], stroke: str = "#1f2933") -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="1.5"/>'
        )

    def area(self, points: Iterable[tuple[float, float]], fill: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polygon points="{path}" fill="{fill}"/>')

    def write(self, path: Path) -> None:
        path.write_text("\n".join([*self.parts, "</svg>"]) + "\n")


def modes_of(profile: Profile) -> list[CallMode]:
    """How each call ran. Where the ledger leaves it open: the first call of a program was watched,
    which is how there is one, and the ledger's count of replays says that the others replayed."""
    modes = call_modes(profile)
    seen: set[tuple[int, int]] = set()
    for k, key in enumerate(zip(profile.calls.graph, profile.calls.program, strict=True)):
        if modes[k] is CallMode.REPLAY_OR_RUN:
            modes[k] = CallMode.REPLAY if key in seen else CallMode.RUN
        seen.add(key)
    replays = sum(e.count for e in profile.ledger if e.kind is LedgerKind.REPLAY)
    assert modes.count(CallMode.REPLAY) == replays, (modes, replays)
    return modes


def step(profile: Profile) -> Svg:
    """Live bytes by category through one replayed forward and its backward."""
    timeline, attribution = Timeline(profile, "cuda:0"), Attribution(profile)
    first = modes_of(profile).index(CallMode.REPLAY)
    columns: list[dict[str, int]] = []
    border = 0
    for call in (first, first + 1):
        program = profile.graph(profile.calls.graph[call]).programs[profile.calls.program[call]]
        for instant in range(len(program.events) + 1):
            live = timeline.live_at(call, instant)
            parts = attribution.breakdown(live, View.CATEGORY).parts
            columns.append({p.key: p.nbytes for p in parts})
        border = border or len(columns)
    names = [c for c in COLORS if any(c in column for column in columns)]
    highest = max(sum(c.values()) for c in columns)
    svg = Svg(330, "Live memory during a replayed training step")
    left, top, width, height = 70.0, 30.0, WIDTH - 90.0, 220.0
    x = [left + width * i / (len(columns) - 1) for i in range(len(columns))]
    base = [0] * len(columns)
    for name in names:
        upper = [b + c.get(name, 0) for b, c in zip(base, columns, strict=True)]
        y = [[top + height * (1 - n / highest) for n in row] for row in (upper, base)]
        svg.area(
            [*zip(x, y[0], strict=True), *reversed([*zip(x, y[1], strict=True)])], COLORS[name]
        )
        base = upper
    middle = x[border - 1]
    svg.line([(middle, top - 8), (middle, top + height)], "#1f2933")
    svg.text((left + middle) / 2, top - 12, "forward", "middle")
    svg.text((middle + left + width) / 2, top - 12, "backward", "middle")
    peak = max(range(len(columns)), key=base.__getitem__)
    svg.line([(left - 6, top), (x[peak], top)], "#c0392b")
    svg.text(left - 10, top + 4, format_bytes(highest), "end", fill="#c0392b")
    svg.text(left - 10, top + height, "0", "end")
    at = left
    for name in names:
        svg.rect(at, top + height + 22, 12, 12, COLORS[name])
        label = name.replace("_", " ")
        svg.text(at + 17, top + height + 33, label)
        at += 34 + 7.2 * len(label)
    svg.text(left, top + height + 62, "allocations and releases, in order →", fill="#6b7280")
    return svg


def calls(profile: Profile) -> Svg:
    """How each call ran, and the pool after it."""
    modes = modes_of(profile)
    svg = Svg(250, "What each call did, and the size of the pool")
    left, top, width = 70.0, 40.0, WIDTH - 90.0
    each = width / len(modes)
    forwards = [g.id for g in profile.graphs if g.kind.value == "forward"]
    for k, mode in enumerate(modes):
        color, word = MODES[mode]
        graph = profile.graph(profile.calls.graph[k])
        svg.rect(left + k * each + 1, top, each - 2, 34, color, f"{graph.label}: {word}")
        letter = "F" if graph.id in forwards else "B"
        svg.text(left + (k + 0.5) * each, top + 22, letter, "middle", fill="#ffffff")
    middle = left + width / 2
    svg.text((left + middle) / 2, top - 12, "1024 rows", "middle")
    svg.text((middle + left + width) / 2, top - 12, "512 rows", "middle")
    # The pool after each call: what the last entry before its end says.
    entries = [
        (e.time_ns - profile.perf_origin_ns, e.tree.pool_after)
        for e in profile.ledger
        if e.tree is not None and e.tree.pool_after >= 0
    ]
    sizes = []
    for end in profile.calls.end_ns:
        known = [n for time, n in entries if time <= end]
        sizes.append(max(known) if known else 0)
    highest = max(sizes)
    bottom, height = 200.0, 90.0
    points: list[tuple[float, float]] = [(left, bottom)]
    for k, n in enumerate(sizes):
        y = bottom - height * n / highest
        points += [(left + k * each, y), (left + (k + 1) * each, y)]
    svg.line(points)
    svg.text(left - 10, bottom - height + 4, format_bytes(highest), "end")
    svg.text(left - 10, bottom, "pool", "end")
    at = left
    for color, word in MODES.values():
        svg.rect(at, 222, 12, 12, color)
        svg.text(at + 17, 233, word)
        at += 34 + 7.2 * len(word)
    return svg


def tree(profile: Profile) -> Svg:
    """The recordings, which come after which, and how often each was replayed."""
    recorded = (LedgerKind.RECORD, LedgerKind.RERECORD)
    entries = [(e, e.tree) for e in profile.ledger if e.tree is not None]
    replays = {t.node: e.count for e, t in entries if e.kind is LedgerKind.REPLAY}
    nodes = [t for e, t in entries if e.kind in recorded]
    children: dict[int | None, list[int]] = {}
    by_node = {t.node: t for t in nodes if t.node is not None}
    for node, t in by_node.items():
        children.setdefault(t.parent, []).append(node)
    svg = Svg(60 + 74 * len(children.get(None, [])), "The tree of recordings")
    svg.text(24, 28, "a path is a step; a box is a recording", fill="#6b7280")

    def draw(node: int, x: float, y: float) -> None:
        t = by_node[node]
        svg.rect(x, y, 300, 52, "#e8eef4")
        svg.text(x + 14, y + 22, f"{t.function}, {', '.join(map(str, t.key))} rows")
        grown = f"pool +{format_bytes(t.marginal)}" if t.marginal else "no new memory"
        svg.text(x + 14, y + 41, f"replayed {replays.get(node, 0)} times, {grown}", fill="#4b5563")
        for child in children.get(node, []):
            svg.line([(x + 300, y + 26), (x + 340, y + 26)])
            draw(child, x + 340, y)

    for i, root in enumerate(children.get(None, [])):
        draw(root, 24, 44 + 74 * i)
    return svg


def main(profile: str, folder: str) -> None:
    """Draw them all."""
    found = read_profile(profile)
    for name, picture in (("step", step), ("calls", calls), ("tree", tree)):
        picture(found).write(Path(folder) / f"{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
