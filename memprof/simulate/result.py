"""A simulation as data: JSON for programs, a profile file for every other command of memprof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memprof.profiler.file import write_profile, write_profiles
from memprof.profiler.model import Process, Profile

from .parent import Simulation


def as_json(simulations: Sequence[Simulation], limit: int | None = None) -> dict[str, Any]:
    """What ``memprof simulate --json`` prints, in bytes and ns.

    Args:
        simulations: one a rank.
        limit: bytes of ``--fail-above``.
    """
    worst = max(simulations, key=lambda s: s.needed)
    return {
        "gpu": worst.gpu,
        "fits": _all([s.fits for s in simulations]),
        "needed_bytes": worst.needed,
        "limit_bytes": limit,
        "ranks": [
            {
                "rank": s.rank,
                "fits": s.fits,
                "needed_bytes": s.needed,
                "reserved_bytes": s.account.reserved if s.account else 0,
                "allocated_bytes": s.account.most_allocated if s.account else 0,
                "smallest_bytes": s.smallest,
                "steps": s.account.steps if s.account else 0,
                "ended": s.outcome.ended,
                "failure": s.outcome.failure,
                "status": s.outcome.status,
                "counters": s.outcome.counters,
                "uncovered": s.outcome.uncovered,
                "notes": s.outcome.notes,
                "accounts": s.outcome.accounts,
                "failed_at": s.failed_at,
            }
            for s in simulations
        ],
    }


def _all(fits: Sequence[bool | None]) -> bool | None:
    if False in fits:
        return False
    return None if None in fits else True


def profile_of(simulation: Simulation) -> Profile:
    """The run's profile, with its accounts and its place in the job."""
    profile = simulation.outcome.profile or Profile(complete=False)
    profile.accounts = simulation.outcome.accounts
    job = simulation.job
    if job is not None:
        profile.process = Process(job.rank, job.local_rank, job.world_size)
    return profile


def write_profile_of(simulations: Sequence[Simulation], path: str) -> None:
    """Write what was simulated as a profile, of several ranks if there are several.

    Raises:
        ProfileNotWritableError: it cannot be written.
    """
    profiles = [profile_of(s) for s in simulations]
    if len(profiles) == 1:
        write_profile(profiles[0], path)
    else:
        write_profiles(profiles, path)
