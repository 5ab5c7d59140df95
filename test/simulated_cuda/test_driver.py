"""What the driver's and the runtime's stand-ins answer."""

from __future__ import annotations

import ctypes

import pytest
import torch

from memprof.simulated_cuda import control

pytestmark = pytest.mark.simgpu


def test_errors_have_names() -> None:
    runtime = ctypes.CDLL("libcudart.so.13")
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    assert runtime.cudaGetErrorString(2) == b"out of memory"
    assert runtime.cudaSetDevice(99) == 101
    assert runtime.cudaGetLastError() == 101
    assert runtime.cudaGetLastError() == 0


def test_free_memory_is_what_was_not_allocated() -> None:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert torch.cuda.get_device_properties(0).total_memory == total
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info()[0] == free - held.nbytes
    assert control.used() == total - torch.cuda.mem_get_info()[0]


def test_a_call_that_is_not_covered_says_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuGraphicsMapResources(0, None, None) == 801
    assert "not simulated: cuGraphicsMapResources" in capfd.readouterr().err
