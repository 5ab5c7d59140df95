"""Private and version-specific torch that ``watch`` needs; read on 2.11, 2.13 and 2.15."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.graph
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MAX_ENTRIES = 1_000_000
"""Of the allocator's history on one device between two drains."""


def record_history() -> None:
    """Begin the allocator's history anew, with Python's frames where memory is asked for."""
    torch.cuda.memory._record_memory_history(
        context="alloc", stacks="python", max_entries=MAX_ENTRIES, clear_history=True
    )


def drain_history() -> dict[str, Any]:
    """The allocator's state, with the history since it was last taken.

    Other threads must not allocate meanwhile: what they do in between is lost. Nor may Python's
    collector, which could free tensors between the two calls: a snapshot makes many objects.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
        record_history()
    finally:
        if collects:
            gc.enable()
    return snapshot


def allocation_counts(device: int) -> tuple[int, int]:
    """How many blocks the allocator of a device has handed out, and how many were let go of."""
    counts: dict[str, int] = torch._C._cuda_memoryStats(device)["allocation"]["all"]
    asked, let_go = _before_reset.get(device, (0, 0))
    return asked + counts["allocated"], let_go + counts["freed"]


_before_reset: dict[int, tuple[int, int]] = {}
"""What was counted on each device before somebody set the counters back."""


def keep_counting() -> None:
    """Let counts go on where a program calls ``torch.cuda.reset_accumulated_memory_stats``."""
    reset = torch._C._cuda_resetAccumulatedMemoryStats

    @functools.wraps(reset)
    def counted(device: int) -> None:
        _before_reset[device] = allocation_counts(device)
        reset(device)
        left = torch._C._cuda_memoryStats(device)["allocation"]["all"]
        asked, let_go = _before_reset[device]
        _before_reset[device] = asked - left["allocated"], let_go - left["freed"]

    torch._C._cuda_resetAccumulatedMemoryStats = counted


def has_history() -> bool:
    """Whether the allocator in use keeps a history: torch's own does, cudaMallocAsync does not."""
    return torch.cuda.get_allocator_backend() == "native"


def on_cuda_start(do: Callable[[], None]) -> None:
    """Call ``do`` once CUDA has started in this process, now if it has."""
    torch.cuda._lazy_call(do)  # type: ignore[no-untyped-call]


def clear_workspaces() -> None:
    """Make torch give back what cuBLAS works in."""
    torch._C._cuda_clearCublasWorkspaces()


def wrap_backward(around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the one function by which ``backward()`` and ``grad()`` start autograd's engine."""
    wrapped = around(torch.autograd.graph._engine_run_backward)
    torch.autograd.graph._engine_run_backward = wrapped
    torch.autograd._engine_run_backward = wrapped  # type: ignore[attr-defined]


def on_module_tensors(do: Callable[[torch.nn.Module], None]) -> None:
    """Call ``do`` with every module that gets a parameter or a buffer from here on."""

    def hook(module: torch.nn.Module, name: str, value: Any) -> None:
        do(module)

    torch.nn.modules.module.register_module_parameter_registration_hook(hook)
    torch.nn.modules.module.register_module_buffer_registration_hook(hook)
    # Copies and what was pickled get theirs at once.
    set_state: Any = torch.nn.Module.__setstate__

    @functools.wraps(set_state)
    def with_state(self: torch.nn.Module, state: Any) -> None:
        set_state(self, state)
        do(self)

    torch.nn.Module.__setstate__ = with_state  # type: ignore[method-assign]


def on_optimizer(do: Callable[[], None]) -> None:
    """Call ``do`` when an optimizer is made."""
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        do()
        original(self, *args, **kwargs)

    torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory that a tensor is made of: itself, or those inside a subclass."""
    subclass: Any = tensor
    if not is_traceable_wrapper_subclass(subclass):
        return [tensor]
    names, _ = subclass.__tensor_flatten__()
    return [t for name in names for t in plain_tensors(getattr(tensor, name))]
