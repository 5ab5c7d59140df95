"""Growth of memory over the steps of a run, from all parts of a profile.

The same leak may be seen by several parts. For each device the best of them counts: the allocator's
history, which has every block and the variables that lead to it; then the tracker, which has sizes.

Note [What counts as growth]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Asked is how many bytes that were made in each step are still held at the end. Healthy programs
hold much from their beginning (parameters, what an optimizer makes at its first step), from the
last steps (a batch that was fetched ahead), and some from a step here or there (a cache that meets
a new shape). A leak holds something of step after step, up to the end. So:

* at least ``LEAST`` steps are needed; the last ``RECENT``, and the one that has begun, do not
  count: what they made may go;
* of the rest the later half decides (*the window*): what came to rest before it is no growth;
* in the window something is held of at least ``TIMES`` steps, and there is no gap longer than
  half of the window, the ends included: what leaks at every fourth step leaks;
* that is at least ``MIN_A_STEP`` a step on average: a list of losses as numbers on a device, at
  512 bytes each, costs nobody memory that he misses.

By how much it grows a step is what was made in the window after the first step of which something
is held, up to the last such step, divided by the steps between the two: the same figure wherever
the window begins. Of these two steps the half counts, for two sizes by turns.

A buffer of the last hundred batches holds something of step after step, too. It is known by what
the same line had made before the window and let go of in it (*turned over*): of a full buffer as
much as it holds of the window. That is taken off, the last step counts whole, and where less than a
third remains nothing grows. A buffer that is not full yet looks like a leak: the report says since
when, and how many steps there were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from memprof.profiler.model import (
    Category,
    Growth,
    GrowthSource,
    Held,
    MemorySnapshot,
    Profile,
    SnapshotKind,
    TensorInfo,
)

LEAST = 8
RECENT = 2
TIMES = 3
MIN_A_STEP = 4096


def rate_of(
    held: Mapping[int, int], steps: int, gone: Iterable[tuple[int, int, int]] = ()
) -> tuple[int, int] | None:
    """Bytes a step by which held memory grows, and the first step, from 1, of which some is still
    held, with no gap longer than half of the steps looked at; None if it does not grow. See Note
    [What counts as growth].

    Args:
        held: bytes that are held at the end, by the step that made them, from 1.
        steps: number of steps that have ended.
        gone: memory that was held for long and is held no more, as far as known: the step that made
            it, the one that let go of it, bytes.
    """
    if steps < LEAST:
        return None
    end = steps - RECENT
    begin = end - (end // 2) + 1
    makers = sorted(s for s, nbytes in held.items() if begin <= s <= end and nbytes > 0)
    longest = (end - begin + 1) / 2
    edges = pairwise([begin - 1, *makers, end + 1])
    if len(makers) < TIMES or max(b - a for a, b in edges) - 1 > longest:
        return None
    later = sum(held[s] for s in makers[1:])
    turned_over = 0
    for made, ended, nbytes in gone:
        if made < begin <= ended <= end:
            turned_over += nbytes
        elif begin <= made <= end < ended:  # It would be held, were the end that of the window.
            turned_over -= nbytes
    if not turned_over:
        later += (held[makers[0]] - held[makers[-1]]) // 2
    a_step = (later - turned_over) // (makers[-1] - makers[0])
    if a_step < MIN_A_STEP or 3 * turned_over > 2 * later:
        return None
    since = makers[0]
    for step in sorted((s for s, n in held.items() if s < since and n > 0), reverse=True):
        if since - step > longest + 1:
            break
        since = step
    return a_step, since


MIN_TRACKED = 1 << 20
MIN_TRACKED_SHARE = 0.05
"""Least growth of a tracked process's tensors in the later half of its snapshots, in bytes and as a
part of what they were."""

_ORDER = list(GrowthSource)


def growth(profile: Profile) -> list[Growth]:
    """Memory that is held across steps and grows, most bytes a step first."""
    every = [*profile.growth, *_of_tracker(profile)]
    best: dict[str, int] = {}
    for g in every:
        best[g.device] = min(_ORDER.index(g.source), best.get(g.device, len(_ORDER)))
    found = [g for g in every if _ORDER.index(g.source) == best[g.device]]
    return sorted(found, key=lambda g: -g.a_step)


def looked(profile: Profile) -> list[str]:
    """Parts of a profile that could have shown growth, in words; empty if there are none."""
    words = []
    for account in profile.accounts:
        # A simulated run is not looked at, nor one of so few steps.
        short = 0 < account.steps < LEAST or account.simulated
        if account.failure is None and not (account.present or short):
            words.append(f"every block of {account.device} over {account.steps:,} optimizer steps")
    if (n := len(_whole_snapshots(profile))) >= LEAST:
        words.append(f"{n:,} snapshots of the tracker")
    return words


def _whole_snapshots(profile: Profile) -> list[MemorySnapshot]:
    failed = SnapshotKind.OUT_OF_MEMORY
    every = profile.tracker.snapshots if profile.tracker is not None else []
    return [s for s in every if s.complete and s.kind is not failed]


def _of_tracker(profile: Profile) -> Iterator[Growth]:
    """Note [What grows in snapshots]: of the later half of the snapshots the tensors' bytes are
    taken in four spans of time, and the least of each must be more than that of the one before:
    what goes up and down with each step has the same least in all of them. What lies between the
    least of the first and of the last is held at least."""
    snapshots = _whole_snapshots(profile)
    if len(snapshots) < LEAST:
        return
    later = snapshots[len(snapshots) // 2 :]
    for device in later[-1].devices:
        bytes_ = [s.devices[device].tensor_bytes for s in later if device in s.devices]
        if len(bytes_) < LEAST // 2:
            continue
        quarter = len(bytes_) / 4
        least = [min(bytes_[int(i * quarter) : int((i + 1) * quarter)]) for i in range(4)]
        grown = least[-1] - least[0]
        enough = max(MIN_TRACKED, MIN_TRACKED_SHARE * bytes_[0])
        if grown >= enough and all(b > a for a, b in pairwise(least)):
            parts = _alike(later[0], later[-1], device)
            each = grown // round(3 * quarter)
            begin = len(snapshots) - len(later) + 1
            yield Growth(
                GrowthSource.TRACKER,
                device=device,
                nbytes=grown,
                a_step=each,
                step="snapshot",
                since=begin,
                steps=len(snapshots),
                holder=parts[0].detail if parts else "",
                parts=parts,
            )


def _alike(before: MemorySnapshot, after: MemorySnapshot, device: str) -> tuple[Held, ...]:
    """Groups of like tensors that are more in ``after`` than in ``before``, of the largest tensors
    on ``device``; each with the tensors that were added, most bytes first."""
    had = Counter(_in_words(t) for t in before.largest if t.device == device)
    groups: dict[str, list[int]] = {}
    for tensor in after.largest:
        if tensor.device == device:
            groups.setdefault(_in_words(tensor), []).append(tensor.nbytes)
    found = [
        Held(Category.TENSOR, sum(sizes) // len(sizes) * more, more, detail=key)
        for key, sizes in groups.items()
        if (more := len(sizes) - had[key]) > 0 and len(sizes) > 1
    ]
    return tuple(sorted(found, key=lambda p: -p.nbytes))


def _in_words(t: TensorInfo) -> str:
    """Shape, dtype, name and operation of a tensor in words, equal for like tensors."""
    shape = " x ".join(map(str, t.shape)) or "scalar"
    parts = [f"{shape} {t.dtype.removeprefix('torch.')}"]
    if t.name or t.node:
        parts.append(t.name or t.node or "")
    if t.operation:
        parts.append(f"made in {t.operation}")
    return ", ".join(parts)
