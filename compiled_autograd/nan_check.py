"""Anomaly mode: NaN in a gradient is an error, found when the whole backward has run.

The normal engine looks after each node. A compiled graph has no such moments, and making
them would change what is compiled; so the gradients that come out are looked at.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph

from .nodes import is_accumulate_grad


class NanCheck:
    """The check of one captured graph.

    Args:
        graph: after the passes. It accumulates into parameters or returns gradients.
    """

    def __init__(self, graph: Graph) -> None:
        self._parameters: list[int] = []
        for node in filter(is_accumulate_grad, graph.nodes):
            parameter: Any = node.args[0]
            if parameter.target is operator.getitem and parameter.args[0].name == "inputs":
                self._parameters.append(parameter.args[1])
        output: Any = graph.output_node().args[0]
        self._outputs = [str(node) for node in output]

    def before(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The parameters, for ``after``: the compiled function empties ``inputs``.

        Raises:
            RuntimeError: a gradient to accumulate into is NaN already, so that afterwards
                nobody could tell.
        """
        parameters = [inputs[i] for i in self._parameters]
        for i, parameter in zip(self._parameters, parameters, strict=True):
            if _has_nan(parameter.grad):
                raise RuntimeError(
                    f"anomaly mode with compiled autograd: inputs[{i}] had a NaN gradient before "
                    f"this backward; zero the gradients first, or leave one of the two off"
                )
        return parameters

    def after(
        self, parameters: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor | None]
    ) -> None:
        """Look for NaN in the gradients that the backward has made.

        Args:
            parameters: what ``before`` returned.
            outputs: what the compiled function returned.

        Raises:
            RuntimeError: one is NaN; the message names the parameters or outputs.
        """
        found = [
            f"inputs[{i}]"
            for i, parameter in zip(self._parameters, parameters, strict=True)
            if _has_nan(parameter.grad)
        ]
        found += [
            name
            for name, gradient in zip(self._outputs, outputs, strict=False)
            if _has_nan(gradient)
        ]
        if found:
            raise RuntimeError(
                f"Compiled Autograd returned NaN gradients for {', '.join(found)} (anomaly mode)"
            )


def _has_nan(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and bool(torch.isnan(gradient).any())
