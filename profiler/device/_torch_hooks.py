"""Functions of torch that others stand in for while somebody watches: what is private of it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.autograd.graph

Undo = Callable[[], None]
"""Takes something back; it may be called again."""


def replace(
    owners: Sequence[Any],
    name: str,
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Undo:
    """Put ``around(function)`` in the place of a function that ``owners`` have under ``name``.

    Undone, the function is there again; where somebody has put another one over ours, that stays
    and ours does nothing but call the function.
    """
    original = getattr(owners[0], name)
    own = [vars(owner).get(name, original) for owner in owners]  # a staticmethod as such
    ours: Callable[..., Any] | None = around(original)

    @functools.wraps(original)
    def standing_in(*args: Any, **kwargs: Any) -> Any:
        return (ours or original)(*args, **kwargs)

    for owner in owners:
        setattr(owner, name, standing_in)

    def undo() -> None:
        nonlocal ours
        ours = None
        for owner, before in zip(owners, own, strict=True):
            if getattr(owner, name) is standing_in:
                setattr(owner, name, before)

    return undo


def _before(do: Callable[..., object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For ``replace``: ``do`` is called first, with the same arguments."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def both(*args: Any, **kwargs: Any) -> Any:
            do(*args, **kwargs)
            return original(*args, **kwargs)

        return both

    return around


def _all(*undone: Undo) -> Undo:
    def undo() -> None:
        for one in undone:
            one()

    return undo


def wrap_backward(around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Undo:
    """Replace the one function by which ``backward()`` and ``grad()`` start autograd's engine."""
    return replace([torch.autograd.graph, torch.autograd], "_engine_run_backward", around)


def around_clearing_of_workspaces(do: Callable[[bool], None]) -> Undo:
    """Call ``do(True)`` before and ``do(False)`` after Python code has cuBLAS's workspaces given
    back, as it does around a capture."""

    def around(clear: Callable[[], None]) -> Callable[[], None]:
        def cleared() -> None:
            do(True)
            clear()
            do(False)

        return cleared

    return replace([torch._C], "_cuda_clearCublasWorkspaces", around)


def on_history(do: Callable[[], None]) -> Undo:
    """Call ``do`` before anybody, memprof included, begins or ends the allocator's history."""
    around = _before(lambda *_: do())
    names = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
    return _all(*(replace([torch._C], name, around) for name in names))


def on_module_tensors(do: Callable[[torch.nn.Module], None]) -> Undo:
    """Call ``do`` with every module that gets a parameter, a buffer or a module from here on."""

    def hook(module: torch.nn.Module, name: str, value: Any) -> None:
        do(module)

    def around(restore: Callable[..., None]) -> Callable[..., None]:
        def restored(module: torch.nn.Module, state: Any) -> None:
            restore(module, state)
            do(module)

        return restored

    return _all(
        torch.nn.modules.module.register_module_parameter_registration_hook(hook).remove,
        torch.nn.modules.module.register_module_buffer_registration_hook(hook).remove,
        torch.nn.modules.module.register_module_module_registration_hook(hook).remove,
        # Copies and what was pickled get theirs at once.
        replace([torch.nn.Module], "__setstate__", around),
    )


def on_optimizer(do: Callable[[torch.optim.Optimizer], None]) -> Undo:
    """Call ``do`` with an optimizer before it is made."""
    return replace([torch.optim.Optimizer], "__init__", _before(lambda self, *_, **__: do(self)))


def on_checkpoint(do: Callable[[Sequence[Any]], None]) -> Undo:
    """Call ``do`` with the arguments of each function that is run under activation checkpointing,
    in either way of ``torch.utils.checkpoint``, by eager code."""
    module: Any = importlib.import_module("torch.utils.checkpoint")

    def with_all(*args: Any, **kwargs: Any) -> None:
        # From 2.15 on those of the function are a tuple and a dict among these.
        given: list[Any] = []
        for a in (*args, *kwargs.values()):
            given += a if isinstance(a, tuple) else a.values() if isinstance(a, dict) else (a,)
        do(given)

    around = _before(lambda *args: do(args))
    undone = [replace([module.CheckpointFunction], "forward", around)]
    if hasattr(module, "_NoopSaveInputs"):  # Until 2.12.
        undone.append(replace([module._NoopSaveInputs], "forward", around))
    else:
        name = "_checkpoint_without_reentrant_generator"
        name += "_impl" if hasattr(module, f"{name}_impl") else ""
        undone.append(replace([module], name, _before(with_all)))
    return _all(*undone)


def on_batch(do: Callable[[Any], None]) -> Undo:
    """Call ``do`` with each batch that an iterator of a ``DataLoader`` returns."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def around(following: Callable[..., Any]) -> Callable[..., Any]:
        def next_batch(self: Any) -> Any:
            batch = following(self)
            do(batch)
            return batch

        return next_batch

    return replace([_BaseDataLoaderIter], "__next__", around)
