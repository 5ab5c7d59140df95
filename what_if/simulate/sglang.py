"""Reads what a scheduler of SGLang has decided: weights, graphs, pool of keys and values.

Everything here knows names of SGLang's, as versions 0.5.17 and 0.5.23 have them
(``srt/model_executor``). A name that is not there costs its figure, and nothing else.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from memprof.simulated_cuda.after_import import after_import

from .engine_memory import SIZES, Serving, name_of, read
from .outside import take
from .wrapping import after_call, before_call

_PACKAGE = "sglang.srt.model_executor"
_CAPTURES = ("DecodeCudaGraphRunner", "PrefillCudaGraphRunner")
_runners: list[Any] = []


def follow_runners() -> None:
    """Keep each runner of a model that this process makes, for ``serving``."""
    after_import(f"{_PACKAGE}.model_runner", _runner_is_there)
    for phase in ("decode", "prefill"):
        after_import(f"{_PACKAGE}.runner.{phase}_cuda_graph_runner", _captures_are_there)


def _runner_is_there(module: ModuleType) -> None:
    runner: Any = getattr(module, "ModelRunner", None)
    if not hasattr(runner, "alloc_memory_pool"):
        return
    before_call(runner, "alloc_memory_pool", lambda self, *_, **__: _runners.append(self))
    # The pool gets a share of what is free before anything has run.
    after_call(runner, "alloc_memory_pool", lambda _, self: take("kernels"))


def _captures_are_there(module: ModuleType) -> None:
    """Note for which size each graph is captured: requests of a decoding step, tokens of others."""
    for name in _CAPTURES:
        captures: Any = module.__dict__.get(name)
        if hasattr(captures, "capture_one_shape"):
            before_call(captures, "capture_one_shape", _note_size)
            SIZES.install()


def _note_size(_: Any, size: int, *__: Any, **___: Any) -> None:
    SIZES.size = size


def pools() -> list[object]:
    """Objects whose tensors are the keys and values of this process's runners."""
    found = (getattr(runner, "token_to_kv_pool", None) for runner in _runners)
    return [pool for pool in found if pool is not None]


def serving() -> Serving | None:
    """Memory of the last runner of this process, but of a draft's beside it; None where there is
    none."""
    targets = [r for r in _runners if not getattr(r, "is_draft_worker", False)]
    if not targets:
        return None
    runner = targets[-1]
    found = Serving(engine=name_of("SGLang", "sglang"))
    found.weights = read(lambda: int(runner.weight_load_mem_usage * (1 << 30)))
    found.graphs = read(lambda: int(sum(runner.graph_memory_usage.values()) * (1 << 30)))
    found.graph_sizes = SIZES.rows()
    found.kv_cache = read(lambda: sum(map(int, runner.token_to_kv_pool.get_kv_size_bytes())))
    found.tokens = read(lambda: int(runner.max_total_num_tokens))
    found.blocks = read(lambda: int(runner.max_total_num_tokens // runner.page_size))
    found.longest = read(lambda: int(runner.model_config.context_len))
    found.requests = read(lambda: runner.max_total_num_tokens / runner.model_config.context_len)
    return found
