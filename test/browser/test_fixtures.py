"""The harness finds what it is there to find."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .fixtures import isolated, open_file, watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_a_clean_page(page: Page, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<script>document.title = 1 + 1; console.log('x')</script>")
    open_file(page, tmp_path / "a.html")
    assert page.title() == "2"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("<script>console.error('oh')</script>", "console: oh"),
        ("<script>nothing()</script>", "exception: nothing is not defined"),
        ("<img src='http://127.0.0.1:9/a.png'>", "request: http://127.0.0.1:9/a.png"),
        ("<script>fetch('https://a.example').catch(() => 0)</script>", "request: https://a.ex"),
    ],
)
def test_what_is_wrong_is_found(browser: Browser, tmp_path: Path, body: str, says: str) -> None:
    (tmp_path / "a.html").write_text(body)
    with isolated(browser) as context:
        page = context.new_page()
        problems = watch(page)
        open_file(page, tmp_path / "a.html")
        while not any(p.startswith(says) for p in problems):
            page.wait_for_timeout(20)  # Events come in while it waits.
