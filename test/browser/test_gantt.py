"""Operations and calls of the page in a real browser: 20,000 bars, hover, zoom and pan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memprof.profiler.model import Profile, TrackerRecord
from memprof.profiler.views.report.html import write_report

from .fixtures import COUNT_DRAWING, FRAME, isolated, open_file
from .gantt_profiles import MS, Operations, server, training_run

if TYPE_CHECKING:
    from playwright.sync_api import Page


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


def place_of(page: Page, index: int) -> tuple[float, float, str]:
    """Where the bar that is ``index``-th by start is on the page, and its name."""
    found: dict[str, Any] = page.evaluate(
        """index => {
          const { bars, chart, inOrder, nameOf, rowOf } = memprof.gantt;
          const i = inOrder[index], scroll = document.getElementById("gantt-scroll");
          const box = scroll.querySelector(".u-over").getBoundingClientRect();
          const middle = bars.start[i] + bars.duration[i] / 2;
          return {x: box.left + chart.x(middle), y: box.top + rowOf(i).top + 9 - scroll.scrollTop,
                  name: nameOf(i)};
        }""",
        index,
    )
    return found["x"], found["y"], found["name"]


def test_twenty_thousand_bars(page: Page, pages: Path) -> None:
    show(page, pages / "server.html")
    assert page.evaluate("memprof.gantt.bars.start.length") == 20_000
    page.evaluate(COUNT_DRAWING)
    drawn: dict[str, list[int]] = page.evaluate(
        """() => {
          const { chart } = memprof.gantt;
          const node = document.querySelector("#gantt .u-over");
          const box = node.getBoundingClientRect();
          const hover = [], zoom = [];
          for (let i = 0; i < 30; i++) {
            window.drawn = 0;
            node.dispatchEvent(new PointerEvent("pointermove", {
              clientX: box.left + 40 + 30 * i, clientY: box.top + 30 + 3 * i, bubbles: true}));
            hover.push(window.drawn);
          }
          for (let i = 0; i < 30; i++) {
            window.drawn = 0;
            chart.zoom(i < 15 ? 1.4 : 1 / 1.4, (chart.from + chart.to) / 3);
            zoom.push(window.drawn);
          }
          return {hover, zoom};
        }"""
    )
    # What lies in one pixel is drawn once: as much as fits on the page, not what there is.
    assert max(drawn["hover"]) < 100
    assert 0 < max(drawn["zoom"]) < 20_000


def test_hover_says_what_is_there(page: Page, pages: Path) -> None:
    show(page, pages / "training.html")
    x, y, name = place_of(page, 3)
    page.mouse.move(x, y)
    tooltip = page.locator(".tooltip")
    assert tooltip.inner_text().splitlines()[0] == name
    page.mouse.move(5, 5)
    page.evaluate(FRAME)
    assert not tooltip.is_visible()
    # A call says how it ran and what was live.
    forward = page.evaluate(
        "memprof.gantt.inOrder.findIndex((i) => memprof.gantt.kindOf(i) === 'forward replay')"
    )
    x, y, name = place_of(page, forward)
    page.mouse.move(x, y)
    text = tooltip.inner_text()
    assert name == "0/0 forward"
    for part in ("replay", "Call: 7 of 36", "Duration: 2.80 ms"):
        assert part in text
    # An operation says what it changed.
    index = page.evaluate(
        "memprof.gantt.inOrder.findIndex((i) => memprof.gantt.nameOf(i) === 'backward')"
    )
    x, y, _ = place_of(page, index)
    page.mouse.move(x, y)
    text = tooltip.inner_text()
    assert "Tensors: 40.0 MiB → 32.0 MiB\nChange: \N{MINUS SIGN}8.00 MiB" in text
    assert "step/backward" in text


def test_a_call_leads_to_its_live_set(page: Page, pages: Path) -> None:
    show(page, pages / "training.html")
    index = page.evaluate(
        "memprof.gantt.inOrder.findIndex((i) => memprof.gantt.bars.call[i] === 7)"
    )
    x, y, _ = place_of(page, index)
    page.mouse.click(x, y)
    page.locator("#gantt-detail").get_by_role("button", name="Its live set").click()
    page.evaluate(FRAME)
    assert page.locator("#instant-name").inner_text().startswith("call 8 of 36, 0/0 backward")
    peak = page.evaluate("memprof.report.total")
    assert peak == page.evaluate(
        "(m => Math.max(...m.levels(7).total.subarray(0, -1)))(memprof.report.model)"
    )


def test_wheel_zooms_where_the_pointer_is(page: Page, pages: Path) -> None:
    show(page, pages / "server.html")
    whole = window(page)
    x, y, name = place_of(page, 9000)
    for _ in range(14):
        page.mouse.move(x, y)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -240)
        page.keyboard.up("Control")
        page.evaluate(FRAME)
        x, y, _ = place_of(page, 9000)
    near = window(page)
    assert near[1] - near[0] < (whole[1] - whole[0]) / 100
    page.mouse.move(x, y)
    page.evaluate(FRAME)
    assert page.locator(".tooltip").inner_text().splitlines()[0] == name
    # Shift and wheel goes along, the other way zooms out again.
    page.keyboard.down("Shift")
    page.mouse.wheel(0, 200)
    page.keyboard.up("Shift")
    assert window(page)[0] > near[0]
    page.keyboard.down("Control")
    for _ in range(30):
        page.mouse.wheel(0, 240)
    page.keyboard.up("Control")
    assert window(page) == whole
    # Without a key it scrolls the page, as everywhere.
    page.mouse.wheel(0, -240)
    assert window(page) == whole


def test_a_drag_selects_and_a_double_click_shows_all(page: Page, pages: Path) -> None:
    show(page, pages / "server.html")
    whole = window(page)
    _, y, _ = place_of(page, 3)
    box = page.locator("#gantt .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.25 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], y, steps=4)
    page.mouse.up()
    part = window(page)
    assert part[0] == pytest.approx(whole[0] + 0.25 * (whole[1] - whole[0]), rel=0.01)
    assert part[1] == pytest.approx(whole[0] + 0.5 * (whole[1] - whole[0]), rel=0.01)
    page.locator("#gantt .u-over").dblclick(position={"x": 300, "y": 100})
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


def test_keyboard_alone(page: Page, pages: Path) -> None:
    show(page, pages / "training.html")
    whole = window(page)
    page.locator("#gantt").focus()
    page.keyboard.press("+")
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
    page.keyboard.press("ArrowRight")
    assert window(page)[0] > zoomed[0]
    page.keyboard.press("0")
    assert window(page) == whole
    # Bars one after the other, with their facts below and said to screen readers
    page.keyboard.press("n")
    first = page.locator("#gantt-detail h3").inner_text()
    page.keyboard.press("n")
    page.keyboard.press("n")
    assert page.locator("#announcer").inner_text()
    page.keyboard.press("p")
    page.keyboard.press("p")
    assert page.locator("#gantt-detail h3").inner_text() == first


def test_a_click_chooses_a_bar(page: Page, pages: Path) -> None:
    show(page, pages / "training.html")
    x, y, name = place_of(page, 5)
    page.mouse.click(x, y)
    detail = page.locator("#gantt-detail")
    assert detail.locator("h3").inner_text().startswith(name)
    assert "Duration" in detail.inner_text()
    assert page.evaluate("document.activeElement.id") == "gantt"


def test_a_tap_shows_what_hovering_would_and_chooses(browser: Any, pages: Path) -> None:
    size = {"width": 390, "height": 844}
    with isolated(browser, viewport=size, has_touch=True) as context:
        page = context.new_page()
        show(page, pages / "server.html")
        for _ in range(8):
            page.get_by_role("button", name="Zoom in").tap()
        page.evaluate(FRAME)
        index = page.evaluate(
            "(({ bars, chart, inOrder, rowOf }) => inOrder.findIndex((i) => "
            "bars.start[i] > chart.from && rowOf(i).top < 90))(memprof.gantt)"
        )
        x, y, name = place_of(page, index)
        page.touchscreen.tap(x, y)
        assert page.locator(".tooltip").inner_text().splitlines()[0] == name
        assert page.locator("#gantt-detail h3").inner_text().startswith(name)


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
    # Bars are on the canvas in their colours.
    drawn = page.evaluate(
        """() => {
          const canvas = document.querySelector("#gantt canvas");
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const colors = new Set();
          for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255)
            colors.add(data.slice(i, i + 3).join());
          return memprof.gantt.bars.legend.map(({ variable }) =>
            colors.has(memprof.color(variable).match(/\\d+/g).slice(0, 3).join()));
        }"""
    )
    assert all(drawn)
    assert len(drawn) >= 7


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
    x, y, _ = place_of(page, 0)
    page.mouse.click(x, y)
    assert page.locator("#gantt-detail h3").inner_text().startswith(name)


@pytest.mark.parametrize("profile", [Profile(), Profile(tracker=TrackerRecord())])
def test_nothing_to_show_is_said(page: Page, tmp_path: Path, profile: Profile) -> None:
    write_report(profile, tmp_path / "a.html")
    show(page, tmp_path / "a.html")
    assert "No call of a compiled graph was recorded" in page.locator("#main").inner_text()
    assert page.locator("#operations").count() == 0


def test_many_lanes_scroll(page: Page, tmp_path: Path) -> None:
    lanes = [training_run(3).tracker.metadata.lanes[1]] * 60  # type: ignore[union-attr]
    ops = Operations(list(lanes))
    for i in range(60):
        ops.add(f"work {i}", i * MS, (i + 30) * MS, lane=i)
    write_report(Profile(tracker=ops.record(90 * MS, [])), tmp_path / "a.html")
    show(page, tmp_path / "a.html")
    page.locator("#gantt").focus()
    for _ in range(60):
        page.keyboard.press("n")
    page.evaluate(FRAME)
    assert page.locator("#gantt-detail h3").inner_text().startswith("work 59")
    assert page.evaluate("document.getElementById('gantt-scroll').scrollTop") > 1000
    x, y, name = place_of(page, 59)
    page.mouse.move(x, y)
    assert page.locator(".tooltip").inner_text().splitlines()[0] == name == "work 59"
