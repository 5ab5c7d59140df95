"""Switch of capture: who captures backwards at present, in a process with several threads.

Note [One switch, several threads]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The engine has one compiler for the whole process, and so there is one switch. Threads turn it on
and off in contexts that overlap: two in ``disable()``, one of which leaves first, or one that
leaves ``disable()`` while another's captured graph runs. Whoever put back what it found would
switch compiled autograd off for good, or on inside of a run. So each context is a ``Claim``, a
place in one list, and holds what was in force below it. Leaving the topmost puts that back; leaving
one below hands it to the claim above. A run of a captured graph is always on top: until it is over
the engine cannot capture.

torch's own ``_disable`` is a claim too (``engine.py`` replaces it for good): AOTAutograd compiles
inside of it, which may take minutes, and other threads run captured graphs meanwhile. What torch's
``_enable`` does in between is put back like anything else, where one is nested in the other.

Note [Backwards of several threads]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The engine refuses a backward that begins while another thread is being captured. So whoever enters
it while compiled autograd is on takes a turn. It ends when the captured graph begins to run: from
then on compiled autograd is off (``runtime.py``), others run in the normal engine beside it, and a
hook may wait for another thread's backward.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from memprof.profiler.support.process_hooks import ForkSafeLock, on_fork

from . import _torch_compat
from .errors import CaptureError

OnUnsupported = Callable[[CaptureError], None]


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """Setting of the engine: whether backwards are captured, and by whom."""

    factory: _torch_compat.Factory | None  # of compilers; None for the normal engine
    dynamic: bool  # of ``enable``
    enabled: bool  # torch's flag ``compiled_autograd_enabled``
    off_on_purpose: bool | None  # torch's flag ``active_disable_ctx``; None leaves it as it is


OFF = EngineSetting(None, False, enabled=False, off_on_purpose=True)
"""Setting inside ``disable()`` and while a captured graph runs."""


@dataclass(eq=False, slots=True)
class Claim:
    """An open context that has put a setting in force."""

    below: EngineSetting  # was in force before it, and is to be put back
    captures: bool  # it switches on
    on_top: bool  # it stays above whatever is opened after it
    runs: bool  # a captured graph runs
    thread: int  # that opened it
    on_unsupported: OnUnsupported | None
    """Called with the error of a backward that cannot be captured, which then runs in the normal
    engine; None where the error is the user's."""


class Switch:
    """The switch of the process. Its lock is held while it changes; whoever also takes a turn takes
    that one first."""

    def __init__(self) -> None:
        self.lock = ForkSafeLock()
        self._claims: list[Claim] = []
        on_fork(self._after_fork)

    def _after_fork(self) -> None:
        # Only the thread that has forked is in the child: nobody would leave a context of another
        # one. What switches on stays: ``turn_on`` has no end.
        for claim in [c for c in self._claims if not c.captures]:
            if claim.thread != threading.get_ident():
                self.close(claim)
        state = _torch_compat.state
        state.in_compiled_autograd_region = any(c.runs for c in self._claims)

    def open(
        self,
        wanted: EngineSetting,
        *,
        on_top: bool = False,
        runs: bool = False,
        on_unsupported: OnUnsupported | None = None,
    ) -> Claim:
        """Put ``wanted`` in force, below what is to stay on top, as what runs always does."""
        with self.lock:
            at = len(self._claims)
            on_top |= runs
            while not on_top and at and self._claims[at - 1].on_top:
                at -= 1
            if at == len(self._claims):
                below = _apply(wanted)
            else:
                above = self._claims[at]
                below = above.below
                if wanted.off_on_purpose is None:
                    wanted = replace(wanted, off_on_purpose=below.off_on_purpose)
                above.below = wanted
            claim = Claim(
                below,
                wanted.factory is not None,
                on_top,
                runs,
                threading.get_ident(),
                on_unsupported,
            )
            self._claims.insert(at, claim)
            return claim

    def close(self, claim: Claim) -> EngineSetting:
        """Put back what was in force below ``claim``, at once or when those above it close."""
        with self.lock:
            at = self._claims.index(claim)
            self._claims.pop(at)
            if at == len(self._claims):
                _apply(claim.below)
            else:
                self._claims[at].below = claim.below
            return claim.below

    def off(self) -> None:
        """Switch capture off, as long as no open context closes."""
        with self.lock:
            _apply(EngineSetting(None, False, enabled=False, off_on_purpose=None))

    @property
    def off_on_purpose(self) -> bool:
        """Tells whether a ``disable()``, ours or torch's, is open in any thread."""
        return any(not (c.captures or c.runs) for c in self._claims)

    @property
    def running(self) -> bool:
        """Tells whether a captured graph runs in any thread."""
        return bool(_torch_compat.state.in_compiled_autograd_region)

    def is_on(self) -> bool:
        """Tells whether a backward that begins now is captured."""
        return bool(_torch_compat.state.compiled_autograd_enabled)

    @property
    def on_unsupported(self) -> OnUnsupported | None:
        claims = self._claims
        return claims[-1].on_unsupported if claims else None


def _apply(setting: EngineSetting) -> EngineSetting:
    state: Any = _torch_compat.state
    enabled, off_on_purpose = state.compiled_autograd_enabled, state.active_disable_ctx
    state.compiled_autograd_enabled = setting.enabled
    if setting.off_on_purpose is not None:
        state.active_disable_ctx = setting.off_on_purpose
    factory, dynamic = _torch_compat.set_compiler(setting.factory, setting.dynamic)
    return EngineSetting(factory, dynamic, enabled, off_on_purpose)


SWITCH = Switch()


# --- one thread captures at a time ---------------------------------------------------------

# Of an RLock the owner is known from the moment that it has it, so that an interrupt (Ctrl+C) in
# between leaves no lock that nobody gives back. Nobody takes it twice.
_lock: Any = threading.RLock()
_forget = False


class _Thread(threading.local):
    """State of the innermost backward of a thread."""

    def __init__(self) -> None:
        # Not of the class: Dynamo of torch 2.11 would look no further than that.
        self.being_captured = False
        """Whether the engine has asked for a capture."""
        self.ran = False
        """Some of the backward has run, a hook or an accumulation; or C++ has let go of what the
        forward saved, or put something else in its place. Before that the normal engine can take
        it."""
        self.entered: tuple[Any, Any] | None = None
        """Outputs and inputs with which the backward was begun."""
        self.is_captured = False
        """Whether the captured graph of this backward runs."""
        self.runs = False
        """Whether the captured graph of this backward or an outer one runs."""

    @contextlib.contextmanager
    def another_backward(self, outputs: Any, inputs: Any) -> Iterator[None]:
        """Inside, the thread runs another backward."""
        outer = self.being_captured, self.ran, self.is_captured, self.entered
        self.being_captured = self.ran = self.is_captured = False
        self.entered = outputs, inputs
        try:
            yield
        finally:
            self.being_captured, self.ran, self.is_captured, self.entered = outer


THREAD = _Thread()


def in_turn(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, which waits while another thread's backward is being captured."""

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        # Inside its own capture a thread does not wait for itself; the engine refuses.
        if not SWITCH.is_on() or _is_mine():
            return run(*args, **kwargs)
        try:
            _lock.acquire()
            if not SWITCH.is_on():  # the one waited for has begun to run
                end_turn()
            else:
                _forget_now()
            return run(*args, **kwargs)
        finally:
            end_turn()

    return run_backward


def end_turn() -> None:
    """Let the next thread capture, if it is this thread's turn."""
    if _is_mine():
        _lock.release()


def _is_mine() -> bool:
    return bool(_lock._is_owned())


def forget_captured_graphs() -> None:
    """Empty the engine's cache before anything is captured again."""
    global _forget
    _forget = True
    if _is_mine():
        return
    try:
        if _lock.acquire(blocking=False):
            _forget_now()
    finally:
        end_turn()


def _forget_now() -> None:
    global _forget
    if _forget:
        _torch_compat.clear_cache()
        _forget = False


@on_fork
def _after_fork() -> None:
    """In a child: the thread whose turn it was may not exist there."""
    global _lock
    if not _is_mine():
        _lock = threading.RLock()
