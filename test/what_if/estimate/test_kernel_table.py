"""Time from measured kernels, and the least time by the data sheet."""

from __future__ import annotations

import pytest

from memprof.simulated_cuda.gpus import find_gpu
from memprof.what_if.estimate.kernel_table import TABLES, KernelTable, table_of
from memprof.what_if.estimate.speed import Speed, speeds
from memprof.what_if.estimate.work import COPY, OTHER, Work, product

SLOW = Speed(
    flops={"bfloat16": 1e12, "float32": 5e11},
    bandwidth=1e11,
    bus=1e10,
    link=1e10,
    network=1e9,
    source="a test",
)


def measured(us: float) -> dict[str, float]:
    return {"median": us}


def gemm(m: int, us: float) -> dict[str, object]:
    sizes = {"m": m, "n": 1000, "k": 1000}
    return {"kind": "gemm", "dtype": "torch.bfloat16", **sizes, "us": measured(us)}


def test_the_least_time_is_the_larger_of_flops_and_bytes() -> None:
    assert SLOW.ns(product("bfloat16", 1000, 1000, 1000, 1)) == pytest.approx(2e6)
    assert SLOW.ns(Work(OTHER, nbytes=1000)) == pytest.approx(10)
    assert SLOW.ns(Work(COPY, nbytes=1000, way="to host")) == pytest.approx(100)


def test_products_stay_behind_as_the_measured_ones_did() -> None:
    table = KernelTable(SLOW)
    # A product of 1000 rows takes 2 ms by the data sheet.
    table.add(gemm(1000, us=4000))
    assert table.knows(product("float16", 8, 8, 8, 1))
    assert not table.knows(product("float8", 8, 8, 8, 1))
    assert table.knows(Work(OTHER, nbytes=8))
    assert table.ns(product("bfloat16", 1000, 1000, 1000, 1)) == pytest.approx(4e6)
    # THEN another of its size in all directions is as far behind
    assert table.ns(product("bfloat16", 2000, 1000, 1000, 1)) == pytest.approx(8e6)
    # AND of float16, of which nothing was measured, tensor cores are as fast
    assert table.ns(product("float16", 1000, 1000, 1000, 1)) == pytest.approx(4e6)


def test_operators_go_by_bytes_between_two_that_were_measured() -> None:
    table = KernelTable(SLOW)
    for nbytes, us in ((1 << 20, 20.0), (1 << 22, 80.0)):
        row = {"kind": "bandwidth", "operator": "pointwise", "bytes": nbytes}
        table.add({**row, "us": measured(us)})
    assert table.ns(Work(OTHER, nbytes=1 << 21)) == pytest.approx(40e3)
    assert table.ns(Work(OTHER, nbytes=1 << 24)) == pytest.approx(320e3)
    assert table.ns(Work(OTHER, nbytes=16)) == pytest.approx(20e3)


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_a_table_is_of_a_gpu_whose_speed_is_known(path) -> None:  # type: ignore[no-untyped-def]
    table = table_of(path.stem)
    assert table is not None
    assert 1e3 < table.launch_ns < 1e5
    # THEN no kernel was faster than the data sheet allows
    work = product("bfloat16", 8192, 4096, 4096, 1)
    assert speeds()[path.stem].ns(work) <= table.ns(work)


def test_speeds_are_of_known_gpus() -> None:
    assert all(find_gpu(key).key == key for key in speeds())
