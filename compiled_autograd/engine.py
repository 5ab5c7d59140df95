"""Switching compiled autograd on and off, and looking at what it captures.

Note [Who captures]
~~~~~~~~~~~~~~~~~~~
The engine has one factory of compilers and one cache of captured graphs, whoever captured
them. ``enable`` sets the factory; it and torch's own ``_enable`` may be nested in each
other. Whenever the compiler function changes, the cache is cleared, or a backward would
run what another function compiled. What several threads do at once is in ``switch.py``.

``install`` puts our class where torch's ``_enable`` finds its own, so that
``torch._dynamo.config.compiled_autograd = True`` captures with ours.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _torch_compat
from .capture import CapturedBackward, Listener
from .compiler import AutogradCompilerInstance, CompilerFn
from .errors import CaptureError
from .switch import (
    OFF,
    SWITCH,
    THREAD,
    Claim,
    EngineSetting,
    OnUnsupported,
    forget_captured_graphs,
    in_turn,
)

_AUTOGRAD: Any = torch.autograd


@contextlib.contextmanager
def enable(compiler_fn: CompilerFn, dynamic: bool = True) -> Iterator[None]:
    """Capture every backward inside as one graph and run what ``compiler_fn`` makes of it.

    Args:
        compiler_fn: gets the captured ``GraphModule`` and returns a callable with the same
            arguments, e.g. ``functools.partial(torch.compile, backend="inductor")``.
            Returning the module itself runs the graph as it is.
        dynamic: every size is an input of the graph from the start. Otherwise sizes are
            constants until one changes; the graph captured then has that one as an input.

    A backward with ``create_graph=True`` runs in the normal engine: its own backward can be
    captured. So does every backward in anomaly mode, and while torch's stance is "force_eager".

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
    # torch's count of contexts must be what it was when one of them is left.
    claim = _open(functools.partial(AutogradCompilerInstance, compiler_fn), dynamic, depth=1)
    try:
        # One graph of one backward is run by one thread.
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        _close(claim, depth=1)


@contextlib.contextmanager
def disable() -> Iterator[None]:
    """Run every backward inside in the normal engine."""
    claim = _torch_compat.unseen_by_dynamo(SWITCH.open)(OFF)
    try:
        yield
    finally:
        _torch_compat.unseen_by_dynamo(SWITCH.close)(claim)


# AOTAutograd compiles inside of torch's, which another thread's run may overlap: Note [One switch,
# several threads].
_torch_compat.state._disable = disable


def capture(fn: Callable[[], Any], *, dynamic: bool = False) -> list[CapturedBackward]:
    """Run ``fn`` and return the graph of every backward that it runs, in order of capture.

    The graphs run as they are, so gradients are computed as usual; nothing is compiled.
    Graphs captured earlier are not reused, later ones do not reuse these.

    Args:
        fn: calls ``backward()`` or ``grad()``, e.g. ``lambda: model(x).sum().backward()``.
        dynamic: as for ``enable``.

    Raises:
        CaptureError: a backward cannot be captured, or ``fn`` ran none.
    """
    found: list[CapturedBackward] = []
    listener = Listener(captured=found.append, ran=lambda capture, hit: None)
    AutogradCompilerInstance.listeners.append(listener)
    try:
        with enable(lambda graph: graph, dynamic=dynamic):
            fn()
    finally:
        AutogradCompilerInstance.listeners.remove(listener)
    if not found:
        raise CaptureError(
            "fn ran no backward that is captured: none at all, or with create_graph=True, in "
            "anomaly mode, inside disable(), or under the stance force_eager"
        )
    return found


def turn_on(
    compiler_fn: CompilerFn,
    *,
    dynamic: bool = False,
    on_unsupported: OnUnsupported | None = None,
) -> bool:
    """``enable`` without an end: for every backward of the process from here on.

    Does nothing where compiled autograd is on already, or off on purpose (inside
    ``disable``, inside a captured backward, under the stance "force_eager").

    Args:
        compiler_fn, dynamic: as for ``enable``.
        on_unsupported: called with the error of a backward that cannot be captured, which then
            runs in the normal engine. None raises the error instead.

    Returns:
        Whether it was switched on by this call.
    """
    if SWITCH.is_on() and _on:
        # The engine's thread-local setting: a captured backward is run by one thread, the one
        # that calls compiled functions.
        torch.autograd.set_multithreading_enabled(False)
    if not _may_turn_on():  # most calls end here, without a lock
        return False
    # CPU scalars of a GPU graph go to the GPU whether or not it becomes a CUDA graph: where one
    # stays, Inductor's code asks for its item(), which at a first call fails for a number that
    # autograd has wrapped (torch 2.11).
    factory = functools.partial(AutogradCompilerInstance, compiler_fn, cuda_graphs=True)
    with SWITCH.lock:
        if not _may_turn_on():
            return False
        turn_off()  # torch._dynamo.reset() switches off without asking us
        settings = contextlib.ExitStack()
        settings.callback(_close, _open(factory, dynamic, on_unsupported))
        settings.enter_context(torch.autograd.set_multithreading_enabled(False))
        _on.append(settings)
    return True


def _may_turn_on() -> bool:
    busy = SWITCH.is_on() or SWITCH.off_on_purpose or SWITCH.running
    return not busy and not _torch_compat.stance_is_force_eager()


def turn_off() -> None:
    """Undo ``turn_on``; nothing if it was not called."""
    with SWITCH.lock:
        if _on:
            _on.pop().close()


_on: list[contextlib.ExitStack] = []
"""The stack that undoes ``turn_on``; at most one."""


@_torch_compat.unseen_by_dynamo
def _open(
    factory: Any, dynamic: bool, on_unsupported: OnUnsupported | None = None, depth: int = 0
) -> Claim:
    _torch_compat.prepare_captures()
    with SWITCH.lock:
        _own_the_cache(factory.args[0], dynamic)
        claim = SWITCH.open(
            EngineSetting(factory, dynamic, True, off_on_purpose=None),
            on_unsupported=on_unsupported,
        )
        _hold_entry()
        _torch_compat.state.depth += depth
    return claim


@_torch_compat.unseen_by_dynamo
def _close(claim: Claim, depth: int = 0) -> None:
    with SWITCH.lock:
        _torch_compat.state.depth -= depth
        _release_entry()
        below = SWITCH.close(claim)
        if below.factory is not None:  # an outer enable() goes on
            arguments = getattr(below.factory, "args", None)
            _own_the_cache(arguments[0] if arguments else below.factory, below.dynamic)


def _own_the_cache(compiler_fn: Any, dynamic: bool) -> None:
    # By identity, not equality: two equal partials may close over different things.
    if len(_last) != 2 or _last[0] is not compiler_fn or _last[1] is not dynamic:
        forget_captured_graphs()
        _last[:] = [compiler_fn, dynamic]


_last: list[Any] = []
"""The ``(compiler function, dynamic)`` whose graphs the engine's cache holds."""


def reset() -> None:
    """Forget every captured graph and why it was captured; switch compiled autograd off.

    Raises:
        RuntimeError: a captured graph is running.
    """
    if SWITCH.running:
        raise RuntimeError("compiled autograd cannot be reset from inside a captured backward")
    turn_off()
    with SWITCH.lock:
        SWITCH.off()
        forget_captured_graphs()
    _torch_compat.reset_capture_ids()
    _last.clear()


def install() -> None:
    """Capture with memprof wherever torch would with its own class, that is with
    ``torch._dynamo.config.compiled_autograd = True``. Graphs that torch captured are dropped."""
    with SWITCH.lock:
        if not installed():
            _replaced.append(_torch_compat.replace_torchs_class(AutogradCompilerInstance))
            _hold_entry()
            forget_captured_graphs()


def uninstall() -> None:
    """Undo ``install``."""
    with SWITCH.lock:
        if installed():
            _torch_compat.replace_torchs_class(_replaced.pop())
            _release_entry()
            forget_captured_graphs()


def installed() -> bool:
    """Tells whether ``install`` is in force."""
    return bool(_replaced)


_replaced: list[Any] = []


_entries = 0
"""Number of open contexts of all threads; while there is one, the function through which
``backward()`` and ``grad()`` enter the engine is replaced. Changed with the switch's lock."""
_entry: Any = None
"""The function that is replaced."""


def _hold_entry() -> None:
    global _entries, _entry
    if _entries == 0:
        _entry = _AUTOGRAD._engine_run_backward
        _AUTOGRAD._engine_run_backward = _entered(_entry)
    _entries += 1


def _release_entry() -> None:
    global _entries
    _entries -= 1
    if _entries == 0:
        _AUTOGRAD._engine_run_backward = _entry


def _entered(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, the engine's entry: in turn, and in the normal engine where it must."""
    as_it_was = _torch_compat.seen_by_dynamo(run)
    captured = in_turn(as_it_was)

    def run_backward(
        outputs: Any, grads: Any, keep: bool, create_graph: bool, inputs: Any, *a: Any, **k: Any
    ) -> Any:
        arguments = (outputs, grads, keep, create_graph, inputs, *a)
        on, on_unsupported = SWITCH.is_on(), SWITCH.on_unsupported
        with THREAD.another_backward(outputs, inputs):
            try:
                # The engine refuses to capture the first, and can name the node in the second.
                if not (on and (create_graph or torch.is_anomaly_enabled())):
                    return captured(*arguments, **k)
            except Exception as error:
                # Where nothing has run yet, the normal engine can take over, whatever it is that
                # failed. C++ refuses a node or hook that it cannot describe, and DDP's C++ reducer,
                # before anything is captured. An error of the user's is raised again there.
                if THREAD.ran or _of_an_inner_one(error):
                    raise
                if not (_torch_compat.is_busy(error) or _torch_compat.is_double_backward(error)):
                    refused = THREAD.being_captured or (on and _torch_compat.is_refusal(error))
                    if on_unsupported is None or not refused:
                        raise
                    reason = str(error).partition("\n")[0]
                    if not isinstance(error, CaptureError):
                        error = CaptureError(f"{type(error).__name__}: {reason}")
                    on_unsupported(error)
            claim = SWITCH.open(OFF, on_top=True)
            try:
                return as_it_was(*arguments, **k)
            finally:
                SWITCH.close(claim)

    def _of_an_inner_one(error: BaseException) -> bool:
        """Tells whether a backward inside of this one, begun by a hook, has failed with
        ``error``.
        """
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return sum(frame.f_code is run_backward.__code__ for frame in frames) > 1

    return _torch_compat.unseen_by_dynamo(run_backward)
