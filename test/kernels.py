"""Inductor's C++ kernels in tests: compiled when the first is called, all that wait in one go.

Note [Kernels compiled together]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inductor compiles each kernel of a CPU graph by itself. Three quarters of that are the same for
every kernel: the compiler instantiates what the functions of ``cpp_prefix.h`` need, precompiled or
not, and the linker reads libraries. In tests a kernel waits until one is called; then all that
wait, the backward's too, are compiled as one source file, with Inductor's flags by Inductor's own
``CppPythonBindingsCodeCache``. The text of each kernel stays what Inductor wrote: only its name,
``kernel`` for all of them, is another by way of a macro. One that is never called is never
compiled, and a process compiles the same text once.

What is no such function alone (a kernel of ``cpp_wrapper`` or of a template) is left to Inductor,
as is everything in scripts that tests run, in worker processes of Inductor's, and under a torch
that has none of this under these names.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

# A kernel as Inductor writes it: includes, then one function that is named like all others.
_KERNEL = re.compile(r'\s*(#include [^\n]*\n\s*)*extern "C"\s+void\s+kernel\(')
_known: dict[tuple[tuple[str, ...], str], Kernel] = {}
_waiting: list[Kernel] = []
_lock = threading.RLock()


class Kernel:
    """What generated code calls: the compiled function, which is made at the first call."""

    def __init__(self, types: tuple[str, ...], source: str) -> None:
        self.types = types
        self.source = source
        self._function: Callable[..., None] | None = None

    def __call__(self, *args: Any) -> None:
        if self._function is None:
            _compile_waiting()
            assert self._function is not None
        self._function(*args)

    def has_compiled(self, function: Callable[..., None]) -> None:
        self._function = function


def compile_together() -> None:
    """From now on, if Inductor is imported. See Note [Kernels compiled together]."""
    module: Any = sys.modules.get("torch._inductor.async_compile")
    own = getattr(getattr(module, "AsyncCompile", None), "cpp_pybinding", None)
    if own is None or hasattr(own, "__wrapped__"):
        return

    @functools.wraps(own)
    def cpp_pybinding(self: Any, argtypes: Sequence[str], source_code: str) -> Any:
        if module.get_compile_threads() > 1 or not _KERNEL.match(source_code):
            return own(self, argtypes, source_code)
        module.kernel_code_log.info("CPP+Bindings Kernel:\n%s", source_code)
        with _lock:
            key = tuple(argtypes), source_code
            if key not in _known:
                _known[key] = Kernel(*key)
                _waiting.append(_known[key])
            return _known[key]

    module.AsyncCompile.cpp_pybinding = cpp_pybinding


def _compile_waiting() -> None:
    with _lock:
        if not _waiting:
            return  # another thread has been here
        function = _compile(_waiting)
        for number, kernel in enumerate(_waiting):
            missing = [None] * (max(len(k.types) for k in _waiting) - len(kernel.types))
            kernel.has_compiled(_nth(function, number, missing))
        _waiting.clear()


def _nth(function: Callable[..., None], number: int, missing: list[None]) -> Callable[..., None]:
    return lambda *args: function(number, *args, *missing)


def _compile(kernels: Sequence[Kernel]) -> Callable[..., None]:
    """A function of the number of a kernel, its arguments and as many more as another takes."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    sources = ["#include <torch/csrc/inductor/cpp_prefix.h>"]
    calls = []
    for number, kernel in enumerate(kernels):
        sources += [f"#define kernel kernel_{number}", kernel.source, "#undef kernel"]
        args = ", ".join(
            f"parse_arg<{type_.replace('const ', '')}>(args, {position})"
            for position, type_ in enumerate(kernel.types, start=1)
        )
        calls.append(f"case {number}: kernel_{number}({args}); break;")

    class Together(CppPythonBindingsCodeCache):
        cache: dict[str, Any] = {}  # noqa: RUF012
        call_entry_function = (
            "switch (parse_arg<int64_t>(args, 0)) {{" + " ".join(calls) + "}} Py_RETURN_NONE;"
        )

    # Only their number matters here: calls of their own take the arguments apart.
    types = ["int64_t", *["void*"] * max(len(k.types) for k in kernels)]
    function: Callable[..., None] = Together.load_pybinding(types, "\n".join(sources))
    return function
