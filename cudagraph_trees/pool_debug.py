"""What is known about memory of a pool that nobody should have: for the error about it.

Torch's options say how much: ``cudagraph_trees_history_recording`` has the allocator keep the
lines that allocated it, from the warm-up on; ``cudagraph_trees_objgraph`` has pictures drawn of
what holds it.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from .errors import is_the_users

if TYPE_CHECKING:
    from .device.protocol import Block, Pool
    from .torch_options import TreeOptions

SHOWN = 10
"""So many blocks are described, and so many pictures drawn."""


def history(pool: Pool, options: TreeOptions) -> AbstractContextManager[object]:
    """Within it the allocator keeps the lines that allocate, if that is wanted."""
    return pool.observing() if options.records_history else nullcontext()


def describe(pool: Pool, addresses: Collection[int], options: TreeOptions) -> str:
    """Sentences about the blocks at ``addresses``, and what was drawn of their holders."""
    blocks = [b for s in pool.segments() for b in s.blocks if b.address in addresses]
    lines = ["They are:", *(_block(b) for b in blocks[:SHOWN])]
    if len(blocks) > SHOWN:
        lines.append(f"  and {len(blocks) - SHOWN} more")
    if not any(b.frames for b in blocks):
        lines.append(
            "torch._inductor.config.triton.cudagraph_trees_history_recording = True, set before "
            "the first call, names the lines that allocated them."
        )
    if options.draws_references:
        lines.append(_draw([b.address for b in blocks[:SHOWN]]))
    return "\n".join(lines)


def _block(block: Block) -> str:
    frames = [f for f in block.frames if is_the_users(f[0])] or block.frames
    at = f", allocated by {frames[0][0]}:{frames[0][1]} ({frames[0][2]})" if frames else ""
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
