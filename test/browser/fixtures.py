"""A real browser for tests: ``page`` is a tab of a headless Chromium that accepts no error.

A test gets an empty tab, opens files in it with ``open_file`` and drives it with Playwright's own
API. When the test is over, an error in the page's console, an exception that nobody caught, or a
request for anything but a local file fails it: the pages that memprof writes are one file each and
work without a network, which the tab does not have.

Note [Playwright without its browsers]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``playwright install`` would download a browser of 150 MB from a server of its own. Playwright
drives the system's Chromium just as well: Debian's package ``chromium`` is all that is needed, and
where there is none the tests skip.

Playwright's synchronous API runs an asyncio loop in the background of the thread for as long as it
is started, and ``asyncio.run`` refuses to start another one there. So the browser lives for one
test module, not for the session: tests of coroutines in other modules are not its business.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--disable-gpu",
    # A closed network makes Chromium try its own servers again and again.
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_MS = 300_000
"""Only against a page that never becomes what it should be: see Note [Tests and the clock]."""
LOCAL = ("file:", "data:", "blob:", "about:")
FRAME = """() => new Promise(done => {
  const last = new IntersectionObserver(() => {
    last.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(done));
  });
  last.observe(document.body);
})"""
"""For ``page.evaluate``: until what was asked for is drawn.

The page draws what it is told by an observer to be in sight, in the frame after it is told, and a
busy machine tells it some frames late. Observers are told in the order in which they were made, so
when this one hears of its element, the page has heard of all of its own.
"""
COUNT_DRAWING = """() => {
  window.drawn = 0;
  const canvas = CanvasRenderingContext2D.prototype;
  for (const name of ["fillRect", "strokeRect", "fillText", "fill", "stroke"]) {
    const plain = canvas[name];
    canvas[name] = function (...values) { window.drawn++; return plain.apply(this, values); };
  }
}"""
"""For ``page.evaluate``: from here on ``drawn`` counts what is drawn on canvases."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium; skips where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on PATH")
    api = pytest.importorskip("playwright.sync_api", reason="PyPI's playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty tab, 1280 × 800, without network; see the module's text for what fails a test."""
    with isolated(browser, viewport={"width": 1280, "height": 800}) as context:
        tab = context.new_page()
        problems = watch(tab)
        yield tab
    assert not problems, "the page is not clean:\n" + "\n".join(problems)


@contextlib.contextmanager
def isolated(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """A browser context of its own, without network; ``options`` of Playwright's."""
    with browser.new_context(offline=True, **options) as context:
        context.set_default_timeout(PATIENCE_MS)
        yield context


def watch(page: Page) -> list[str]:
    """A list to which everything that is wrong in ``page`` is added from here on."""
    problems: list[str] = []

    def console(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(f"console: {message.text}")

    def request(sent: Request) -> None:
        if not sent.url.startswith(LOCAL):
            problems.append(f"request: {sent.url}")

    page.on("console", console)
    page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
    page.on("request", request)
    return problems


def open_file(page: Page, path: Path) -> None:
    """Open a local file, until the end of its load event."""
    page.goto(path.resolve().as_uri(), wait_until="load")
