"""What the driver's and the runtime's stand-ins answer."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda.green_contexts import GreenContext

pytestmark = pytest.mark.simgpu

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


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
    if TORCH < (2, 15):  # which asks a package of NVIDIA's instead
        with pytest.raises(RuntimeError, match="no cuDeviceGetDevResource"):
            GreenContext.create(num_sms=8, device_id=0)


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


SYMMETRIC = """
import gc
import sys
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory

rank, store = int(sys.argv[1]), sys.argv[2]
devices = range(2)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.cuda.set_device(rank)
held = [torch.empty(1, device=f"cuda:{i}") for i in devices]

def taken():
    dist.barrier()
    free = [torch.cuda.mem_get_info(i)[0] for i in devices]
    dist.barrier()
    return [(before - now) >> 20 for before, now in zip(least, free)]

dist.barrier()
least = [torch.cuda.mem_get_info(i)[0] for i in devices]
buffer = _symmetric_memory.empty(32 << 20, dtype=torch.bfloat16, device=f"cuda:{rank}")
handle = _symmetric_memory.rendezvous(buffer, dist.group.WORLD.group_name)
assert handle.multicast_ptr and handle.buffer_size == 64 << 20
# The signals beside the buffer take one more unit of what a device hands out.
assert taken() == [66, 66], taken()
buffer[:3].copy_(torch.tensor([rank + 1, 2, 3], dtype=torch.bfloat16))
dist.barrier()
of_peer = handle.get_buffer(1 - rank, (3,), torch.bfloat16)
assert of_peer.cpu().tolist() == [2 - rank, 2, 3]
dist.barrier()
del of_peer, handle, buffer
gc.collect()
assert taken() == [0, 0], taken()
"""


def test_symmetric_memory_of_two_processes_is_one_and_each_pays_for_its_own(
    tmp_path: Path,
) -> None:
    shared = {"SIMGPU_DEVICES": "2", "SIMGPU_SHARED": str(tmp_path / "used"), "SIMGPU_VALUES": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SYMMETRIC, str(rank), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared},
        )
        for rank in range(2)
    ]
    for process in ranks:
        error = process.communicate()[1]
        assert process.returncode == 0, error


HOLDS = """
import ctypes, os, sys, time
import torch

held = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
ctypes.CDLL(None).prctl(15, b"a) Z (b")  # PR_SET_NAME
if sys.argv[1] == "exec":
    os.execvp("sh", ["sh", "-c", "echo holds; exec sleep 100"])
print("holds", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("how", ["brackets in its name", "exec", "its number is another's"])
def test_a_process_has_of_a_shared_device_what_it_took_and_no_longer_than_it_runs(
    tmp_path: Path, how: str
) -> None:
    table = tmp_path / "used"
    settings = {"SIMGPU_SHARED": str(table), "SIMGPU_CONTEXT_MB": "512", "SIMGPU_VALUES": "0"}
    environment = {**os.environ, **settings}
    said: Any = {"stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([sys.executable, "-c", HOLDS, how], **said) as holder:
        assert holder.stdout.readline() == "holds\n"
        if how.startswith("its number"):
            holder.kill()
            holder.wait()
            number, ours = (struct.pack("i", pid) for pid in (holder.pid, os.getpid()))
            assert number in table.read_bytes()
            table.write_bytes(table.read_bytes().replace(number, ours))
        code = "import torch; free, total = torch.cuda.mem_get_info(); print((total - free) >> 20)"
        used = subprocess.run([sys.executable, "-c", code], check=True, **said).stdout
        holder.kill()
    assert int(used) == (2 * 512 + 100 if how.startswith("brackets") else 512)


EXPANDABLE = """
import torch
from torch import multiprocessing

def write(tensors):
    tensor = tensors.get()
    free, total = torch.cuda.mem_get_info()
    assert (total - free) >> 20 == CONTEXTS + 100, (total - free) >> 20
    tensor[:3].copy_(torch.tensor([1, 2, 3], dtype=torch.uint8))
    del tensor

if __name__ == "__main__":
    processes = multiprocessing.get_context("spawn")
    tensors = processes.Queue()
    child = processes.Process(target=write, args=(tensors,))
    child.start()
    tensor = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    tensors.put(tensor)
    child.join()
    assert child.exitcode == 0
    assert tensor[:3].cpu().tolist() == [1, 2, 3]
"""


def test_expandable_segments_can_be_sent_to_another_process(tmp_path: Path) -> None:
    script = tmp_path / "send.py"
    script.write_text(EXPANDABLE.replace("CONTEXTS", str(2 * 512)))
    settings = {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "SIMGPU_SHARED": str(tmp_path / "used"),
        "SIMGPU_CONTEXT_MB": "512",
    }
    done = subprocess.run(
        [sys.executable, str(script)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    )
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
