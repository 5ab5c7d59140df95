"""What changes should save, by the account of the program as it is: the guess beside the try.

Note [What a change is expected to save]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
All is of the instant at which most was reserved; that another instant may then be the fullest is
not known from one account.

* *expandable-segments*: what was reserved beyond the most that was ever allocated, at most: what
  lies in pieces then, too, nobody knows.
* *fused-optimizer*, *optimizer-one-by-one*, *checkpoint*: only where that instant lies in the
  optimizer's step, or does not, respectively.
* *checkpoint*: activations of the class of modules that saves most, all but those of one of its
  instances being gone; of how many there are no line of theirs can have made fewer blocks. At most:
  what an instance hands on is kept, and an account does not tell it from the rest of its line.
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
    """Activations of the class of blocks that saves most when they are not kept."""
    inside: Counter[str] = Counter()
    instances: dict[str, int] = {}
    composed: set[str] = set()
    for row in account.rows:
        if row.purpose is not Purpose.ACTIVATION or not row.modules:
            continue
        # The outermost module is the model, and what has nothing inside is no block.
        classes = tuple(dict.fromkeys(row.modules.split(" > ")[1:]))
        composed.update(classes[:-1])
        for name in classes:
            inside[name] += row.nbytes
            instances[name] = min(instances.get(name, row.count), row.count)
    blocks = [name for name in composed if instances[name] > 1]
    best = max(blocks, key=lambda n: inside[n] * (1 - 1 / instances[n]), default=None)
    return inside[best] if best is not None else 0
