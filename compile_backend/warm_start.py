"""Graphs that come from AOTAutograd's cache, without being traced or compiled.

Note [Warm starts]
~~~~~~~~~~~~~~~~~~
A hit in AOTAutograd's cache calls no compiler: the program of a process with warm caches is traced
by Dynamo alone, and what stands around a compilation is not asked. What torch does call is
``FxGraphCacheLoadable`` (``BundledOutputCodeLoadable`` where an entry contains its code): ``load``
for the forward and the backward, then ``post_compile`` for both. memprof stands around the two.

What it would have learned from the graph stands in a companion of the entry (``companion.py``),
which is found by AOTAutograd's key, Inductor's, the generated code, and a digest of what these
leave out. ``load`` looks for it: without a companion that is whole, of this version and of this
program's names, the hit is taken as a miss, before anything was set. Nothing is ever named, or
decided, by another program's. Where torch is told that a miss is an error
(``strict_autograd_cache``, ``strict_precompile``), the graph runs as plain Inductor code instead.

``post_compile`` runs inside of the stages that stand around a compilation: so CUDA graphs, their
static and mutated inputs, and partitions are what Inductor's own ``post_compile`` finds in the
entry, as after a miss.

Entries of memprof and of plain Inductor have different keys (``cache_key_tag``): one of plain
Inductor's has no companion, and would be taken as a miss each time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from memprof.profiler.sources.allocator.replaced import Undo, replace
from memprof.profiler.support.process_hooks import ForkSafeLock

from . import _torch_compat, companion as companions
from .companion import Companion
from .inner_compile import InnerCompile
from .session.runtime import RUNTIME
from .stages.provenance import artifact as artifacts

KEY_TAG = f"memprof-{artifacts.VERSION}-{companions.VERSION}"
"""What tells memprof's entries of AOTAutograd's cache from others."""

_compiling = threading.local()
"""``inner``: the inner compile of the graph that this thread compiles; not set: none of ours."""
_INSTALL = ForkSafeLock()
_installed: list[Undo] = []
"""What takes back the functions of torch that are replaced; empty until they are."""


@contextlib.contextmanager
def serving_hits(inner: InnerCompile) -> Iterator[None]:
    """What this thread takes from AOTAutograd's cache inside belongs to ``inner``'s graph."""
    _install()
    outer = getattr(_compiling, "inner", None)
    _compiling.inner = inner
    try:
        told_apart = inner.lines.told_apart if inner.lines is not None else ""
        with _torch_compat.tagged_keys(f"{KEY_TAG}{told_apart}"):
            yield
        inner.note_hits()
    finally:
        _compiling.inner = outer


def _install() -> None:
    """Stand around what makes keys of entries and loads them, once a process."""
    with _INSTALL:
        if not _installed:
            caches = _torch_compat.autograd_cache_module()
            _installed.append(replace([caches], "autograd_cache_key", _noting))
            for loadable in _torch_compat.aot_loadables():
                _installed.append(replace([loadable], "load", _loading))
                _installed.append(replace([loadable], "post_compile", _finishing))


def _noting(plain: Callable[..., Any]) -> Callable[..., Any]:
    def autograd_cache_key(*args: Any, **kwargs: Any) -> Any:
        found = plain(*args, **kwargs)
        inner: InnerCompile | None = getattr(_compiling, "inner", None)
        if inner is not None:
            inner.traced_key = found[0]
        return found

    return autograd_cache_key


def _loading(plain: Callable[..., Any]) -> Callable[..., Any]:
    def load(self: Any, example_inputs: Any) -> Any:
        inner: InnerCompile | None = getattr(_compiling, "inner", None)
        found = plain(self, example_inputs)
        if inner is not None:
            self._memprof_known = _known(inner, found)
            if self._memprof_known is None and not _torch_compat.misses_are_errors():
                raise _torch_compat.aot_cache_miss("memprof does not know this entry's graphs")
        return found

    return load


def _known(inner: InnerCompile, compiled: Any) -> Companion | None:
    try:
        entry = inner.entry_of(compiled)
        return companions.load(entry, inner.lines) if entry and inner.lines else None
    except Exception as error:
        RUNTIME.ledger.fallback(None, "reading what is stored beside AOTAutograd's cache", error)
        return None


def _finishing(plain: Callable[..., Any]) -> Callable[..., Any]:
    def post_compile(self: Any, result: Any, fx_config: Any) -> Any:
        inner: InnerCompile | None = getattr(_compiling, "inner", None)
        if inner is None:
            return plain(self, result, fx_config)
        return inner.wrap_hit(
            getattr(self, "_memprof_known", None),
            result,
            fx_config,
            lambda given: plain(self, result, given),
        )

    return post_compile
