"""Changes of a program, each tried on the simulated device: what did it save?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memprof.profiler.report.page import PLAIN, Page, Style
from memprof.simulate.changes import CHANGES
from memprof.simulated_cuda.gpus import Gpu

from .store import Tried
from .tries import ScriptFailed, Tries

__all__ = ["Advice", "Result", "advise", "render_advice"]

_RIVALS = ("fused-optimizer", "optimizer-one-by-one")
"""Of these one alone can be had."""


@dataclass(slots=True)
class Result:
    """What came of a change.

    Attributes:
        changes: keys of what was changed, several for all together.
        tried: None where the program failed with it.
        problem: why it failed; empty if it did not.
    """

    changes: tuple[str, ...]
    tried: Tried | None
    problem: str = ""

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
    """

    gpu: Gpu
    before: Tried
    results: list[Result]

    def saved(self, result: Result) -> int:
        """Bytes less that the device must have; negative for more."""
        return self.before.needed - result.tried.needed if result.tried is not None else 0

    def more_flops(self, result: Result) -> float | None:
        """Operations of compiled code more than before, as a share; None if none were counted."""
        if result.tried is None or not self.before.flops or result.tried.flops is None:
            return None
        return (result.tried.flops - self.before.flops) / self.before.flops


def advise(
    gpu: Gpu, changes: Sequence[str], tries: Tries, said: Callable[[str, Tried | None], None]
) -> Advice:
    """Try each change alone, and all that help together.

    Args:
        gpu: the device.
        changes: keys of ``CHANGES``.
        tries: runs them.
        said: is told of each as it ends, by name; None where the program failed with it.

    Raises: as ``Tries.run``, for the program as it is.
    """
    before = tries.run(gpu, {})
    said("as it is", before)
    found = Advice(gpu, before, [])

    def attempt(keys: tuple[str, ...]) -> None:
        try:
            result = Result(keys, tries.run(gpu, {}, keys))
        except ScriptFailed as e:  # With this change alone: the others are still worth a try.
            result = Result(keys, None, str(e))
        said(" + ".join(keys), result.tried)
        found.results.append(result)

    for key in changes:
        attempt((key,))
    helped = {r.changes[0]: found.saved(r) for r in found.results if found.saved(r) > 0}
    rivals = sorted((k for k in _RIVALS if k in helped), key=lambda k: -helped[k])
    together = tuple(k for k in helped if k not in rivals[1:])
    if len(together) > 1:
        attempt(together)
    return found


def render_advice(found: Advice, made: int, known: int, style: Style = PLAIN) -> str:
    """A table of changes, largest saving first."""
    page = Page(style)
    fits = "fits" if found.before.fits else "does not fit"
    page.line(
        f"As it is it needs {page.bytes(found.before.needed)} and {fits} {found.gpu.name} "
        f"({page.bytes(found.gpu.memory)})",
        "bold",
    )
    page.line()
    table = page.table("change", ">needs", ">saves", ">recomputed", "fits", "costs", fold=True)
    ordered = sorted(found.results, key=lambda r: -found.saved(r))
    for result in ordered:
        tried = result.tried
        if tried is None or result.idle:
            continue
        more = found.more_flops(result)
        saved = found.saved(result)
        alone = len(result.changes) == 1
        table.add_row(
            result.changes[0] if alone else "all that help",
            page.bytes(tried.needed),
            page.bytes(saved) if saved > 0 else "does not help",
            "" if not more else f"{100 * more:.1f} %",
            "yes" if tried.fits else "no",
            CHANGES[result.changes[0]].costs if alone else " + ".join(result.changes),
        )
    page.show(table)
    for result in ordered:
        (key, *others) = result.changes
        if others:
            continue
        if result.tried is None:
            page.indented(f"{key}: the program failed with it: {result.problem}", 2)
        elif result.idle:
            page.indented(f"{key}: there was nothing to change", 2)
        elif found.saved(result) > 0:
            changed = "; ".join(result.tried.changed)
            page.indented(f"{changed or key}. To have it: {CHANGES[key].how}", 2)
    page.line(
        f"{made} tries, {known} known from the file before. Each row is a run of the whole script "
        "on the simulated device. Recomputed operations are those of compiled code."
    )
    return page.text()
