"""The driver: what it takes beside torch's allocator, as differences of free memory around an act.

It takes memory in pieces of 2 MiB or more, so an act is done for at least ten counts, and a line is
fitted through them. These are the constants that the simulated device goes by.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from proof.common import Part, Rows, captured, used

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def fitted(rows: Rows, what: str, counts: Sequence[int], taken: Sequence[int]) -> None:
    """Write the samples of an act, and the line through them."""
    for count, nbytes in zip(counts, taken, strict=True):
        rows.add(kind="sample", what=what, count=count, bytes=nbytes)
    slope, intercept = statistics.linear_regression(counts, taken)
    rows.add(kind="line", what=what, samples=len(counts), bytes_each=slope, bytes_once=intercept)


def beside() -> int:
    """Bytes of the device in use that torch's allocator has not, once all is done."""
    torch.cuda.synchronize()
    return used() - torch.cuda.memory_reserved()


def grown(act: Callable[[], Any]) -> int:
    """Bytes beside the allocator that an act takes; what it returns is let go of after that."""
    before = beside()
    kept = act()
    taken = beside() - before
    del kept
    return taken


# Makes a context, says so, and waits for the end of its input.
HOLDER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
status = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
status = status or cuda.cuCtxSetCurrent(context) or cuda.cuCtxSynchronize()
print(status, flush=True)
sys.stdin.read()
"""


def contexts(rows: Rows) -> None:
    """The contexts of ten more processes, which load nothing."""
    before, taken, processes = beside(), [], []
    counts = range(1, 11)
    for _ in counts:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        status = process.stdout.readline().strip()
        if status != "0":
            raise RuntimeError(f"the driver made no context: status {status!r}")
        taken.append(beside() - before)
    fitted(rows, "context of a process", counts, taken)
    for process in processes:
        process.communicate()


def libraries(rows: Rows) -> None:
    """What the first use of an operator loads, in this order; then cuBLAS's handles, by number of
    streams, whose workspaces are torch's own memory, and not in it."""
    a = torch.ones(256, 256, device="cuda")
    half, image, parameter = a.bfloat16(), a.view(1, 16, 64, 64), torch.nn.Parameter(a[0].clone())
    parameter.grad, filters = a[0].clone(), a[:16, :144].reshape(16, 16, 3, 3)
    heads = half.view(1, 4, 256, 64)
    firsts: dict[str, Callable[[], Any]] = {
        "add": lambda: a + a,
        "matmul, float32": lambda: a @ a,
        "matmul, bfloat16": lambda: half @ half,
        "linear, bfloat16": lambda: F.linear(half, half, half[0]),
        "softmax": lambda: a.softmax(-1),
        "layer norm": lambda: F.layer_norm(a, (256,)),
        "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
        "convolution": lambda: F.conv2d(image, filters),
        "random numbers": lambda: torch.rand_like(a),
        "sort": lambda: a.sort(),
        "embedding": lambda: F.embedding(a.long(), a),
        "fused AdamW": torch.optim.AdamW([parameter], fused=True).step,
    }
    for what, act in firsts.items():
        rows.add(kind="sample", what=f"first {what}", count=1, bytes=grown(act))
    streams, before, taken = [torch.cuda.Stream() for _ in range(10)], beside(), []
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.mm(a, a)
        taken.append(beside() - before)
    fitted(rows, "cuBLAS on another stream", range(1, 11), taken)


@triton.jit  # type: ignore[untyped-decorator]
def doubled(x, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """x = 2 x."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def modules(rows: Rows) -> None:
    """Copies of one small module, as each of Inductor's kernels is one, with its function."""
    kernel = doubled[(1,)](torch.ones(1024, device="cuda"), 1024, block=1024)
    image, name = kernel.asm["cubin"], kernel.metadata.name.encode()
    cuda = ctypes.CDLL("libcuda.so.1")
    loaded: list[ctypes.c_void_p] = []

    def load(count: int) -> None:
        for _ in range(count):
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            status = cuda.cuModuleLoadData(ctypes.byref(module), image)
            # Modules are loaded lazily: as a whole when a function is asked for.
            status = status or cuda.cuModuleGetFunction(ctypes.byref(function), module, name)
            if status:
                raise RuntimeError(f"the driver loaded no module: status {status}")
            loaded.append(module)

    taken = []
    for count in COUNTS:
        taken.append(grown(partial(load, count)))
        while loaded:
            cuda.cuModuleUnload(loaded.pop())
    rows.put(image_bytes=len(image))
    fitted(rows, "module of a small kernel", COUNTS, taken)


def graphs(rows: Rows) -> None:
    """Executables of CUDA graphs by their number of kernels, and many of one kernel each."""
    x = torch.ones(1024, device="cuda")

    def launched(nodes: int, copies: int = 1) -> list[torch.cuda.CUDAGraph]:
        made = [captured(lambda: [x.add_(1) for _ in range(nodes)]) for _ in range(copies)]
        for graph in made:
            graph.replay()
        return made

    launched(1)
    fitted(rows, "node of an executable", COUNTS, [grown(partial(launched, n)) for n in COUNTS])
    taken = [grown(partial(launched, 1, n)) for n in COUNTS]
    fitted(rows, "graph of one node", COUNTS, taken)


PART = Part(
    name="driver",
    module="proof.driver",
    about="Bytes that the driver takes for contexts, libraries, modules and executables of graphs: "
    "used on the device, less what torch's allocator has, after an act and before it.",
    cases={"contexts": contexts, "libraries": libraries, "modules": modules, "graphs": graphs},
    alone=lambda case: True,
)
