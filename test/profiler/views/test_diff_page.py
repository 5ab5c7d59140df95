"""The comparison of two profiles in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser.fixtures import open_file
from click.testing import CliRunner
from profile_builder import MIB, training

from memprof.cli import main
from memprof.profiler.file.profile_file import write_profile

from .test_diff import larger

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_has_what_the_text_has(tmp_path: Path, page: Page, width: int) -> None:
    # GIVEN a comparison written as a page
    paths = [str(tmp_path / name) for name in ("before.memprof", "after.memprof", "diff.html")]
    write_profile(training(), paths[0])
    write_profile(larger(training(), 4 * MIB), paths[1])
    done = CliRunner().invoke(main, ["diff", *paths[:2], "-o", paths[2]])
    assert done.exit_code == 0, done.output
    # WHEN it is opened
    page.set_viewport_size({"width": width, "height": 800})
    open_file(page, Path(paths[2]))
    page.wait_for_selector("html[data-ready]")
    # THEN the value that has grown stands there, below the totals
    titles = page.locator("main h2").all_inner_texts()
    assert titles[0] == "Memory on cpu"
    assert titles[3] == "peak of known live memory: what changed, by node"
    said = page.locator("main section").nth(3).inner_text()
    assert "model.py: x = self.l3(x)" in said
    assert "12.0 MiB" in said
    # Changes are bytes with a sign, as in the text.
    assert "+4.00 MiB" in page.locator("main section").first.inner_text()
    # and nothing is wider than the window.
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
