"""Request to the process that runs the script, and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from memprof.profiler.model import DeviceAccount, Profile, StepTime

from .engine_memory import Serving
from .failures import Failure
from .messages import Announced
from .processes import ProcessOutcome

VARIABLE = "MEMPROF_SIMULATE"
"""Environment variable with the path of a ``Request`` as JSON, which may be too long for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A simulated run of a script, as it was asked for.

    It ends after so many optimizer steps, None for as many as it takes, or if ``until_still`` when
    the peak has stood still: Note [When a run is left]. ``pretend``, ``torch_config`` and
    ``changes`` are texts as ``parse_pretence``, ``parse_setting`` and ``change_of`` read them;
    ``heard`` is what ranks that were simulated before have sent to this one; ``link`` and
    ``network`` are speeds in 10^9 bytes/s, None for the GPU's own.
    """

    steps: int | None = None
    until_still: bool = True
    pretend: tuple[str, ...] = ()
    balanced_experts: bool = False
    torch_config: tuple[str, ...] = ()
    count_flops: bool = False
    changes: tuple[str, ...] = ()
    link: float | None = None
    network: float | None = None
    heard: dict[int, list[Announced]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Run):
    """Request to run a script, read by its process: the ``folder`` in which its ``Outcome`` goes to
    ``outcome``, whether to print progress, and the key of the ``gpu``. Without a ``world_size``
    process groups are left as they are; with one the job's other ranks are not there."""

    folder: str
    outcome: str
    world_size: int | None = None
    rank: int = 0
    progress: bool = True
    gpu: str = ""


class Outcome(msgspec.Struct, kw_only=True):
    """Outcome of a script's run.

    Attributes:
        accounts: one a device that was used, the one with most reserved first; of several processes
            that of the one with most.
        own: those of the script's own process, where it has started others.
        out_of_memory: the account of the last moment at which an allocation failed, caught or not.
        profile: of memprof's backend, if the script used it; else one with versions and machine.
        undecided: why the run does not tell whether the script fits, in a sentence; empty if it
            does, or failed.
        status: exit status that the script asked for.
        counters: peaks of ``allocated``, ``reserved`` and ``active`` in bytes, by torch's own
            statistics, of the device with most reserved since the script last set them back.
        grouped: whether there was a process group at the end.
        refusal: what a serving engine said that ended for want of memory for its cache.
        uncovered: calls that the simulated device does not know, by name.
        notes, changed: what could not be done, and what changes have changed, in sentences.
        flops: of the graphs that were partitioned, if they were counted.
        idle: changes that found nothing to change.
        sent: messages to other ranks of the job, by rank.
        unanswered: ranks from which it received messages that nobody knew.
        processes: those that the script has started and that used a device.
        serving: of a serving engine's worker in the script's own process.
        time: of the last step that was followed, None where there was none, or where the speed of
            the GPU is not known.
        used: by device, the most bytes that all processes had of it at once, contexts included.
    """

    accounts: list[DeviceAccount] = []
    out_of_memory: DeviceAccount | None = None
    profile: Profile | None = None
    ended: str = ""
    undecided: str = ""
    failure: Failure | None = None
    status: int = 0
    counters: dict[str, int] = {}
    grouped: bool = False
    refusal: str = ""
    uncovered: list[str] = []
    notes: list[str] = []
    flops: int | None = None
    changed: list[str] = []
    idle: list[str] = []
    sent: dict[int, list[Announced]] = {}
    unanswered: set[int] = set()
    processes: list[ProcessOutcome] = []
    serving: Serving | None = None
    time: StepTime | None = None
    used: list[int] = []
    own: list[DeviceAccount] = []

    @property
    def engines(self) -> list[Serving]:
        """Workers of serving engines."""
        every = (self.serving, *(process.serving for process in self.processes))
        return [engine for engine in every if engine is not None]
