"""autograd::Functions written in C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from memprof import compiled_autograd as ca

from .support import COMPILERS, check

# Few headers, no Python module and no optimisation: a compilation of ten seconds, and not
# the half minute that torch/extension.h takes.
SOURCE = r"""
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
using namespace torch::autograd;

template <bool traceable>
struct Square : public Function<Square<traceable>> {
  static constexpr bool is_traceable = traceable;
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double k) {
    ctx->save_for_backward({x});
    ctx->saved_data["k"] = k;
    return x.mul(x).mul(k);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto x = ctx->get_saved_variables()[0];
    return {grads[0].mul(x).mul(2 * ctx->saved_data["k"].toDouble()), at::Tensor()};
  }
};

at::Tensor traceable(const at::Tensor& x, double k) { return Square<true>::apply(x, k); }
at::Tensor opaque(const at::Tensor& x, double k) { return Square<false>::apply(x, k); }
void hook(const at::Tensor& x) {
  x.register_hook([](const at::Tensor& grad) { return grad.mul(3); });
}
TORCH_LIBRARY(memprof_test_autograd, m) {
  m.def("traceable", traceable);
  m.def("opaque", opaque);
  m.def("hook(Tensor x) -> ()", hook);
}
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from torch.utils.cpp_extension import load

    folder: Path = tmp_path_factory.mktemp("extension")
    source = folder / "functions.cpp"
    source.write_text(SOURCE)
    load(
        "memprof_test_autograd",
        [str(source)],
        is_python_module=False,
        build_directory=str(folder),
        extra_cflags=["-O0", "-g0"],
    )
    return torch.ops.memprof_test_autograd


@pytest.mark.slow
@pytest.mark.parametrize("name", ["traceable", "opaque"])
def test_custom_function(functions: Any, name: str) -> None:
    x = torch.randn(4, requires_grad=True)
    function = getattr(functions, name)
    check(lambda: function(function(x, 3.0), 2.0).sin().sum().backward(), [x])


@pytest.mark.slow
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
