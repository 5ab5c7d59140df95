"""What a profile can be asked for, alike of a file (``memprof.load``) and of a session."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from memprof.profiler.devices import known_devices, no_such_device
from memprof.profiler.diff import ProfileDiff, compare
from memprof.profiler.export import export_profile
from memprof.profiler.file import read_profiles, single_profile
from memprof.profiler.model import Profile
from memprof.profiler.ranks import RankSummary, compare_ranks
from memprof.profiler.report import Style, Summary, render_text, summarize
from memprof.profiler.report.format import format_bytes
from memprof.profiler.report.terminal import printable, style_of
from memprof.profiler.report.text import (
    render_accounts,
    render_diff,
    render_graph_pools,
    render_growth,
    render_ranks,
    render_tracker_record,
)
from memprof.profiler.snapshot.named import read_named_snapshot

StrPath = str | os.PathLike[str]


class Views:
    """The verbs that a file and a session have in common.

    Whatever names a device (``cuda:0``) raises ValueError where the profile has nothing on it.
    """

    def profiles(self) -> list[Profile]:
        """The profile of each process, in order of ranks."""
        raise NotImplementedError

    def _name(self) -> str:
        """Of the file, "" if there is none."""
        raise NotImplementedError

    def profile(self) -> Profile:
        """The profile.

        Raises:
            ProfileMergedError: there are several, of several ranks.
        """
        return single_profile(self.profiles(), self._name(), "use profiles()")

    def report(
        self, *, top: int = 10, device: str | None = None, file: TextIO | None = None
    ) -> None:
        """Print the report; of several ranks, how they compare.

        Args:
            top: rows in each table.
            device: whose memory; by default the one with the most.
            file: where to; standard output by default.

        Raises:
            ValueError: ``top`` is less than 1.
        """
        out = sys.stdout if file is None else file
        out.write(printable(report_text(self.profiles(), _style(out, top), device), out))

    def to_html(self, path: StrPath, *, device: str | None = None) -> None:
        """Write the report as a page for the browser: one file, no network.

        Raises:
            ProfileNotWritableError: it cannot be written; what was there is unchanged.
        """
        # Its assets are of no use to the terminal's report.
        from memprof.profiler.report.html import write_report

        write_report(self.profiles(), path, device, self._name())

    def export(self, path: StrPath, format: str, *, devices: Sequence[str] | None = None) -> None:
        """Write the profile for another tool.

        Args:
            path: where to; compressed if it ends in ``.gz``, a folder for ``parquet``.
            format: ``perfetto``, ``memory-viz``, ``speedscope``, ``collapsed`` or ``parquet``;
                docs/exports.md says what each has. Only ``perfetto`` takes several ranks.
            devices: whose memory; by default all.

        Raises:
            ValueError: there is no such format, or it does not take several ranks.
            ImportError: ``parquet``, and pyarrow is not installed.
            ProfileNotWritableError: it cannot be written; what was there is unchanged.
        """
        profiles = self.profiles()
        known = sorted({device for profile in profiles for device in known_devices(profile)})
        for device in devices or ():
            if device not in known:
                raise no_such_device(device, known)
        export_profile(profiles, format, path, devices or known)

    def diff(self, after: Views, *, device: str | None = None) -> Comparison:
        """What grew from this profile to another one.

        Raises:
            NothingToCompare: no part is in both.
            ProfileMergedError: one is of several ranks.
        """
        return Comparison(compare(self.profile(), after.profile(), device))

    def __repr__(self) -> str:
        name = f" {self._name()}" if self._name() else ""
        found = self.profiles()
        if len(found) > 1:
            return f"<memprof profile{name}: {len(found)} ranks>"
        summary = summarize(found[0])
        peak = ""
        if summary.peak is not None:
            peak = f", peak {format_bytes(summary.peak.nbytes)} on {summary.device}"
        return f"<memprof profile{name}: {summary.graphs} graphs, {summary.calls:,} calls{peak}>"

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        return _in_notebook(report_text(self.profiles(), Style()))


class LoadedProfile(Views):
    """A profile, or a snapshot, that was read from a file; see ``load``.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: StrPath, names: Sequence[StrPath] = ()) -> None:
        self.path = os.fspath(path)
        self._profiles = [read_named_snapshot(path, names)] if names else read_profiles(path)

    def profiles(self) -> list[Profile]:
        return self._profiles

    def _name(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """What grew from one profile to another.

    Attributes:
        result: as data.
    """

    result: ProfileDiff

    def report(self, *, top: int = 10, file: TextIO | None = None) -> None:
        """Print it; the arguments are those of ``Views.report``."""
        out = sys.stdout if file is None else file
        out.write(printable(render_diff(self.result, _style(out, top)), out))

    def __repr__(self) -> str:
        grown = [
            f"{q.label} {'-' if q.change < 0 else '+'}{format_bytes(abs(q.change))}"
            for q in self.result.quantities
        ]
        return f"<memprof comparison: {', '.join(grown)}>"

    def _repr_html_(self) -> str:
        return _in_notebook(render_diff(self.result))


def load(path: StrPath, *, profile: StrPath | None = None) -> LoadedProfile:
    """Read a profile file, that of a tracker or a merged one too, or a snapshot of torch's
    allocator (``torch.cuda.memory._dump_snapshot``), of which nothing is executed.

    What of it cannot be used is left out, named in ``Profile.left_out`` and logged.

    Args:
        path: of the file.
        profile: for a snapshot: path of the profile of a run of the same code, which names the FX
            nodes of what generated code asked for.

    Raises:
        ProfileError: there is none, or nothing of it can be used; the message says which.
    """
    return LoadedProfile(path, [profile] if profile is not None else [])


def report_data(profiles: Sequence[Profile], device: str | None = None) -> Summary | RankSummary:
    """What ``report_text`` says, as data."""
    if len(profiles) > 1:
        return compare_ranks(profiles, device)
    return summarize(profiles[0], device)


def report_text(profiles: Sequence[Profile], style: Style, device: str | None = None) -> str:
    """The report of one process, or the comparison of several ranks.

    Raises:
        ValueError: there is nothing on ``device``.
    """
    found = report_data(profiles, device)
    if isinstance(found, RankSummary):
        return render_ranks(found, style)
    (profile,) = profiles
    failed = any(a.failure is not None for a in profile.accounts)
    texts = []
    # That of a failed allocation begins with the request, whatever else there is to say.
    if found.growth and not failed:
        texts.append(render_growth(found.growth, style))
    if profile.accounts:
        texts.append(render_accounts(profile.accounts, style, found.at_peak))
    if profile.graph_pools:
        texts.append(render_graph_pools(profile.graph_pools, style))
    if found.growth and failed:
        texts.append(render_growth(found.growth, style))
    if profile.graphs or not (profile.accounts or profile.graph_pools or profile.tracker):
        texts.append(render_text(found, style))
    if profile.tracker is not None:
        texts.append(render_tracker_record(profile.tracker, style))
    return "\n".join(texts)


def _style(out: TextIO, top: int) -> Style:
    if top < 1:
        raise ValueError(f"top is {top}; it must be 1 or more")
    return replace(style_of(out), top=top)


def _in_notebook(text: str) -> str:
    return f'<pre style="line-height: 1.25">{html.escape(text)}</pre>'
