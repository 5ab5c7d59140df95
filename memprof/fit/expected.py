"""What changes should save, by the account of the program as it is: the guess beside the try.

Note [What a change is expected to save]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
All is of the instant at which most was reserved; that another instant may then be the fullest is
not known from one account.

* *expandable-segments*: what was reserved beyond the most that was ever allocated.
* *fused-optimizer*, *optimizer-one-by-one*, *checkpoint*: only where that instant lies in the
  optimizer's step, or does not, respectively.
* *checkpoint*: activations of the class of modules whose instances made most of them, less what an
  instance hands on, which is kept. Instances are counted by the blocks of a line of theirs.
* *bf16-state*: half of the optimizer's state.

Of other changes nothing is expected: a budget is the partitioner's business, and findings of a
report bring estimates of their own.
"""

from __future__ import annotations

from collections import Counter

from memprof.profiler.model import DeviceAccount, Purpose

__all__ = ["expected"]


def expected(account: DeviceAccount) -> dict[str, int]:
    """Bytes that changes should save, by key; what should save nothing is 0.

    Args:
        account: of the program as it is.
    """
    by_purpose = account.by_purpose()
    in_step = account.phase == "optimizer"
    temporary = by_purpose.get(Purpose.TEMPORARY, 0) if in_step else 0
    return {
        "expandable-segments": max(account.reserved - account.most_allocated, 0),
        "fused-optimizer": temporary,
        "optimizer-one-by-one": temporary,
        "bf16-state": by_purpose.get(Purpose.OPTIMIZER_STATE, 0) // 2,
        "checkpoint": 0 if in_step else _recomputed_blocks(account),
    }


def _recomputed_blocks(account: DeviceAccount) -> int:
    """Activations that blocks of the class with most of them need not keep."""
    rows = [r for r in account.rows if r.purpose is Purpose.ACTIVATION and r.modules]
    inside: Counter[str] = Counter()
    for row in rows:
        # The outermost module is the model, the innermost one no block: it has nothing inside.
        classes = dict.fromkeys(row.modules.split(" > ")[1:-1])
        for name in classes:
            inside[name] += row.nbytes
    if not inside:
        return 0
    most = max(inside.values())
    # Of classes that are inside of one another the outermost that has several instances.
    for name in inside:
        own = [r for r in rows if r.modules.endswith(f" > {name}")]
        handed_on = max(own, key=lambda r: r.nbytes, default=None)
        if inside[name] == most and handed_on is not None and handed_on.count > 1:
            of_own = sum(r.nbytes for r in own)
            return most + of_own - handed_on.nbytes
    return 0
