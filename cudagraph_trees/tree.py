"""All recordings that share one pool, each below the one that it was recorded after."""

from __future__ import annotations

from collections.abc import Iterator

from .node import CUDAGraphNode
from .spec import FunctionSpec


class RecordingTree:
    """The recordings of one manager.

    Attributes:
        roots: those that nothing precedes, by function. Replaced or added to, never emptied one by
            one: another thread may be walking over them.
    """

    def __init__(self) -> None:
        self.roots: dict[FunctionSpec, list[CUDAGraphNode]] = {}

    def after(self, parent: CUDAGraphNode | None) -> dict[FunctionSpec, list[CUDAGraphNode]]:
        """The recordings that follow ``parent``, or the roots if it is None."""
        return self.roots if parent is None else parent.children

    def add(self, node: CUDAGraphNode) -> bool:
        """``node`` was recorded after its parent.

        Returns:
            Whether there were others of the same function there.
        """
        siblings = self.after(node.parent).setdefault(node.wrapped_function, [])
        siblings.append(node)
        return len(siblings) > 1

    def remove(self, node: CUDAGraphNode) -> list[CUDAGraphNode]:
        """Take out a recording and what was recorded after it.

        Returns:
            All of them; none if it was taken out before.
        """
        siblings = self.after(node.parent).get(node.wrapped_function, [])
        if node not in siblings:
            return []
        siblings.remove(node)
        return list(_walk([node]))

    def forget(self, function: FunctionSpec) -> None:
        """``function`` is gone, and so are its recordings: it needs no place among the roots."""
        # A new one: a collector may have come by in the midst of a walk over it.
        self.roots = {f: nodes for f, nodes in self.roots.items() if nodes or f is not function}

    def clear(self) -> None:
        """Forget all recordings, which were released."""
        self.roots.clear()

    def nodes(self) -> Iterator[CUDAGraphNode]:
        """All recordings, parents before children; one that is added meanwhile may be missing.

        The thread that writes a profile comes by here while others record. It takes no lock, which
        would hold it up for as long as a capture lasts and leave it what finalizers put off
        (``capture_lock``): ``list`` copies a dictionary's values or a list in one step of the
        interpreter.
        """
        return _walk([node for nodes in list(self.roots.values()) for node in list(nodes)])


def _walk(nodes: list[CUDAGraphNode]) -> Iterator[CUDAGraphNode]:
    stack = nodes[::-1]
    while stack:
        node = stack.pop()
        yield node
        for children in list(node.children.values()):
            stack.extend(list(children)[::-1])
