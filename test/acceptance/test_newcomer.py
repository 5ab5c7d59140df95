"""What a newcomer does: ``make demo``, then open the page that it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser.fixtures import isolated, open_file, watch

from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.views.report import summarize

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
SMALL = ("--steps", "4", "--layers", "1", "--width", "64", "--context", "64")


@pytest.mark.slow
def test_the_demo_leaves_a_page_that_opens(browser: Browser, tmp_path: Path) -> None:
    # GIVEN the command of `make demo`, with a smaller model and fewer steps
    makefile = (ROOT / "Makefile").read_text()
    (script,) = re.findall(r"^demo:.*\n\t.*\$\(PY\) (\S+) \$\(ARGS\)$", makefile, re.MULTILINE)
    out = tmp_path / "out" / "gpt.memprof"
    done = subprocess.run(
        [sys.executable, ROOT / script, *SMALL, "--out", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )
    assert done.returncode == 0, done.stderr
    # WHEN the page that it names is opened, at both widths
    named = re.search(r"^Open (\S+) in a browser", done.stdout, re.MULTILINE)
    assert named is not None, done.stdout
    summary = summarize(read_profile(out))
    assert summary.peak is not None
    for width in (1280, 390):
        size = {"width": width, "height": 900}
        with isolated(browser, viewport=size) as context:
            page = context.new_page()
            problems = watch(page)
            open_file(page, Path(named[1]))
            page.wait_for_selector("html[data-ready]")
            # THEN it shows the peak that the terminal printed, fits, and nothing is wrong
            assert page.get_attribute("#instant-bytes", "data-bytes") == str(summary.peak.nbytes)
            assert f"({summary.peak.nbytes:,} B)" in done.stdout
            assert page.evaluate("document.documentElement.scrollWidth") == width
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
            assert problems == []
