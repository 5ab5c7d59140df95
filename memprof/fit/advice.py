"""Changes of a program, each tried on the simulated device: what did it save? And that in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memprof.profiler.advice import Finding
from memprof.profiler.report.page import PLAIN, Page, Style
from memprof.simulate.changes import change_of
from memprof.simulated_cuda.gpus import Gpu

from .tries import ScriptFailed, Tried, Tries

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
    """A change to try, as ``change_of`` reads it; title of the finding that it is to remedy, if
    any, and bytes that this says, None where the account before tells what to expect."""

    change: str
    title: str = ""
    estimate: int | None = None


@dataclass(slots=True)
class Result:
    """What came of changes, several for all together.

    Attributes:
        title: of the finding, if it is the remedy of one.
        estimate: bytes that it should save, by the finding or by the account before; None if
            nobody knows.
        tried: None where the program failed with it, which ``problem`` says.
        saved, saved_allocated: bytes less that the device must have, and that were allocated at
            once; negative for more.
        recomputed: operations of compiled code more than before, as a share; None if none were
            counted.
    """

    changes: tuple[str, ...]
    title: str
    estimate: int | None
    tried: Tried | None = None
    problem: str = ""
    saved: int = 0
    saved_allocated: int = 0
    recomputed: float | None = None

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
    """The program as it is on a device, with each change, and last with all that helped, if more
    than one did; and findings of the report that memprof cannot apply."""

    gpu: Gpu
    before: Tried
    results: list[Result]
    untried: list[Finding] = field(default_factory=list)


def trials_of(findings: Sequence[Finding]) -> tuple[list[Trial], list[Finding]]:
    """The remedies of a report's findings, each once, and the findings that have none."""
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
    """Try each change alone, and all that help together; ``said`` is told of each as it ends, by
    name, and None where the program failed with it. Raises as ``Tries.run`` for the program as it
    is.
    """
    before = tries.run(gpu, {})
    said("as it is", before)
    found = Advice(gpu, before, [], list(untried))

    def attempt(keys: tuple[str, ...], title: str, estimate: int | None) -> None:
        result = Result(keys, title, estimate)
        try:
            tried = result.tried = tries.run(gpu, {}, keys)
            result.saved = before.needed - tried.needed
            result.saved_allocated = before.allocated - tried.allocated
            if before.flops and tried.flops is not None:
                result.recomputed = (tried.flops - before.flops) / before.flops
        except ScriptFailed as e:  # With this change alone: the others are still worth a try.
            result.problem = str(e)
        said(" + ".join(keys), result.tried)
        found.results.append(result)

    for trial in trials:
        # What is expected of a change is of all that it could change.
        expected = before.expected.get(trial.change)
        attempt(
            (trial.change,), trial.title, expected if trial.estimate is None else trial.estimate
        )
    helped = {r.changes[0]: r.saved for r in found.results if r.saved > 0}
    rivals = sorted((k for k in _RIVALS if k in helped), key=lambda k: -helped[k])
    together = tuple(k for k in helped if k not in rivals[1:])
    if len(together) > 1:
        attempt(together, "", None)
    return found


def render_advice(found: Advice, made: int, known: int, style: Style = PLAIN) -> str:
    """A table of changes, largest saving first; so many tries were ``made``, ``known`` before."""
    page = Page(style)
    fits = "fits" if found.before.fits else "does not fit"
    page.line(
        f"As it is it needs {page.bytes(found.before.needed)} and {fits} {found.gpu.name} "
        f"({page.bytes(found.gpu.memory)})",
        "bold",
    )
    page.line()
    table = page.table(
        *("change", ">needs", ">estimated", ">saves", ">recomputed", "fits", "costs"), fold=True
    )
    ordered = sorted(found.results, key=lambda r: -r.saved)
    for result in ordered:
        tried = result.tried
        if tried is None or result.idle:
            continue
        alone = len(result.changes) == 1
        bound = "at most " if result.at_most and result.estimate else ""
        table.add_row(
            result.changes[0] if alone else "all that help",
            page.bytes(tried.needed),
            "" if result.estimate is None else bound + page.bytes(result.estimate),
            page.bytes(result.saved) if result.saved > 0 else "does not help",
            f"{100 * result.recomputed:.1f} %" if result.recomputed else "",
            "yes" if tried.fits else "no",
            change_of(result.changes[0])[0].costs if alone else " + ".join(result.changes),
        )
    page.show(table)
    for result in ordered:
        if len(result.changes) == 1:
            page.indented(_sentence(result), 2)
    for finding in found.untried:
        page.indented(
            f"not tried, since it is the program's own text that has to change: {finding.title}: "
            f"up to {page.bytes(finding.nbytes)}",
            2,
        )
    page.line(
        f"{made} tries, {known} known from the file before. Each row is a run of the whole script "
        "on the simulated device. Estimates are of bytes that are live, and what is saved is of "
        "all that the device gives. Recomputed operations are those of compiled code."
    )
    return page.text()


def _sentence(result: Result) -> str:
    """What was changed and how to have it, or why there is no row."""
    (text,) = result.changes
    of = f" (finding: {result.title})" if result.title else ""
    if result.tried is None:
        return f"{text}: the program failed with it: {result.problem}{of}"
    if result.idle:
        return f"{text}: there was nothing to change{of}"
    if result.saved <= 0:
        return f"{text}: does not help{of}"
    changed = "; ".join(result.tried.changed)
    return f"{changed or text}. To have it: {change_of(text)[0].how}{of}"
