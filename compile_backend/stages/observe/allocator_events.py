"""The allocators' own account of one call."""

from __future__ import annotations

from typing import Any

from ... import _torch_compat as compat

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
        try:
            compat.enable_legacy_profiler()
        except RuntimeError:
            return False
        self.started = True
        # The CPU allocator warns of each release of memory that it handed out before the
        # recording. That is expected here, and nothing the user should have to read.
        level = compat.cpp_log_level()
        if level is not None and level.value < _CPP_LOG_ERROR:
            self._former_level, level.value = level.value, _CPP_LOG_ERROR
        return True

    def mark(self, number: int) -> None:
        """Everything from here to the next mark happens in ``number``."""
        self._leave()
        self._range = compat.push_range(f"{_MARK}{number}")
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
            compat.cpp_log_level().value = self._former_level
            self._former_level = None
        found: list[tuple[int, int, str]] = []
        mark = 0
        for per_thread in compat.disable_legacy_profiler():
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
