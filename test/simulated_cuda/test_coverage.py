"""The simulated CUDA device without values: what each library answers, and what memory holds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.simgpu

_PREAMBLE = """
import os, torch
from memprof.simulated_cuda import control
reads = []
control.on_host_read(reads.append)
cuda = lambda *shape, dtype=torch.float32: torch.zeros(*shape, dtype=dtype, device="cuda")
"""


def _run(script: str, **environment: str) -> None:
    """Run a script without values; it must succeed and find everything simulated."""
    own = {k: v for k, v in os.environ.items() if k != "SIMGPU_VALUES"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PREAMBLE + script],
        env=own | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[simgpu]" not in done.stderr, done.stderr


def test_results_read_as_zeros_whatever_lay_there() -> None:
    _run("""
old = [torch.full((64,), 2**40).cuda() for _ in range(50)]
kept = torch.tensor([3, 4]).cuda()
del old
reads.clear()
assert cuda(1000).add(1).nonzero().shape == (0, 1)
assert kept.add(1).tolist() == [0, 0]
assert kept.clone().tolist() == kept.tolist() == [3, 4]
assert reads and max(reads) <= 64
reads.clear()
cuda(1000).cpu()
assert reads == [4000]
""")


def test_factorisations_report_success_and_kernels_made_at_run_time_are_counted() -> None:
    _run("""
for shape in ((3, 6, 6), (40, 40)):
    x = cuda(*shape)
    torch.linalg.cholesky(x), torch.linalg.inv(x), torch.linalg.qr(x), torch.linalg.eigh(x)
    torch.linalg.svd(x), torch.linalg.lu_factor(x), torch.linalg.solve(x, x)
    torch.linalg.lstsq(x, x)
torch.linalg.ldl_factor(cuda(5, 5, dtype=torch.complex64), hermitian=True)
torch.erfinv(x), torch.nn.init.trunc_normal_(x), torch.special.bessel_j0(x)
assert os.environ["USE_PYTORCH_KERNEL_CACHE"] == "0"
""")


def test_transforms_and_sparse_products() -> None:
    _run("""
x = cuda(64, 96)
torch.fft.fft2(torch.fft.irfft(x)), torch.fft.rfft(cuda(4, 101))
eye = torch.eye(8).to_sparse_csr().cuda()
assert (eye @ eye)._nnz() == 8
assert (eye @ cuda(8, 3)).shape == (8, 3)
""")


def test_single_rank_process_group() -> None:
    _run(
        """
import torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.tensor([5.0, 6.0]).cuda()
y = cuda(2)
dist.all_reduce(x)
dist.all_gather_into_tensor(y, x)
assert y.tolist() == [5.0, 6.0]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
model(cuda(2, 4)).sum().backward()
dist.destroy_process_group()
"""
    )


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("", 0), ("1,0", 2), ("1", 1), ("0,7,1", 1), ("0,0", 0)]
)
def test_visible_devices(visible: str | None, count: int) -> None:
    environment = {"SIMGPU_DEVICES": "2"}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    own = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    script = (
        "import ctypes; n = ctypes.c_int(); "
        "ctypes.CDLL('libcudart.so.13').cudaGetDeviceCount(ctypes.byref(n)); print(n.value)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env=own | environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == count


def test_pool_of_the_asynchronous_allocator() -> None:
    _run(
        """
x = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_allocated() == 4 << 20
assert torch.cuda.memory_reserved() == 32 << 20
del x
assert torch.cuda.memory_allocated() == 0
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 0
""",
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
