"""Terminal, page and JSON say the same: each table of one is a table of the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz.documents import everything
from outputs import invoke
from profile_builder import MIB

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import Profile
from memprof.profiler.verbs import report_text
from memprof.profiler.views.report import Style, sections, summarize
from memprof.profiler.views.report.format import format_bytes
from memprof.profiler.views.report.html.payload import report_payload
from memprof.profiler.views.report.section import EVERY, Section
from memprof.profiler.views.report.text import SCREEN
from profiler.live.test_growth_rule import GROWTH, tracked

IN_ANOTHER_FORM = "Live at the peak"
"""Of a text, what the page draws itself: the live set of any instant."""


def full() -> Profile:
    profile = everything()
    profile.growth = [GROWTH]
    profile.tracker = tracked([i * MIB for i in range(10)])
    return profile


def tables(section: dict[str, Any], title: str = "") -> Iterator[tuple[str, str]]:
    """Its name, and all that is in it."""
    title = section["title"] or title
    for table in section["tables"]:
        columns = [c["title"] for c in table["columns"]]
        yield table["caption"] or title, json.dumps([columns, table["rows"], table["foot"]])
    for part in section["parts"]:
        yield from tables(part, title)


def in_text(profile: Profile) -> Counter[tuple[str, str]]:
    said = sections.of_profile(summarize(profile), format_bytes, 12)
    found = (t for s in said for t in tables(s.plain()))
    return Counter(t for t in found if not t[0].startswith(IN_ANOTHER_FORM))


def on_page(profile: Profile) -> Counter[tuple[str, str]]:
    payload = report_payload(profile)
    shown = [payload["header"], *payload["sections"]]
    return Counter(t for s in shown for t in tables(s.plain()))


def test_every_table_of_a_text_is_on_the_page() -> None:
    profile = full()
    names = {name for name, _ in in_text(profile)}
    assert {"By source line at that peak", "By module at that peak"} <= names
    assert any(name.startswith("Largest tensors") for name in names)
    text, page = in_text(profile), {name for name, _ in on_page(profile)}
    assert sorted({name for name, _ in text} - page) == []


def test_json_has_every_section(tmp_path: Path) -> None:
    path = tmp_path / "p.memprof"
    write_profile(full(), path)
    found = json.loads(invoke("report", "--json", path).output)
    said = {t[0] for s in found["sections"] for t in tables(s)}
    assert {name for name, _ in in_text(full())} <= said
    assert any(name.startswith("Live at the peak, by source line") for name in said)
    # AND as data what was on the page or in the terminal alone
    flow = found["dataflow"][0]
    assert flow["views"]["line"]["total"] == sum(flow["categories"].values()) > 0


def test_a_short_text_is_a_part_of_the_whole() -> None:
    profile = full()
    whole = report_text([profile], Style(top=EVERY))
    short = report_text([profile], Style(top=5, short=True))
    said, _, more = short.rpartition("\nMore in the whole report ")
    titles = [s.title for s in sections.of_profile(summarize(profile), format_bytes, 5)]
    assert len(said.splitlines()) < len(whole.splitlines()) / 2
    assert [t for t in titles if t and t.split(",")[0] not in whole] == []
    assert " more" in more


def test_a_short_text_of_all_that_there_can_be_fits_a_screen() -> None:
    profile = full()
    short = report_text([profile], Style(top=5, short=True))
    assert len(short.splitlines()) <= SCREEN
    for heading in ("Memory grows", "What is reserved at the peak", "What to change"):
        assert heading in short
    # Nothing goes where there is room.
    profile = Profile(tracker=profile.tracker)
    small = report_text([profile], Style(top=5, short=True))
    assert "Memory over time" in small
    assert small.rstrip().endswith("words")


def test_a_section_without_anything_but_details_is_left_out() -> None:
    inner = Section("", "inner", view="x", detail=True, name="what is inside")
    assert Section("", "outer", parts=(inner,)).short() == (Section("", ""), ["what is inside"])
    # AND what says nothing at all is not named either
    assert Section("", "inner", detail=True, name="nothing").short() == (Section("", ""), [])
