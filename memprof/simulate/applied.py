"""Applies ``changes.py`` in the script's own process, by torch's own hooks and defaults.

Before the script runs, or as soon as it has what a change is about. A change that found nothing to
change says so: a saving of nothing is not to be taken for a change that does not help.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from memprof._torch_compat import allocate_by
from memprof.simulated_cuda.after_import import after_import

from .changes import change_of, environment_again, option_of
from .checkpointed import Checkpointed
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
            if change.allocator:
                self._allocate(text)
            elif change.key == "fused-optimizer":
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
                checkpointed = Checkpointed(argument, partial(self._note, text))
                after_import("torch.nn.modules.module", checkpointed.install)
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

    def _allocate(self, text: str) -> None:
        """See to settings of the allocator where the script sets some itself before CUDA starts."""
        given = dict(os.environ)

        def settings() -> str:
            name, variables = environment_again((text,), given, os.environ)
            os.environ.update(variables)
            if name:
                self._note(text, f"in {name}, which the program sets itself")
            return variables.get(name, "")

        after_import("torch", lambda torch: allocate_by(settings))

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
