"""Reads what a worker of vLLM has measured and decided: weights, graphs, KV cache.

Everything here knows names of vLLM's, as versions 0.24 to 0.26 and 0.33 have them
(``v1/worker/gpu_worker``, ``v1/core/kv_cache_utils``, ``forward_context``). A name that is not
there costs its figure, and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from memprof.simulated_cuda.after_import import after_import

from .engine_memory import SIZES, Serving, name_of, read
from .outside import take

_METHODS = ("determine_available_memory", "initialize_from_config")
_workers: list[Any] = []
_graphs: dict[int, int] = {}
"""Bytes of CUDA graphs, by worker."""


def follow_workers() -> None:
    """Keep each worker that this process makes, for ``serving``."""
    after_import("vllm.v1.worker.gpu_worker", _worker_is_there)
    after_import("vllm.forward_context", _forwards_are_there)


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
    context: Callable[..., Any] | None = getattr(module, "set_forward_context", None)
    if context is None:
        return

    @functools.wraps(context)
    def set_forward_context(*args: Any, **kwargs: Any) -> Any:
        SIZES.size = read(lambda: int(kwargs["num_tokens"]), 0)
        return context(*args, **kwargs)

    module.set_forward_context = set_forward_context  # type: ignore[attr-defined]
    SIZES.install()


def _worker_is_there(module: ModuleType) -> None:
    worker: Any = getattr(module, "Worker", None)
    if not all(hasattr(worker, name) for name in _METHODS):
        return
    prepare: Callable[..., Any] = worker.initialize_from_config

    @functools.wraps(prepare)
    def initialize_from_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        _workers.append(self)
        SIZES.forget()
        with contextlib.suppress(AttributeError):
            _keep_graphs(self)
        return prepare(self, *args, **kwargs)

    worker.initialize_from_config = initialize_from_config
    profile: Callable[..., Any] = worker.determine_available_memory

    @functools.wraps(profile)
    def determine_available_memory(*args: Any, **kwargs: Any) -> Any:
        take("kernels")
        return profile(*args, **kwargs)

    worker.determine_available_memory = determine_available_memory


def _keep_graphs(worker: Any) -> None:
    capture: Callable[..., Any] = worker.model_runner.capture_model

    @functools.wraps(capture)
    def capture_model(*args: Any, **kwargs: Any) -> Any:
        nbytes = capture(*args, **kwargs)
        if isinstance(nbytes, int):
            _graphs[id(worker)] = nbytes
        return nbytes

    worker.model_runner.capture_model = capture_model


def serving() -> Serving | None:
    """Memory of the last vLLM worker of this process; None where there is none."""
    if not _workers:
        return None
    worker = _workers[-1]
    found = Serving(engine=name_of("vLLM", "vllm"))
    runner = read(lambda: worker.model_runner)
    found.weights = read(lambda: int(runner.model_memory_usage))
    found.activations = read(lambda: int(worker.peak_activation_memory))
    found.outside = read(lambda: int(worker.non_torch_memory))
    found.graphs_estimated = read(lambda: int(worker.cudagraph_memory_estimate))
    if hasattr(worker, "total_consumed") and found.activations and found.graphs_estimated:
        found.activations -= found.graphs_estimated  # 0.33 adds it.
    found.graphs = _graphs.get(id(worker))
    found.graph_sizes = SIZES.rows()
    config = read(lambda: runner.kv_cache_config)
    found.kv_cache = read(lambda: _cache_bytes(config.kv_cache_tensors))
    found.blocks = read(lambda: int(config.num_blocks))
    found.longest = read(lambda: int(worker.model_config.max_model_len))
    capacity = read(lambda: _capacity(worker.vllm_config, config))
    if capacity is not None:
        found.tokens, found.requests = capacity
    return found


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
