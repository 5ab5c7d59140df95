"""Private torch that observing needs: the allocators' own account of one call.

Supported: torch 2.11 to 2.15.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

import torch
from torch._C import _autograd, _profiler


@functools.cache
def _cpp_log_level() -> Any:
    """c10's log threshold as a ctypes integer, None where this build does not export it."""
    library = os.path.join(torch.__path__[0], "lib", "libc10.so")
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(library), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


_CPP_LOG_ERROR = 2
_MARK = "memprof:"


class AllocatorEvents:
    """Records what the caching allocators of this thread hand out and take back.

    torch's thread-local (legacy) profiler reports each allocation and release with its signed size,
    for about 40 µs a session; named ranges in between tell where it happened.
    """

    def __init__(self) -> None:
        self.started = False
        self._range: Any = None
        self._former_level: int | None = None

    def start(self) -> bool:
        """True if recording; False if another profiler holds the thread."""
        plain = _profiler._ExperimentalConfig()
        cpu = _profiler.ProfilerState.CPU
        config = _profiler.ProfilerConfig(cpu, False, True, False, False, False, plain)
        try:
            _autograd._enable_profiler_legacy(config)
        except RuntimeError:
            return False
        self.started = True
        # The CPU allocator warns of each release of memory that it handed out before the
        # recording. That is expected here, and nothing the user should have to read.
        level = _cpp_log_level()
        if level is not None and level.value < _CPP_LOG_ERROR:
            self._former_level, level.value = level.value, _CPP_LOG_ERROR
        return True

    def mark(self, number: int) -> None:
        """Everything from here to the next mark happens in ``number``."""
        self._leave()
        self._range = _profiler._RecordFunctionFast(f"{_MARK}{number}")
        self._range.__enter__()

    def _leave(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def stop(self) -> list[tuple[int, int, str]]:
        """``(mark, signed bytes, device)`` in order; the mark is 0 before the first one."""
        self._leave()
        self.started = False
        if self._former_level is not None:
            _cpp_log_level().value = self._former_level
            self._former_level = None
        found: list[tuple[int, int, str]] = []
        mark = 0
        threads: Any = _autograd._disable_profiler_legacy()
        for per_thread in threads:
            for event in per_thread:
                kind = event.kind()
                if kind == "push" and event.name().startswith(_MARK):
                    mark = int(event.name()[len(_MARK) :])
                elif kind == "memory_alloc":
                    if event.cpu_memory_usage():
                        found.append((mark, event.cpu_memory_usage(), "cpu"))
                    if event.cuda_memory_usage():
                        # This profiler knows the kind of device only.
                        found.append((mark, event.cuda_memory_usage(), "cuda"))
        return found
