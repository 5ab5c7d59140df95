"""Names of tensors that a capture meets again, given by whoever knows them.

The engine hands over parameters without names. A backend that compiled the forward has seen
them under theirs and registers them here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary


class TensorNames:
    """Names by identity; a tensor is not kept alive."""

    def __init__(self) -> None:
        self._names: Any = WeakIdKeyDictionary()

    def register(self, names: Iterable[tuple[torch.Tensor, str]]) -> None:
        """Give tensors names; of several for one tensor the first stays."""
        for tensor, name in names:
            self._names.setdefault(tensor, name)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return tensor in self._names

    def of(self, tensor: torch.Tensor) -> str | None:
        """The tensor's name, None if nobody gave it one."""
        found: str | None = self._names.get(tensor)
        return found

    def clear(self) -> None:
        """Forget all names."""
        self._names.clear()


NAMES = TensorNames()
"""Of this process."""
