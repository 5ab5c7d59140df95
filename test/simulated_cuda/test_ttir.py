"""TTIR as C, compiled and run on the host without any device."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from memprof.simulated_cuda.values.ttir import UnsupportedError, to_c

# What libsimgpu.so answers: here, memory is allocated up to some address.
RANGE = "\nuintptr_t end = UINTPTR_MAX;\nint simgpu_range_ok(const void* p, uint64_t n) "
RANGE += "{ return (uintptr_t)p + n <= end; }\n"

ADD = """
module {
  tt.func public @add(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %y: !tt.ptr<bf16>, %n: i32) \
attributes {noinline = false} {
    %c8 = arith.constant 8 : i32 loc(#loc1)
    %pid = tt.get_program_id x : i32 loc("add.py":3:4)
    %start = arith.muli %pid, %c8 : i32
    %range = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    %base = tt.splat %start : i32 -> tensor<8xi32>
    %i = arith.addi %base, %range : tensor<8xi32>
    %limit = tt.splat %n : i32 -> tensor<8xi32>
    %mask = arith.cmpi slt, %i, %limit : tensor<8xi32>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %xi = tt.addptr %xs, %i : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
    %a = tt.load %xi, %mask : tensor<8x!tt.ptr<f32>>
    %b = arith.addf %a, %a : tensor<8xf32>
    %h = arith.truncf %b : tensor<8xf32> to tensor<8xbf16>
    %ys = tt.splat %y : !tt.ptr<bf16> -> tensor<8x!tt.ptr<bf16>>
    %yi = tt.addptr %ys, %i : tensor<8x!tt.ptr<bf16>>, tensor<8xi32>
    tt.store %yi, %h, %mask : tensor<8x!tt.ptr<bf16>>
    tt.return
  }
}
"""

LARGEST = """
tt.func public @largest(%x: !tt.ptr<i32>, %y: !tt.ptr<i32>) attributes {noinline = false} {
  %range = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
  %xs = tt.splat %x : !tt.ptr<i32> -> tensor<16x!tt.ptr<i32>>
  %xi = tt.addptr %xs, %range : tensor<16x!tt.ptr<i32>>, tensor<16xi32>
  %a = tt.load %xi : tensor<16x!tt.ptr<i32>>
  gpu.barrier
  ttg.barrier all loc(#loc1)
  %r:2 = "tt.reduce"(%a, %range) <{axis = 0 : i32}> ({
  ^bb0(%v: i32, %i: i32, %w: i32, %j: i32):
    %more = arith.cmpi sgt, %v, %w : i32
    %value = arith.select %more, %v, %w : i32
    %index = arith.select %more, %i, %j : i32
    tt.reduce.return %value, %index : i32, i32
  }) : (tensor<16xi32>, tensor<16xi32>) -> (i32, i32)
  tt.store %y, %r#1 : !tt.ptr<i32>
  tt.return
}
"""


def compiled(text: str, folder: Path) -> ctypes.CDLL:
    compiler = shutil.which("gcc") or pytest.skip("no gcc")
    source, _ = to_c(text)
    (folder / "kernel.c").write_text(source + RANGE)
    command = [compiler, "-O1", "-fPIC", "-shared", "-w", "-o", "kernel.so", "kernel.c", "-lm"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ctypes.CDLL(str(folder / "kernel.so"))


def run(kernel: ctypes.CDLL, programs: int, *arguments: npt.NDArray[np.generic] | int) -> int:
    values = [
        ctypes.c_int32(a) if isinstance(a, int) else ctypes.c_void_p(a.ctypes.data)
        for a in arguments
    ]
    pointers = [ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values]
    result: int = kernel.run(
        (ctypes.c_void_p * len(values))(*pointers), (ctypes.c_uint * 3)(programs, 1, 1)
    )
    return result


def test_sizes_of_arguments() -> None:
    assert to_c(ADD)[1] == [8, 8, 4]


def test_programs_of_a_grid_load_and_store_under_a_mask(tmp_path: Path) -> None:
    x = np.linspace(-3, 3, 20, dtype=np.float32)
    y = np.full(24, 7, dtype=np.uint16)
    assert run(compiled(ADD, tmp_path), 3, x, y, 20) == 0
    doubled = (y[:20].astype(np.uint32) << 16).view(np.float32)
    # Rounded to the nearest number of 8 bits of mantissa.
    np.testing.assert_allclose(doubled, 2 * x, rtol=2**-8)
    assert (y[20:] == 7).all()


def test_memory_that_is_not_allocated_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # GIVEN an allocation that ends behind the first eight elements
    kernel = compiled(ADD, tmp_path)
    x = np.zeros(16, dtype=np.float32)
    ctypes.c_size_t.in_dll(kernel, "end").value = x[8:].ctypes.data
    # THEN the first program runs, and the second one does not
    assert run(kernel, 1, x, x, 16) == 0
    assert run(kernel, 2, x, x, 16) == 700
    assert "kernel add: a load touches memory that is not allocated" in capfd.readouterr().err


def test_a_reduction_combines_several_tensors(tmp_path: Path) -> None:
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3], dtype=np.int32)
    x[11] = 100
    y = np.zeros(1, dtype=np.int32)
    assert run(compiled(LARGEST, tmp_path), 1, x, y) == 0
    assert y[0] == 11


def test_what_is_not_translated_has_a_name() -> None:
    with pytest.raises(UnsupportedError, match=r"^ttg\.local_alloc$"):
        to_c(ADD.replace("tt.return", "ttg.local_alloc\n    tt.return"))
