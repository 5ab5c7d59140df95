"""The report page in a real browser: sums, mouse and keyboard, widths, themes."""

from __future__ import annotations

import re
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from big_profile import big_profile, count_allocations
from browser.fixtures import COUNT_DRAWING, FRAME, isolated, open_file, watch
from hypothesis import given, settings
from outputs import invoke
from profile_builder import KIB, MIB, training

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.devices import timelines
from memprof.profiler.model import (
    Category,
    DataFlowColumns,
    DataFlowDevice,
    DataFlowStorage,
    MemorySnapshot,
    OperationSummary,
    OperatorCall,
    OperatorRecord,
    Profile,
    RunState,
    SourceFrame,
    Span,
    TensorInfo,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.views.report import summarize
from memprof.profiler.views.report.format import format_bytes, format_ns, format_share
from memprof.profiler.views.report.html import report_page, write_report
from memprof.profiler.views.report.html.elements import profile_elements
from memprof.profiler.views.report.html.payload import report_payload
from profiler.live.test_timeline import profiles

from .test_ranks import job

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(training(), path, source="run.memprof")
    return path


def show(page: Page, path: Path) -> None:
    open_file(page, path)
    page.wait_for_selector("html[data-ready]")
    # What JavaScript writes where a value is missing.
    missing = re.search(
        r"\b(undefined|NaN|null|Infinity)\b|\[object|^false$", page.inner_text("main"), re.M
    )
    assert missing is None, missing


def shown(page: Page) -> tuple[str, int]:
    """The instant that the page names, and its bytes; all views have the same sum."""
    page.evaluate(FRAME)
    name = page.inner_text("#instant-name")
    found = {
        "bar": page.get_attribute("#instant-bytes", "data-bytes"),
        "table": page.get_attribute("#live-table", "data-bytes"),
        "curve": str(page.evaluate("(r => r.model.bytes(r.call, r.position))(memprof.report)")),
    }
    assert len(set(found.values())) == 1, found
    return name, int(found["bar"] or -1)


# What it says


EVERYTHING = """(payload) => {
  const m = memprof.modelOf(payload), out = [];
  for (let k = 0; k < m.length; k++) {
    for (let p = 0; p <= m.last(k) + 1; p++) {
      const live = m.live(k, p);
      const views = payload.views.map((v) => {
        const parts = m.breakdown(live, v);
        const left = parts.filter((x) => !x.known).reduce((n, x) => n + x.nbytes, 0);
        return [left, parts.filter((x) => x.known).map((x) => [x.key, x.nbytes, x.storages])];
      });
      out.push([k, p, m.bytes(k, p), memprof.STACK.map((c) => m.bytes(k, p, c)), views]);
    }
  }
  return out;
}"""


def check_everywhere(page: Page, profile: Profile) -> None:
    """Each live set and its views, as the page works them out, are the timeline's and the
    attribution's, to the byte."""
    attribution = Attribution(profile)
    stack: list[str] = page.evaluate("memprof.STACK")
    for device, timeline in timelines(profile).items():
        found = page.evaluate(EVERYTHING, profile_elements(report_payload(profile, device)))
        positions = 0
        for call in range(len(timeline)):
            program = profile.calls.program[call]
            graph = profile.graph(profile.calls.graph[call])
            positions += 2 + (len(graph.programs[program].events) if program >= 0 else 0)
        assert len(found) == positions
        for call, position, nbytes, by_category, views in found:
            program = profile.calls.program[call]
            graph = profile.graph(profile.calls.graph[call])
            last = len(graph.programs[program].events) if program >= 0 else 0
            items = (
                timeline.live_after(call) if position > last else timeline.live_at(call, position)
            )
            assert nbytes == sum(i.nbytes for i in items)
            sums: Counter[str] = Counter()
            for i in items:
                sums[i.storage.category.value] += i.nbytes
            assert by_category == [sums[name] for name in stack]
            for view, (unattributed, parts) in zip(View, views, strict=True):
                b = attribution.breakdown(items, view)
                assert unattributed == b.unattributed
                assert Counter(map(tuple, parts)) == Counter(
                    (p.key, p.nbytes, p.storages) for p in b.parts
                )


def test_every_view_of_every_instant_is_what_the_timeline_says(page: Page, report: Path) -> None:
    show(page, report)
    for profile in (training(), big_profile(40, 1000)):
        check_everywhere(page, profile)


def test_every_view_of_random_profiles(page: Page, report: Path) -> None:
    show(page, report)

    @settings(max_examples=25, database=None)
    @given(profiles())
    def check(profile: Profile) -> None:
        check_everywhere(page, profile)

    check()


def test_the_page_opens_at_the_peak_of_the_report(page: Page, report: Path) -> None:
    summary = summarize(training())
    assert summary.peak is not None
    show(page, report)
    assert shown(page) == ("call 5 of 9, 0/0 backward, instant 1 of 4", summary.peak.nbytes)
    assert page.inner_text("#peak h2") == (
        "Peak of known live memory on cpu: 26.0 MiB (27,262,976 B)"
    )
    assert page.title() == "Memory of run.memprof"


def test_columns_keep_the_highest_and_the_lowest(page: Page, report: Path) -> None:
    show(page, report)
    found = page.evaluate(
        """() => {
          const m = memprof.report.model, { edge, columnsOf } = memprof, out = [];
          for (const [a, b] of [[0, 1], [0.2, 0.7], [0.5, 0.52], [0.9, 1]]) {
            for (const width of [3, 40, 1000]) {
              const from = a * m.length, to = b * m.length;
              const c = columnsOf(m, from, to, width);
              const high = new Array(width).fill(-1), low = new Array(width).fill(Infinity);
              for (let k = 0; k < m.length; k++) {
                for (let p = 0; p <= m.last(k) + 1; p++) {
                  const s = edge(m, k, p), e = edge(m, k, p + 1);
                  for (let i = 0; i < width; i++) {
                    const left = from + (to - from) * i / width;
                    const right = from + (to - from) * (i + 1) / width;
                    // Edges that meet to within rounding do not overlap.
                    const slack = (to - from) * 1e-9;
                    if (s < right - slack && e > left + slack) {
                      high[i] = Math.max(high[i], m.bytes(k, p));
                      low[i] = Math.min(low[i], m.bytes(k, p));
                    }
                  }
                }
              }
              const bytesOf = (at) => m.bytes(...at);
              out.push([a, b, width, c.high.map(bytesOf), high, c.low.map(bytesOf), low]);
            }
          }
          return out;
        }"""
    )
    assert len(found) == 12
    for a, b, width, high, want_high, low, want_low in found:
        assert high == want_high, (a, b, width)
        assert low == want_low, (a, b, width)


COLORS_ALONG = """(bytes) => {
  const { plot } = memprof.timeline;
  const { ctx, bbox } = plot;
  const y = Math.round(plot.valToPos(bytes * 2 ** 20, "y", true));
  const row = ctx.getImageData(bbox.left + 3, y, bbox.width - 6, 1).data;
  const pixels = [];
  for (let i = 0; i < row.length; i += 4) pixels.push(row.slice(i, i + 3).join());
  return pixels.filter((p, i) => p !== pixels[i - 1]);
}"""
"""Colours of the timeline from left to right, each once where it stays the same, at a height in
MiB."""


def test_many_calls_are_a_band_between_the_lowest_and_the_highest(
    page: Page, tmp_path: Path
) -> None:
    """Three calls a step, 203 steps: 609 calls in some 1,150 pixels. From the second step on there
    are 10 MiB at the least and 26 at the most."""
    write_report(training(203), tmp_path / "p.html")
    show(page, tmp_path / "p.html")
    # Lines of the peak and of the chosen instant would be colours of their own.
    page.evaluate("memprof.report.model.peak = null")
    page.evaluate("memprof.report.select(0, 0)")
    page.evaluate(FRAME)
    full, pale = (page.evaluate(COLORS_ALONG, n) for n in (8, 14))
    # THEN no stripes: the first step differs from all others, which are alike.
    assert max(map(len, (full, pale))) <= 6, (full, pale)
    assert full[-1] == "136,204,238"  # optimizer state, as it is
    assert pale[-1] == "249,220,163"  # activation, two fifths of it
    # AND what stands still is as it was, each call in its own place
    page.get_by_role("button", name="± 5 calls").click()
    page.evaluate(FRAME)
    assert len(page.evaluate(COLORS_ALONG, 14)) > 10


def test_a_screenshot_that_waits_for_no_frame_has_every_picture(page: Page, tmp_path: Path) -> None:
    # GIVEN a browser in which nothing is ever drawn later, as `chromium --headless --screenshot`
    page.add_init_script(
        "window.requestAnimationFrame = () => 0;"
        "window.IntersectionObserver = class { observe() {} };"
        "window.ResizeObserver = class { observe() {} };"
    )
    write_report(training(), tmp_path / "p.html")
    open_file(page, tmp_path / "p.html")
    page.wait_for_function("document.documentElement.dataset.ready")
    # THEN the canvas is not blank, and there are bars
    drawn = page.evaluate(
        """() => {
          const c = document.querySelector("#timeline canvas");
          const { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
          return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )
    assert drawn > 20
    assert page.locator("#gantt .ground").count() == 9


def test_numbers_read_as_at_the_terminal(page: Page, report: Path) -> None:
    show(page, report)
    sizes = [
        0,
        1,
        1023,
        1024,
        1500,
        10_230,
        10_240,
        1_022_976,
        1 << 20,
        1_179_648,  # 1.125 MiB, a tie: Python rounds to the even digit
        11_796_480,
        123_456_789,
        1 << 40,
        5 << 50,
    ]
    times = [0, 1, 999, 1000, 12_345, 99_949, 99_951, 1_000_000, 12_345_678, 10**9, 123 * 10**9]
    times += [999_499, 999_500, 999_600_000]
    shares = [(0, 0), (0, 10), (1, 10**6), (1, 3), (999_999, 10**6), (10, 10), (1, 16)]
    found = page.evaluate(
        "([b, t, s]) => [b.map(memprof.bytes), t.map(memprof.ns),"
        " s.map(([p, w]) => memprof.share(p, w))]",
        [sizes, times, shares],
    )
    assert found[0] == [format_bytes(n) for n in sizes]
    assert found[1] == [format_ns(n) for n in times]
    assert found[2] == [format_share(p, w) for p, w in shares]


# What a reader does


def test_buttons_go_from_instant_to_instant(page: Page, report: Path) -> None:
    show(page, report)
    presses = [
        ("Next instant", "call 5 of 9, 0/0 backward, instant 2 of 4", 18),
        ("Previous instant", "call 5 of 9, 0/0 backward, instant 1 of 4", 26),
        ("Next call", "call 6 of 9, 1/0 inference, instant 0 of 2", 14),
        ("Previous instant", "after call 5 of 9, 0/0 backward", 14),
        ("Next instant", "call 6 of 9, 1/0 inference, instant 0 of 2", 14),
        ("Peak", "call 5 of 9, 0/0 backward, instant 1 of 4", 26),
    ]
    bar = page.get_by_role("region", name="Chosen instant")
    for button, name, mib in presses:
        bar.get_by_role("button", name=button).press("Enter")
        assert shown(page) == (name, mib * MIB), button
    for _ in range(6):
        bar.get_by_role("button", name="Previous call").press("Space")
    assert shown(page) == ("call 1 of 9, 0/0 forward, instant 0 of 7", 7 * MIB)
    # What has just happened, by name and size also where memory is freed.
    happened = []
    for instant in (0, 1, 2, 3):
        page.evaluate(f"memprof.report.select(4, {instant})")
        happened.append(page.inner_text(".instant-event"))
    assert happened == [
        "at the entry of the call: its inputs and what other calls left behind",
        "buf0, 6.00 MiB, allocated at line 20",
        "buf0, 8.00 MiB, freed at line 21",
        "buf1, 4.00 MiB, allocated at line 22",
    ]
    bar.get_by_role("button", name="Peak").click()
    assert page.inner_text("#announcer") == (
        "26.0 MiB live, call 5 of 9, 0/0 backward, instant 1 of 4"
    )


def test_a_click_chooses_what_is_drawn_there(page: Page, report: Path) -> None:
    show(page, report)
    plot = page.locator("#timeline .u-over")
    names = set()
    for part in (0.1, 0.3, 0.5, 0.7, 0.95):
        width = plot.evaluate("e => e.clientWidth")
        plot.click(position={"x": part * width, "y": 100})
        name, nbytes = shown(page)
        names.add(name)
        assert nbytes > 0
    assert len(names) == 5


def test_what_was_left_out_is_said_first(page: Page, tmp_path: Path) -> None:
    profile = training()
    profile.left_out = ["a program of 0/0 forward: <b>a reason</b> - at `$.graphs[0]`"]
    write_report(profile, tmp_path / "p.html")
    show(page, tmp_path / "p.html")
    assert "a program of 0/0 forward: <b>a reason</b>" in page.inner_text("#left-out")
    # AND that is on the page before anything else
    first = page.locator("#main .summary .notice").all_inner_texts()
    assert len(first) == 1


def test_zoom(page: Page, report: Path) -> None:
    show(page, report)
    plot = page.locator("#timeline .u-over")

    def calls() -> list[str]:
        """The calls at the left and the right end of the plot."""
        found = []
        for part in (0.01, 0.99):
            width = plot.evaluate("e => e.clientWidth")
            plot.click(position={"x": part * width, "y": 100})
            found.append(shown(page)[0].split(",")[0])
        return found

    whole = ["call 1 of 9", "after call 9 of 9"]
    assert calls() == whole
    page.locator("#instant").get_by_role("button", name="Peak").click()
    page.get_by_role("button", name="This call").click()
    assert calls() == ["call 5 of 9", "after call 5 of 9"]
    # The window follows what is chosen by buttons.
    for _ in range(2):
        page.get_by_role("button", name="Next call").click()
    assert any("call 7 of 9" in call for call in calls())
    page.get_by_role("group", name="Zoom").get_by_role("button", name="Whole run").click()
    assert calls() == whole
    # A part that is dragged across is shown alone, a double click shows everything.
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50, steps=4)
    page.mouse.up()
    assert calls() == ["call 4 of 9", "call 6 of 9"]
    plot.dblclick(position={"x": 100, "y": 100})
    assert calls() == whole


def test_every_control_can_be_reached_and_pressed_without_a_mouse(page: Page, report: Path) -> None:
    show(page, report)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(
            "(e => e.id || e.getAttribute('aria-label') || e.innerText.split('\\n')[0])"
            "(document.activeElement)"
        ))  # fmt: skip
    for wanted in (
        "Skip to the content",
        "theme",
        "Previous call",
        "Peak",
        "Whole run",
    ):
        assert wanted in reached, reached
    views = page.get_by_role("group", name="Live set by")
    for tab in ("Category", "Module", "FX node", "Source line", "Graph"):
        views.get_by_role("radio", name=tab, exact=True).press("Space")
        assert shown(page)[1] == 26 * MIB
    # A name in the table says what it is made of.
    views.get_by_role("radio", name="Source line", exact=True).press("Space")
    page.locator("#live-table tbody button").first.press("Enter")
    rows = page.locator("#live-parts tbody tr").all_inner_texts()
    assert "x = self.l3(x)" in rows[0]
    assert "zoo/model.py:3 in forward" in rows[0]
    assert "it belongs to this call" in rows[0]
    nbytes = page.eval_on_selector_all("#live-parts [title]", "found => found.map(e => e.title)")
    assert sum(int(n.removesuffix(" B").replace(",", "")) for n in nbytes) == 14 * MIB


def test_the_remainder_is_always_shown(page: Page, report: Path) -> None:
    show(page, report)
    # In the optimizer's call there is a buffer of which nothing is known.
    page.evaluate("memprof.report.select(8, 1)")
    assert page.get_attribute("#instant-unattributed", "data-bytes") == str(MIB // 2)
    assert "512 KiB unattributed (3.4 %)" in page.inner_text(".instant")
    page.get_by_role("radio", name="Module", exact=True).press("Space")
    foot = page.inner_text("#live-table tfoot")
    assert "unattributed: the generated code's buffer has no provenance" in foot
    assert page.locator("#live-table tfoot tr").count() == 2


# How it looks


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_widths_and_themes(browser: Browser, report: Path, width: int, scheme: Any) -> None:
    size: Any = {"width": width, "height": 900}
    with isolated(browser, viewport=size, color_scheme=scheme) as context:
        page = context.new_page()
        problems = watch(page)
        show(page, report)
        page.evaluate("document.getElementById('live-set').scrollIntoView()")
        page.evaluate(FRAME)
        # Nothing is wider than the window, and nothing failed.
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert problems == []
        assert distinct_colors(page.locator("#timeline canvas").screenshot()) > 20
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", background))) < 60) == (scheme == "dark")


def test_the_theme_can_be_switched(page: Page, report: Path) -> None:
    show(page, report)
    seen = []
    scheme = "getComputedStyle(document.documentElement).colorScheme"
    for theme in ("auto", "light", "dark", "auto"):
        page.select_option("#theme", theme)
        seen.append(page.evaluate(scheme) == "dark")
    assert seen == [False, False, True, False]


@pytest.mark.parametrize("dark", [False, True])
def test_categories_can_be_told_apart(page: Page, report: Path, dark: bool) -> None:
    """Colours that meet in the stack differ for readers without red or green cones, by the
    matrices of Machado, Oliveira and Fernandes (2009) at full severity."""
    show(page, report)
    if dark:
        page.select_option("#theme", "dark")
    names: list[str] = page.evaluate("memprof.STACK")
    of_blocks = list(Category)[list(Category).index(Category.COMMUNICATION_BUFFER) : -1]
    assert sorted(names) == sorted(c.value for c in Category if c not in of_blocks)
    colors = {
        n: page.evaluate("v => memprof.color(v)", f"--cat-{n.replace('_', '-')}") for n in names
    }
    rgb = {n: [int(v) / 255 for v in re.findall(r"\d+", c)[:3]] for n, c in colors.items()}
    for vision in (NORMAL, PROTANOPIA, DEUTERANOPIA):
        lab = {n: _lab(_seen(c, vision)) for n, c in rgb.items()}
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                apart = sum((x - y) ** 2 for x, y in zip(lab[a], lab[b], strict=True)) ** 0.5
                assert apart > 14, (a, b, apart, vision)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(page: Page, report: Path, dark: bool) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 for text; 1.4.11: 3 for what controls are drawn with."""
    show(page, report)
    if dark:
        page.select_option("#theme", "dark")

    def luminance(variable: str) -> float:
        color = page.evaluate("v => memprof.color(v)", variable)
        linear = _seen([int(v) / 255 for v in re.findall(r"\d+", color)[:3]], NORMAL)
        return sum(k * c for k, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(a: str, b: str) -> float:
        high, low = sorted((luminance(a), luminance(b)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for text in ("--text", "--text-2", "--accent", "--warn", "--bad"):
        for ground in ("--page", "--panel", "--raised"):
            assert contrast(text, ground) >= 4.5, (text, ground)
    assert contrast("--accent", "--accent-weak") >= 4.5
    assert contrast("--text", "--warn-weak") >= 4.5
    assert contrast("--accent", "--page") >= 3


NORMAL = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))  # fmt: skip  # noqa: E501
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))  # fmt: skip  # noqa: E501


def _seen(rgb: list[float], vision: Any) -> list[float]:
    """Linear light, as seen."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return [sum(m * c for m, c in zip(row, linear, strict=True)) for row in vision]


def _lab(rgb: list[float]) -> list[float]:
    """CIE L*a*b* under D65 of linear sRGB."""
    matrix = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(m * c for m, c in zip(row, rgb, strict=True)) for row in matrix]
    f = [
        v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116
        for v in (max(0.0, x) / w for x, w in zip(xyz, (0.9505, 1, 1.089), strict=True))
    ]
    return [116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]


def distinct_colors(png: bytes) -> int:
    """Number of different pixels of an 8-bit RGB(A) PNG, without an imaging library."""
    width, _, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind in (2, 6)) == (8, True)
    step = 3 if kind == 2 else 4
    at, data = 8, b""
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    raw = zlib.decompress(data)
    # Filtered rows: differences between pixels, which do as well for telling blank from drawn.
    stride = 1 + width * step
    return len(
        {
            raw[r + i : r + i + step]
            for r in range(0, len(raw), stride)
            for i in range(1, stride, step)
        }
    )


# What must not happen


def test_what_a_profile_says_stays_text(page: Page, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror='document.title=1'><!--"
    profile = training()
    graph = profile.graphs[0]
    for name, n in list(graph.nodes.items()):
        frame = SourceFrame(evil, 3, evil, evil)
        graph.nodes[name] = type(n)(evil, n.target, evil, stack=(frame,), module_path=evil)
    profile.options = {evil: evil}
    write_report(profile, tmp_path / "p.html", source=f"{evil}.json")
    show(page, tmp_path / "p.html")
    for tab in ("Category", "Module", "FX node", "Source line"):
        page.locator("#live-views").get_by_text(tab, exact=True).first.click()
        page.locator("#live-table tbody button").first.click()
    page.mouse.move(300, 300)
    assert page.locator("img").count() == 0
    assert evil in page.inner_text("#live-parts") + page.inner_text("#live-table")
    assert page.title() == f"Memory of {Path(evil).name}.json"


def test_a_page_asks_for_nothing_and_runs_no_other_script(browser: Browser, report: Path) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', report.read_text())
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy[1]
    with isolated(browser) as context:
        page = context.new_page()
        problems = watch(page)
        show(page, report)
        assert problems == []
        addresses = "[...document.querySelectorAll('[src], link')].map((e) => e.src || e.href)"
        assert page.evaluate(addresses) == ["data:,"]
        page.evaluate(
            "() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
            " document.body.append(s); }"
        )
        page.evaluate("fetch('https://a.example').catch(() => 0)")
        assert page.evaluate("window.ran") is None
        assert len(problems) >= 2
        assert all("violates the" in p for p in problems), problems


def test_an_empty_profile_says_why_it_is_empty(page: Page, tmp_path: Path) -> None:
    write_report(Profile(), tmp_path / "p.html")
    show(page, tmp_path / "p.html")
    text = page.inner_text("main")
    assert "No call of a compiled graph was recorded" in text
    # AND there are no tables of nothing
    assert "Graphs; bytes" not in text
    assert "0 B" not in text
    assert "The ledger is empty: nothing was compiled." in text


def test_several_ranks(page: Page, tmp_path: Path) -> None:
    # GIVEN ranks of which one needs more
    write_report(job(), tmp_path / "p.html", source="job.memprof")
    show(page, tmp_path / "p.html")
    # THEN the page shows the one with the highest peak, and how they compare
    assert page.inner_text("h2.whose") == "Rank 2"
    assert "rank 2 of 4 (local rank 2, host node1, process 102)" in page.inner_text(".meta")
    _, highest = shown(page)
    rows = page.locator(".job table").first.locator("tbody tr")
    assert rows.count() == 4
    assert "26.0 MiB" in rows.nth(0).inner_text()
    assert format_bytes(highest) in rows.nth(2).inner_text()


def test_data_flow_and_tracker(page: Page, tmp_path: Path) -> None:
    profile = training()
    times = list(range(0, 9_000_000, 1000))
    used = [(i % 700) * KIB for i in range(len(times))]
    peak = used.index(max(used))
    line = SourceFrame("m.py", 7, "f", "y = a @ b")
    made = DataFlowStorage(
        max(used) - 5,
        Category.ACTIVATION,
        "aten::mm",
        "l1",
        line,
    )
    unknown = DataFlowStorage(5, Category.UNKNOWN)
    profile.dataflow = DataFlowColumns(
        [DataFlowDevice("cpu", times, {Category.ACTIVATION: used}, peak, [unknown, made])],
        notes=["0.5 s of compilation were not looked at"],
    )
    profile.tracker = TrackerRecord(
        TrackerMetadata(end_ns=9_000_000, state=RunState.EXIT, problems=["a problem <b>"]),
        [
            MemorySnapshot(t, total_bytes=t + 1, resident_bytes=5 * MIB + t)
            for t in range(0, 9_000_000, 1_000_000)
        ],
        operation_summary=[
            OperationSummary(
                "step",
                count=3,
                total_ns=6_000_000,
                tensor_bytes_delta=MIB,
                left_bytes=3 * MIB,
                left=(TensorInfo((512, 1024), "torch.float32", "cpu", 2 * MIB),),
            ),
            OperationSummary("forward", 0, count=3, total_ns=2_000_000),
        ],
        pytorch_operations=OperatorRecord(
            [Span(0, 9_000_000)],
            sequence=[OperatorCall("aten::mm", 4_000_000, 0, 5_000, 4096, 0, ((4, 8), (8, 2)))],
        ),
    )
    write_report(profile, tmp_path / "p.html")
    show(page, tmp_path / "p.html")
    flow, tracker = page.inner_text("#dataflow"), page.inner_text("#tracker")
    assert f"Data flow on cpu, eager code included: peak {format_bytes(max(used))}" in flow
    assert "m.py:7" in flow
    assert "9,000 changes" in flow
    assert "0.5 s of compilation were not looked at." in flow
    assert "9.00 ms from 1970-01-01 00:00:00 UTC, ended" in tracker
    assert "problem: a problem <b>" in tracker
    assert page.locator("#tracker tr", has_text="forward").count() == 1
    left = page.locator("#tracker tr", has_text="[512, 1024]").locator("td").all_inner_texts()
    assert left[:3] == ["step", "3.00 MiB", "2.00 MiB"]
    call = page.locator("#tracker tr", has_text="aten::mm").locator("td").all_inner_texts()
    assert call[0] == "aten::mm"
    assert call[-1] == "[4, 8] [8, 2]"
    curves = page.locator("#dataflow canvas, #tracker canvas")
    assert curves.count() == 2
    for box in curves.all():
        box.scroll_into_view_if_needed()
        assert distinct_colors(box.screenshot()) > 5
    curve = page.evaluate("memprof.report.profile.curves['dataflow cpu']")
    assert curve["peak"] in curve["time_ns"]
    (line,) = curve["lines"]
    assert (line["name"], max(line["values"])) == ("activation", max(used))


def test_the_same_profile_gives_the_same_page() -> None:
    pages = {report_page(training(), source="a.memprof") for _ in range(2)}
    assert len(pages) == 1


def test_the_command_writes_the_page(page: Page, tmp_path: Path) -> None:
    write_profile(training(), tmp_path / "run.memprof")
    out = tmp_path / "out.html"
    result = invoke("report", tmp_path / "run.memprof", "-o", out)
    assert result.output.startswith(f"{out}: 0.")
    show(page, out)
    assert page.title() == "Memory of run.memprof"


@pytest.mark.slow
def test_a_large_profile(page: Page, tmp_path: Path) -> None:
    profile = big_profile()
    assert len(profile.calls) == 10_000
    assert count_allocations(profile) == 100_000
    write_report(profile, tmp_path / "p.html")
    show(page, tmp_path / "p.html")
    page.evaluate(COUNT_DRAWING)
    drawn: list[int] = page.evaluate(
        """async () => {
          const drawn = [], frame = () => new Promise(requestAnimationFrame);
          for (let i = 0; i < 20; i++) {
            window.drawn = 0;
            memprof.report.select(99, 100 * i);
            await frame();
            await frame();
            drawn.push(window.drawn);
          }
          return drawn;
        }"""
    )
    # An instant is drawn with what fits on the page, not with all calls.
    print(drawn)
    assert 0 < max(drawn) < 5_000
