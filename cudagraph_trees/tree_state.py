"""What the parts of one manager share."""

from __future__ import annotations

from dataclasses import dataclass

from .account.ledger import TreeLedger
from .path import TreePath
from .record_policy import RecordPolicy
from .spec import FunctionSpec, FunctionState
from .tree import RecordingTree


@dataclass(frozen=True, slots=True)
class TreeState:
    """What the parts of one manager share.

    Attributes:
        functions: those that were wrapped and can still be called, and what is known of them.
        path: what ran last.
        tree: the recordings.
        policy: why functions are not recorded where.
        ledger: everything that was done.
    """

    functions: dict[FunctionSpec, FunctionState]
    path: TreePath
    tree: RecordingTree
    policy: RecordPolicy
    ledger: TreeLedger

    @staticmethod
    def on(device: str) -> TreeState:
        """Of a manager that is made, for a device of this name."""
        functions: dict[FunctionSpec, FunctionState] = {}
        path = TreePath()
        return TreeState(
            functions, path, RecordingTree(), RecordPolicy(functions), TreeLedger(device, path)
        )
