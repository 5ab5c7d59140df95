"""Operations and calls of the page in a real browser: 20,000 bars, hover, zoom, pan, the table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memprof.profiler.model import Profile, TrackerRecord
from memprof.profiler.views.report.html import write_report

from .fixtures import FRAME, isolated, open_file
from .gantt_profiles import MS, Operations, server, training_run

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gantt")
    write_report(training_run(), folder / "training.html", source="training.json")
    write_report(server(5000), folder / "server.html", source="server.json")
    return folder


def show(page: Page, path: Path) -> None:
    """Open a page and wait until it is drawn."""
    open_file(page, path)
    page.wait_for_selector("html[data-ready]")
    page.evaluate("document.getElementById('operations')?.scrollIntoView()")
    page.evaluate(FRAME)


def window(page: Page) -> tuple[float, float]:
    page.evaluate(FRAME)
    found: list[float] = page.evaluate("[memprof.gantt.chart.from, memprof.gantt.chart.to]")
    return found[0], found[1]


def bars(page: Page, name: str) -> Locator:
    """What is drawn of the bars with a name, row by row in order of start."""
    return page.locator("#gantt .ground").filter(has_text=re.compile(f"^{re.escape(name)}$"))


def test_twenty_thousand_bars(page: Page, pages: Path) -> None:
    show(page, pages / "server.html")
    assert page.evaluate("memprof.gantt.bars.start.length") == 20_000
    # What lies in two pixels is drawn once: as much as fits on the page, not what there is.
    whole = page.locator("#gantt .ground").count()
    assert 1_000 < whole < 12_000
    width = page.locator("#gantt .bars").evaluate("e => e.clientWidth")
    lefts = page.eval_on_selector_all(
        "#gantt .ground", "found => found.map(e => [e.style.top, parseFloat(e.style.left)])"
    )
    rows: dict[str, list[float]] = {}
    for top, left in lefts:
        rows.setdefault(top, []).append(left)
    for lefts_of_row in rows.values():
        assert len(lefts_of_row) <= width / 2 + 2
        assert lefts_of_row == sorted(lefts_of_row)
    # Failed ones come before others.
    failed = page.eval_on_selector_all(
        "#gantt .ground", "found => found.filter(e => e.dataset.tip.includes('failed')).length"
    )
    assert failed == 24
    for _ in range(6):
        page.get_by_role("button", name="Zoom in").click()
    page.evaluate(FRAME)
    assert page.locator("#gantt .ground").count() < 1_000


def test_hover_says_what_is_there(page: Page, pages: Path) -> None:
    show(page, pages / "training.html")
    tooltip = page.locator(".tooltip")
    # A call says how it ran.
    bars(page, "0/0 forward").nth(2).hover()
    text = tooltip.inner_text()
    assert text.splitlines()[0] == "0/0 forward"
    for part in ("forward replay", "Call: 7 of 36, replay", "Duration: 2.80 ms"):
        assert part in text
    page.mouse.move(5, 5)
    page.evaluate(FRAME)
    assert not tooltip.is_visible()
    # An operation says what it changed.
    bars(page, "backward").first.hover()
    text = tooltip.inner_text()
    assert "Tensors: 40.0 MiB → 32.0 MiB" in text
    assert "step/backward" in text


def test_a_call_leads_to_its_live_set(page: Page, pages: Path) -> None:
    show(page, pages / "training.html")
    bars(page, "0/0 backward").nth(2).click()
    page.evaluate(FRAME)
    assert page.locator("#instant-name").inner_text().startswith("call 8 of 36, 0/0 backward")
    peak = page.evaluate("memprof.report.total")
    assert peak == page.evaluate(
        "(m => Math.max(...m.levels(7).total.subarray(0, -1)))(memprof.report.model)"
    )


def test_every_bar_is_in_a_table(page: Page, pages: Path) -> None:
    show(page, pages / "training.html")
    page.locator("#gantt-list summary").press("Enter")
    table = page.locator("#gantt-table table")
    # Its rows are made when the browser says that it was opened, which is later.
    table.locator("tbody tr").first.wait_for()
    assert table.locator("tbody tr").count() == 12
    page.locator("#gantt-table .table-more button").press("Enter")
    page.locator("#gantt-table .table-more button").press("Enter")
    lines = table.locator("tbody tr").all_inner_texts()
    assert len(lines) == page.evaluate("memprof.gantt.bars.start.length") == 87
    # In order of duration, by the keyboard alone.
    table.get_by_role("button", name="Duration").press("Enter")
    first = table.locator("tbody tr").first.inner_text()
    assert "step" in first
    assert "Tensors: 40.0 MiB → 42.0 MiB" in first
    assert "9.00 ms" in first
    table.get_by_role("button", name="Its live set").first.press("Enter")
    page.evaluate(FRAME)
    assert page.locator("#instant-name").inner_text().startswith("call ")


def test_a_drag_selects_and_a_double_click_shows_all(page: Page, pages: Path) -> None:
    show(page, pages / "server.html")
    whole = window(page)
    box = page.locator("#gantt .u-over").bounding_box()
    assert box is not None
    y = box["y"] + 60  # where bars are
    page.mouse.move(box["x"] + 0.25 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], y, steps=4)
    page.mouse.up()
    part = window(page)
    assert part[0] == pytest.approx(whole[0] + 0.25 * (whole[1] - whole[0]), rel=0.01)
    assert part[1] == pytest.approx(whole[0] + 0.5 * (whole[1] - whole[0]), rel=0.01)
    page.mouse.dblclick(box["x"] + 300, y)
    assert window(page) == whole


def test_buttons_zoom_and_pan(page: Page, pages: Path) -> None:
    show(page, pages / "training.html")
    whole = window(page)
    page.get_by_role("button", name="Zoom in").click()
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] == pytest.approx((whole[1] - whole[0]) / 2)
    page.get_by_role("button", name="Later").click()
    assert window(page)[0] > zoomed[0]
    page.get_by_role("button", name="Earlier").click()
    assert window(page)[0] == pytest.approx(zoomed[0])
    page.get_by_role("button", name="Zoom out").click()
    assert window(page) == whole
    page.locator("#operations").get_by_role("button", name="Calls").click()
    assert window(page)[0] == pytest.approx(17 * MS, rel=0.01)
    page.locator("#operations").get_by_role("button", name="Whole run").click()
    assert window(page) == whole


def test_a_tap_shows_what_hovering_would(browser: Any, pages: Path) -> None:
    size = {"width": 390, "height": 844}
    with isolated(browser, viewport=size, has_touch=True) as context:
        page = context.new_page()
        show(page, pages / "training.html")
        bars(page, "step").first.tap()
        assert page.locator(".tooltip").inner_text().splitlines()[0] == "step"


@pytest.mark.parametrize("name", ["training", "server"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_both_widths_and_both_schemes(
    page: Page, pages: Path, name: str, scheme: Any, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    show(page, pages / f"{name}.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Bars have the colours of the legend.
    drawn = page.evaluate(
        """() => {
          const colorOf = (e) => getComputedStyle(e).backgroundColor;
          const bars = new Set([...document.querySelectorAll("#gantt .ground")].map(colorOf));
          return [...document.querySelectorAll("#gantt-legend .swatch")].map((e) =>
            bars.has(colorOf(e)));
        }"""
    )
    assert all(drawn)
    assert len(drawn) >= 2


def test_a_change_of_theme_redraws(page: Page, pages: Path) -> None:
    show(page, pages / "training.html")
    page.emulate_media(color_scheme="light")
    light = page.locator("#gantt").screenshot()
    page.emulate_media(color_scheme="dark")
    page.evaluate(FRAME)
    assert page.locator("#gantt").screenshot() != light


def test_names_are_text(page: Page, tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)><b>"
    ops = Operations(training_run(3).tracker.metadata.lanes)  # type: ignore[union-attr]
    ops.add(name, 0, 5 * MS)
    ops.add(name, MS, 2 * MS, parent=0, failed=True)
    profile = Profile(tracker=ops.record(5 * MS, []))
    write_report(profile, tmp_path / "a.html", source=f"{name}.json")
    show(page, tmp_path / "a.html")
    assert page.locator("#main img").count() == 0
    bars(page, name).first.hover()
    assert page.locator(".tooltip").inner_text().startswith(name)


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        (Profile(), "No call of a compiled graph was recorded"),
        (Profile(tracker=TrackerRecord()), "No snapshot was taken."),
    ],
)
def test_nothing_to_show_is_said(page: Page, tmp_path: Path, profile: Profile, says: str) -> None:
    write_report(profile, tmp_path / "a.html")
    show(page, tmp_path / "a.html")
    assert says in page.locator("#main").inner_text()
    assert page.locator("#operations").count() == 0


def test_many_lanes_scroll(page: Page, tmp_path: Path) -> None:
    lanes = [training_run(3).tracker.metadata.lanes[1]] * 60  # type: ignore[union-attr]
    ops = Operations(list(lanes))
    for i in range(60):
        ops.add(f"work {i}", i * MS, (i + 30) * MS, lane=i)
    write_report(Profile(tracker=ops.record(90 * MS, [])), tmp_path / "a.html")
    show(page, tmp_path / "a.html")
    last = bars(page, "work 59")
    last.scroll_into_view_if_needed()
    assert page.locator("#gantt .bars").evaluate("e => e.scrollTop") > 1000
    last.hover()
    assert page.locator(".tooltip").inner_text().splitlines()[0] == "work 59"
