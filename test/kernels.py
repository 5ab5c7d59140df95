"""Inductor's C++ kernels in tests: compiled when the first is called, all that wait in one go; and
not at all where a test says that no value matters to it.

Note [Kernels compiled together]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inductor compiles each kernel of a CPU graph by itself. Three quarters of that are the same for
every kernel: the compiler instantiates what the functions of ``cpp_prefix.h`` need, precompiled or
not, and the linker reads libraries. In tests a kernel waits until one is called; then all that
wait, which are those of a graph at least, are compiled as one source file, with Inductor's flags by
Inductor's own ``CppPythonBindingsCodeCache``. The text of each kernel stays what Inductor wrote:
only its name, ``kernel`` for all of them, is another by way of a macro. One that is never called is
never compiled, and a process compiles the same text once.

What is no such function alone (a kernel of ``cpp_wrapper`` or of a template) is left to Inductor,
as is everything in scripts that tests run, in worker processes of Inductor's, and under a torch
that has none of this under these names.

Note [Kernels that write zeros]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Most of what memprof says does not depend on a single value: which buffers there are, when they
begin and end, where they are from, what was called. A test of that alone has the marker
``zero_kernels``: everything is compiled and runs as ever, Inductor's wrapper and ATen's operators
too, but a kernel fills what it would write with zeros, and no compiler is called for it. No test
that looks at a value, or compares with what other kernels compute, may have the marker. The models
of test/acceptance and the features of test/compile_backend run with real kernels, beside Inductor.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

# A kernel as Inductor writes it: includes, then one function that is named like all others.
_KERNEL = re.compile(r'\s*(#include [^\n]*\n\s*)*extern "C"\s+void\s+kernel\(')
_known: dict[tuple[tuple[str, ...], str], Kernel] = {}
_waiting: dict[Kernel, None] = {}
_lock = threading.RLock()
_zeros = False


class Kernel:
    """What generated code calls: the compiled function, which is made at the first call."""

    def __init__(self, types: tuple[str, ...], source: str) -> None:
        self.types = types
        self.source = source
        self._function: Callable[..., None] | None = None

    def __call__(self, *args: Any) -> None:
        if _zeros:
            self._write_zeros(args)
            return
        if self._function is None:
            _compile_with(self)
            assert self._function is not None
        self._function(*args)

    @property
    def compiled(self) -> bool:
        return self._function is not None

    def has_compiled(self, function: Callable[..., None]) -> None:
        self._function = function

    def _write_zeros(self, args: Sequence[Any]) -> None:
        for type_, arg in zip(self.types, args, strict=True):
            if not type_.endswith("*") or type_.startswith("const "):
                continue
            # All of what is written, whatever the order of its dimensions: nothing lies between.
            if arg.nbytes == _extent(arg):
                # Not an operator: whoever watches operators would see one that is not there.
                ctypes.memset(arg.data_ptr(), 0, arg.nbytes)


def _extent(tensor: Any) -> int:
    """Bytes from the first to behind the last element of a tensor."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def write_zeros(yes: bool) -> None:
    """Whether kernels write zeros from now on. See Note [Kernels that write zeros]."""
    global _zeros
    with _lock:
        _zeros = yes
        _waiting.clear()  # whoever calls one of another test's waits for it alone


def compile_together() -> None:
    """From now on, if Dynamo is imported. See Note [Kernels compiled together]."""
    if "torch._inductor" not in sys.modules:
        return
    import torch._inductor.async_compile as module

    own: Any = getattr(module.AsyncCompile, "cpp_pybinding", None)
    if own is None or hasattr(own, "__wrapped__"):
        return

    @functools.wraps(own)
    def cpp_pybinding(self: Any, argtypes: Sequence[str], source_code: str) -> Any:
        if module.get_compile_threads() > 1 or not _KERNEL.match(source_code):
            return own(self, argtypes, source_code)
        module.kernel_code_log.info("CPP+Bindings Kernel:\n%s", source_code)
        with _lock:
            key = tuple(argtypes), source_code
            kernel = _known.setdefault(key, Kernel(*key))
            if not kernel.compiled:
                _waiting[kernel] = None
            return kernel

    module.AsyncCompile.cpp_pybinding = cpp_pybinding  # type: ignore[method-assign]


def _compile_with(kernel: Kernel) -> None:
    """Compile this one and those that wait."""
    with _lock:
        if kernel.compiled:
            return  # another thread has been here
        kernels = list(_waiting | {kernel: None})
        _waiting.clear()
        function = _compile(kernels)
        most = max(len(k.types) for k in kernels)
        for number, each in enumerate(kernels):
            each.has_compiled(_nth(function, number, [None] * (most - len(each.types))))


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
