"""Figures of a report on a profile's optional parts: data flow, tracker, and bytes reserved at the
peak of a device that nobody watched.

Note [A peak from two sources]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The allocator's counters say how much was reserved and allocated at most; programs, what compiled
code had at its own peak; a look at the end (``profiler/sources/allocator/present.py``), what else
the process holds. Parameters, optimizer state, persistent state and cuBLAS's workspaces, which
torch never gives back by itself, are there all the time, so all are of the peak. (Graph trees do
give workspaces back, after a warm-up; that a call needed them its program says.) What the counter
says beyond is:

* *rounding*: the difference of the peaks of what was handed out and of what was asked for, if not
  all of it;
* *eager*, where every compiled call is known from the inside: asked for by other code, or an output
  that the program holds on to. It is at least that much, since compiled code had no more then than
  at its own peak. To divide it, each eager operation would have to be watched: ``eager=True``;
* *not attributed*: the same where there were compiled calls of which the inside is not known.

That a buffer is state only the graphs that write to it may know; to the look it is a parameter. So
the two are one sum, divided as the better informed says. The other way round, a cache that a graph
has made and takes again is an input to graphs, and state to the look, which counts writes: state
that graphs do not know is taken to be among their inputs and outputs. Where the two sources say
more than the counter they cannot be of one instant, and no sum is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memprof.profiler import model
from memprof.profiler.live.attribution import Breakdown, View, data_flow_breakdown

_VIEWS = (View.LINE, View.MODULE, View.NODE)
"""Views of the live set of a data flow at its peak."""


@dataclass(frozen=True, slots=True)
class DataFlowPeak:
    """The peak of one device in the data-flow profile: eager and compiled code together."""

    device: str  # e.g. ``cuda:0``.
    nbytes: int  # live bytes
    after_ns: int  # time from the first entry of the profile
    categories: dict[model.Category, int]  # bytes, largest first
    times: int  # number of entries
    notes: list[str]  # on the whole run
    views: dict[View, Breakdown]  # what was live then, by line, module and operator


def data_flow_peaks(profile: model.Profile) -> list[DataFlowPeak]:
    out = []
    for device in profile.dataflow.devices if profile.dataflow else ():
        at = device.peak
        if at is None:
            continue
        shares = [(c, column[at]) for c, column in device.bytes.items() if column[at]]
        out.append(
            DataFlowPeak(
                device=device.device,
                nbytes=device.bytes_at(at),
                after_ns=device.time_ns[at] - device.time_ns[0],
                categories=dict(sorted(shares, key=lambda s: -s[1])),
                times=len(device.time_ns),
                notes=profile.dataflow.notes if profile.dataflow else [],
                views={v: data_flow_breakdown(device.live, v) for v in _VIEWS},
            )
        )
    return out


_LASTING = (
    model.Category.PARAMETER,
    model.Category.PERSISTENT_STATE,
    model.Category.OPTIMIZER_STATE,
)
"""Categories of memory that is there all the time."""

EAGER = "eager tensors: made or kept outside of compiled calls"
ROUNDING = "rounding: blocks are larger than what was asked for"
FREE = "not allocated: free inside of segments"
UNATTRIBUTED = "not attributed: eager code, compiled calls that nobody observed, libraries"


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """Peak of reserved memory on a device, in bytes; its parts add up to ``reserved``."""

    device: str  # e.g. ``cuda:0``.
    reserved: int  # the most bytes that the allocator had from the device
    parts: tuple[tuple[str, int], ...]  # what for, in words, and bytes; largest first
    unattributed: int  # bytes that were allocated beyond those, for whatever
    free: int  # bytes of ``reserved`` that were not allocated when most was
    eager: int = 0  # bytes that were made or kept by other code than compiled
    rounding: int = 0  # bytes of blocks beyond what was asked for


def device_peak(
    account: model.DeviceAccount,
    compiled: Mapping[model.Category, int],
    kept: int = 0,
    *,
    all_observed: bool = False,
) -> DevicePeak | None:
    """The peak of a device of which only the end was looked at; None if the sources do not fit.

    ``compiled`` were the bytes at the peak of compiled code there, ``kept`` those that libraries
    allocated in that call and did not give back, of which the live ones know nothing.
    """
    now = account.by_category()
    found = {c.label: max(now.get(c, 0), compiled.get(c, 0)) for c in _LASTING}
    state, parameter = model.Category.PERSISTENT_STATE, model.Category.PARAMETER
    of_graphs = compiled.get(state, 0) + compiled.get(parameter, 0)
    both = max(now.get(state, 0) + now.get(parameter, 0), of_graphs)
    found[parameter.label] = both - found[state.label]
    found[model.Category.WORKSPACE.label] = now.get(model.Category.WORKSPACE, 0)
    for category, nbytes in compiled.items():
        if category not in _LASTING:
            found[category.label] = nbytes
    unknown_to_graphs = min(now.get(state, 0) - compiled.get(state, 0), both - of_graphs)
    for passed in (model.Category.INPUT, model.Category.OUTPUT):
        if (same := min(unknown_to_graphs, found.get(passed.label, 0))) > 0:
            unknown_to_graphs -= same
            found[passed.label] -= same
    # Inputs and outputs of compiled code are the program's tensors, too.
    tensors = now.get(model.Category.TENSOR, 0)
    counted = sum(found.get(c.label, 0) for c in (model.Category.INPUT, model.Category.OUTPUT))
    found["other tensors"] = max(0, tensors - counted)
    unattributed = account.most_allocated - sum(found.values())
    # Some of them may be the same, and all may have been asked for when less was there.
    beyond = max(0, kept - found[model.Category.WORKSPACE.label])
    if beyond <= unattributed:
        found[model.Category.WORKSPACE.label] += beyond
        unattributed -= beyond
    if unattributed < 0:
        return None
    parts = sorted((p for p in found.items() if p[1]), key=lambda p: -p[1])
    rounding = account.most_allocated - (account.most_requested or account.most_allocated)
    rounding = max(0, min(unattributed, rounding))
    rest = unattributed - rounding
    return DevicePeak(
        account.device,
        account.reserved,
        tuple(parts),
        unattributed=0 if all_observed else rest,
        free=account.reserved - account.most_allocated,
        eager=rest if all_observed else 0,
        rounding=rounding,
    )
