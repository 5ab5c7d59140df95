"""One try of ``memprof fit``: a command with values filled in, on a simulated device, and
what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from memprof.profiler.views.report.failure import asked, asker
from memprof.profiler.views.report.format import format_bytes
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import Gpu
from memprof.what_if.simulate.command_line import jobs_of, parse
from memprof.what_if.simulate.parent import Settings, Simulation, attempt, simulate
from memprof.what_if.simulate.partitions import DRAWN_ANEW, UNCACHED
from memprof.what_if.simulate.serving import ready_sign

from .variables import fill


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a try, with values of the variables, on the GPU of that key.

    Attributes:
        fits: whether the script ran, as far as it was run, and never ran out of memory, caught or
            not.
        needed: bytes that it took of the device in all; where it did not fit, until then.
        reserved, allocated: bytes of that by torch's allocator, and the most allocated at once.
        parts: what was reserved at the peak, by name and in bytes, largest first.
        limit, short: the request that did not fit and who made it, empty where all did; and bytes
            more that the device must have had free for it.
        flops, changed, idle, notes: as of an ``Outcome``.
        tokens: that the cache of a serving engine holds; None where there is none.
        step_ns: that a step takes, by ``StepTime``; None where none was followed.
    """

    values: dict[str, str] = {}
    gpu: str = ""
    memory: int = 0
    fits: bool
    needed: int
    reserved: int = 0
    allocated: int = 0
    parts: list[tuple[str, int]] = []
    limit: str = ""
    flops: int | None = None
    changed: list[str] = []
    idle: list[str] = []
    notes: list[str] = []
    seconds: float = 0
    short: int = 0
    tokens: int | None = None
    step_ns: int | None = None

    @property
    def wrong(self) -> bool:
        """Tells whether its gradients are wrong, as a note says."""
        return DRAWN_ANEW in self.notes


class ScriptFailed(Exception):
    """A try ended in what the message says, and not for memory; ``trace`` is the script's, empty if
    there is none. If ``undecided``, too little was seen of it to say whether it fits."""

    def __init__(self, message: str, trace: str = "", *, undecided: bool = False) -> None:
        super().__init__(message)
        self.trace, self.undecided = trace, undecided


@dataclass(slots=True)
class Tries:
    """Runs tries of one command, which may have ``{NAME}`` of a variable in every text.

    Attributes:
        torch_config: settings of torch, ``torch.module.name`` to value.
        world_size: ranks of the job, empty for a process alone.
        devices: that a process alone sees.
        environment: of the script, before ``env``.
        whole: whether what does not fit runs again on an ample device.
        executor: what runs them, as of ``simulate_ranks``; None for this thread.
        made: number of tries so far.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    torch_config: Mapping[str, str]
    world_size: str
    ranks_per_host: int | None
    devices: str
    settings: Settings
    environment: Mapping[str, str]
    whole: bool = False
    executor: Any = None
    made: int = 0

    @property
    def texts(self) -> list[str]:
        """All texts in which a variable may stand."""
        return [
            *self.words,
            *self.env.values(),
            *self.torch_config.values(),
            self.world_size,
            self.devices,
        ]

    def run(self, gpu: Gpu, values: Mapping[str, str], changes: tuple[str, ...] = ()) -> Tried:
        """Run one with values of the variables and changes of the program
        (``simulate/changes.py``).

        Raises:
            ScriptFailed: it ended in something else than success or want of memory, or too little
                was seen of it.
            BadInput: with these values it is no command, or no job.
            memprof.simulated_cuda.errors.SimulationError: the device cannot be had here.
        """
        command = parse(tuple(fill(word, values) for word in self.words))
        env = {name: fill(text, values) for name, text in self.env.items()}
        config = {name: fill(text, values) for name, text in self.torch_config.items()}
        size = fill(self.world_size, values)
        job = jobs_of(_number(size, "--world-size") if size else None, (), self.ranks_per_host)[0]
        devices = _number(fill(self.devices, values), "--devices")
        settings = replace(
            self.settings,
            gpu=gpu,
            job=job,
            devices=job.ranks_per_host if job is not None else devices,
            changes=changes,
            until=ready_sign(command),
            torch_config=tuple(f"{name}={value}" for name, value in config.items()),
        )
        began = time.monotonic()
        run = simulate if self.whole else attempt
        counting = UNCACHED if settings.count_flops else {}
        environment = {**self.environment, **counting, **env}
        if self.executor is None:
            simulation = run(command, settings, environment)
        else:
            simulation = self._submitted(run, command, settings, environment)
        self.made += 1
        return _outcome(simulation, values, time.monotonic() - began)

    def _submitted(self, *call: Any) -> Simulation:
        try:
            simulation: Simulation = self.executor.submit(*call).result()
        except SimulationError:
            raise
        except Exception as e:  # Its worker died, or is not reached.
            raise ScriptFailed(f"the executor failed: {e!r}") from e
        return simulation


def _number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ScriptFailed(f"{option} {text} is no number") from None


def _outcome(s: Simulation, values: Mapping[str, str], seconds: float) -> Tried:
    failure = s.outcome.failure
    account = s.account
    refusal = s.outcome.refusal
    if failure is not None and not (failure.out_of_memory or refusal):
        first = failure.message.partition("\n")[0]
        raise ScriptFailed(f"{failure.kind}: {first}", failure.trace)
    if s.outcome.status and failure is None and not refusal:
        raise ScriptFailed(f"it left with exit status {s.outcome.status}")
    if s.outcome.undecided and not refusal:
        with_values = (f"{name}={value}" for name, value in values.items())
        raise ScriptFailed(", ".join((*with_values, s.outcome.undecided)), undecided=True)
    if account is None:
        raise ScriptFailed(
            "nothing in the script's own process put a tensor on a CUDA device; see "
            "docs/simulate.md"
        )
    # A script that catches the error and goes on, with half the batch say, ran with another value;
    # what memprof's own backend tries and makes again without (``activity``) the script never saw.
    moment = s.outcome.out_of_memory
    seen = moment is not None and not (moment.failure is not None and moment.failure.activity)
    fits = bool(s.fits) and not seen
    limit, short = ("", 0) if fits else _limit(s)
    return Tried(
        values=dict(values),
        gpu=s.gpu.key,
        memory=s.gpu.memory,
        fits=fits,
        needed=s.needed,
        reserved=account.reserved,
        allocated=account.most_allocated,
        parts=sorted(account.parts(), key=lambda part: -part[1]),
        limit=limit,
        flops=s.outcome.flops,
        changed=s.outcome.changed,
        idle=s.outcome.idle,
        notes=s.outcome.notes,
        seconds=round(seconds, 1),
        short=short,
        step_ns=s.outcome.time.step_ns if s.outcome.time is not None else None,
        tokens=min((e.tokens for e in s.outcome.engines if e.tokens is not None), default=None),
    )


def _limit(s: Simulation) -> tuple[str, int]:
    """The request that did not fit and who made it, and the bytes that the device lacked for it."""
    if s.outcome.refusal:
        return s.outcome.refusal, 0
    moments = s.failed_at or ([s.outcome.out_of_memory] if s.outcome.out_of_memory else [])
    moment = next((m for m in moments if m.failure is not None), None)
    if moment is not None and (failure := moment.failure) is not None:
        # Where a device failed before, what went on was the run on an ample one.
        goes_on = s.outcome.failure is None and not s.failed_at
        went_on = "; the script went on" if goes_on else ""
        reason = f"{asked(failure, format_bytes)} {asker(failure)}{went_on}"
        return reason, max(failure.wanted - failure.left(moment.reserved), 0)
    over, reason = max(s.needed - s.gpu.memory, 0), "out of memory"
    if s.outcome.failure is None and over:
        reason = f"with what is outside of torch's allocator it is {format_bytes(over)} too much"
    return reason, over
