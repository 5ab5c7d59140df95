"""FLOPs and bytes of operations, against numbers by hand."""

from __future__ import annotations

from typing import Any

import pytest

from memprof.what_if.estimate import work
from memprof.what_if.estimate.work import Operation, TensorInput, of_operation, of_product


def tensor(*sizes: int, strides: tuple[int, ...] | None = None, of: str = "float32") -> TensorInput:
    if strides is None:
        strides = tuple(1 for _ in sizes)
    return TensorInput(sizes, strides, {"float32": 4, "bfloat16": 2, "int64": 8}[of], of)


def test_a_product_by_its_sizes() -> None:
    found = of_product(14, 8, 16, 32, 3)
    assert found.flops == 2 * 8 * 16 * 32 * 3
    assert found.nbytes == 2 * 3 * (8 * 32 + 32 * 16 + 8 * 16)
    assert found.dtype == "bfloat16"


def test_reads_its_inputs_and_writes_what_it_allocates() -> None:
    found = of_operation(Operation("aten::add", [tensor(10), tensor(10), 1], allocated=40), {})
    assert (found.flops, found.nbytes) == (0, 120)


def test_an_expanded_dimension_is_read_once() -> None:
    wide = tensor(10, 5, strides=(0, 1))
    assert of_operation(Operation("aten::mul", [wide], allocated=200), {}).nbytes == 20 + 200


@pytest.mark.parametrize(
    ("name", "names", "writes", "nbytes"),
    [
        ("add_", ("self", "other"), {"self"}, 40 + 40 + 40),
        ("copy_", ("self", "src"), {"self"}, 40 + 40),
        ("fused", ("out", "src"), {"out"}, 40 + 40),
    ],
)
def test_what_is_changed_in_place(
    name: str, names: tuple[str, ...], writes: set[str], nbytes: int
) -> None:
    operation = Operation(f"aten::{name}", [tensor(10), tensor(10)], names, frozenset(writes))
    assert of_operation(operation, {}).nbytes == nbytes


def test_a_look_up_reads_no_more_than_it_writes_twice() -> None:
    weight, indices = tensor(50_000, 64), tensor(8, of="int64")
    operation = Operation("aten::embedding", [weight, indices], allocated=8 * 64 * 4)
    assert of_operation(operation, {}).nbytes == 3 * 8 * 64 * 4


def test_lists_of_tensors_count() -> None:
    lists: list[Any] = [[tensor(10), tensor(20)], [tensor(10), tensor(20)]]
    names = ("self", "grads")
    operation = Operation("aten::_fused_adam_", lists, names, frozenset({"self", "grads"}))
    # THEN gradients, which are changed only to scale them back, are not written
    assert of_operation(operation, {}).nbytes == 120 * 2 + 120


def test_causal_attention_is_half() -> None:
    formulas = {"_scaled_dot_product_flash_attention": lambda *shapes, out_val: 1000}
    sizes = (2, 4, 128, 64)
    query = tensor(*sizes, of="bfloat16")
    names = ("query", "key", "value", "dropout_p", "is_causal")

    def flops(causal: bool) -> work.Work:
        inputs = [query, query, query, 0.0, causal]
        name = "aten::_scaled_dot_product_flash_attention"
        return of_operation(Operation(name, inputs, names), formulas)

    assert flops(False).flops == 1000
    assert flops(True).flops == 500
    assert flops(True).shape == (8, 128, 64)


def test_a_formula_that_refuses_is_said() -> None:
    name = "aten::_scaled_dot_product_flash_attention"
    formulas = {name.removeprefix("aten::"): lambda *shapes, out_val: 1 // 0}
    query = tensor(2, 4, 128, 64)
    found = of_operation(Operation(name, [query, query, query]), formulas)
    assert (found.flops, found.in_part) == (0, True)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("triton_poi_fused_add_0", True),
        ("triton_red_fused_sum_1", True),
        ("triton_tem_fused_mm_2", False),
        ("aten::_cudnn_rnn", False),
        ("aten::add", True),
    ],
)
def test_products_in_kernels_that_tell_no_sizes_are_said(name: str, known: bool) -> None:
    found = of_operation(Operation(name, [tensor(64, 64), tensor(64, 64), 4096]), {})
    assert found.in_part is not known


@pytest.mark.parametrize(
    ("a", "b", "flops"),
    [
        ((100, 32), (4, 32, 16), 2 * 100 * 32 * 16),
        ((32, 100), (100, 16), 2 * 32 * 100 * 16),
        ((4, 25, 32), (4, 32, 16), 2 * 4 * 25 * 32 * 16),
        ((4, 25, 32), (32, 100), 2 * 25 * 32 * 100),
    ],
)
def test_products_of_groups(a: tuple[int, ...], b: tuple[int, ...], flops: int) -> None:
    found = of_operation(Operation("aten::_grouped_mm", [tensor(*a), tensor(*b)]), {})
    assert (found.kind, found.flops) == (work.PRODUCT, flops)


def test_inductors_kernels_reach_as_far_as_their_elements() -> None:
    table = tensor(50_000, 64)
    operation = Operation("triton_poi_fused_embedding_0", [table, tensor(8, 64), 512])
    assert of_operation(operation, {}).nbytes == 2 * 512 * 4
