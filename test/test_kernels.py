"""Kernels in tests: Note [Kernels compiled together] and the one after it in kernels.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import kernels
import pytest
import torch
import torch._dynamo


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many kernels each compilation had."""
    found: list[int] = []
    compile_ = kernels._compile

    def counting(waiting: Sequence[kernels.Kernel]) -> Any:
        found.append(len(waiting))
        return compile_(waiting)

    monkeypatch.setattr(kernels, "_compile", counting)
    monkeypatch.setattr(kernels, "_known", {})
    kernels.compile_together()
    yield found
    kernels.write_zeros(False)


def program(x: torch.Tensor) -> torch.Tensor:
    """With a kernel before the product, which is ATen's, and one behind it."""
    y = x.sin() * 1.0625
    return (y @ y).exp() - 0.0625


X = torch.linspace(0, 1, 25).reshape(5, 5)


def test_those_of_a_graph_are_compiled_in_one_go_and_never_again(compiled: list[int]) -> None:
    torch.testing.assert_close(torch.compile(program)(X), program(X))
    assert compiled == [2]
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(program)(X), program(X))
    assert compiled == [2]


def test_zeros_need_no_compiler_and_end_with_the_test(compiled: list[int]) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return program(x * 1.125)

    run = torch.compile(other)
    kernels.write_zeros(True)
    assert not run(X).any()
    assert compiled == []
    # The same compiled function computes again, and its kernels wait for none of the others.
    kernels.write_zeros(False)
    torch.testing.assert_close(run(X), other(X))
    assert compiled == [1, 1]
