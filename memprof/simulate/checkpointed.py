"""Blocks of a program's models, recomputed in the backward from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

from memprof.profiler._text import without_numbers


class Checkpointed:
    """Has blocks of each model recomputed, before its first call: modules of names like
    ``pattern``, with ``*`` for their numbers, or ``repeated_blocks``.

    What is moved to a device or called is a model, with all that is inside of it: a program may
    have several. What later becomes a part of something larger is looked at again as a part of it.
    """

    def __init__(self, pattern: str, said: Callable[[str], None]) -> None:
        self._pattern = pattern
        self._said = said
        self._seen: WeakSet[Any] = WeakSet()
        self._counts: Counter[str] = Counter()

    def install(self, module: ModuleType) -> None:
        """See each module when it moves to a device, and before its first call; ``module`` is
        ``torch.nn.modules.module``."""
        for name in ("to", "to_empty", "cuda"):
            _after(module.Module, name, self._look)
        module.register_module_forward_pre_hook(lambda root, args: self._look(root))

    def _look(self, root: Any) -> None:
        import torch

        if torch.compiler.is_compiling():  # Which can follow no weak references.
            if not self._counts:
                self._recompute(self._blocks(root))
            return
        if root in self._seen:
            return
        inside = list(root.modules())
        self._seen.update(inside)
        blocks = self._blocks(root)
        if not blocks:
            return
        for module in inside:
            before = getattr(module.__dict__.get("forward"), "recomputes", None)
            if before is not None:
                module.forward = before
                self._counts[type(module).__name__] -= 1
        self._recompute(blocks)

    def _blocks(self, root: Any) -> list[Any]:
        if not self._pattern:
            return repeated_blocks(root)
        named = ((name.replace("_orig_mod.", ""), m) for name, m in root.named_modules() if name)
        return [module for name, module in named if without_numbers(name) == self._pattern]

    def _recompute(self, blocks: list[Any]) -> None:
        for block in blocks:
            block.forward = _recomputed(block.forward)
            self._counts[type(block).__name__] += 1
        if blocks:
            self._said(", ".join(f"{n} {name}" for name, n in self._counts.items() if n))


def _after(owner: Any, name: str, look: Callable[[Any], None]) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(module, *args, **kwargs)
        look(module)
        return result

    setattr(owner, name, moved)


def repeated_blocks(root: Any) -> list[Any]:
    """The siblings of one class, in a list or a sequence of modules, with most parameters."""
    from torch.nn import ModuleList

    best: list[Any] = []
    most = 0
    for parent in root.modules():
        groups: dict[type, list[Any]] = {}
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


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    checkpointed.recomputes = forward  # type: ignore[attr-defined]
    return checkpointed
