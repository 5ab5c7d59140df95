"""What the driver's and the runtime's stand-ins answer."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch
from torch.multiprocessing.reductions import reduce_tensor

pytestmark = pytest.mark.simgpu


def test_errors_have_names() -> None:
    runtime = ctypes.CDLL("libcudart.so.13")
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    assert runtime.cudaGetErrorString(2) == b"out of memory"
    assert runtime.cudaSetDevice(99) == 101
    assert runtime.cudaGetLastError() == 101
    assert runtime.cudaGetLastError() == 0


def test_a_call_that_is_not_covered_says_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuGraphicsMapResources(0, None, None) == 801
    assert "not simulated: cuGraphicsMapResources" in capfd.readouterr().err


def test_what_is_not_simulated_is_named_where_the_program_sees_it() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    text = ctypes.c_char_p()
    assert driver.cuDeviceGetDevResource(0, None, 1) == 801
    assert driver.cuGetErrorString(801, ctypes.byref(text)) == 0
    assert text.value == (
        b"operation not supported: the simulated device has no cuDeviceGetDevResource: "
        b"green contexts are not simulated"
    )
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        tensor = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(RuntimeError, match="no cuMemExportToShareableHandle"):
            reduce_tensor(tensor)
    finally:
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def _handle(tensor: torch.Tensor) -> bytes:
    handle = ctypes.create_string_buffer(64)
    runtime = ctypes.CDLL("libcudart.so.13")
    assert runtime.cudaIpcGetMemHandle(handle, ctypes.c_void_p(tensor.data_ptr())) == 0
    return handle.raw


def test_memory_of_another_process_can_be_opened_and_costs_nothing_there() -> None:
    tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    program = f"""
import ctypes
class Handle(ctypes.Structure):
    _fields_ = [("of", ctypes.c_char * 64)]
handle = Handle.from_buffer_copy({_handle(tensor)!r})
runtime = ctypes.CDLL("libcudart.so.13")
def free():
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert runtime.cudaMemGetInfo(ctypes.byref(left), ctypes.byref(total)) == 0
    return left.value
def opened():
    there = ctypes.c_void_p()
    assert runtime.cudaIpcOpenMemHandle(ctypes.byref(there), handle, 1) == 0
    return there
before = free()
first, second = opened(), opened()
assert first.value == second.value and free() == before
here = ctypes.create_string_buffer(b"something", 9)
assert runtime.cudaMemcpy(here, first, 9, 4) == 0 and here.raw == bytes(9)
assert [runtime.cudaIpcCloseMemHandle(first) for _ in range(3)] == [0, 0, 1]
assert runtime.cudaMemcpy(here, first, 9, 4) == 700
"""
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


def _smi(*arguments: str) -> str:
    asked = ["nvidia-smi", *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def test_nvidia_smi_tells_of_this_device_and_process() -> None:
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    free, total = (size >> 20 for size in torch.cuda.mem_get_info())
    of = torch.cuda.get_device_properties(0)
    fields = "--query-gpu=name,memory.total,memory.used,memory.free,compute_cap,uuid,fan.speed"
    values = f"{of.name}, {total}, {total - free}, {free}, {of.major}.{of.minor}, GPU-{of.uuid}"
    assert _smi(fields, "--format=csv,noheader,nounits") == f"{values}, [N/A]\n"
    with_units = _smi("--query-gpu=index,memory.used", "--format", "csv", "-i", "0")
    assert with_units == f"index, memory.used [MiB]\n0, {total - free} MiB\n"
    applications = _smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    assert applications == f"{os.getpid()}, {total - free} MiB\n"
    assert _smi("-L") == f"GPU 0: {of.name} (UUID: GPU-{of.uuid})\n"
    table = _smi()
    assert f"{total - free}MiB / {total}MiB" in table
    assert {len(line) for line in table.splitlines()[1:] if line} == {91}
    assert f"Total                             : {total} MiB" in _smi("-q")
    del held
    torch.cuda.empty_cache()
    used = total - (torch.cuda.mem_get_info()[0] >> 20)
    assert f"{used}MiB / {total}MiB" in _smi()


def test_nvidia_smi_refuses_by_name_what_it_does_not_know() -> None:
    done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "does not know topo" in done.stderr
