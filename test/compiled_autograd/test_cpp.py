"""autograd::Functions written in C++. Building them takes a minute, so only on request."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from memprof import compiled_autograd as ca

from .support import COMPILERS, check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "MEMPROF_CPP_TESTS" not in os.environ,
        reason="builds a C++ extension for a minute; MEMPROF_CPP_TESTS=1 runs it",
    ),
]

SOURCE = r"""
#include <torch/extension.h>
using namespace torch::autograd;

template <bool traceable>
struct Square : public Function<Square<traceable>> {
  static constexpr bool is_traceable = traceable;
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x, double k) {
    ctx->save_for_backward({x});
    ctx->saved_data["k"] = k;
    return x * x * k;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto x = ctx->get_saved_variables()[0];
    return {grads[0] * x * 2 * ctx->saved_data["k"].toDouble(), torch::Tensor()};
  }
};

torch::Tensor traceable(const torch::Tensor& x, double k) { return Square<true>::apply(x, k); }
torch::Tensor opaque(const torch::Tensor& x, double k) { return Square<false>::apply(x, k); }
void hook(const torch::Tensor& x) {
  x.register_hook([](const torch::Tensor& grad) { return grad * 3; });
}
"""


@pytest.fixture(scope="module")
def functions() -> Any:
    from torch.utils.cpp_extension import load_inline

    return load_inline("memprof_test_autograd", SOURCE, functions=["traceable", "opaque", "hook"])


@pytest.mark.parametrize("name", ["traceable", "opaque"])
def test_custom_function(functions: Any, name: str) -> None:
    x = torch.randn(4, requires_grad=True)
    function = getattr(functions, name)
    check(lambda: function(function(x, 3.0), 2.0).sin().sum().backward(), [x])


def test_hook_registered_in_cpp_is_refused_before_anything_runs(functions: Any) -> None:
    """torch cannot describe such a hook to a capture."""
    x = torch.randn(4, requires_grad=True)
    y = x * 2
    functions.hook(y)
    with (
        ca.enable(COMPILERS["as_it_is"]),
        pytest.raises(NotImplementedError, match="compiled_args nyi"),
    ):
        y.sum().backward()
    assert x.grad is None
    y.sum().backward()  # the normal engine can still run it
    assert torch.equal(x.grad, torch.full((4,), 6.0))
