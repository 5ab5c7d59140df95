"""The peak of one device, broken down: a reading of the model's objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from memprof.profiler.attribution import Breakdown, View, data_flow_breakdown
from memprof.profiler.model import (
    DataFlowDevice,
    DataFlowFailure,
    DataFlowLeak,
    DataFlowStorage,
)

from .profile import DataFlowProfile
from .to_model import data_flow_device, failures


@dataclass(frozen=True, slots=True, repr=False)
class PeakReport:
    """The peak of one device.

    Attributes:
        device: its live bytes over time, what is live at the peak, and what the allocator held.
        time_ns: of the peak, since the epoch; 0 where nothing was ever live.
        nbytes: live bytes then.
        categories, modules, operators, lines: the live bytes by each.
        saved: largest activations that wait for the backward at that time.
        leaks: largest storages of the whole trace that outlived their step.
        failures: allocations on this device, or on one that is not known, that failed for want
            of memory; times since the epoch.
    """

    device: DataFlowDevice
    time_ns: int
    nbytes: int
    categories: Breakdown
    modules: Breakdown
    operators: Breakdown
    lines: Breakdown
    saved: list[DataFlowStorage] = field(default_factory=list)
    leaks: list[DataFlowLeak] = field(default_factory=list)
    failures: list[DataFlowFailure] = field(default_factory=list)

    def __repr__(self) -> str:
        leaks = f", {len(self.leaks)} outlived their step" if self.leaks else ""
        return f"<PeakReport: {self.nbytes:,} bytes on {self.device.device}{leaks}>"


def peak_report(profile: DataFlowProfile, device: str, *, largest: int = 10) -> PeakReport:
    """What is live at the peak of a device, and why.

    Args:
        profile: from ``profile_memory``.
        device: e.g. ``cpu`` or ``cuda:0``.
        largest: how many saved activations and leak suspects to list.

    Raises:
        ValueError: nothing in the trace is on that device.
    """
    found = data_flow_device(profile, device)
    at = found.peak
    return PeakReport(
        device=found,
        time_ns=0 if at is None else found.time_ns[at],
        nbytes=0 if at is None else found.bytes_at(at),
        categories=data_flow_breakdown(found.live, View.CATEGORY),
        modules=data_flow_breakdown(found.live, View.MODULE),
        operators=data_flow_breakdown(found.live, View.NODE),
        lines=data_flow_breakdown(found.live, View.LINE),
        saved=[s for s in found.live if s.awaited][:largest],
        leaks=found.leaks[:largest],
        failures=[f for f in failures(profile) if f.device in (None, device)],
    )
