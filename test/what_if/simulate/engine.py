"""Small serving engines with names that memprof knows: of vLLM's an engine process, profile run,
cache of keys and values, graphs of several sizes, and the sign that it serves; of SGLang's a pool
and captures."""

from __future__ import annotations

from pathlib import Path

FORWARD_CONTEXT = """
import contextlib


@contextlib.contextmanager
def set_forward_context(metadata, config, num_tokens=None):
    yield
"""

MODEL_RUNNER = """
import torch

from vllm.forward_context import set_forward_context

SIZES = (32, 8)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(1024, 1024, bias=False)
        self.kv_cache = torch.tensor([])

    def forward(self, x):
        return self.proj(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class GPUModelRunner:
    def __init__(self):
        self.model = Model().cuda()
        self.model_memory_usage = torch.cuda.memory_allocated()
        self.graphs = {}

    def capture_model(self):
        before = torch.cuda.memory_reserved()
        pool = torch.cuda.graph_pool_handle()
        for size in SIZES:
            x = torch.ones(size * 1024, 1024, device="cuda")
            self.graphs[size] = torch.cuda.CUDAGraph()
            with set_forward_context(None, None, num_tokens=size):
                with torch.cuda.graph(self.graphs[size], pool=pool):
                    self.model(x)
        return torch.cuda.memory_reserved() - before
"""

WORKER = """
import gc
from types import SimpleNamespace

import torch

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

MIB = 1 << 20
PROFILE = 64 * MIB
LOGITS = 16 * MIB


class Worker:
    def __init__(self, utilization, longest):
        self.utilization = utilization
        self.vllm_config = self.model_config = SimpleNamespace(max_model_len=longest)
        self.model_runner = GPUModelRunner()

    def determine_available_memory(self):
        torch.empty(PROFILE, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        self.peak_activation_memory = PROFILE
        self.non_torch_memory = 0
        total = torch.cuda.mem_get_info()[1]
        return int(total * self.utilization) - PROFILE - torch.cuda.memory_reserved()

    def kv_cache_config(self, nbytes):
        layers = self.model_runner.model.layers
        each = nbytes // (len(layers) * MIB) * MIB
        if each <= 0:
            raise ValueError("No available memory for the cache blocks.")
        tensors = [SimpleNamespace(size=each) for _ in layers]
        return SimpleNamespace(kv_cache_tensors=tensors, num_blocks=each // 4096)

    def initialize_from_config(self, config):
        layers = self.model_runner.model.layers
        for layer, tensor in zip(layers, config.kv_cache_tensors, strict=True):
            cache = torch.zeros(tensor.size, dtype=torch.int8, device="cuda")
            layer.kv_cache = cache.view(-1, 1024)
        if self.model_config.max_model_len > config.num_blocks * 16:
            raise ValueError(
                "3.00 GiB is needed, larger than the available KV cache memory (2.00 GiB). "
                "Try another one."
            )

    def compile_or_warm_up_model(self):
        self.model_runner.capture_model()
        self.logits = torch.zeros(LOGITS, dtype=torch.uint8, device="cuda")

    @torch.inference_mode()
    def serve(self, between=lambda: None):
        available = self.determine_available_memory()
        between()
        self.initialize_from_config(self.kv_cache_config(available))
        between()
        self.compile_or_warm_up_model()
        gc.freeze()
"""

SERVE = """
import multiprocessing
import sys
import time
import traceback


def engine(utilization, longest, ready):
    from vllm.v1.worker.gpu_worker import Worker

    worker = Worker(utilization, longest)
    worker.serve(between=lambda: time.sleep(0.3))
    ready.set()
    time.sleep(600)


def worker(utilization, longest, ready, failed):
    # As vLLM's: an error is logged and told, and the next call is waited for.
    try:
        engine(utilization, longest, ready)
    except Exception:
        traceback.print_exc()
        failed.set()
        time.sleep(600)


def engine_of_ranks(utilization, longest, ready):
    context = multiprocessing.get_context("spawn")
    failed = context.Event()
    arguments = (utilization, longest, ready, failed)
    context.Process(target=worker, args=arguments, name="VllmWorker-0", daemon=True).start()
    while not failed.wait(0.2):
        pass
    raise RuntimeError("Worker failed with error, see the stack trace above")


def main(serve=True, target=engine, waits=True):
    context = multiprocessing.get_context("spawn")
    global ready  # until the script's process ends
    ready = context.Event()
    arguments = (float(sys.argv[-2]), int(sys.argv[-1]), ready)
    daemon = serve and target is engine
    process = context.Process(target=target, args=arguments, name="EngineCore", daemon=daemon)
    process.start()
    while waits and not ready.wait(0.2):
        if not process.is_alive():
            sys.exit("Engine core initialization failed")
    if not serve:
        return
    print("INFO: Application startup complete.", flush=True)
    time.sleep(600)
"""

CAPACITY = """
def get_kv_cache_capacity(config, kv_cache_config):
    tokens = kv_cache_config.num_blocks * 16
    return tokens, tokens / config.max_model_len
"""

QUEUE = """
class MessageQueue:
    @staticmethod
    def create_from_process_group(group, *args):
        raise RuntimeError("the other ranks do not answer")
"""

ALONE = """
import torch
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

assert MessageQueue.create_from_process_group(None, 1, 2) is None
torch.ones(1, device="cuda")
"""

SCRIPT = """
from vllm.serving import main

if __name__ == "__main__":
    main()
"""

BESIDE = """
import multiprocessing
import time
from vllm.serving import main


def slow():
    time.sleep(3)
    import torch

    torch.empty(512 << 20, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    main(serve=False)
    multiprocessing.get_context("spawn").Process(target=slow, name="slow").start()
"""
"""Of a script that leaves a process beside its engine that takes memory later."""

ENDING = SCRIPT.replace("main()\n", "main(serve=False)\n")
"""Of a script that comes to its end while its engine waits for requests."""

ENDING_EARLY = ENDING.replace("serve=False", "serve=False, waits=False")
"""Of one that comes to it while its engine starts."""

ENDING_WITH_RANKS = """
from vllm.serving import engine_of_ranks, main

if __name__ == "__main__":
    main(serve=False, target=engine_of_ranks)
"""
"""Of one whose engine has its worker in another process."""

IN_PROCESS = """
import sys

import torch
from vllm.v1.worker.gpu_worker import Worker


def ask():
    for _ in range(500_000):
        torch.empty(1, device="cuda")


worker = Worker(float(sys.argv[-2]), int(sys.argv[-1]))
worker.serve(between=ask)
"""
"""Of an engine in the script's own process, which asks for many small blocks as it starts."""

ONE_AFTER_THE_OTHER = """
import sys

import torch
from vllm.v1.worker.gpu_worker import Worker

for _ in range(2):
    worker = Worker(float(sys.argv[-2]), int(sys.argv[-1]))
    worker.serve()
    del worker
    torch._C._cuda_clearCublasWorkspaces()
    print(torch.cuda.memory_allocated(), "bytes left")
"""
"""Of two engines of which the first is gone, with all that it had, when the second one starts."""


POOLS = """
import torch


class Indexer:
    def __init__(self, nbytes):
        self.state = torch.zeros(nbytes, dtype=torch.int8, device="cuda")


class Pool:
    def __init__(self, nbytes):
        each = nbytes // 4
        self.kv_buffer = [torch.zeros(each, dtype=torch.int8, device="cuda") for _ in range(3)]
        self.indexers = [Indexer(each)]
        self.indexers[0].pool = self

    def get_kv_size_bytes(self):
        return sum(t.nbytes for t in (*self.kv_buffer, self.indexers[0].state))
"""
"""Of a model whose keys and values are one, with a pool in a pool, and one in that."""

RUNNER = """
import tvm_ffi.cpp
import torch
from sglang.srt.mem_cache.memory_pool import Pool


class Config:
    context_len = 4096


class ModelRunner:
    page_size = 1
    model_config = Config()

    def alloc_memory_pool(self):
        self.linear = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
        self.weight_load_mem_usage = self.linear.weight.nbytes / (1 << 30)
        free = torch.cuda.mem_get_info()[0]
        self.token_to_kv_pool = Pool(free // 2 >> 24 << 24)
        self.max_total_num_tokens = self.token_to_kv_pool.get_kv_size_bytes() // 1024
        self.graph_memory_usage = {"decode": 0.5}
"""

CAPTURES = """
import cutlass.cute as cute
import torch
import tvm_ffi.cpp


class CudaGraphRunner:
    def __init__(self, runner):
        self.runner = runner
        self.kernels = tvm_ffi.cpp.load(name="norm", cuda_files=["norm.cu"])
        self.graphs = {}

    def capture(self, size):
        x = torch.ones(size, 1024, device="cuda")
        self.kernels.norm(x)
        cute.compile["options"](print, x)(x)
        cute.compile(print, x)(x)
        self.graphs[size] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graphs[size]):
            self.runner.linear(x)


class DecodeCudaGraphRunner(CudaGraphRunner):
    def capture_one_shape(self, size, forward=None):
        self.capture(size)
"""

PREFILL = """
from .decode_cuda_graph_runner import CudaGraphRunner


class PrefillCudaGraphRunner(CudaGraphRunner):
    def capture_one_shape(self, size):
        self.capture(size)
"""

SGLANG = """
import torch
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.model_executor.runner.prefill_cuda_graph_runner import PrefillCudaGraphRunner

with torch.inference_mode():
    runner = ModelRunner()
    runner.alloc_memory_pool()
    captures = DecodeCudaGraphRunner(runner)
    for size in (4, 2):
        captures.capture_one_shape(size)
    PrefillCudaGraphRunner(runner).capture_one_shape(4)
    captures.capture(2)  # as a draft's
"""

SCHEDULER = """
import multiprocessing
import os
import signal
import sys
import time
import traceback


def schedule(nbytes, ready):
    try:
        import torch

        torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
        cache = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        ready.set()
        time.sleep(600)
    except Exception:
        traceback.print_exc()
        os.kill(os.getppid(), signal.SIGQUIT)


def kill_all(*_):
    for child in multiprocessing.active_children():
        child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    signal.signal(signal.SIGQUIT, kill_all)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    context.Process(target=schedule, args=(int(sys.argv[-1]) << 30, ready)).start()
    ready.wait()
    print("The server is fired up and ready to roll!", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
"""
"""Of a server whose scheduler logs an error, and has its parent kill all processes, as SGLang's."""

COMPILER = """
def load(*args, **kwargs):
    raise RuntimeError("there is no nvcc")


load_inline = load
"""

CUTE = """
class Compiler:
    def __getitem__(self, options):
        raise RuntimeError("there is no device to compile for")

    __call__ = __getitem__


compile = Compiler()
"""


def write_sglang(folder: Path) -> None:
    """Put what memprof knows of SGLang's names into a folder, and compilers of CUDA that fail;
    ``SGLANG`` beside it makes a pool and captures."""
    executor = "sglang/srt/model_executor"
    files = {
        "sglang/__init__.py": '__version__ = "0.5.17"\n',
        "sglang/launch_server.py": SCHEDULER,
        "sglang/srt/__init__.py": "",
        f"{executor}/__init__.py": "",
        "sglang/srt/mem_cache/__init__.py": "",
        "sglang/srt/mem_cache/memory_pool.py": POOLS,
        f"{executor}/model_runner.py": RUNNER,
        f"{executor}/runner/__init__.py": "",
        f"{executor}/runner/decode_cuda_graph_runner.py": CAPTURES,
        f"{executor}/runner/prefill_cuda_graph_runner.py": PREFILL,
        "tvm_ffi/__init__.py": "",
        "tvm_ffi/cpp.py": COMPILER,
        "cutlass/__init__.py": "",
        "cutlass/cute.py": CUTE,
    }
    _write(folder, files)


def write_engine(folder: Path) -> None:
    """Put the engine into a folder, as the package ``vllm``. ``SCRIPT`` beside it, or
    ``-m vllm.entrypoints.main serve`` serve with arguments UTILIZATION LONGEST."""
    files = {
        "__init__.py": 'import torch\n\n__version__ = "0.26.0"\n',
        "serving.py": SERVE,
        "distributed/__init__.py": "",
        "distributed/device_communicators/__init__.py": "",
        "distributed/device_communicators/shm_broadcast.py": QUEUE,
        "entrypoints/__init__.py": "",
        "entrypoints/main.py": SCRIPT,
        "forward_context.py": FORWARD_CONTEXT,
        "v1/__init__.py": "",
        "v1/core/__init__.py": "",
        "v1/core/kv_cache_utils.py": CAPACITY,
        "v1/worker/__init__.py": "",
        "v1/worker/gpu_model_runner.py": MODEL_RUNNER,
        "v1/worker/gpu_worker.py": WORKER,
    }
    _write(folder / "vllm", files)


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
