"""A profile in other tools' formats: one module a format, all over the same changes.

``walk.py`` is what they share: live memory as a stream of changes whose sum is the timeline's at
every instant. Units and fields: docs/exports.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from memprof.profiler.model import Profile
from memprof.profiler.model.kernel import Kernel
from memprof.profiler.support.errors import ProfileError
from memprof.profiler.support.json_text import to_json
from memprof.profiler.support.writing import StrPath, output

__all__ = ["FORMATS", "export_profile"]

FORMATS = {
    "perfetto": "trace for ui.perfetto.dev",
    "memory-viz": "snapshot for pytorch.org/memory_viz",
    "json": "the whole profile as JSON, see --schema",
}
"""Formats that ``export_profile`` writes, each in a few words."""


def export_profile(
    profile: Profile | Sequence[Profile],
    format: str,
    path: StrPath,
    kernels: Sequence[Kernel] = (),
) -> None:
    """Write a profile to a file.

    Args:
        profile: a valid one; for ``perfetto`` also those of several ranks.
        format: one of ``FORMATS``.
        path: where to; compressed if it ends in ``.gz``.
        kernels: of a trace of the process; for ``perfetto``, which shows them beside the bytes.

    Raises:
        ValueError: there is no such format, or it does not take several profiles, or kernels.
        ProfileError: ``perfetto`` or ``memory-viz``, of accounts alone; kernels without a time of
            day.
        ProfileNotWritableError: the operating system refuses; what was there is unchanged.
    """
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; there are {', '.join(FORMATS)}")
    profiles = [profile] if isinstance(profile, Profile) else list(profile)
    # Without calls, those of ``memprof simulate`` know an instant alone.
    has_time = any(len(p.calls) or p.ledger or p.tracker or p.dataflow for p in profiles)
    if format != "json" and any(p.accounts for p in profiles) and not has_time:
        raise ProfileError(
            None,
            f"{format} shows memory over time, and this profile has the account of one instant: "
            "use memprof report, or memprof export -f json",
        )
    if format != "perfetto" and len(profiles) != 1:
        raise ValueError(f"{format} takes one profile, not {len(profiles)}; perfetto takes several")
    if kernels and (format != "perfetto" or len(profiles) != 1):
        raise ValueError("kernels go with perfetto, and one profile")
    if kernels and not profiles[0].perf_origin_ns:
        raise ProfileError(None, "kernels are placed by the time of day, which it does not know")
    # The writers are imported when they are needed: the command line starts without them.
    with output(path) as file:
        if format == "json":
            file.write(to_json(profiles[0]))
        elif format == "perfetto":
            from .perfetto import write_perfetto

            write_perfetto(profiles, file, kernels)
        else:
            from .memory_viz import write_memory_viz

            write_memory_viz(profiles[0], file)
