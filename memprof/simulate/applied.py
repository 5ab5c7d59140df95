"""Applies ``changes.py`` in the script's own process, by torch's own hooks and defaults.

Before the script runs, or as soon as it has what a change is about. A change that found nothing to
change says so: a saving of nothing is not to be taken for a change that does not help.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from memprof.profiler._text import without_numbers
from memprof.simulated_cuda.after_import import after_import

from .changes import change_of, option_of
from .chunked_loss import chunked_cross_entropy
from .narrow_state import step_by_parameter
from .recomputed import Recomputed
from .static_inputs import StaticInputs


class Applied:
    """Changes in this process.

    Args:
        texts: as ``change_of`` reads them.
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._changes = [(text, *change_of(text)) for text in texts]
        self._done: dict[str, str] = {}

    def install(self) -> None:
        """Apply them, as soon as what they are about is there; before torch is imported."""
        for text, change, argument in self._changes:
            if change.key == "fused-optimizer":
                self._defaults(text, {"fused": True, "foreach": None})
            elif change.key == "optimizer-one-by-one":
                self._defaults(text, {"foreach": False, "fused": None})
            elif change.key == "bf16-state":
                self._around_init(partial(self._narrow, text))
            elif change.key == "drop-gradients":
                after_import("torch.optim.optimizer", partial(self._drop, text))
            elif change.key == "chunked-loss":
                after_import("torch.nn.functional", partial(self._chunk, text))
            elif change.key == "checkpoint":
                self._models(text, argument)
            elif change.key == "recompute":
                marks = Recomputed(argument, partial(self._note, text))
                after_import("torch._functorch.partitioners", marks.install)
            elif change.key == "static-inputs":
                static = StaticInputs(argument, partial(self._note, text))
                after_import("torch._dynamo.output_graph", static.install)
            elif change.key == "option":
                wanted = partial(self._option, text, option_of(argument))
                after_import("memprof.compile_backend.backend", wanted)

    def sentences(self) -> list[str]:
        """What was changed."""
        return list(self._done.values())

    def idle(self, partitions: int) -> list[str]:
        """Changes that found nothing to change.

        Args:
            partitions: graphs that were partitioned into forward and backward: without one a
                setting of the partitioner has changed nothing.
        """
        found = []
        for text, change, _ in self._changes:
            if change.allocator:
                continue
            if partitions == 0 if change.setting else text not in self._done:
                found.append(text)
        return found

    def _note(self, text: str, said: str) -> None:
        self._done[text] = f"{text}: {said}"

    def _around_init(self, changed: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
        """Let ``changed`` have a look at each optimizer that is made, and at its defaults."""

        def put(module: ModuleType) -> None:
            init = module.Optimizer.__init__

            def made(optimizer: Any, params: Any, defaults: dict[str, Any]) -> None:
                init(optimizer, params, changed(optimizer, defaults))

            module.Optimizer.__init__ = made

        after_import("torch.optim.optimizer", put)

    def _defaults(self, text: str, values: dict[str, Any]) -> None:
        def changed(optimizer: Any, defaults: dict[str, Any]) -> dict[str, Any]:
            if all(defaults.get(k) in (None, False) for k in values) or text.endswith("one"):
                mine = {k: v for k, v in values.items() if k in defaults}
                if any(defaults[k] != v for k, v in mine.items()):
                    chosen = next(iter(values))
                    self._note(text, f"{type(optimizer).__name__} has {chosen}={values[chosen]}")
                    return {**defaults, **mine}
            return defaults

        self._around_init(changed)

    def _narrow(self, text: str, optimizer: Any, defaults: dict[str, Any]) -> dict[str, Any]:
        kind = type(optimizer)
        # Inside of what torch wraps around a step: that is still one step to whoever counts them.
        if not getattr(kind.step, "hooked", False):
            kind.step = step_by_parameter(
                kind.step, lambda n: self._note(text, f"{kind.__name__}, {n:,} tensors")
            )
        return defaults

    def _drop(self, text: str, module: ModuleType) -> None:
        def drop(optimizer: Any, args: Any, kwargs: Any) -> None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if any(p.grad is not None for p in parameters):
                self._note(text, f"after each step of {type(optimizer).__name__}")
            for p in parameters:
                p.grad = None

        module.register_optimizer_step_post_hook(drop)

    def _chunk(self, text: str, functional: ModuleType) -> None:
        whole = functional.cross_entropy
        functional.cross_entropy = chunked_cross_entropy(  # type: ignore[attr-defined]
            whole, lambda rows: self._note(text, f"cross_entropy of {rows:,} rows")
        )

    def _option(self, text: str, option: dict[str, object], backend: ModuleType) -> None:
        compile_, split = backend._compile, backend.split_options
        changed = 0

        def overridden(
            gm: Any, inputs: Any, options: Any, mode: str | None, captured: Any = None
        ) -> Any:
            nonlocal changed
            # A captured backward is compiled with the options of its forward.
            if captured is None:
                before, options = options, {**(options or {}), **option}
                if split(options, mode) != split(before, mode):
                    changed += 1
                    self._note(text, f"graphs compiled with it: {changed:,}")
            return compile_(gm, inputs, options, mode, captured)

        backend._compile = overridden  # type: ignore[attr-defined]

    def _models(self, text: str, pattern: str) -> None:
        """See each module when it moves to a device, and before its first call."""

        def look(root: Any) -> None:
            if text in self._done:
                return
            blocks = named_like(root, pattern) if pattern else repeated_blocks(root)
            if len(blocks) >= (1 if pattern else 2):
                self._note(text, f"{len(blocks)} {type(blocks[0]).__name__}")
                for block in blocks:
                    block.forward = _recomputed(block.forward)

        def put(module: ModuleType) -> None:
            for name in ("to", "to_empty", "cuda"):
                _after(module.Module, name, look)
            module.register_module_forward_pre_hook(lambda root, args: look(root))

        after_import("torch.nn.modules.module", put)


def _after(owner: Any, name: str, look: Callable[[Any], None]) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(module, *args, **kwargs)
        look(module)
        return result

    setattr(owner, name, moved)


def named_like(root: Any, pattern: str) -> list[Any]:
    """Modules whose name, with ``*`` for its numbers, is ``pattern``."""
    named = ((name.replace("_orig_mod.", ""), m) for name, m in root.named_modules() if name)
    return [module for name, module in named if without_numbers(name) == pattern]


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
