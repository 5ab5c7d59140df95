"""Reads what a scheduler of SGLang has decided: weights, graphs, pool of keys and values.

Everything here knows names of SGLang's, as versions 0.5.17 and 0.5.23 have them
(``srt/model_executor``). A name that is not there costs its figure, and nothing else.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

from memprof.simulated_cuda.after_import import after_import

from .engine_memory import SIZES, UNKNOWN, Serving, name_of, read
from .outside import take_once
from .wrapping import after_call, before_call

_PACKAGE = "sglang.srt.model_executor"
_POOLS = "sglang.srt.mem_cache"
_CAPTURES = {"DecodeCudaGraphRunner": "requests", "PrefillCudaGraphRunner": "tokens"}
_runners: list[weakref.ref[Any]] = []
"""Not kept: what a runner had that is gone is free."""
_figures: list[Serving] = []
"""Those of the last one, but of a draft's beside it."""


def follow_runners() -> None:
    """Keep each runner of a model that this process makes, for ``serving``."""
    after_import(f"{_PACKAGE}.model_runner", _runner_is_there)
    for phase in ("decode", "prefill"):
        after_import(f"{_PACKAGE}.runner.{phase}_cuda_graph_runner", _captures_are_there)


def _runner_is_there(module: ModuleType) -> None:
    runner: Any = getattr(module, "ModelRunner", None)
    if not hasattr(runner, "alloc_memory_pool"):
        return
    before_call(runner, "alloc_memory_pool", _allocates)
    after_call(runner, "alloc_memory_pool", _has_allocated)


def _allocates(runner: Any, *_: Any, **__: Any) -> None:
    _runners.append(weakref.ref(runner))
    _record(runner)


def _has_allocated(_: object, runner: Any) -> None:
    _record(runner)
    # The pool gets a share of what is free before anything has run.
    take_once("kernels")


def _captures_are_there(module: ModuleType) -> None:
    """Note for which size each graph is captured: requests of a decoding step, tokens of others."""
    for name, unit in _CAPTURES.items():
        captures: Any = module.__dict__.get(name)
        if hasattr(captures, "capture_one_shape"):
            before_call(captures, "capture_one_shape", functools.partial(_note_size, unit))
            # What a draft's graphs are for is not known.
            after_call(captures, "capture_one_shape", _note_unknown)
            SIZES.install()


def _note_size(unit: str, _: Any, size: int, *__: Any, **___: Any) -> None:
    SIZES.next = (size, unit)


def _note_unknown(*_: object) -> None:
    SIZES.next = UNKNOWN


def pools() -> list[object]:
    """Objects whose tensors are the keys and values of this process's runners, and what these are
    made of: of some models a pool for layers of each kind."""
    found: list[object] = []
    ahead = [getattr(runner(), "token_to_kv_pool", None) for runner in _runners]
    while ahead:
        pool = ahead.pop()
        if not hasattr(pool, "__dict__") or any(pool is known for known in found):
            continue
        found.append(pool)
        for value in vars(pool).values():
            inside = value if isinstance(value, list) else [value]
            ahead += [x for x in inside if type(x).__module__.startswith(_POOLS)]
    return found


def serving() -> Serving | None:
    """Memory of the last runner of this process, but of a draft's beside it; None where there is
    none."""
    for runner in _runners:
        _record(runner())
    return _figures[0] if _figures else None


def _record(runner: Any) -> None:
    if runner is None or getattr(runner, "is_draft_worker", False):
        return
    found = Serving(engine=name_of("SGLang", "sglang"))
    _figures[:] = [found]
    found.weights = read(lambda: int(runner.weight_load_mem_usage * (1 << 30)))
    found.graphs = read(lambda: int(sum(runner.graph_memory_usage.values()) * (1 << 30)))
    found.graph_sizes = SIZES.rows()
    found.kv_cache = read(lambda: _bytes(runner.token_to_kv_pool.get_kv_size_bytes()))
    found.tokens = read(lambda: int(runner.max_total_num_tokens))
    found.blocks = read(lambda: int(runner.max_total_num_tokens // runner.page_size))
    found.longest = read(lambda: int(runner.model_config.context_len))
    found.requests = read(lambda: runner.max_total_num_tokens / runner.model_config.context_len)


def _bytes(found: Any) -> int:
    """Bytes of keys and of values, or of what stands for both in MLA."""
    return sum(map(int, found)) if isinstance(found, tuple) else int(found)
