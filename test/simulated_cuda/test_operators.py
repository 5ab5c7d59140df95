"""Operators of integers on the simulated device give what the CPU gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

pytestmark = [
    pytest.mark.simgpu,
    pytest.mark.skipif(
        os.environ.get("SIMGPU_VALUES", "0") in ("", "0"),
        reason="the simulated device computes with SIMGPU_VALUES=1 only",
    ),
]

NUMBERS = {"number", "Optional[number]", "List[number]"}
"""Types of arguments of a schema that take Python numbers."""
OF_TORCH = {"_foreach_pow.ScalarAndTensor"}
"""Whose kernel for CUDA is another operation by torch's own code: it has integers for a result."""


def overloads_of_numbers() -> Iterator[Any]:
    """Every overload of aten with a tensor and a number among its arguments, but random ones."""
    for full in sorted(set(torch._C._dispatch_get_all_op_names())):
        namespace, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        if namespace != "aten" or name in OF_TORCH:
            continue
        try:
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        except AttributeError:
            continue  # of mobile builds
        types = {str(a.type) for a in op._schema.arguments}
        if types & NUMBERS and "Tensor" in str(types) and "Generator" not in str(types):
            yield op


def arguments(op: Any, dtype: torch.dtype, number: complex, device: str) -> Any:
    """Arguments for an operator, or None where nothing suits a required one."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.arange(1, 13).reshape(shape).to(device, dtype)

    values: dict[str, Any] = {
        "Tensor": tensor(3, 4),
        "List[Tensor]": [tensor(12), tensor(12)],
        "number": number,
        "Optional[number]": number,
        "List[number]": [number, number],
        "int": 1,
        "bool": False,
        "float": 1.0,
        "str": "floor",
        "List[int]": [2, 2],
    }
    given, named = [], {}
    for a in op._schema.arguments:
        kind = str(a.type)
        if a.has_default_value() and kind not in NUMBERS:
            continue
        if kind not in values and not kind.startswith("Optional"):
            return None
        value = values.get(kind)
        if a.is_out and kind == "Tensor":
            value = torch.empty(0, dtype=dtype, device=device)
        if a.kwarg_only:
            named[a.name] = value
        else:
            given.append(value)
    return given, named


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(torch.int64, 3), (torch.int32, -2), (torch.uint8, 300), (torch.bool, 2.5), (torch.uint8, -2)],
)
@pytest.mark.filterwarnings("ignore")
def test_operators_of_integers_and_a_number_give_what_the_cpu_gives(
    dtype: torch.dtype, number: complex
) -> None:
    compared = 0
    for op in overloads_of_numbers():
        on_cpu = arguments(op, dtype, number, "cpu")
        if on_cpu is None:
            continue
        try:
            expected = op(*on_cpu[0], **on_cpu[1])
        except Exception:
            continue  # no such operation
        on_device = arguments(op, dtype, number, "cuda")
        try:
            result = op(*on_device[0], **on_device[1])
        except NotImplementedError:
            continue  # nor has CUDA it
        except RuntimeError as e:
            # By torch's own check for CUDA, which the CPU has not.
            if "_foreach" in str(op) and "without overflow" in str(e):
                continue
            raise AssertionError(f"{op} of {dtype} and {number}") from e
        there = tree_leaves((result, on_device))
        for want, got in zip(tree_leaves((expected, on_cpu)), there, strict=True):
            if isinstance(want, torch.Tensor):
                assert want.dtype == got.dtype, op
                same = torch.allclose(want, got.cpu(), rtol=0, atol=0, equal_nan=True)
                assert same, (op, want, got)
        compared += 1
    assert compared > 100


def test_numbers_beyond_an_integer_type_wrap_around_in_a_graph_too() -> None:
    x = torch.arange(250, 256, dtype=torch.uint8)
    there, graph = x.cuda(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = there % 300, there & -2, torch.pow(2, there)
    graph.replay()
    # 300 is 44 in eight bits, -2 is 254, and 2 ** 250 has none of its bits among them.
    assert results[0].tolist() == [int(i) % 44 for i in x]
    assert results[1].tolist() == [int(i) & 254 for i in x]
    assert results[2].tolist() == [0] * 6


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight)


def depthwise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    convolution = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    return convolution(x, weight, bias, padding=2, dilation=2, groups=x.shape[1])


def test_operators_that_the_device_alone_has_give_what_the_cpu_gives() -> None:
    # Mamba's convolution and norm among them: what they did not write differed from run to run.
    cases = [
        (rms_norm, [(3, 2, 4, 8), (4, 8)]),
        (rms_norm, [(8,), (8,)]),
        (depthwise, [(2, 6, 10), (6, 1, 4), (6,)]),
        (depthwise, [(2, 6, 10, 9), (12, 1, 3, 3), (12,)]),
        (depthwise, [(2, 6, 10, 9, 5), (6, 1, 3, 3, 3), (6,)]),
    ]
    for function, shapes in cases:
        given = [torch.randn(shape, requires_grad=True) for shape in shapes]
        there = [x.detach().cuda().requires_grad_() for x in given]
        expected, result = function(*given), function(*there)
        expected.square().sum().backward()
        result.square().sum().backward()
        torch.testing.assert_close(result.cpu(), expected)
        for x, y in zip(given, there, strict=True):
            assert y.grad is not None
            torch.testing.assert_close(y.grad.cpu(), x.grad)
    a, b, c = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(2, 3, 5)
    x, y, z = (t.bfloat16().cuda() for t in (a, b, c))
    wide = [t.bfloat16().float() for t in (a, b, c)]
    for got, want in (
        (torch.bmm(x, y, out_dtype=torch.float32), wide[0] @ wide[1]),
        (torch.mm(x[0], y[0], out_dtype=torch.float32), wide[0][0] @ wide[1][0]),
        (
            torch.addmm(z[0], x[0], y[0], out_dtype=torch.float32, alpha=2),
            wide[2][0] + 2 * (wide[0][0] @ wide[1][0]),
        ),
    ):
        torch.testing.assert_close(got.cpu(), want)


def test_what_an_operator_without_values_returns_is_nan(
    capfd: pytest.CaptureFixture[str],
) -> None:
    gates = torch.ones(2, 12, device="cuda")
    state = torch.ones(2, 4, device="cuda")
    result, _ = torch.ops.aten._thnn_fused_gru_cell(gates, gates, state)
    assert result.isnan().all()
    assert "no values for aten._thnn_fused_gru_cell" in capfd.readouterr().err
