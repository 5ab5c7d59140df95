"""What was reserved at the peak of a device that nobody watched: two sources, one sum.

Note [A peak from two sources]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The allocator's counters say how much was reserved and allocated at most. What compiled code had at
its own peak is known from its programs, replays included; what else the process holds from a look
at its end (``profiler/device/present.py``). Parameters, optimizer state, persistent state and the
workspaces of cuBLAS, which torch never gives back by itself, are there all the time, so all are of
the peak, if it lay in compiled code. (Graph trees do give workspaces back, after a warm-up; that a
call needed them its program says.)

What the allocator counts beyond is named by what is left to be it:

* *rounding*: the allocator counts what it handed out and what it was asked for. The difference of
  the two peaks is rounding that was there when most was handed out, if not all of it;
* *eager*: where every call of compiled code is known from the inside, what nobody knows was asked
  for by other code, or is an output that the program holds on to: an eager loss and what autograd
  saves for it, gradients, temporaries of an eager optimizer. It is at least that much, since
  compiled code had no more at that instant than at its own peak. It is one row. To divide it one
  would have to be there: what autograd has saved outside of compiled code is let go of before
  the next compiled call begins, and a look between two calls, or hooks on what is saved, cost each
  of a step's eager operations. ``eager=True`` has it by line;
* *not attributed*: the same where there were compiled calls of which the inside is not known.

Of a buffer that graphs write to the graphs alone may know that it is state; the look at the end
counts it as a parameter. So the two are one sum, which is divided as the better informed says. The
other way round, a cache that a graph has made and takes again is an input to the graphs, and state
to the look, which counts writes: state that the graphs do not know is taken to be among their
inputs and outputs.

Where the two sources say more than the counter they cannot be of one instant, and
no sum is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..model import Category, DeviceAccount, Purpose

_LASTING = {
    Purpose.PARAMETER: Category.PARAMETER,
    Purpose.PERSISTENT_STATE: Category.PERSISTENT_STATE,
    Purpose.OPTIMIZER_STATE: Category.OPTIMIZER_STATE,
}
"""What is there all the time, under the names of both sources."""


EAGER = "eager tensors: made or kept outside of compiled calls"
ROUNDING = "rounding: blocks are larger than what was asked for"
FREE = "not allocated: free inside of segments"
UNATTRIBUTED = "not attributed: eager code, compiled calls that nobody observed, libraries"


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """The parts add up to ``reserved``.

    Attributes:
        device: e.g. ``cuda:0``.
        reserved: the most bytes that the allocator had from the device.
        parts: what for, in words, and bytes; largest first.
        unattributed: bytes that were allocated beyond those, for whatever.
        free: bytes of ``reserved`` that were not allocated when most was.
        eager: bytes that were made or kept by other code than compiled.
        rounding: bytes of blocks beyond what was asked for.
    """

    device: str
    reserved: int
    parts: tuple[tuple[str, int], ...]
    unattributed: int
    free: int
    eager: int = 0
    rounding: int = 0

    @property
    def named(self) -> tuple[tuple[str, int], ...]:
        """What ``reserved`` is made of, in words and bytes, but for what has no name."""
        rest = ((EAGER, self.eager), (ROUNDING, self.rounding), (FREE, self.free))
        return (*self.parts, *(part for part in rest if part[1]))


def device_peak(
    account: DeviceAccount,
    compiled: Mapping[Category, int],
    kept: int = 0,
    *,
    all_observed: bool = False,
) -> DevicePeak | None:
    """The peak of a device of which only the end was looked at.

    Args:
        account: with ``present``.
        compiled: bytes live at the peak of compiled code on that device.
        kept: bytes that libraries allocated in that call and did not give back, of which the live
            ones know nothing.
        all_observed: whether the inside of every compiled call is known.

    Returns:
        None if the sources do not fit together.
    """
    now = account.by_purpose()
    found: dict[str, int] = {}
    for purpose, category in _LASTING.items():
        found[purpose.label] = max(now.get(purpose, 0), compiled.get(category, 0))
    state, parameter = Purpose.PERSISTENT_STATE, Purpose.PARAMETER
    of_graphs = sum(compiled.get(_LASTING[p], 0) for p in (state, parameter))
    both = max(now.get(state, 0) + now.get(parameter, 0), of_graphs)
    found[parameter.label] = both - found[state.label]
    found[Purpose.WORKSPACE.label] = now.get(Purpose.WORKSPACE, 0)
    for category, nbytes in compiled.items():
        if category not in _LASTING.values():
            found[category.label] = nbytes
    unknown_to_graphs = min(now.get(state, 0) - compiled.get(_LASTING[state], 0), both - of_graphs)
    for passed in (Category.INPUT, Category.OUTPUT):
        same = max(0, min(unknown_to_graphs, found.get(passed.label, 0)))
        unknown_to_graphs -= same
        if same:
            found[passed.label] -= same
    # Inputs and outputs of compiled code are the program's tensors, too.
    tensors = sum(now.get(p, 0) for p in (Purpose.TENSOR, Purpose.DATALOADER_BATCH))
    counted = sum(found.get(c.label, 0) for c in (Category.INPUT, Category.OUTPUT))
    found["other tensors"] = max(0, tensors - counted)
    unattributed = account.most_allocated - sum(found.values())
    # Some of them may be the same, and all may have been asked for when less was there.
    beyond = max(0, kept - found[Purpose.WORKSPACE.label])
    if beyond <= unattributed:
        found[Purpose.WORKSPACE.label] += beyond
        unattributed -= beyond
    if unattributed < 0:
        return None
    parts = sorted((p for p in found.items() if p[1]), key=lambda p: -p[1])
    rounding = 0
    if account.most_requested:
        rounding = max(0, min(unattributed, account.most_allocated - account.most_requested))
    rest = unattributed - rounding
    return DevicePeak(
        account.device,
        account.reserved,
        tuple(parts),
        0 if all_observed else rest,
        account.reserved - account.most_allocated,
        rest if all_observed else 0,
        rounding,
    )
