"""Changes of a program, each tried on the simulated device: what did it save? And that in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memprof.profiler.advice import Finding
from memprof.profiler.report.page import PLAIN, Page, Style
from memprof.simulate.applied import DRAWN_ANEW
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


@dataclass(slots=True)
class Trial:
    """A change to try, or several together, as ``change_of`` reads them, and what came of it.

    Attributes:
        title: of the finding that it is to remedy, if any.
        estimate: bytes that it should save, by the finding, or once it was tried by the account
            before; None if nobody knows.
        tried: None where the program failed with it, which ``problem`` says.
        saved, saved_allocated: bytes less that the device must have, and that were allocated at
            once; negative for more.
        recomputed: operations of compiled code more than before, as a share; None if none were
            counted.
        wrong: whether it makes gradients wrong.
    """

    changes: tuple[str, ...]
    title: str = ""
    estimate: int | None = None
    tried: Tried | None = None
    problem: str = ""
    saved: int = 0
    saved_allocated: int = 0
    recomputed: float | None = None
    wrong: bool = False

    @property
    def at_most(self) -> bool:
        """Whether the estimate is no more than a bound."""
        return self.changes[0].startswith(_AT_MOST)

    @property
    def idle(self) -> bool:
        """Whether there was nothing that it could have changed."""
        return self.tried is not None and set(self.changes) <= set(self.tried.idle)

    def run(self, gpu: Gpu, tries: Tries, before: Tried) -> None:
        """Try it, where the program as it is has taken what it took ``before``."""
        try:
            tried = self.tried = tries.run(gpu, {}, self.changes)
        except ScriptFailed as e:  # With this change alone: the others are still worth a try.
            self.problem = str(e)
            return
        self.wrong = tried.wrong and not before.wrong
        self.saved = before.needed - tried.needed
        self.saved_allocated = before.allocated - tried.allocated
        if before.flops and tried.flops is not None:
            self.recomputed = (tried.flops - before.flops) / before.flops


def trials_of(findings: Sequence[Finding]) -> tuple[list[Trial], list[Finding]]:
    """The remedies of a report's findings, each once, and the findings that have none."""
    trials: dict[str, Trial] = {}
    for f in findings:
        if f.remedy:
            trial = trials.setdefault(f.remedy, Trial((f.remedy,), f.title, 0))
            # Of several ways the last is the one that can be had from outside.
            trial.estimate = (trial.estimate or 0) + (f.ways[-1].nbytes if f.ways else f.nbytes)
    return list(trials.values()), [f for f in findings if not f.remedy]


def advise(
    gpu: Gpu, trials: Sequence[Trial], tries: Tries, said: Callable[[str, Tried | None], None]
) -> Iterator[tuple[Tried, list[Trial]]]:
    """Try a program as it is, with each change, and last with all that helped, if more than one
    did; ``said`` is told of each as it ends, by name, and None where the program failed with it.
    Yields after each the first one and one list of the trials so far. Raises as ``Tries.run`` for
    the program as it is.
    """
    before = tries.run(gpu, {})
    said("as it is", before)
    done: list[Trial] = []
    yield before, done
    for trial in trials:
        if trial.estimate is None:  # What is expected of a change is of all that it could change.
            trial.estimate = before.expected.get(trial.changes[0])
        trial.run(gpu, tries, before)
        said(trial.changes[0], trial.tried)
        done.append(trial)
        yield before, done
    helped = {t.changes[0]: t.saved for t in trials if t.saved > 0 and not t.wrong}
    rivals = sorted((k for k in _RIVALS if k in helped), key=lambda k: -helped[k])
    together = Trial(tuple(k for k in helped if k not in rivals[1:]))
    if len(together.changes) > 1:
        together.run(gpu, tries, before)
        said(" + ".join(together.changes), together.tried)
        done.append(together)
        yield before, done


def render_advice(
    gpu: Gpu,
    before: Tried,
    trials: Sequence[Trial],
    untried: Sequence[Finding],
    tries: Tries,
    style: Style = PLAIN,
) -> str:
    """A table of changes, largest saving first, and findings that memprof cannot apply."""
    page = Page(style)
    fits = "fits" if before.fits else "does not fit"
    page.line(
        f"As it is it needs {page.bytes(before.needed)} and {fits} {gpu.name} "
        f"({page.bytes(gpu.memory)})",
        "bold",
    )
    page.line()
    table = page.table(
        *("change", ">needs", ">estimated", ">saves", ">recomputed", "fits", "costs"), fold=True
    )
    ordered = sorted(trials, key=lambda t: -t.saved)
    for trial in ordered:
        tried = trial.tried
        if tried is None or trial.idle:
            continue
        alone = len(trial.changes) == 1
        costs = change_of(trial.changes[0])[0].costs if alone else " + ".join(trial.changes)
        costs = "wrong gradients" if trial.wrong else costs
        bound = "at most " if trial.at_most and trial.estimate else ""
        table.add_row(
            trial.changes[0] if alone else "all that help",
            page.bytes(tried.needed),
            "" if trial.estimate is None else bound + page.bytes(trial.estimate),
            page.bytes(trial.saved) if trial.saved > 0 else "does not help",
            f"{100 * trial.recomputed:.1f} %" if trial.recomputed else "",
            "yes" if tried.fits else "no",
            costs,
        )
    page.show(table)
    for trial in ordered:
        if len(trial.changes) == 1:
            page.indented(_sentence(trial), 2)
    for finding in untried:
        page.indented(
            f"not tried, since it is the program's own text that has to change: {finding.title}: "
            f"up to {page.bytes(finding.nbytes)}",
            2,
        )
    page.line(
        f"{tries.made} tries, {tries.known} known from the file before. Each row is a run of the "
        "whole script on the simulated device. Estimates are of bytes that are live, and what is "
        "saved is of all that the device gives. Recomputed operations are those of compiled code."
    )
    return page.text()


def _sentence(trial: Trial) -> str:
    """What was changed and how to have it, or why there is no row."""
    (text,) = trial.changes
    of = f" (finding: {trial.title})" if trial.title else ""
    if trial.tried is None:
        return f"{text}: the program failed with it: {trial.problem}{of}"
    if trial.idle:
        return f"{text}: there was nothing to change{of}"
    if trial.wrong:
        return f"{text}: not to be used: {DRAWN_ANEW}{of}"
    if trial.saved <= 0:
        return f"{text}: does not help{of}"
    changed = "; ".join(trial.tried.changed)
    return f"{changed or text}. To have it: {change_of(text)[0].how}{of}"
