"""What is known about memory of a pool that nobody should have: for the error about it.

The lines that allocated it are known where the allocator keeps them: in the next run of a function
that failed before, and with torch's option ``cudagraph_trees_history_recording`` from the first
warm-up on. ``cudagraph_trees_objgraph`` has pictures drawn of what holds it.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..device.cuda import CudaPool
from ..device.protocol import Block
from ..errors import is_the_users
from ..torch_options import TreeOptions

SHOWN = 10
"""So many blocks are described, and so many pictures drawn."""

CALLS = 4
"""So many lines of a block's stack are named, the innermost first."""


def history(pool: CudaPool, options: TreeOptions, *, again: bool) -> AbstractContextManager[object]:
    """Within it the allocator keeps the lines that allocate, if that is wanted.

    Args:
        pool: whose allocator.
        options: may ask for it.
        again: the function that is to run has failed before.
    """
    return pool.observing() if again or options.records_history else nullcontext()


def describe(pool: CudaPool, addresses: Collection[int], options: TreeOptions) -> str:
    """Sentences about the blocks at ``addresses``, and what was drawn of their holders."""
    blocks = [b for s in pool.segments() for b in s.blocks if b.address in addresses]
    lines = ["They are:", *(f"{_block(b)}." for b in blocks[:SHOWN])]
    if len(blocks) > SHOWN:
        lines.append(f"  And {len(blocks) - SHOWN} more.")
    if not any(b.frames for b in blocks):
        lines.append(
            "The next time the lines that allocate are named; "
            "torch._inductor.config.triton.cudagraph_trees_history_recording = True, set before "
            "the first call, has them named the first time."
        )
    if options.draws_references:
        lines.append(_draw([b.address for b in blocks[:SHOWN]]))
    return "\n".join(lines)


def _block(block: Block) -> str:
    frames = [f for f in block.frames if is_the_users(f[0])] or block.frames
    lines = ", called by ".join(f"{file}:{line} ({name})" for file, line, name in frames[:CALLS])
    at = f", allocated by {lines}" if lines else ""
    return f"  {block.requested} bytes at {block.address:#x}{at}"


def _draw(addresses: Collection[int]) -> str:
    try:
        objgraph: Any = importlib.import_module("objgraph")
    except ImportError:
        return "No pictures of what holds them: objgraph is not installed (pip install objgraph)."
    holders: dict[int, torch.Tensor] = {}
    for x in gc.get_objects():
        if issubclass(type(x), torch.Tensor) and (address := _address(x)) in addresses:
            holders.setdefault(address, x)
    drawn = []
    for number, t in enumerate(holders.values()):
        name = f"refs_live_tensor_{number}.svg"
        objgraph.show_backrefs([t], filename=name, max_depth=5)
        drawn.append(name)
    return f"What holds them: {', '.join(drawn)}" if drawn else "No tensor in Python holds them."


def _address(t: torch.Tensor) -> int:
    try:
        return t.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # reused, or of a kind without memory
        return 0
