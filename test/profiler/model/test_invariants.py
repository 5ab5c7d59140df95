"""What holds of every profile, on random ones: sums, comparison with itself, and files."""

from __future__ import annotations

from framing import decode_profile
from hypothesis import given, settings
from rendering import render_text

from memprof.profiler.file.profile_file import decode_profiles, encode_profile
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import Profile
from memprof.profiler.views.compare.diff import compare
from memprof.profiler.views.compare.ranks import compare_ranks
from memprof.profiler.views.report import Style, summarize
from memprof.profiler.views.report.html.payload import report_payload
from profiler.live.test_timeline import profiles


@settings(max_examples=40)
@given(profiles())
def test_every_view_of_a_profile_has_the_same_bytes(profile: Profile) -> None:
    summary = summarize(profile)
    peak = summary.peak.nbytes if summary.peak else 0
    assert summary.device_peaks[summary.device] == peak
    for view in summary.views.values():
        assert view.attributed == sum(part.nbytes for part in view.parts)
        assert view.unattributed == sum(reason.nbytes for reason in view.remainder)
        assert view.attributed + view.unattributed == view.total == peak
    for device, nbytes in summary.device_peaks.items():
        found = report_payload(profile, device)["device"]["peak"]
        highest = found[2] if found else 0
        assert highest == nbytes
        over_time = Timeline(profile, device).bytes_over_time()
        assert max(over_time["peak"], default=0) == highest
        assert min(min(column, default=0) for column in over_time.values()) >= 0
    for style in (Style(), Style(top=1, width=1, exact=True, ascii_only=True)):
        assert f"{peak:,} B" in render_text(summary, style) or summary.peak is None


@settings(max_examples=40)
@given(profiles())
def test_a_profile_does_not_differ_from_itself(profile: Profile) -> None:
    diff = compare(profile, profile)
    assert not any(quantity.change for quantity in diff.quantities)
    assert not any(changes for quantity in diff.quantities for changes in quantity.views.values())
    alone = compare_ranks([profile])
    assert alone.warnings == []
    assert all(figure.lowest == figure.mean == figure.highest for figure in alone.imbalance)


@settings(max_examples=40)
@given(profiles())
def test_what_is_read_is_what_was_written(profile: Profile) -> None:
    data = encode_profile(profile)
    assert decode_profile(data) == profile
    assert decode_profiles(data + data) == [profile, profile]
