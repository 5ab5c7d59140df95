"""Has blocks of a model computed again in the backward, by ``torch.utils.checkpoint``: the one
change of a script's own objects that ``memprof fit --try`` makes.

Dynamo does not look into memprof's functions, so none of them may stand between a compiled model
and its blocks: a block's ``forward`` becomes one of torch's, and models are looked at before they
are called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from memprof.simulated_cuda.after_import import after_import

from .wrapping import after_call


class Checkpointed:
    """Recomputes blocks of each model that is moved to a device or whose optimizer is made.

    A program may have several models. What later becomes a part of something larger is looked at
    again as a part of it.

    Args:
        classes: of each change the name of a class, whose modules and those of classes derived from
            it, as FSDP2's, are recomputed; empty for ``repeated_blocks``.
        on_change: is called with a change and with all that it has changed so far, in words.
    """

    def __init__(self, classes: Mapping[str, str], on_change: Callable[[str, str], None]) -> None:
        self._classes = classes
        self._on_change = on_change
        self._made: WeakSet[Any] = WeakSet()
        self._seen: WeakSet[Any] = WeakSet()
        self._changes: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        """Change that has each block recomputed, by block."""

    def install(self) -> None:
        """See modules and optimizers from now on; before torch is imported."""
        after_import("torch.nn.modules.module", self._see_modules)
        after_import("torch.optim.optimizer", self._see_optimizers)

    def _see_modules(self, module: ModuleType) -> None:
        after_call(module.Module, "__init__", lambda _, made: self._made.add(made))
        for name in ("to", "to_empty", "cuda"):
            after_call(module.Module, name, lambda _, moved: self._look(moved))

    def _see_optimizers(self, module: ModuleType) -> None:
        after_call(module.Optimizer, "__init__", lambda _, optimizer: self._look_at_all())

    def _look_at_all(self) -> None:
        made = [module for module in self._made if "_modules" in module.__dict__]
        self._made.clear()
        inside = {child for module in made for child in module.children()}
        for module in made:
            if module not in inside:
                self._look(module)

    def _look(self, root: Any) -> None:
        if root in self._seen:
            return
        inside = list(root.modules())
        self._seen.update(inside)
        blocks = self._blocks(root)
        if not blocks:
            return
        from torch.utils.checkpoint import checkpoint

        for module in inside:
            # Not what the program itself checkpoints.
            if module in self._changes:
                recomputed = module.__dict__.get("forward")
                if isinstance(recomputed, partial) and recomputed.func is checkpoint:
                    module.forward = recomputed.args[0]
                self._changes.pop(module)
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        self._changes.update(blocks)
        for text in set(blocks.values()):
            counts = Counter(type(b).__name__ for b, of in self._changes.items() if of == text)
            self._on_change(text, ", ".join(f"{n} {name}" for name, n in counts.items()))

    def _blocks(self, root: Any) -> dict[Any, str]:
        found: dict[Any, str] = {}
        for text, name in self._classes.items():
            for block in _of_class(root, name) if name else repeated_blocks(root):
                found.setdefault(block, text)
        return found


def _of_class(root: Any, name: str) -> list[Any]:
    found = []
    for module in root.modules():
        if any(kind.__name__ == name for kind in type(module).__mro__):
            found.append(module)
    return found


def repeated_blocks(root: Any) -> list[Any]:
    """The siblings of one class, in a list or a sequence of modules, with most parameters."""
    from torch.nn import ModuleList

    best: list[Any] = []
    most = 0
    for parent in root.modules():
        groups: dict[Any, list[Any]] = {}
        for child in parent.children():
            groups.setdefault(type(child), []).append(child)
        for kind, group in groups.items():
            size = sum(p.numel() for block in group for p in block.parameters())
            # A leaf has nothing inside that could be recomputed, a list is not called.
            inside = next(group[0].children(), None) is not None
            worth = inside and kind.forward is not ModuleList.forward
            if len(group) > 1 and size > most and worth:
                best, most = group, size
    return best
