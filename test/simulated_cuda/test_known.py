"""What the simulated device knows while its kernels compute nothing: Note [What the host knows].

Each program states what eager torch would compute of what the program itself has put there, and
that what a kernel may have written over it reads as zero.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memprof.simulated_cuda.values.ttir import written_arguments

_PREAMBLE = """
import torch
from memprof.simulated_cuda import integers
integers.compute_known()
known = integers.is_known
unknown = torch.rand(4, device="cuda")
assert not known(unknown) and unknown.tolist() == [0.0] * 4
"""


def _run(tmp_path: Path, script: str) -> None:
    own = {k: v for k, v in os.environ.items() if k != "SIMGPU_VALUES"}
    program = tmp_path / "program.py"  # Triton wants a kernel's source.
    program.write_text(_PREAMBLE + script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is not computed" not in done.stderr


@pytest.mark.simgpu
def test_constants_copies_and_what_is_made_of_them(tmp_path: Path) -> None:
    _run(
        tmp_path,
        """
def each(device):
    x = torch.tensor([[1.5, -2.0, 4.0], [0.25, 3.0, -1.0]]).to(device)
    yield x, x.clone(), x.half(), x.t().contiguous(), torch.ones(3, device=device)
    yield torch.zeros(2, 3, device=device), torch.full((3,), 7.5, device=device)
    yield torch.arange(5, device=device), torch.eye(3, device=device), torch.zeros_like(x)
    yield torch.linspace(0, 1, 5, device=device), torch.full_like(x, 3, dtype=torch.int64)
    yield x + 1, x * x, x.sum(), x.max(dim=1), x > 0, (x > 0).all(), torch.isfinite(x).all()
    yield x.sum() / 4, x[x > 1], x.nonzero(), x.argsort(), torch.cat([x, x]), x.cumsum(1)
    y = torch.zeros(3, 3, device=device)
    y[:, 1] = 2
    y[0] += x[0]
    torch.mul(x[0], 2, out=y[2])
    yield y, x.bfloat16().float(), torch.where(x > 0, x, 0), x.unique()
    torch._foreach_add_([x, y], 1)
    yield x, y
leaves = torch.utils._pytree.tree_leaves
found = 0
for here, there in zip(each("cpu"), each("cuda"), strict=True):
    for e, f in zip(leaves(here), leaves(there), strict=True):
        assert f.is_cuda and known(f) and torch.equal(f.cpu(), e), (e, f)
        found += 1
assert found == 32, found

# the gradient that a backward begins with, and one of a mean of two
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.zeros((2,), device=x.device)
    @staticmethod
    def backward(ctx, g):
        seen.append((torch.equal(g, torch.ones(2, device="cuda")), g.tolist()))
        return g.sum() * torch.ones(4, device="cuda")
seen = []
leaf = unknown.clone().requires_grad_()
Loss.apply(leaf).sum().backward()
Loss.apply(leaf).mean().backward()
assert seen == [(True, [1.0, 1.0]), (False, [0.5, 0.5])], seen
assert leaf.grad.tolist() == [3.0] * 4  # 2 and 1
""",
    )


@pytest.mark.simgpu
def test_copies_within_segments_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    _run(
        tmp_path,
        """
x = torch.tensor([1.5, -2.0, 4.0, 8.0]).cuda()
both = torch.cat([x, x])
assert known(x.clone()) and x.clone().tolist() == [1.5, -2.0, 4.0, 8.0]
assert not known(unknown.clone())
both[:4].copy_(unknown)
assert known(both[4:]) and not known(both) and not known(both[:4])
both[1:].copy_(both[:-1].clone())
assert known(both[5:]) and not known(both[4:])
assert known(torch.zeros(4, device="cuda")) and not known(torch.rand(4, device="cuda"))
assert not known(torch.zeros(1 << 19, device="cuda"))  # too much to keep
""",
    )


@pytest.mark.simgpu
def test_what_an_operator_may_have_written_to_is_unknown(tmp_path: Path) -> None:
    _run(
        tmp_path,
        """
def ones(*shape):
    return torch.ones(*shape, device="cuda")
state = torch.get_rng_state()
x, y, z = ones(4), ones(4), ones(4)
x.mul_(unknown)
torch.add(unknown, 1, out=y)
torch._foreach_add_([z], [unknown])
large = ones(1 << 20)  # is more than what is computed
drawn = torch.nn.functional.dropout(ones(4)), ones(4).normal_(), torch.rand_like(x)
sums = ones(4).sum() + unknown.sum(), (unknown > 0).any()
norm = torch.nn.BatchNorm1d(4).cuda()
assert norm.running_var.tolist() == [1.0] * 4 and norm.num_batches_tracked == 0
norm(torch.rand(8, 4, device="cuda"))
assert norm.num_batches_tracked == 1
for t in (x, y, z, large, *drawn, *sums, norm.running_mean, norm.running_var):
    assert not known(t) and not t.cpu().any(), t
assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn on the host
# what lies between the elements that were written is not known
x = torch.empty(3, 3, device="cuda")
x[:, 0] = 5
assert known(x[2, 0]) and not known(x) and x.tolist() == [[5, 0, 0]] * 3
x[1] = unknown[:3]
assert x.tolist() == [[5, 0, 0], [0, 0, 0], [5, 0, 0]]
# the same memory for another tensor
before = ones(5000)
address = before.data_ptr()
assert known(before)
del before
again = torch.empty(5000, device="cuda")
assert again.data_ptr() == address and not known(again)
# a scaler goes on as in a run in which no gradient overflows
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
scales = []
for _ in range(3):
    scaler.scale(model(unknown).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    scales.append(scaler.get_scale())
assert scales == [1024.0, 2048.0, 2048.0], scales
""",
    )


@pytest.mark.simgpu
def test_one_argument_decides_a_logical_operator(tmp_path: Path) -> None:
    """Generation ends at its greatest length: an end that is not known, or one that is."""
    _run(
        tmp_path,
        """
ends, no, yes = unknown > 0, torch.zeros(4, device="cuda") > 0, torch.ones(4, device="cuda") > 0
for x in (ends | yes, yes | ends, torch.logical_or(ends, yes), ends | torch.tensor(True)):
    assert known(x) and x.all()
for x in (ends & no, torch.logical_and(no, ends), ends & no[:1]):
    assert known(x) and not x.any()
for x in (ends | no, ends & yes, ends | (torch.arange(4, device="cuda") > 1), ends ^ yes):
    assert not known(x)
unfinished = torch.ones(4, dtype=torch.int64, device="cuda")
unfinished = unfinished & ~(ends | no)
assert not known(unfinished)
ends |= yes
unfinished &= ~ends
assert known(unfinished) and unfinished.max() == 0
assert not known(unfinished | torch.randint(4, (4,), device="cuda"))
assert not known(torch.randint(4, (4,), device="cuda") | 1)
""",
    )


@pytest.mark.simgpu
def test_what_an_operator_began_with_is_not_its_result(tmp_path: Path) -> None:
    _run(
        tmp_path,
        """
def ones(*shape):
    return torch.ones(*shape, device="cuda")
index, square = torch.randint(4, (4,), device="cuda"), torch.rand(4, 4, device="cuda")
weight = torch.rand(4, 4, device="cuda", requires_grad=True)
found = [
    torch.bincount(index, minlength=4),  # of tokens by expert, as is the next
    torch.histc(unknown, 4, min=0, max=3),
    ones(4).scatter_add(0, index, unknown),
    torch.index_add(ones(4), 0, index, unknown, out=torch.empty(4, device="cuda")),
    unknown.sort().indices,
    torch.addmm(ones(4, 4), square, square),
    torch.baddbmm(ones(1, 4, 4), square[None], square[None]),
    torch.autograd.grad(torch.nn.functional.embedding(index, weight).sum(), weight)[0],
]
for t in found:
    assert not known(t) and not t.cpu().any(), t
# in each launch of a graph, whatever lay there before in that launch
x = torch.tensor([5.0, 6.0, 7.0, 8.0]).cuda()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    copy = x.clone()
    address = copy.data_ptr()
    del copy
    result = -unknown
    following = result + 1
assert result.data_ptr() == address
graph.replay()
assert not known(result) and result.tolist() == [0.0] * 4
# each launch forgets what it writes
x, copy, y = (torch.tensor([1.0, 2.0]).cuda() for _ in range(3))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    copy.copy_(x)
    x.add_(1)
assert x.tolist() == copy.tolist() == [1.0, 2.0]  # nothing of it has run
x.copy_(torch.tensor([5.0, 6.0]))
graph.replay()
assert copy.tolist() == [5.0, 6.0]
assert x.tolist() == [0.0, 0.0] and not known(x)
assert known(y)
""",
    )


@pytest.mark.simgpu
def test_kernels_of_triton_and_of_extensions(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    _run(
        tmp_path,
        """
import ctypes
import triton
import triton.language as tl

@triton.jit
def add(x_ptr, y_ptr, n, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.load(x_ptr + i, mask=i < n, other=0.0)
    for _ in range(n):
        total += tl.load(y_ptr + i, mask=i < n, other=0.0)
        y_ptr += 1
    tl.store(out_ptr + i, total, mask=i < n)

x, y, out, other = (torch.full((4,), 3.0, device="cuda") for _ in range(4))
whole = torch.full((8,), 3.0, device="cuda")
add[(1,)](x, y, 4, out, BLOCK=4)
assert x.tolist() == other.tolist() == [3.0] * 4 and known(y)
assert out.tolist() == [0.0] * 4 and not known(out)
add[(1,)](x, y, 4, whole[4:], BLOCK=4)  # may reach what lies before its pointer
assert not known(whole) and known(x)

@torch.compile
def step(x, state):
    state.add_(x)
    return x * 2
step(x, other)
assert known(x) and not known(other)

# as nvcc's code launches a kernel: add(float*, float const*, int)
runtime = ctypes.CDLL("libcudart.so.13" if torch.version.cuda >= "13" else "libcudart.so.12")
function = ctypes.create_string_buffer(1)
runtime.__cudaRegisterFunction(
    None, function, None, b"_ZN2my3addIfEEvPT_PKS1_i", -1, None, None, None, None, None
)
class Dim(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]
runtime.cudaLaunchKernel.argtypes = [
    ctypes.c_void_p, Dim, Dim, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
]
out = torch.full((4,), 3.0, device="cuda")
values = ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(x.data_ptr()), ctypes.c_int(4)
arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(v) for v in values))
one = Dim(1, 1, 1)
assert runtime.cudaLaunchKernel(ctypes.addressof(function), one, one, arguments, 0, None) == 0
assert known(x) and not known(out) and out.tolist() == [0.0] * 4
""",
    )


def test_pointers_that_a_kernel_writes_through() -> None:
    text = """
module {
  tt.func public @k(ARGUMENTS) attributes {noinline = false} {
    %i = tt.get_program_id x : i32
    %at = tt.addptr %a, %i : !tt.ptr<f32>, i32
    %v = tt.load %at : !tt.ptr<f32>
    %0:2 = scf.for %j = %i to %n step %n iter_args(%p = %b, %s = %v) -> (!tt.ptr<f32>, f32)  : i32 {
      %q = tt.addptr %p, %j : !tt.ptr<f32>, i32
      tt.store %q, %s : !tt.ptr<f32>
      scf.yield %q, %s : !tt.ptr<f32>, f32
    }
    %w = tt.addptr %c, %i : !tt.ptr<f32>, i32
    %old = tt.atomic_rmw fadd, acq_rel, gpu, %w, %v : (!tt.ptr<f32>, f32) -> f32
    %k = tt.load %d : !tt.ptr<i32>
    %r = tt.addptr %e, %k : !tt.ptr<f32>, i32
    %u = tt.load %r : !tt.ptr<f32>
    tt.return
  }
}
"""
    first = '%a: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("a"(#loc))'
    others = "%n: i32, %b: !tt.ptr<f32>, %c: !tt.ptr<f32>, %d: !tt.ptr<i32>, %e: !tt.ptr<f32>"
    assert written_arguments(text.replace("ARGUMENTS", f"{first}, {others}")) == [2, 3]
