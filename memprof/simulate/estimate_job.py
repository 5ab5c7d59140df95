"""The program that ``memprof.estimate`` runs on the simulated device: ``FILE`` has its parcel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .parcel import unpack


def default_loss(output: Any) -> torch.Tensor:
    """The loss of an output where nobody says: its ``loss``, or the sum of all its floats.

    Raises:
        TypeError: there is nothing to take a gradient of.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    found = [
        leaf.float().sum()
        for leaf in torch.utils._pytree.tree_leaves(output)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.requires_grad
    ]
    if not found:
        raise TypeError(
            f"the model returned a {type(output).__name__} with nothing to take a gradient of: "
            "give memprof.estimate a loss="
        )
    return torch.stack(found).sum()


def main(path: str) -> None:
    """Run the steps.

    Raises:
        RuntimeError: what was sent ended the process, so that nobody knows what all steps take.
    """
    try:
        _run_steps(path)
    except SystemExit as e:
        raise RuntimeError(f"the steps ended their process: SystemExit({e.code!r})") from e


def _run_steps(path: str) -> None:
    with open(path, "rb") as f:
        model, args, kwargs, options = unpack(f.read(), "cuda")
    optimizer = options["optimizer"]
    loss: Callable[[Any], torch.Tensor] = options["loss"] or default_loss
    run: Any = model if options["compile"] is None else torch.compile(model, **options["compile"])
    autocast = options["autocast"]

    def context() -> AbstractContextManager[Any]:
        return nullcontext() if autocast is None else torch.autocast("cuda", dtype=autocast)

    if optimizer is None:
        with torch.no_grad():
            for _ in range(options["steps"]):
                with context():
                    run(*args, **kwargs)
        return
    made = optimizer(model.parameters())
    for _ in range(options["steps"]):
        with context():
            value = loss(run(*args, **kwargs))
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"the loss is a {type(value).__name__} and must be a tensor")
        torch.autograd.backward(value)
        made.step()
        made.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
