"""Whether a test took more device memory than it may."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from memprof.profiler.diff_model import place_of
from memprof.profiler.diff_parts import account_quantities
from memprof.profiler.errors import ProfileError
from memprof.profiler.file import read_profile
from memprof.profiler.model import Profile
from memprof.profiler.report.failure import asked, asker
from memprof.profiler.report.format import format_bytes
from memprof.simulate.parent import Simulation
from memprof.simulate.result import profile_of, write_profile_of
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import parse_size

_COLUMNS = ("test", "GPU", "reserved", "limit", "allocated", "baseline", "change", "")


@dataclass(frozen=True, slots=True)
class Row:
    """One test by its node ID, the GPU by its key, and bytes: the most at any time, the limit of
    what is reserved and the baseline of what is allocated, None for none."""

    test: str
    gpu: str
    reserved: int
    allocated: int
    limit: int | None
    baseline: int | None
    passed: bool

    def markdown(self) -> str:
        """The row of a table in Markdown."""
        change = ""
        if self.baseline:
            change = f"{100 * (self.allocated - self.baseline) / self.baseline:+.2f} %"
        cells = (
            f"`{self.test}`".replace("|", "\\|"),
            self.gpu,
            format_bytes(self.reserved),
            "" if self.limit is None else format_bytes(self.limit),
            format_bytes(self.allocated),
            "" if self.baseline is None else format_bytes(self.baseline),
            change,
            "" if self.passed else "**failed**",
        )
        return f"| {' | '.join(cells)} |\n"


def begin(path: str) -> None:
    """Write the head of a table, over what was there."""
    rules = ["---", "---", *["--:"] * 5, "---"]
    with open(path, "w") as f:
        f.write(f"| {' | '.join(_COLUMNS)} |\n| {' | '.join(rules)} |\n")


def add(path: str, row: Row) -> None:
    """Add a row, in one piece."""
    with open(path, "a") as f:
        f.write(row.markdown())


if TYPE_CHECKING:
    import pytest

FOLDER = "memprof-baselines"
"""Beside the test's file."""

_LONGEST = 180
"""Bytes of a test's name in that of its baseline: file systems take 255, and a writer adds some."""

_TOP = 5


class BadGate(Exception):
    """A gate that cannot be judged; the message says why."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What a test may take: bytes, None for no limit; of which GPU, None for the usual one; and
    growth beyond the baseline as a part of it, None if it is not compared."""

    limit: int | None
    gpu: str | None
    growth: Fraction | None


def read_mark(mark: pytest.Mark) -> Gate:
    """What a mark asks for.

    Raises:
        BadGate: its arguments are none that it has.
    """
    known = {"limit", "gpu", "growth"}
    given = dict(mark.kwargs)
    if len(mark.args) > 1 or (mark.args and "limit" in given) or set(given) - known:
        words = [repr(a) for a in mark.args] + [f"{k}={v!r}" for k, v in given.items()]
        raise BadGate(
            "limit_device_memory takes a limit such as '2 GiB', gpu='a100-40gb' and growth='0 %', "
            f"and was given {', '.join(words) or 'nothing'}"
        )
    limit = mark.args[0] if mark.args else given.get("limit")
    growth, gpu = given.get("growth"), given.get("gpu")
    if gpu is not None and not isinstance(gpu, str):
        raise BadGate(f"{gpu!r} is no GPU: write 'a100-40gb'")
    return Gate(_bytes(limit), gpu, _share(growth))


def _bytes(limit: object) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit > 0):
        return limit
    try:
        if isinstance(limit, str) and not limit.strip().isdigit():
            return parse_size(limit)
    except SimulationError:
        pass
    raise BadGate(f"{limit!r} is no limit: write '2 GiB', '500 MiB', or bytes as a number")


def _share(growth: object) -> Fraction | None:
    if growth is None:
        return None
    text = growth.strip() if isinstance(growth, str) else ""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    if found is None:
        raise BadGate(f"{growth!r} is no growth: write '0 %' or '2.5 %'")
    return Fraction(found[1]) / 100


def baseline_path(nodeid: str, test_file: Path) -> Path:
    """Where the baseline of a test lies: a profile, which other commands read too."""
    name = nodeid.partition("::")[2].replace("::", ".")
    safe = re.sub(r"[^\w.,=+\[\]-]", "_", name)
    if safe != name or len(safe.encode()) > _LONGEST:  # and another name may look the same
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        safe = f"{safe.encode()[:_LONGEST].decode(errors='ignore')}-{digest}"
    return test_file.parent / FOLDER / test_file.stem / f"{safe}.memprof"


def judge(
    nodeid: str, test_file: Path, gate: Gate, simulation: Simulation, *, update: bool
) -> tuple[str, Row]:
    """What is wrong with what a test took, in words, empty if nothing is; and its row of a table.
    With ``update`` what it took becomes its baseline.

    Raises:
        BadGate: the baseline cannot be written.
    """
    path = baseline_path(nodeid, test_file)
    before, problem = _baseline(nodeid, path)
    old = before.accounts[0].most_allocated if before is not None and before.accounts else None
    account = simulation.account
    if update and account is not None and simulation.outcome.out_of_memory is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_profile_of([simulation], str(path))
        except (OSError, ProfileError) as e:
            raise BadGate(f"its baseline cannot be written: {e}") from e
        problem, before = "", profile_of(simulation)
    if not problem or gate.growth is None:
        problem = _problem(nodeid, gate, simulation, path, before)
    taken = (account.reserved, account.most_allocated) if account is not None else (0, 0)
    gpu = simulation.gpu.key
    return problem, Row(nodeid, gpu, *taken, gate.limit, old, not problem)


def _baseline(nodeid: str, path: Path) -> tuple[Profile | None, str]:
    """The baseline, if there is one, and what is wrong with it."""
    try:
        return (read_profile(path) if path.exists() else None), ""
    except ProfileError as e:
        return None, f"{nodeid}: its baseline cannot be read: {e}; --memprof-update writes it anew"


def _problem(
    nodeid: str, gate: Gate, simulation: Simulation, path: Path, before: Profile | None
) -> str:
    failed = simulation.outcome.out_of_memory
    if failed is not None and failed.failure is not None:
        f = failed.failure
        return (
            f"{nodeid} ran out of memory on {simulation.gpu.name} "
            f"({format_bytes(simulation.gpu.memory)}): {asked(f, format_bytes)} {asker(f)}"
        )
    account = simulation.account
    if account is None:
        return f"{nodeid} put nothing on a CUDA device, so that its limit says nothing"
    problems = []
    if gate.limit is not None and account.reserved > gate.limit:
        problems.append(
            f"{nodeid} reserved {_both(account.reserved)} on {simulation.gpu.name}, more than its "
            f"limit of {_both(gate.limit)}"
        )
    if gate.growth is not None:
        problems += _compared(nodeid, path, gate.growth, before, account.most_allocated)
    if not problems:
        return ""
    return "\n".join([*problems, *_what_grew(before, profile_of(simulation))])


def _compared(
    nodeid: str, path: Path, growth: Fraction, before: Profile | None, allocated: int
) -> list[str]:
    if before is None:
        return [f"{nodeid} has no baseline {path}: run pytest with --memprof-update and commit it"]
    # Not what is reserved, which grows in segments of 2 MiB and more.
    old = before.accounts[0].most_allocated if before.accounts else 0
    if allocated <= old * (1 + growth):
        return []
    return [
        f"{nodeid} allocated {_both(allocated)} at its peak, "
        f"{100 * (allocated - old) / max(old, 1):.2f} % more than its baseline of {_both(old)}"
    ]


def _both(nbytes: int) -> str:
    return f"{format_bytes(nbytes)} ({nbytes:,} B)"


def _what_grew(before: Profile | None, after: Profile) -> list[str]:
    """Against the baseline; without one, what there is most of."""
    lines = []
    found = list(account_quantities(before, after)) if before is not None else []
    if before is not None and before.torch != after.torch:
        lines.append(f"The baseline is of torch {before.torch}, this run of {after.torch}")
    for quantity in found[:1]:
        for view, title in (("category", "purpose"), ("module", "module"), ("node", "line")):
            grown = [c for c in quantity.views[view] if c.change > 0][:_TOP]
            if grown:
                lines.append(f"Grown since the baseline, by {title}:")
                for c in grown:
                    change, before_ = format_bytes(c.change), format_bytes(c.before)
                    lines.append(f"  {'+' + change:>10}  {c.key}  ({before_} before)")
        lines += _nodes(after, {c.key for c in quantity.views["node"] if c.change > 0})
    if not found and after.accounts:
        lines.append("What is reserved at the peak:")
        parts = sorted(after.accounts[0].parts(), key=lambda part: -part[1])
        lines += [f"  {format_bytes(n):>9}  {what}" for what, n in parts[:_TOP] if n]
    return lines


def _nodes(after: Profile, places: set[str]) -> list[str]:
    """FX nodes of compiled code at lines that grew; their names alone say nothing of a baseline."""
    found: dict[str, int] = {}
    for row in after.accounts[0].rows:
        if row.nodes and row.frame is not None and place_of(row.frame) in places:
            found[row.nodes] = found.get(row.nodes, 0) + row.nbytes
    rows = sorted(found.items(), key=lambda item: -item[1])[:_TOP]
    lines = [f"  {format_bytes(n):>10}  {nodes}" for nodes, n in rows]
    return ["FX nodes of these lines now:", *lines] if lines else []
