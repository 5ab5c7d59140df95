"""What state a path is in.

Note [The four states]
~~~~~~~~~~~~~~~~~~~~~~
The state says what the allocator's books are worth and what may follow.

* NONE: no path. Nothing of the pool is respected; the next node is a root.
* WARMUP: the last function ran without being recorded. Its outputs own their blocks. Only
  warm-ups may follow, since addresses differ from call to call.
* RECORDING: the last function was recorded just now. Its outputs own their blocks, the books
  are right, and the next function is recorded without a look at what exists.
* EXECUTION: the last function was replayed. The books are those of the last recording;
  they are restored from the node's checkpoint before anything is warmed up or recorded.

A path ends when a new step begins (``generations``, ``path_end``) or when none of its
outputs is held any more. After a replay the second is looked at only if no child fits:
looking costs time, and a child that fits says the same.
"""

from __future__ import annotations

from enum import Enum, auto


class ExecutionState(Enum):
    """See Note [The four states]."""

    NONE = auto()
    WARMUP = auto()
    RECORDING = auto()
    EXECUTION = auto()
