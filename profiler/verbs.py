"""Methods of a profile, the same for a file (``memprof.load``) and a session: reports, exports and
comparisons."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TextIO, get_type_hints

import msgspec

from .file.profile_file import read_profiles, single_profile
from .file.torch_trace import read_kernels
from .model import Profile
from .support.writing import StrPath, check_writable
from .views.compare.diff import compare
from .views.compare.diff_model import ProfileDiff
from .views.compare.ranks import RankSummary, compare_ranks
from .views.export import export_profile
from .views.report import Style, Summary, sections, summarize
from .views.report.format import format_bytes
from .views.report.section import EVERY, Section, Show
from .views.report.sections.diff import of_diff
from .views.report.sections.ranks import of_ranks
from .views.report.text import render
from .views.report.text_page import printable, style_of

_TOP, _TOP_SHORT = 10, 5
"""Rows in each table of a full report, and of a short one."""


class Views:
    """The verbs that a file and a session have in common.

    Whatever names a device (``cuda:0``) raises ValueError where the profile has nothing on it.
    """

    def profiles(self) -> list[Profile]:
        """The profile of each process, in order of ranks."""
        raise NotImplementedError

    def _name(self) -> str:
        """Name of the file, "" if there is none."""
        return ""

    def profile(self) -> Profile:
        """The profile.

        Raises:
            ProfileError: there are several, of several ranks.
        """
        return single_profile(self.profiles(), self._name(), "use profiles()")

    def report(
        self,
        *,
        full: bool = False,
        top: int | None = None,
        device: str | None = None,
        file: TextIO | None = None,
    ) -> None:
        """Print the report, as long as a screen; of several ranks, how they compare.

        Args:
            full: all of it; the last line of a short one names what else there is.
            top: rows in each table; by default 10 of a full report and 5 of a short one.
            device: whose memory; by default the one with the most.
            file: where to; standard output by default.

        Raises:
            ValueError: ``top`` is less than 1.
        """
        out = sys.stdout if file is None else file
        style = report_style(style_of(out), full, top)
        out.write(printable(report_text(self.profiles(), style, device), out))

    def to_html(self, path: StrPath, *, device: str | None = None) -> None:
        """Write the report as a page for the browser: one file, no network.

        Raises:
            ProfileNotWritableError: it cannot be written; what was there is unchanged.
        """
        check_writable(path, "the page")
        # Its assets are of no use to the terminal's report.
        from .views.report.html import write_report

        write_report(self.profiles(), path, device, self._name())

    def export(self, path: StrPath, format: str, *, kernels: StrPath | None = None) -> None:
        """Write the profile for another tool.

        Args:
            path: where to; compressed if it ends in ``.gz``.
            format: ``perfetto``, ``memory-viz`` or ``json``; docs/exports.md says what each has.
                Only ``perfetto`` takes several ranks.
            kernels: a trace that ``torch.profiler`` wrote during the profile, whose kernels
                ``perfetto`` shows with module, line and the bytes that they make.

        Raises:
            ValueError: there is no such format, or it does not take several ranks, or kernels.
            ProfileError: ``kernels`` is no trace.
            ProfileNotWritableError: it cannot be written; what was there is unchanged.
        """
        traced = () if kernels is None else read_kernels(kernels)
        export_profile(self.profiles(), format, path, traced)

    def to_pandas(self) -> dict[str, Any]:
        """Tables of the profile by name, each a ``pandas.DataFrame``.

        Sizes are bytes, times nanoseconds; docs/exports.md says what a row of each table is.

        Raises:
            ImportError: pandas is not installed.
            ProfileError: there are several profiles, of several ranks.
        """
        from .views.export.tables import to_pandas

        return to_pandas(self.profile())

    def diff(self, after: Views, *, device: str | None = None) -> Comparison:
        """Comparison of this profile with a later one: what grew.

        Raises:
            NothingToCompare: no part is in both.
            ProfileError: one is of several ranks.
        """
        return Comparison(compare(self.profile(), after.profile(), device))

    def __repr__(self) -> str:
        name = f" {self._name()}" if self._name() else ""
        found = self.profiles()
        if len(found) > 1:
            return f"<memprof profile{name}: {len(found)} ranks>"
        profile = found[0]
        return (
            f"<memprof profile{name}: {len(profile.graphs)} graphs, {len(profile.calls):,} calls>"
        )

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        return _in_notebook(report_text(self.profiles(), report_style(Style(), full=False)))


class LoadedProfile(Views):
    """A profile that was read from a file; see ``load``.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = os.fspath(path)
        self._profiles = read_profiles(path)

    def profiles(self) -> list[Profile]:
        return self._profiles

    def _name(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Growth from one profile to another.

    Attributes:
        result: the comparison as data.
    """

    result: ProfileDiff

    def report(self, *, top: int = 10, file: TextIO | None = None) -> None:
        """Print the comparison; the arguments are those of ``Views.report``."""
        out = sys.stdout if file is None else file
        style = report_style(style_of(out), full=True, top=top)
        out.write(printable(render(of_diff(self.result), style), out))

    def __repr__(self) -> str:
        grown = [
            f"{q.label} {'-' if q.change < 0 else '+'}{format_bytes(abs(q.change))}"
            for q in self.result.quantities
        ]
        return f"<memprof comparison: {', '.join(grown)}>"

    def _repr_html_(self) -> str:
        return _in_notebook(render(of_diff(self.result)))


def load(path: StrPath) -> LoadedProfile:
    """Read a profile file, that of a tracker or a merged one too.

    What cannot be read of it is named in ``Profile.left_out`` and logged.

    Raises:
        ProfileError: there is none, or nothing of it can be used; the message says which.
    """
    return LoadedProfile(path)


def report_json(profiles: Sequence[Profile], device: str | None = None) -> dict[str, Any]:
    """The report of ``report_text`` as JSON values: figures by their names, and under ``sections``
    all sections of a full report, in its words and its order."""
    found = _summary(profiles, device)
    if isinstance(found, RankSummary):
        data = {f.name: getattr(found, f.name) for f in fields(found)}
    else:
        data = found.figures()
    sections = _sections(found, format_bytes, EVERY)
    return {**data, "sections": [s.plain() for s in sections if s]}


def report_type(*, of_ranks: bool = False) -> type:
    """Type of what ``report_json`` returns, of one profile or of several ranks."""
    figures = get_type_hints(RankSummary) if of_ranks else Summary.types_of_figures()
    name = "ReportOfRanks" if of_ranks else "Report"
    return msgspec.defstruct(name, [*figures.items(), ("sections", list[dict[str, Any]])])


def report_text(profiles: Sequence[Profile], style: Style, device: str | None = None) -> str:
    """The report of one process, or the comparison of several ranks; raises ``ValueError`` if there
    is nothing on ``device``."""
    return render(_sections(_summary(profiles, device), style.show, style.top), style)


def _summary(profiles: Sequence[Profile], device: str | None) -> Summary | RankSummary:
    return summarize(profiles[0], device) if len(profiles) == 1 else compare_ranks(profiles, device)


def _sections(found: Summary | RankSummary, show: Show, snapshots: int) -> Iterable[Section]:
    if isinstance(found, RankSummary):
        return [of_ranks(found)]
    return sections.of_profile(found, show, snapshots)


def report_style(style: Style, full: bool, top: int | None = None) -> Style:
    """``style`` for a full or a short report, with ``top`` rows in each table (by default fewer if
    short); raises ``ValueError`` if ``top`` is less than 1."""
    if top is not None and top < 1:
        raise ValueError(f"top is {top}; it must be 1 or more")
    return replace(style, short=not full, top=top or (_TOP if full else _TOP_SHORT))


def _in_notebook(text: str) -> str:
    return f'<pre style="line-height: 1.25">{html.escape(text)}</pre>'
