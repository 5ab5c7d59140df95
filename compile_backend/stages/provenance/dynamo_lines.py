"""The lines of the program that a Dynamo graph comes from, by numbers that other processes share.

Note [Lines by number]
~~~~~~~~~~~~~~~~~~~~~~
AOTAutograd's cache knows a Dynamo graph by what it computes. Where it was written is no part of its
key: an entry serves a program whose lines have moved, and another one with other lines. So what is
stored for an entry names no line. It has the *number* of a stack: its place among the different
stacks of the Dynamo graph's nodes, in their order, of which each process has its own, also where it
traces nothing else.

That is right as long as the same nodes have the same number in both processes. Two nodes of one
line, which in the other process stand on two, do not, so the digest that is a part of the stored
thing's key covers the numbers of all nodes. It covers what else the report shows of them, and what
may not differ: their names, modules, and the names and roles of what the graph takes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from memprof.profiler.live.stack_text import innermost_module, parse_stack_trace
from memprof.profiler.model import SourceFrame
from memprof.profiler.sources.allocator.where import line_of_caller, source_of

from ..._torch_compat import is_marked_static, is_no_leaf
from ..describe.graph_io import user_frame

Stack = tuple[SourceFrame, ...]

_ADDRESS = re.compile(r"0x[0-9a-f]+")


class DynamoLines:
    """Stacks of one Dynamo graph's nodes and the line that called it: Note [Lines by number].

    Args:
        gm: the graph, before AOTAutograd has seen it.
        inputs: descriptions of what it takes, with names and roles.

    Attributes:
        caller: innermost line of the program that is calling the compiled function now, None if
            there is none; a node without a line of its own has this one.
        told_apart: what AOTAutograd's key leaves out, though what it keeps depends on it: positions
            of inputs whose address the program says will stay, and of those that ask for a gradient
            and are no leaves; "" where there are none.
        digest: hexadecimal, the same where numbers mean the same nodes.
    """

    def __init__(self, gm: GraphModule, inputs: Sequence[object]) -> None:
        placeholders = gm.graph.find_nodes(op="placeholder")
        static = [i for i, node in enumerate(placeholders) if is_marked_static(node)]
        no_leaves = [i for i, node in enumerate(placeholders) if is_no_leaf(node)]
        self.told_apart = f"{static}{no_leaves}" if static or no_leaves else ""
        self.caller = source_of(line_of_caller())
        self._stacks: dict[Stack, int] = {}
        self._frames: dict[str | None, int] = {}
        digest = hashlib.sha256()

        def add(stack: Stack, frame: str | None, *rest: Any) -> None:
            stack_number = self._stacks.setdefault(stack, len(self._stacks))
            frame_number = self._frames.setdefault(frame, len(self._frames))
            digest.update(repr((stack_number, frame_number, *rest)).encode())

        add((), None)
        if self.caller is not None:
            add((self.caller,), None)
        for module in gm.modules():
            for node in module.graph.nodes if isinstance(module, GraphModule) else ():
                text = node.meta.get("stack_trace")
                module_of_node = innermost_module(node.meta.get("nn_module_stack"))
                add(parse_stack_trace(text), user_frame(text), node.name, module_of_node)
        for value in inputs:
            # A key of a dictionary that is an object is known by its address.
            digest.update(_ADDRESS.sub("", repr(value)).encode())
        self.digest = digest.hexdigest()[:32]
        self._stack_of = list(self._stacks)
        self._frame_of = list(self._frames)

    def number_of_stack(self, stack: Stack) -> int:
        """Number of a stack.

        Raises:
            KeyError: no node of the graph has it.
        """
        return self._stacks[stack]

    def number_of_frame(self, frame: str | None) -> int:
        """Number of a ``file:line`` that is ``user_frame`` of a node's stack.

        Raises:
            KeyError: no node of the graph has it.
        """
        return self._frames[frame]

    def stack(self, number: int) -> Stack:
        """The stack with a number, in this process."""
        return self._stack_of[number]

    def frame(self, number: int) -> str | None:
        """The ``file:line`` with a number, in this process."""
        return self._frame_of[number]
