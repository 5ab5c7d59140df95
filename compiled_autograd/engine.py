"""Switching compiled autograd on and off.

Note [Who captures]
~~~~~~~~~~~~~~~~~~~
The engine has one factory of compilers and one cache of captured graphs, whoever captured
them. ``enable`` sets the factory; it and torch's own ``_enable`` may be nested in each
other. Whenever the compiler function changes, the cache is cleared, or a backward would
run what another function compiled. The same function again keeps its graphs.

``install`` puts our class where torch's ``_enable`` finds its own, so that
``torch._dynamo.config.compiled_autograd = True`` captures with ours.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _torch_compat
from .compiler import AutogradCompilerInstance, CompilerFn
from .errors import CaptureError
from .turn import THREAD, in_turn

_disabled = 0
"""How many ``disable()`` are open. torch's own flag is no count: compiling anything clears it."""
_last: list[Any] = []
"""The ``(compiler function, dynamic)`` whose graphs the engine's cache holds."""


@contextlib.contextmanager
def enable(compiler_fn: CompilerFn, *, dynamic: bool = True) -> Iterator[None]:
    """Capture every backward inside as one graph and run what ``compiler_fn`` makes of it.

    Args:
        compiler_fn: gets the captured ``GraphModule`` and returns a callable with the same
            arguments, e.g. ``functools.partial(torch.compile, backend="inductor")``.
            Returning the module itself runs the graph as it is.
        dynamic: every size is an input of the graph from the start. Otherwise sizes are
            constants until one changes; the graph captured then has that one as an input.

    A backward with ``create_graph=True`` runs in the normal engine: its own backward can be
    captured. So does every backward while torch's stance is "force_eager".

    Raises:
        TypeError: ``compiler_fn`` cannot be called, or ``dynamic`` is no bool.
    """
    if not callable(compiler_fn):
        raise TypeError(f"compiler_fn must be callable, but is {compiler_fn!r}")
    if not isinstance(dynamic, bool):
        raise TypeError(f"dynamic must be True or False, but is {dynamic!r}")
    if _torch_compat.stance_is_force_eager():
        yield
        return
    _torch_compat.prepare_cuda()
    _own_the_cache(compiler_fn, dynamic)
    state = _torch_compat.state()
    factory = functools.partial(AutogradCompilerInstance, compiler_fn)
    prior, prior_dynamic = _torch_compat.set_compiler(factory, dynamic)
    before = state.compiled_autograd_enabled
    state.compiled_autograd_enabled = True
    state.depth += 1
    try:
        # One graph of one backward is run by one thread.
        with (
            torch.autograd.set_multithreading_enabled(False),
            _torch_compat.patched_engine_entry(_entered),
        ):
            yield
    finally:
        state.depth -= 1
        state.compiled_autograd_enabled = before
        _torch_compat.set_compiler(prior, prior_dynamic)
        if isinstance(prior, functools.partial):  # an outer enable() goes on
            _own_the_cache(prior.args[0] if prior.args else prior, prior_dynamic)
        elif prior is not None:
            _own_the_cache(prior, prior_dynamic)


@contextlib.contextmanager
def disable() -> Iterator[None]:
    """Run every backward inside in the normal engine."""
    global _disabled
    state = _torch_compat.state()
    before = (state.compiled_autograd_enabled, state.active_disable_ctx)
    prior, prior_dynamic = _torch_compat.set_compiler(None, False)
    state.compiled_autograd_enabled = False
    state.active_disable_ctx = True
    _disabled += 1
    try:
        yield
    finally:
        _disabled -= 1
        state.compiled_autograd_enabled, state.active_disable_ctx = before
        _torch_compat.set_compiler(prior, prior_dynamic)


def turn_on(
    compiler_fn: CompilerFn,
    *,
    dynamic: bool = False,
    cuda_graphs: bool = False,
    on_unsupported: Callable[[CaptureError], None] | None = None,
) -> bool:
    """``enable`` without an end: for every backward of the process from here on.

    Does nothing where compiled autograd is on already, or off on purpose (inside
    ``disable``, inside a captured backward, under the stance "force_eager").

    Args:
        compiler_fn, dynamic: as for ``enable``.
        cuda_graphs: as for ``AutogradCompilerInstance``.
        on_unsupported: told of a backward that cannot be captured; that backward then runs
            in the normal engine. None raises the error instead.

    Returns:
        Whether it was switched on by this call.
    """
    global _is_on
    state = _torch_compat.state()
    if state.compiled_autograd_enabled and _is_on:
        # The engine's thread-local setting: a captured backward is run by one thread, the one
        # that calls compiled functions.
        torch.autograd.set_multithreading_enabled(False)
    if state.compiled_autograd_enabled or _disabled:
        return False
    if state.in_compiled_autograd_region or _torch_compat.stance_is_force_eager():
        return False
    _torch_compat.prepare_cuda()
    _on.close()  # torch._dynamo.reset() switches off without asking us
    _own_the_cache(compiler_fn, dynamic)
    factory = functools.partial(
        AutogradCompilerInstance,
        compiler_fn,
        cuda_graphs=cuda_graphs,
        any_shape=on_unsupported is not None,
    )
    _torch_compat.set_compiler(factory, dynamic)
    state.compiled_autograd_enabled = True
    _on.enter_context(torch.autograd.set_multithreading_enabled(False))
    _is_on = True

    def entry(run: Callable[..., Any]) -> Callable[..., Any]:
        return _normally_if_unsupported(_entered(run), on_unsupported)

    _on.enter_context(_torch_compat.patched_engine_entry(entry))
    return True


def turn_off() -> None:
    """Undo ``turn_on``; nothing if it was not called."""
    global _is_on
    if _is_on:
        _is_on = False
        _switch_off()
        _on.close()


def _switch_off() -> None:
    state = _torch_compat.state()
    if not state.in_compiled_autograd_region:
        state.compiled_autograd_enabled = False
        _torch_compat.set_compiler(None, False)


_is_on = False
_on = contextlib.ExitStack()


def reset() -> None:
    """Forget every captured graph and why it was captured; switch compiled autograd off.

    Raises:
        RuntimeError: a captured graph is running.
    """
    state = _torch_compat.state()
    if state.in_compiled_autograd_region:
        raise RuntimeError("compiled autograd cannot be reset from inside a captured backward")
    turn_off()
    _switch_off()
    _torch_compat.clear_cache()
    _torch_compat.reset_capture_ids()
    AutogradCompilerInstance.log.clear()
    _last.clear()


def install() -> None:
    """Capture with memprof wherever torch would with its own class.

    That is ``torch._dynamo.config.compiled_autograd = True``. Graphs that torch captured
    before are dropped.
    """
    if not installed():
        _replaced.append(_torch_compat.replace_torchs_class(AutogradCompilerInstance))
        _torch_compat.clear_cache()


def uninstall() -> None:
    """Undo ``install``."""
    if installed():
        _torch_compat.replace_torchs_class(_replaced.pop())
        _torch_compat.clear_cache()


def installed() -> bool:
    """Whether ``install`` is in force."""
    return bool(_replaced)


_replaced: list[Any] = []


def _own_the_cache(compiler_fn: Any, dynamic: bool) -> None:
    # By identity, not equality: two equal partials may close over different things.
    if len(_last) != 2 or _last[0] is not compiler_fn or _last[1] is not dynamic:
        _torch_compat.clear_cache()
        _last[:] = [compiler_fn, dynamic]


def _entered(run: Callable[..., Any]) -> Callable[..., Any]:
    return _normally_if_differentiable(in_turn(run))


def _normally_if_differentiable(run: Callable[..., Any]) -> Callable[..., Any]:
    """The engine refuses to capture ``create_graph=True``; run those in the normal engine."""

    def run_backward(
        outputs: Any, grads: Any, keep: bool, create_graph: bool, *a: Any, **k: Any
    ) -> Any:
        if not create_graph:
            return run(outputs, grads, keep, create_graph, *a, **k)
        with disable():
            return run(outputs, grads, keep, create_graph, *a, **k)

    return run_backward


def _normally_if_unsupported(
    run: Callable[..., Any], tell: Callable[[CaptureError], None] | None
) -> Callable[..., Any]:
    """Where nothing has run yet, the normal engine can take over, whatever it is that failed."""
    if tell is None:
        return run

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        outer, THREAD.being_captured = THREAD.being_captured, False
        try:
            return run(*args, **kwargs)
        except Exception as error:
            # C++ refuses a node or hook that it cannot describe, and DDP's C++ reducer, before
            # anything is captured. An error of the user's the normal engine raises again.
            if not (THREAD.being_captured or _torch_compat.is_refusal(error)):
                raise
            reason = str(error).partition("\n")[0]
            tell(
                error
                if isinstance(error, CaptureError)
                else CaptureError(f"{type(error).__name__}: {reason}")
            )
        finally:
            THREAD.being_captured = outer
        with disable():
            return run(*args, **kwargs)

    return run_backward
