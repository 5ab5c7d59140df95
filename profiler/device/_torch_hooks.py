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


def _beside(
    before: Callable[..., object] = lambda *_, **__: None,
    after: Callable[..., object] = lambda *_, **__: None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For ``replace``: what is called with the same arguments before and after the function."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def all_of_them(*args: Any, **kwargs: Any) -> Any:
            before(*args, **kwargs)
            result = original(*args, **kwargs)
            after(*args, **kwargs)
            return result

        return all_of_them

    return around


def _all(*undone: Undo) -> Undo:
    def undo() -> None:
        for one in undone:
            one()

    return undo


def wrap_backward(around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Undo:
    """Replace the one function by which ``backward()`` and ``grad()`` start autograd's engine."""
    return replace([torch.autograd.graph, torch.autograd], "_engine_run_backward", around)


def around_clearing_of_workspaces(before: Callable[[], None], after: Callable[[], Any]) -> Undo:
    """Call ``before`` and ``after`` when Python code has cuBLAS's workspaces given back, as it does
    around a capture."""
    return replace([torch._C], "_cuda_clearCublasWorkspaces", _beside(before, after))


def wrap_captures(
    around_begin: Callable[[Callable[..., Any]], Callable[..., Any]],
    around_end: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Undo:
    """Replace the two methods by which everything in Python captures a CUDA graph."""
    graph = [torch.cuda.CUDAGraph]
    begin = replace(graph, "capture_begin", around_begin)
    return _all(begin, replace(graph, "capture_end", around_end))


def on_module_tensors(do: Callable[[torch.nn.Module], None]) -> Undo:
    """Call ``do`` with every module that gets a parameter or a buffer from here on."""

    def hook(module: torch.nn.Module, name: str, value: Any) -> None:
        do(module)

    handles = [
        torch.nn.modules.module.register_module_parameter_registration_hook(hook),
        torch.nn.modules.module.register_module_buffer_registration_hook(hook),
    ]
    # Copies and what was pickled get theirs at once.
    undo = replace([torch.nn.Module], "__setstate__", _beside(after=lambda self, _: do(self)))
    return _all(*(handle.remove for handle in handles), undo)


def on_optimizer(do: Callable[[], None]) -> Undo:
    """Call ``do`` when an optimizer is made."""
    return replace([torch.optim.Optimizer], "__init__", _beside(lambda *_, **__: do()))


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

    around = _beside(lambda *args: do(args))
    undone = [replace([module.CheckpointFunction], "forward", around)]
    if hasattr(module, "_NoopSaveInputs"):  # Until 2.12.
        undone.append(replace([module._NoopSaveInputs], "forward", around))
    else:
        name = "_checkpoint_without_reentrant_generator"
        name += "_impl" if hasattr(module, f"{name}_impl") else ""
        undone.append(replace([module], name, _beside(with_all)))
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
