"""Everything that memprof can show of a file, for whoever wants to see it fail."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rendering import (
    render_accounts,
    render_diff,
    render_ledger,
    render_text,
    render_tracker_record,
)

from memprof.commands._common import UNFORESEEN, json_text
from memprof.profiler.file.profile_file import encode_profile, read_profiles, write_profiles
from memprof.profiler.model import Profile
from memprof.profiler.support.errors import ProfileError
from memprof.profiler.support.text import visible
from memprof.profiler.views.compare.diff import NothingToCompare, compare
from memprof.profiler.views.compare.ranks import compare_ranks
from memprof.profiler.views.export import FORMATS, export_profile
from memprof.profiler.views.report import summarize
from memprof.profiler.views.report.html import report_page
from memprof.profiler.views.report.sections.ranks import of_ranks
from memprof.profiler.views.report.text import render

from .hostile import CONTROLS

CONTRADICTS = "contradicts itself"
"""End of a file that can be read, and that leads a view to what is not there."""

_OBEYED = frozenset(CONTROLS) - {"\n"}


def read_and_show(path: Path) -> str | None:
    """Read a file and show it in every way.

    Returns:
        The error that reading it is expected to end in, None if it did not.

    Raises:
        Whatever is not expected.
    """
    error: ProfileError | None = None
    try:
        profiles = read_profiles(path)
    except ProfileError as e:
        error = e
    if error is None:
        try:
            show(profiles)
        except UNFORESEEN:
            return CONTRADICTS
        return None
    check_text(str(error))
    assert "\n" not in str(error)
    return type(error).__name__


def show(profiles: list[Profile]) -> None:
    """All views of some profiles; what reaches a terminal is looked at, too."""
    for profile in profiles:
        for text in texts(profile):
            check_text(text)
        report_page(profile)
        exports(profile)
        encode_profile(profile)
    check_text(render([of_ranks(compare_ranks(profiles))]))
    check_json(json_text(compare_ranks(profiles)))
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder, "all.memprof")
        write_profiles(profiles, again)
        assert [p.left_out for p in read_profiles(again)] == [p.left_out for p in profiles]


def texts(profile: Profile) -> Iterator[str]:
    """What is printed of a profile."""
    summary = summarize(profile)
    yield render_text(summary)
    yield render_ledger(profile)
    with contextlib.suppress(NothingToCompare):
        yield render_diff(compare(profile, profile))
    if profile.tracker is not None:
        yield render_tracker_record(profile.tracker)
    if profile.accounts:
        yield render_accounts(profile.accounts)
    check_json(json_text(summary))


def exports(profile: Profile) -> None:
    """Every format."""
    with tempfile.TemporaryDirectory() as folder:
        for format in FORMATS:
            try:
                export_profile(profile, format, Path(folder, format))
            except ProfileError:
                assert profile.accounts
                assert format in ("perfetto", "memory-viz")


def check_text(text: str) -> None:
    """Nothing that a terminal would obey, and lines that end."""
    bad = _OBEYED.intersection(text)
    assert not bad, f"{sorted(map(ascii, bad))} in {text[:200]!r}"
    for line in text.splitlines():
        assert visible(line) == line or len(line) > 4_000, line[:200]


def check_json(text: str) -> None:
    """The same of JSON, which can be read again."""
    bad = _OBEYED.intersection(text)
    assert not bad, sorted(map(ascii, bad))
    json.loads(text)
