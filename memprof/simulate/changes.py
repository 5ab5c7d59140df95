"""Changes of a program that can be tried without touching it: ``memprof advise``.

Each is applied in the script's own process, by torch's own hooks and defaults, before the script
runs or as soon as it has a model. A change that found nothing to change says so: a saving of
nothing is not to be taken for a change that does not help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from memprof.simulated_cuda.after_import import after_import

__all__ = ["CHANGES", "Applied", "Change", "environment_of", "repeated_blocks", "settings_of"]

_CONF = "PYTORCH_ALLOC_CONF"
_OLD_CONF = "PYTORCH_CUDA_ALLOC_CONF"


@dataclass(frozen=True, slots=True)
class Change:
    """A change that can be tried.

    Attributes:
        key: its name.
        what: a line of a report.
        how: what to write to have it for good.
        setting: of torch, ``torch.module.config.name=value``; empty if it is none.
        allocator: an option of torch's allocator, ``name:value``; empty if it is none.
        costs: what it costs, in words.
    """

    key: str
    what: str
    how: str
    costs: str
    setting: str = ""
    allocator: str = ""


CHANGES: Mapping[str, Change] = {
    change.key: change
    for change in (
        Change(
            "expandable-segments",
            "segments of the allocator that grow",
            "PYTORCH_ALLOC_CONF=expandable_segments:True",
            "little",
            allocator="expandable_segments:True",
        ),
        Change(
            "checkpoint",
            "recompute each repeated block in the backward",
            "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) around each block",
            "the forward of these blocks once more: about a third of the step's operations",
        ),
        Change(
            "fused-optimizer",
            "one kernel for the whole update, without copies of all gradients",
            "fused=True for the optimizer",
            "nothing",
        ),
        Change(
            "optimizer-one-by-one",
            "update one parameter after the other",
            "foreach=False for the optimizer",
            "more kernels in the optimizer's step",
        ),
        Change(
            "memory-budget",
            "recompute what is cheap to recompute, in compiled code",
            "torch._functorch.config.activation_memory_budget = 0.5",
            "operations that are recomputed: memprof fit --budget counts them",
            setting="torch._functorch.config.activation_memory_budget=0.5",
        ),
    )
}
"""What can be tried, by key."""


def environment_of(changes: tuple[str, ...], base: Mapping[str, str]) -> dict[str, str]:
    """Variables of the environment that changes are made of."""
    options = [CHANGES[key].allocator for key in changes if CHANGES[key].allocator]
    if not options:
        return {}
    before = base.get(_CONF) or base.get(_OLD_CONF) or ""
    names = {option.partition(":")[0] for option in options}
    kept = [o for o in before.split(",") if o and o.partition(":")[0].strip() not in names]
    value = ",".join([*kept, *options])
    # torch 2.11 reads the old name where both are there.
    return {_CONF: value, _OLD_CONF: value}


def settings_of(changes: tuple[str, ...]) -> tuple[str, ...]:
    """Settings of torch that changes are made of."""
    return tuple(CHANGES[key].setting for key in changes if CHANGES[key].setting)


class Applied:
    """Changes in this process.

    Args:
        keys: of ``CHANGES``.
    """

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._done: dict[str, str] = {}

    def install(self) -> None:
        """Apply them, as soon as what they are about is there; before torch is imported."""
        if "fused-optimizer" in self._keys:
            self._defaults("fused-optimizer", {"fused": True, "foreach": None})
        if "optimizer-one-by-one" in self._keys:
            self._defaults("optimizer-one-by-one", {"foreach": False, "fused": None})
        if "checkpoint" in self._keys:
            after_import("torch.nn.modules.module", self._watch_models)

    def sentences(self) -> list[str]:
        """What was changed."""
        return list(self._done.values())

    def idle(self, partitions: int) -> list[str]:
        """Changes that found nothing to change, by key.

        Args:
            partitions: graphs that were partitioned into forward and backward: without one a
                setting of the partitioner has changed nothing.
        """

        def nothing(key: str) -> bool:
            if CHANGES[key].allocator:
                return False
            return partitions == 0 if CHANGES[key].setting else key not in self._done

        return [key for key in self._keys if nothing(key)]

    def _defaults(self, key: str, values: dict[str, Any]) -> None:
        def put(module: ModuleType) -> None:
            init = module.Optimizer.__init__

            def changed(optimizer: Any, params: Any, defaults: dict[str, Any]) -> None:
                if all(defaults.get(k) in (None, False) for k in values) or key.endswith("one"):
                    mine = {k: v for k, v in values.items() if k in defaults}
                    if any(defaults[k] != v for k, v in mine.items()):
                        defaults = {**defaults, **mine}
                        name = type(optimizer).__name__
                        chosen = next(iter(values))
                        self._done[key] = f"{key}: {name} has {chosen}={values[chosen]}"
                init(optimizer, params, defaults)

            module.Optimizer.__init__ = changed

        after_import("torch.optim.optimizer", put)

    def _watch_models(self, module: ModuleType) -> None:
        """See each module when it moves to a device, and before its first call."""
        for name in ("to", "cuda"):
            self._around(module.Module, name)
        module.register_module_forward_pre_hook(lambda root, args: self._checkpoint(root))

    def _around(self, owner: Any, name: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(module, *args, **kwargs)
            self._checkpoint(module)
            return result

        setattr(owner, name, moved)

    def _checkpoint(self, root: Any) -> None:
        if "checkpoint" in self._done:
            return
        blocks = repeated_blocks(root)
        if len(blocks) < 2:
            return
        name = type(blocks[0]).__name__
        self._done["checkpoint"] = f"checkpoint: {len(blocks)} {name}"
        for block in blocks:
            block.forward = _recomputed(block.forward)


def repeated_blocks(root: Any) -> list[Any]:
    """The siblings of one class, in a list or a sequence of modules, with most parameters."""
    best: list[Any] = []
    most = 0
    for parent in root.modules():
        groups: dict[type, list[Any]] = {}
        for child in parent.children():
            groups.setdefault(type(child), []).append(child)
        for group in groups.values():
            size = sum(p.numel() for block in group for p in block.parameters())
            # A leaf has nothing inside that could be recomputed, a list is not called.
            block = group[0]
            inside = any(True for _ in block.children())
            called = type(block).forward is not _no_forward()
            if len(group) > 1 and size > most and inside and called:
                best, most = group, size
    return best


def _no_forward() -> object:
    """The ``forward`` of modules that have none, such as lists."""
    from torch.nn import ModuleList

    return ModuleList.forward


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return checkpointed
