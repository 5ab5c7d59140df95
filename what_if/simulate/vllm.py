"""Reads what a worker of vLLM has measured and decided: weights, graphs, KV cache.

Everything here knows names of vLLM's, as versions 0.24 to 0.26 and 0.33 have them
(``v1/worker/gpu_worker``, ``v1/core/kv_cache_utils``, ``forward_context``). A name that is not
there costs its figure, and nothing else.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from memprof.simulated_cuda import control
from memprof.simulated_cuda.after_import import after_import

from .engine_memory import SIZES, UNKNOWN, Serving, name_of, read
from .outside import take_once
from .wrapping import after_call, before_call

_METHODS = ("determine_available_memory", "initialize_from_config")


@dataclass
class _Workers:
    """Workers of this process so far, none of which is kept: what an engine had that is gone is
    free. The figures are the last one's, and buffers of its sampler, which come after its graphs,
    make it ready."""

    figures: Serving | None = None
    starts: bool = False
    ready: int = 0


_WORKERS = _Workers()


def starts() -> bool:
    """Tells whether the last worker of this process is not ready yet, from its profile run on."""
    return _WORKERS.starts


def ready() -> int:
    """Number of this process's workers that have become ready."""
    return _WORKERS.ready


def follow_workers() -> None:
    """Keep each worker that this process makes, for ``serving``."""
    after_import("vllm.v1.worker.gpu_worker", _worker_is_there)
    after_import("vllm.forward_context", _forwards_are_there)
    after_import("vllm.v1.worker.gpu_model_runner", _captures_are_there)
    after_import("vllm.v1.worker.gpu.model_runner", _runner_is_there)


def follow_alone() -> None:
    """Have a rank whose peers are not there broadcast by its group, which stands in for them, and
    not through a queue in shared memory that nobody reads."""

    def queues_are_there(module: ModuleType) -> None:
        queue: Any = getattr(module, "MessageQueue", None)
        if hasattr(queue, "create_from_process_group"):
            queue.create_from_process_group = staticmethod(lambda *args, **kwargs: None)

    after_import("vllm.distributed.device_communicators.shm_broadcast", queues_are_there)


def _forwards_are_there(module: ModuleType) -> None:
    """Note for how many tokens each forward is: a graph is captured in one, or after one."""

    def note_size(*_: Any, **kwargs: Any) -> None:
        SIZES.next = read(lambda: (int(kwargs["num_tokens"]), "tokens"), UNKNOWN)

    if hasattr(module, "set_forward_context"):
        before_call(module, "set_forward_context", note_size)
        SIZES.install()


def _worker_is_there(module: ModuleType) -> None:
    worker: Any = getattr(module, "Worker", None)
    if not all(hasattr(worker, name) for name in _METHODS):
        return
    before_call(worker, "initialize_from_config", _initializes)
    before_call(worker, "determine_available_memory", _profiles)
    if hasattr(worker, "compile_or_warm_up_model"):
        after_call(worker, "compile_or_warm_up_model", _is_warm)


def _captures_are_there(module: ModuleType) -> None:
    runner: Any = getattr(module, "GPUModelRunner", None)
    if hasattr(runner, "capture_model"):
        after_call(runner, "capture_model", _keep_graphs)


def _keep_graphs(nbytes: object, *_: Any) -> None:
    if _WORKERS.figures is not None and isinstance(nbytes, int):
        _WORKERS.figures.graphs = nbytes


def _profiles(worker: Any, *_: Any, **__: Any) -> None:
    take_once("kernels")
    _WORKERS.starts = hasattr(worker, "compile_or_warm_up_model")
    _WORKERS.ready += not _WORKERS.starts


def _is_warm(*_: object) -> None:
    _WORKERS.starts = False
    _WORKERS.ready += 1


def _runner_is_there(module: ModuleType) -> None:
    """Have each request get a token from a forward that ends behind its prompt.

    A kernel counts them, and without values it counts none, so that ``generate()`` would wait for
    ever. The first model runner of vLLM counts on the host.
    """
    _captures_are_there(module)
    runner: Any = getattr(module, "GPUModelRunner", None)
    sample: Callable[..., Any] | None = getattr(runner, "sample", None)
    if sample is None or not control.simulated():
        return

    @functools.wraps(sample)
    def sample_one(*args: Any, **kwargs: Any) -> Any:
        result = sample(*args, **kwargs)
        read(lambda: _sample(kwargs.get("input_batch") or args[2], *result[1:3]))
        return result

    runner.sample = sample_one


def _sample(batch: Any, sampled: Any, rejected: Any) -> None:
    """Give each request of a batch whose prompt the forward has read to its end one token, and
    reject all its drafts."""
    import torch

    ends = batch.num_computed_tokens_np + batch.num_scheduled_tokens >= batch.prefill_len_np
    sampled.copy_(torch.from_numpy(ends))
    drafts = batch.num_draft_tokens_per_req
    rejected.copy_(torch.from_numpy(ends * (0 if drafts is None else drafts)))


def _initializes(worker: Any, kv_cache_config: Any, *_: Any, **__: Any) -> None:
    SIZES.forget()
    found = _WORKERS.figures = Serving(engine=name_of("vLLM", "vllm"))
    found.weights = read(lambda: int(worker.model_runner.model_memory_usage))
    found.activations = read(lambda: int(worker.peak_activation_memory))
    found.outside = read(lambda: int(worker.non_torch_memory))
    found.graphs_estimated = read(lambda: int(worker.cudagraph_memory_estimate))
    if hasattr(worker, "total_consumed") and found.activations and _counts_graphs():
        found.activations -= found.graphs_estimated or 0  # 0.33 adds it.
    found.kv_cache = read(lambda: _cache_bytes(kv_cache_config.kv_cache_tensors))
    found.blocks = read(lambda: int(kv_cache_config.num_blocks))
    found.longest = read(lambda: int(worker.model_config.max_model_len))
    capacity = read(lambda: _capacity(worker.vllm_config, kv_cache_config))
    if capacity is not None:
        found.tokens, found.requests = capacity


def serving() -> Serving | None:
    """Memory of the last vLLM worker of this process; None where there is none."""
    found = _WORKERS.figures
    if found is not None:
        found.graph_sizes = SIZES.rows()
    return found


def _counts_graphs() -> bool:
    """Tells whether vLLM takes its estimate of graphs off the cache."""
    envs: Any = sys.modules.get("vllm.envs")
    return bool(read(lambda: envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS, True))


def _cache_bytes(tensors: list[Any]) -> int:
    """Bytes of a cache whose tensors have memory each, or in 0.33 lie in one allocation, whose size
    each of them says."""
    if hasattr(tensors[0], "layer_stride"):
        return int(tensors[0].size)
    return sum(int(tensor.size) for tensor in tensors)


def _capacity(vllm_config: Any, kv_cache_config: Any) -> tuple[int, float]:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity  # type: ignore[import-not-found]

    tokens, requests = get_kv_cache_capacity(vllm_config, kv_cache_config)
    return int(tokens), float(requests)
