"""Changes of a program, each tried on the simulated device: what did it save? And that in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memprof.profiler.views.report.text_page import PLAIN, Page, Style
from memprof.simulated_cuda.gpus import Gpu
from memprof.what_if.simulate.changes import change_of
from memprof.what_if.simulate.partitions import DRAWN_ANEW

from .tries import ScriptFailed, Tried, Tries


@dataclass(slots=True)
class Trial:
    """A change to try, or several together, as ``change_of`` reads them, and what came of it.

    Attributes:
        tried: None where the program failed with it, which ``problem`` says.
        saved, saved_allocated: bytes less that the device must have, and that were allocated at
            once; negative for more.
        slower_ns: that a step takes longer; None where times are not known.
        recomputed: operations of compiled code more than before, as a share; None if none were
            counted.
        wrong: whether it makes gradients wrong.
        idle: whether there was nothing that it could have changed.
    """

    changes: tuple[str, ...]
    tried: Tried | None = None
    problem: str = ""
    saved: int = 0
    saved_allocated: int = 0
    slower_ns: int | None = None
    recomputed: float | None = None
    wrong: bool = False
    idle: bool = False

    def run(self, gpu: Gpu, tries: Tries, before: Tried) -> None:
        """Run the program with the changes, and compare with ``before``, the run without any."""
        try:
            tried = self.tried = tries.run(gpu, {}, self.changes)
        except ScriptFailed as e:  # With this change alone: the others are still worth a try.
            self.problem = str(e)
            return
        self.wrong = tried.wrong and not before.wrong
        self.idle = set(self.changes) <= set(tried.idle)
        self.saved = before.needed - tried.needed
        self.saved_allocated = before.allocated - tried.allocated
        if before.step_ns is not None and tried.step_ns is not None:
            self.slower_ns = tried.step_ns - before.step_ns
        if before.flops and tried.flops is not None:
            self.recomputed = (tried.flops - before.flops) / before.flops


def try_changes(
    gpu: Gpu, changes: Sequence[str], tries: Tries, on_try: Callable[[str, Tried | None], None]
) -> Iterator[tuple[Tried, list[Trial]]]:
    """Try a program as it is, with each change, and last with all that helped, if more than one
    did. ``on_try`` is called as each ends with its name and what came of it, None where the program
    failed with it. Yields after each the first one and one list of the trials so far. Raises as
    ``Tries.run`` for the program as it is.
    """
    before = tries.run(gpu, {})
    on_try("as it is", before)
    done: list[Trial] = []
    yield before, done
    for text in changes:
        trial = Trial((text,))
        trial.run(gpu, tries, before)
        on_try(text, trial.tried)
        done.append(trial)
        yield before, done
    together = Trial(_that_help(done))
    if len(together.changes) > 1:
        together.run(gpu, tries, before)
        on_try(" + ".join(together.changes), together.tried)
        done.append(together)
        yield before, done


def _that_help(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Changes that save memory and leave gradients right; of several values of one setting the one
    that saves most."""
    best: dict[str, Trial] = {}
    for trial in trials:
        (text,) = trial.changes
        name = change_of(text).setting.partition("=")[0] or text
        if trial.saved > (best[name].saved if name in best else 0) and not trial.wrong:
            best[name] = trial
    return tuple(trial.changes[0] for trial in best.values())


def render_trials(
    gpu: Gpu, before: Tried, trials: Sequence[Trial], tries: Tries, style: Style = PLAIN
) -> str:
    """A table of changes, largest saving first."""
    page = Page(style)
    fits = "fits" if before.fits else "does not fit"
    page.line(
        f"As it is it needs {page.bytes(before.needed)} and {fits} {gpu.name} "
        f"({page.bytes(gpu.memory)})",
        "bold",
    )
    page.line()
    times = [">ms more", ">ms per GiB"] * (before.step_ns is not None)
    columns = (">needs", ">saves", *times, ">recomputed", "fits", "costs")
    table = page.table("change", *columns, fold=True)
    ordered = sorted(trials, key=lambda t: -t.saved)
    for trial in ordered:
        tried = trial.tried
        if tried is None or trial.idle:
            continue
        alone = len(trial.changes) == 1
        costs = change_of(trial.changes[0]).costs if alone else " + ".join(trial.changes)
        table.add_row(
            trial.changes[0] if alone else "all that help",
            page.bytes(tried.needed),
            page.bytes(trial.saved) if trial.saved > 0 else "does not help",
            *_slower(trial)[: len(times)],
            f"{100 * trial.recomputed:.1f} %" if trial.recomputed else "",
            "yes" if tried.fits else "no",
            "wrong gradients" if trial.wrong else costs,
        )
    page.show(table)
    for trial in ordered:
        if len(trial.changes) == 1:
            page.indented(_sentence(trial), 2)
    page.line(
        f"{tries.made} tries. Each row is a run of the "
        "whole script on the simulated device. What is saved is of all that the device gives. "
        "Recomputed operations are those of compiled code."
    )
    return page.text()


def _slower(trial: Trial) -> tuple[str, str]:
    if trial.slower_ns is None:
        return "", ""
    ms = trial.slower_ns / 1e6
    # With 0.0 added -0.0 is 0.0.
    per_gib = round(ms / (trial.saved / 2**30), 2) + 0.0 if trial.saved > 0 else None
    return f"{round(ms, 2) + 0.0:+,.2f}", "" if per_gib is None else f"{per_gib:,.2f}"


def _sentence(trial: Trial) -> str:
    """Sentence on a trial: its change and how to have it, or why it is of no use."""
    (text,) = trial.changes
    if trial.tried is None:
        return f"{text}: the program failed with it: {trial.problem}"
    if trial.idle:
        return f"{text}: there was nothing to change"
    if trial.wrong:
        return f"{text}: not to be used: {DRAWN_ANEW}"
    if trial.saved <= 0:
        return f"{text}: does not help"
    changed = "; ".join(trial.tried.changed)
    return f"{changed or text}. To have it: {change_of(text).how}"
