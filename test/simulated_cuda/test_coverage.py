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
control.on_host_read(lambda nbytes, address, known: reads.append(nbytes) or known)
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


def test_libraries_answer_and_kernels_made_at_run_time_are_counted() -> None:
    _run("""
# factorisations report success
for shape in ((3, 6, 6), (40, 40)):
    x = cuda(*shape)
    torch.linalg.cholesky(x), torch.linalg.inv(x), torch.linalg.qr(x), torch.linalg.eigh(x)
    torch.linalg.svd(x), torch.linalg.lu_factor(x), torch.linalg.solve(x, x)
    torch.linalg.lstsq(x, x)
torch.linalg.ldl_factor(cuda(5, 5, dtype=torch.complex64), hermitian=True)
torch.erfinv(x), torch.nn.init.trunc_normal_(x), torch.special.bessel_j0(x)
assert os.environ["USE_PYTORCH_KERNEL_CACHE"] == "0"
# transforms and sparse products
x = cuda(64, 96)
torch.fft.fft2(torch.fft.irfft(x)), torch.fft.rfft(cuda(4, 101))
eye = torch.eye(8).to_sparse_csr().cuda()
assert (eye @ eye)._nnz() == 8
assert (eye @ cuda(8, 3)).shape == (8, 3)
# a process group of one rank
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
""")


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


def test_integers_compute_and_others_do_not() -> None:
    _run(
        """
from memprof.simulated_cuda import integers
integers.compute_known({})
def each(x, y, b):
    yield x + y, x * y, x // (y + 9), x % (y.abs() + 1), x - 3, -x, x ** 2, 3 ** y.abs()
    yield x == y, x > 2, b & (x < y), ~b, b.any(), b.all(), x.bool() ^ b, torch.where(b, x, y)
    yield x.sum(), x.sum(0), x.cumsum(1), x.max(), x.max(dim=1), x.amin(0), x.prod(1), b.sum(-1)
    yield x.sort(dim=1), x.argsort(dim=0), x.flatten().unique(return_counts=True), x.topk(2).values
    yield x.gather(1, y.abs() % 4), x[b], x[:, [1, 3]], x.masked_select(b), b.nonzero()
    yield torch.cat([x, y]), torch.stack([x, y], 1), x.repeat(2, 1), x.roll(1, 0), x.flip(0)
    yield x.masked_fill(b, 7), x.index_select(0, y[0].abs() % 3), x.scatter(1, y.abs() % 4, x)
    yield x.index_add(0, y[0, :3].abs() % 3, x), torch.searchsorted(x.flatten().sort()[0], y)
    yield torch.bincount(x.flatten().abs()), torch.nn.functional.one_hot(x.abs()), x.to(torch.int32)
    yield torch.arange(7, device=x.device), x.unsqueeze(2).expand(3, 4, 2) + 1, x.tril()
    z = x.clone()
    z += y
    z[b] = 1
    z[0, 1:3] = y[0, :2]
    z.t()[0].fill_(8)
    yield (z,)
host = torch.randint(-5, 5, (3, 4)), torch.randint(-5, 5, (3, 4)), torch.rand(3, 4) > 0.5
done = 0
leaves = torch.utils._pytree.tree_leaves
for expected, found in zip(each(*host), each(*(t.cuda() for t in host)), strict=True):
    for e, f in zip(leaves(expected), leaves(found), strict=True):
        assert f.is_cuda and f.dtype == e.dtype and torch.equal(f.cpu(), e), (e, f)
        done += 1
assert done >= 50, done
x = torch.rand(3, 4, device="cuda")
assert (x + 1).sum().item() == 0 and (x > 0).cpu().sum() == 0
x = host[0].cuda()
graph = torch.cuda.CUDAGraph()
out = x * 0
with torch.cuda.graph(graph):
    out.copy_(x + 1)
assert not out.any()
"""
    )
