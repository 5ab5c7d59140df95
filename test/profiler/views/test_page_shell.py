"""Pages as files: what is in one, and that an installation has what they are made of."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import sys
from pathlib import Path, PurePosixPath

import pytest

from memprof.profiler.model import Profile
from memprof.profiler.support.errors import ProfileNotWritableError
from memprof.profiler.views.report.html import build_page, write_report

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "profiler/views/report/html"
MAX_LINES = 520
MAX_SCRIPT_LINES = 900


def test_a_page_holds_its_payload_and_the_hash_of_its_script() -> None:
    payload = {"text": "</script><!-- \udcff é", "n": [1, 2**53, None, 1.5]}
    html = build_page("a <b> & c", payload)
    (packed,) = re.findall(r'id="payload">([A-Za-z0-9+/=]+)</script>', html)
    assert json.loads(gzip.decompress(base64.b64decode(packed))) == payload
    assert "<title>a &lt;b&gt; &amp; c</title>" in html
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script.startswith('(() => {\n"use strict";\n')
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in html


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        build_page("t", [float("nan")])


def test_a_page_is_written_with_any_title_and_refused_where_none_can_be(tmp_path: Path) -> None:
    out = tmp_path / "p.html"
    assert write_report(Profile(), out, title="t \udcff") == out.stat().st_size
    assert b"<title>t \\udcff</title>" in out.read_bytes()
    with pytest.raises(ProfileNotWritableError, match=r"cannot write the page \([\d,]+ bytes\)"):
        write_report(Profile(), tmp_path / "missing" / "p.html")


def test_an_installation_has_every_asset() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("reads pyproject.toml with tomllib, which Python 3.10 does not have")
    import tomllib

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    globs = tomllib.loads(text)["tool"]["setuptools"]["package-data"][
        "memprof.profiler.views.report.html"
    ]
    for path in (FOLDER / "assets").rglob("*"):
        name = PurePosixPath(path.relative_to(FOLDER))
        if path.is_file() and not path.name.endswith(".d.ts"):
            assert any(name.match(g) for g in globs), name


def test_our_scripts_stay_small() -> None:
    lines = [len(p.read_text(encoding="utf-8").splitlines()) for p in FOLDER.glob("assets/*.js")]
    assert sum(lines) <= MAX_SCRIPT_LINES


def test_a_vendored_library_has_its_version_and_licence() -> None:
    vendor = FOLDER / "assets/vendor"
    first = (vendor / "uPlot.iife.min.js").read_text(encoding="utf-8").partition("\n")[0]
    assert first == "/*! https://github.com/leeoniya/uPlot (v1.6.32) */"
    assert "uPlot 1.6.32" in (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    assert "The MIT License" in (vendor / "LICENSE").read_text(encoding="utf-8")


ASSETS = sorted(p for p in (FOLDER / "assets").iterdir() if p.is_file())


@pytest.mark.parametrize("path", ASSETS, ids=lambda p: p.name)
def test_assets_keep_to_the_rules(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    if path.suffix == ".js":
        # Note [What a page may do]: text of a profile never becomes markup or code.
        for name in (
            *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("),
            *("new Function", "fetch(", "XMLHttpRequest", "WebSocket", "import("),
        ):
            assert name not in text, name
