"""The recordings of a manager are listed while another thread records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from memprof.cudagraph_trees.replay.node import RecordingTree


class Recorded(list[Any]):
    """Recordings of one function; when they are looked at, a thread that records gets its turn."""

    def __init__(self, nodes: list[Any], record: Callable[[], None]) -> None:
        super().__init__(nodes)
        self.record = record

    def __iter__(self) -> Iterator[Any]:
        self.record()
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        self.record()
        return super().__getitem__(index)


def node(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, children={})


def test_recordings_that_are_added_meanwhile_do_not_end_the_walk() -> None:
    # GIVEN a tree to which a root and a child of another function are added between any two steps
    roots: dict[int, list[Any]] = {}
    parent = node("a")

    def record() -> None:
        for place in (roots, parent.children):
            place[len(place) + 100] = [node("new")]

    parent.children.update({0: Recorded([node("b")], record), 1: Recorded([node("c")], record)})
    roots.update({0: Recorded([parent], record), 1: Recorded([node("d")], record)})
    tree: Any = RecordingTree()
    tree.roots = roots
    # WHEN they are listed THEN all that were there are found, parents first
    found = [n.name for n in tree.nodes()]
    assert {"a", "b", "c", "d"} <= set(found)
    assert found.index("a") < min(found.index("b"), found.index("c"))
