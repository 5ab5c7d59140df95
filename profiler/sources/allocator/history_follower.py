"""Follows the history of a process's CUDA allocator, divided by marks.

Note [Marks]
~~~~~~~~~~~~
A mark is where autograd's engine starts and ends, and where an optimizer's step does: one function
is wrapped, and optimizers have hooks, which in compiled ones are nothing. Where in the allocator's
history it lies its statistics tell: how many blocks have been asked for and let go of. (What
``torch.cuda.memory._set_memory_metadata`` puts on entries autograd's own threads do not have.)

Note [Draining the history]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
An entry with Python frames takes kilobytes. So the history is taken and begun anew at marks where
there is a lot of it; where a program comes to no marks, as in inference, a thread has the main
thread do so. Events of other threads between the two are lost, and no more: where the next
snapshot has other sizes than what was followed, its segments are taken over, and each time marks
are counted on from what the allocator itself has counted.

Note [A guest]
~~~~~~~~~~~~~~
``memprof simulate`` has the process to itself. A session in somebody's program is a guest: it goes
without an account where somebody else keeps the history, leaves cuBLAS's workspaces where they are,
and takes everything back. What fails here is logged and ends the account, never the training.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from memprof.profiler.model import SourceFrame

from . import _torch_compat as compat
from .draining import on_main_thread
from .history import AllocatorBlock, AllocatorHistory
from .known import Categories, Objects, of_parameters, of_state
from .marks import Mark, Phase
from .owners import owners
from .totals import peaks
from .where import line_of_caller

log = logging.getLogger("memprof")

_LOOKS = 20
"""First steps, all of which look for parameters, gradients and state; then one in so many does."""

DRAIN = 20_000
"""Blocks that are asked for between two drains, if the program comes to a mark by then."""

_PERIOD = 0.2
"""Seconds between two looks at how much history there is, beside the program."""


def _hook(do: Callable[..., None]) -> Callable[..., None]:
    """Returns a method that torch calls: it does nothing where nobody watches, and never raises."""

    @functools.wraps(do)
    def hook(self: HistoryFollower, *args: Any) -> None:
        self.guarded(do, self, *args)

    return hook


class HistoryFollower:
    """Follows the allocator on every device of this process, from ``install`` to ``uninstall``.

    Attributes:
        marks: so far; the first one is the beginning. A mark's number is its index.
        steps: optimizer steps that have ended, of the optimizer that has made most. Where no hook
            tells of one, as of a compiled optimizer's, each time that all parameters of the
            optimizers were written to between two backwards.
        objects: modules and optimizers of the program.
        times_full: how often the history was full before it was taken.
        started: whether CUDA has started.
        histories: what was followed until the last ``drain``, by device.
        on_block: called with the number of a device and each block of its history; to be set before
            ``install``.
        why_not: why there will be no account, in words; empty if there will be.
    """

    def __init__(
        self,
        on_step: Callable[[int, int], None] | None = None,
        *,
        guest: bool = False,
        phases: bool = True,
    ) -> None:
        """
        Args:
            on_step: called when a step has ended, with the steps of the optimizer that has made
                fewest, and of the one that has made most.
            guest: whether the process is somebody else's, see Note [A guest].
            phases: set marks at backwards and optimizer steps, and look for parameters, without
                which ``accounts`` can tell nothing apart.
        """
        self.marks = [Mark(Phase.FORWARD, 0)]
        self.steps = 0
        self.objects = Objects()
        self.times_full = 0
        self.started = False
        self.histories: dict[int, AllocatorHistory] = {}
        self.on_block: Callable[[int, AllocatorBlock], None] | None = None
        self.why_not = ""
        self._on_step = on_step
        self._guest = guest
        self._phases = phases
        self._process = os.getpid()
        self._installed = False
        self._history_is_ours = False
        self._undo: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._draining = False
        # Whether the main thread has been asked to drain and has not come to it: few calls can wait
        # for one that is in C for long.
        self._asked = False
        # Held while a mark is set: any thread of the program may run a backward.
        self._marking: Any = threading.RLock()
        self._peaks_before: dict[int, tuple[int, int]] = {}
        self._steps_of: dict[int, int] = {}
        self._written = -1
        self._drained_at = 0
        self._depth = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="memprof drains", daemon=True)

    def install(self) -> None:
        """Begin with CUDA, which this does not start; now, if it has started."""
        self._installed = True
        if self._phases:
            self._undo += [
                compat.wrap_backward(self._around_backward),
                compat.on_module_tensors(self.objects.module_made),
                compat.on_optimizer(self.objects.optimizer_made),
                register_optimizer_step_pre_hook(self._before_step).remove,
                register_optimizer_step_post_hook(self._after_step).remove,
                compat.on_checkpoint(self._checkpointed),
                compat.around_clearing_of_workspaces(self._clears),
            ]
        compat.on_cuda_start(self._start)
        self._thread.start()

    def uninstall(self) -> None:
        """Take back everything that ``install`` did, and end the allocator's history. What the main
        thread was asked for it may do once more."""
        self._end_thread()
        self._installed = False
        while self._undo:
            self._undo.pop()()
        if self._history_is_ours and os.getpid() == self._process:
            compat.stop_history()

    def _end_thread(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def watches(self) -> bool:
        """Tells whether this is to be told what happens: not in a forked child, nor after a
        failure."""
        return self._installed and not self.why_not and os.getpid() == self._process

    @property
    def follows(self) -> bool:
        return bool(self.histories) and self.watches

    @property
    def fewest_steps(self) -> int:
        """Steps of the optimizer that is there and has made fewest."""
        return self.objects.fewest_steps(self._steps_of) if self._steps_of else self.steps

    def fail(self, error: Exception) -> None:
        """Follow nothing any more because of a fault of ours; the program goes on."""
        self.why_not = f"memprof failed to follow the memory: {type(error).__name__}: {error}"
        log.error("%s. Please report this.", self.why_not, exc_info=error)

    def guarded(self, do: Callable[..., Any], *args: Any) -> Any:
        """``do(*args)``; None where nobody watches, and where it fails, which ends the account."""
        if torch.compiler.is_compiling() or not self.watches:
            return None
        try:
            return do(*args)
        except Exception as e:
            self.fail(e)
            return None

    @_hook
    def _start(self) -> None:
        self.started = True
        allocator = torch.cuda.get_allocator_backend()
        if allocator != "native":  # cudaMallocAsync
            if self._guest:
                self.why_not = f"the allocator {allocator} keeps no history"
            return
        if self._guest and compat.history_enabled():
            self.why_not = (
                "somebody else has the allocator's history on "
                "(torch.cuda.memory._record_memory_history)"
            )
            return
        compat.record_history()
        self._history_is_ours = True
        self._undo.append(compat.keep_counting())
        begun = {d: compat.allocation_counts(d) for d in range(torch.cuda.device_count())}
        snapshot = compat.drain_history()
        settings, histories = snapshot["allocator_settings"], {}
        for device, counts in begun.items():
            made = functools.partial(self.on_block, device) if self.on_block is not None else None
            history = histories[device] = AllocatorHistory(settings, made, device=device)
            history.feed((), self.marks)
            history.take_over(_of_device(snapshot, device))
            history.continue_at(counts)
            self._peaks_before[device] = peaks(torch.cuda.memory_stats(device))
        self.histories = histories
        self._drained_at = self.requests
        if self._guest:
            self._undo.append(compat.on_history(self._taken_over))
        if self._phases and any(asked for asked, _ in begun.values()):
            # What the memory of a program is for that runs already.
            self._mark_process(Phase.FORWARD)

    @_hook
    def _taken_over(self) -> None:
        if self._draining:  # It is begun anew by ``drain``.
            return
        self._history_is_ours = False
        self.why_not = (
            "somebody else has begun or ended the allocator's history inside of the session "
            "(torch.cuda.memory._record_memory_history), and it is theirs from there on"
        )
        log.warning("memprof follows the memory of this process no more: %s.", self.why_not)

    def mark(self) -> int:
        """Set a mark, whatever runs; returns its number."""
        self._mark(None)
        return len(self.marks) - 1

    def _mark(self, phase: Phase | None, known: Categories | None = None, **facts: Any) -> None:
        with self._marking:
            before = self.marks[-1]
            if phase is None:  # In the one that runs, for which its line still waits.
                phase, facts = before.phase, {"line": before.line, **facts}
            begins = phase is Phase.BACKWARD and before.phase is not phase
            counts = {d: compat.allocation_counts(d) for d in self.histories}
            mark = Mark(phase, self.steps, known or {}, counts=counts, **facts)
            mark.backwards = before.backwards + begins
            self.marks.append(mark)

    def _mark_process(self, phase: Phase | None) -> Categories:
        look = self.objects.of_process()
        owned = owners(self.objects.alive(), others=self.objects.others)
        self._mark(
            phase, look.gradients | look.categories, written_often=look.written_often, owners=owned
        )
        return look.categories

    @property
    def backwards(self) -> int:
        """Backwards that have begun."""
        return self.marks[-1].backwards

    @property
    def trains(self) -> bool:
        """Tells whether the program was seen to train: it has an optimizer, or a backward ran."""
        return self.objects.has_optimizer or self.backwards > 0

    @property
    def requests(self) -> int:
        """Blocks that were asked for so far, on all devices."""
        return sum(compat.allocation_counts(d)[0] for d in range(torch.cuda.device_count()))

    def drain(self, at_least: int = 0) -> None:
        """Follow the history, if that many blocks were asked for since it was last taken.

        Nothing should be allocated meanwhile: call it on the thread that allocates.
        """
        with self._lock:
            # What is called between two bytecodes may call this again.
            if not self.histories or self._draining:
                return
            asked = self.requests
            if asked - self._drained_at < at_least:
                return
            self._drained_at = asked
            self._draining = True
            try:
                self._follow()
            finally:
                self._draining = False

    def _follow(self) -> None:
        snapshot = compat.drain_history()
        counts = {d: compat.allocation_counts(d) for d in self.histories}
        marks = list(self.marks)
        followed = min(h.mark for h in self.histories.values())
        for device, history in self.histories.items():
            events = snapshot["device_traces"][device]
            if len(events) >= compat.MAX_ENTRIES:
                self.times_full += 1
            history.feed(events, marks)
            segments = _of_device(snapshot, device)
            if not history.agrees(segments):
                history.corrected += 1
                history.take_over(segments)
            history.continue_at(counts[device])
            history.assign_pools(segments)
        for mark in marks[followed:]:
            mark.forget()

    def _look_after(self) -> None:
        """Drain where there is a lot of history, beside a program that comes to no mark."""
        while not self._stop.wait(_PERIOD):
            if not self._asked and self.follows and self.requests - self._drained_at >= DRAIN:
                self._asked = on_main_thread(self._drain_as_asked)

    def _drain_as_asked(self) -> None:
        self._asked = False
        self._drain_if_due()

    @_hook
    def _drain_if_due(self) -> None:
        self.drain(DRAIN)

    def _around_backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._depth or not self.watches:
                return run(*args, **kwargs)
            self._depth += 1
            self._begins(line_of_caller())
            cut = True
            try:
                gradients = run(*args, **kwargs)
                cut = False
                return gradients
            finally:
                if cut:
                    self._wait_for_autograd()
                self._depth -= 1
                self._ends(cut)

        return run_backward

    def _wait_for_autograd(self) -> None:
        """Have autograd's threads let go of a backward that has raised, which they do beside the
        program: what goes then is of what has failed, not of what the program does next.

        Each serves its queue in order, and comes to an empty tensor's backward, which asks for no
        memory and launches nothing, behind that.
        """
        if compat.compiled_autograd_is_on():
            return
        for device in self.histories:
            if not torch.cuda.memory_reserved(device):  # Elsewhere it would start the device.
                continue
            with contextlib.suppress(Exception):  # Of a mode of the program: they let go later.
                empty = torch.empty(0, device=f"cuda:{device}", requires_grad=True)
                torch.autograd.grad(empty, empty, empty)

    @_hook
    def _begins(self, line: SourceFrame | None) -> None:
        if self._count_updates() and self._on_step is not None:
            self._on_step(self.steps, self.steps)
        self._mark(Phase.BACKWARD, line=line)

    def _count_updates(self) -> bool:
        """Count a step that no hook has told of, and say whether there was one."""
        if self._steps_of or self._on_step is None:
            return False
        before, self._written = self._written, self.objects.least_written()
        updated = 0 <= before < self._written
        self.steps += updated
        return updated

    @_hook
    def _ends(self, cut: bool) -> None:
        self._mark(Phase.FORWARD, cut=cut)
        self.drain(DRAIN)

    @_hook
    def _clears(self, clears: bool) -> None:
        self._mark(None, clears=clears)

    @_hook
    def _checkpointed(self, arguments: Sequence[Any]) -> None:
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        found = {a for t in tensors for a, _ in compat.memory_of(t, "cuda")}
        if found:
            self._mark(None, checkpointed=frozenset(found))

    def _looks_for_parameters(self) -> bool:
        """Tells whether to look at this step for parameters and state, which stay where they
        are.
        """
        return self.steps < _LOOKS or self.steps % _LOOKS == 0

    @_hook
    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        found: Categories = {}
        if not self._steps_of:
            found = self.objects.of_modules()
        if self._looks_for_parameters():
            found = of_parameters(optimizer) | found
        self._mark(Phase.OPTIMIZER, found)

    @_hook
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        found, owned = {}, {}
        if self._looks_for_parameters():
            found = of_state(optimizer)
            owned = owners(self.objects.alive(), [optimizer])
        # Of the one that steps most often: with several, each has its turn in an iteration.
        self._steps_of[id(optimizer)] = self._steps_of.get(id(optimizer), 0) + 1
        self.steps = max(self._steps_of.values())
        self._mark(Phase.FORWARD, found, owners=owned)
        self.drain(DRAIN)
        if self._on_step is not None:
            self._on_step(self.fewest_steps, self.steps)


def _of_device(snapshot: dict[str, Any], device: int) -> list[dict[str, Any]]:
    return [s for s in snapshot["segments"] if s["device"] == device]
