"""Training steps on a model of the zoo, as a user would write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from models import zoo
from torch import Tensor


@dataclass
class Result:
    """Everything that a step produces.

    Attributes:
        outputs: of the first forward.
        gradients: after the first backward, by parameter name.
        state: parameters and buffers after the last optimizer step, by name.
        losses: one a step.
    """

    outputs: list[Tensor] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)


class Trainer:
    """A compiled model of the zoo with AdamW, seeded."""

    def __init__(self, name: str, backend: str, **compile_arguments: Any) -> None:
        self.case = zoo.build(name, layers=1)
        self.compiled = torch.compile(self.case.model, backend=backend, **compile_arguments)
        self.optimizer = torch.optim.AdamW(self.case.model.parameters(), lr=1e-3)
        # Dropout draws from here on.
        torch.manual_seed(1)

    def step(self) -> tuple[Any, Tensor]:
        """Forward and backward; gradients stay for ``update``."""
        output = self.compiled(**self.case.inputs)
        loss = self.case.loss(output)
        loss.backward()
        return output, loss

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def train(trainer: Trainer, steps: int = 3) -> Result:
    """A few steps; the same for every backend, since a trainer sets the seeds."""
    model = trainer.case.model
    result = Result()
    for i in range(steps):
        output, loss = trainer.step()
        result.losses.append(loss.detach().clone())
        if i == 0:
            result.outputs = [t.detach().clone() for t in tensors(output)]
            result.gradients = {
                n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
            }
        trainer.update()
    result.state = {n: t.detach().clone() for n, t in model.state_dict().items()}
    return result


def tensors(output: Any) -> list[Tensor]:
    """Tensors of a model's output: a tensor, or a ``transformers`` output."""
    if isinstance(output, Tensor):
        return [output]
    return [t for t in output.to_tuple() if isinstance(t, Tensor)]
