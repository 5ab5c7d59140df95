"""Changes of a program, each tried on the simulated device: what did it save?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memprof.profiler.advice import Finding
from memprof.simulated_cuda.gpus import Gpu

from .store import Tried
from .tries import ScriptFailed, Tries

__all__ = ["Advice", "Result", "Trial", "advise", "trials_of"]

_AT_MOST = (
    *("expandable-segments", "checkpoint", "chunked-loss", "drop-gradients"),
    *("static-inputs=", "option=pool_budget:"),
)
"""Changes of which a report or an account says what they can save at most, and no more: what is
the fullest without these bytes, or is free in pieces then, it does not tell."""

_RIVALS = ("fused-optimizer", "optimizer-one-by-one", "bf16-state")
"""Of these one alone can be had."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A change to try, and why.

    Attributes:
        change: as ``change_of`` reads it.
        title: of the finding that it is to remedy; empty where there is none.
        estimate: bytes that the finding says; None where the account of the program as it is
            tells what to expect.
    """

    change: str
    title: str = ""
    estimate: int | None = None


@dataclass(slots=True)
class Result:
    """What came of a change.

    Attributes:
        changes: what was changed, several for all together.
        tried: None where the program failed with it.
        problem: why it failed; empty if it did not.
        title: of the finding, if it is the remedy of one.
        estimate: bytes that it should save, by the finding or by the account before; None if
            nobody knows.
    """

    changes: tuple[str, ...]
    tried: Tried | None
    problem: str = ""
    title: str = ""
    estimate: int | None = None

    @property
    def at_most(self) -> bool:
        """Whether the estimate is no more than a bound."""
        return self.changes[0].startswith(_AT_MOST)

    @property
    def idle(self) -> bool:
        """Whether there was nothing that it could have changed."""
        return self.tried is not None and set(self.changes) <= set(self.tried.idle)


@dataclass(slots=True)
class Advice:
    """The program as it is, and with changes.

    Attributes:
        gpu: the device.
        before: the program as it is.
        results: one a change, and the last of all that helped together, if more than one did.
        untried: findings of the report that memprof cannot apply.
    """

    gpu: Gpu
    before: Tried
    results: list[Result]
    untried: list[Finding] = field(default_factory=list)

    def saved(self, result: Result) -> int:
        """Bytes less that the device must have; negative for more."""
        return self.before.needed - result.tried.needed if result.tried is not None else 0

    def saved_allocated(self, result: Result) -> int:
        """Bytes less that were allocated at once; negative for more."""
        if result.tried is None:
            return 0
        return self.before.allocated - result.tried.allocated

    def more_flops(self, result: Result) -> float | None:
        """Operations of compiled code more than before, as a share; None if none were counted."""
        if result.tried is None or not self.before.flops or result.tried.flops is None:
            return None
        return (result.tried.flops - self.before.flops) / self.before.flops


def trials_of(findings: Sequence[Finding]) -> tuple[list[Trial], list[Finding]]:
    """The remedies of findings, each once, and the findings that have none.

    Args:
        findings: of a report.
    """
    trials: dict[str, Trial] = {}
    for f in findings:
        if f.remedy:
            known = trials.get(f.remedy)
            estimate = f.nbytes + (known.estimate or 0 if known is not None else 0)
            trials[f.remedy] = Trial(f.remedy, known.title if known else f.title, estimate)
    return list(trials.values()), [f for f in findings if not f.remedy]


def advise(
    gpu: Gpu,
    trials: Sequence[Trial],
    tries: Tries,
    said: Callable[[str, Tried | None], None],
    untried: Sequence[Finding] = (),
) -> Advice:
    """Try each change alone, and all that help together.

    Args:
        gpu: the device.
        trials: what to try.
        tries: runs them.
        said: is told of each as it ends, by name; None where the program failed with it.
        untried: findings that nobody can try from outside.

    Raises: as ``Tries.run``, for the program as it is.
    """
    before = tries.run(gpu, {})
    said("as it is", before)
    found = Advice(gpu, before, [], list(untried))

    def attempt(keys: tuple[str, ...], title: str, estimate: int | None) -> None:
        try:
            result = Result(keys, tries.run(gpu, {}, keys), "", title, estimate)
        except ScriptFailed as e:  # With this change alone: the others are still worth a try.
            result = Result(keys, None, str(e), title, estimate)
        said(" + ".join(keys), result.tried)
        found.results.append(result)

    for trial in trials:
        estimate = trial.estimate
        if estimate is None:
            # What is expected of a change is of all that it could change.
            estimate = before.expected.get(trial.change)
        attempt((trial.change,), trial.title, estimate)
    helped = {r.changes[0]: found.saved(r) for r in found.results if found.saved(r) > 0}
    rivals = sorted((k for k in _RIVALS if k in helped), key=lambda k: -helped[k])
    together = tuple(k for k in helped if k not in rivals[1:])
    if len(together) > 1:
        attempt(together, "", None)
    return found
