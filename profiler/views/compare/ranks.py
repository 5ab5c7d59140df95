"""Several ranks side by side: who has how much, and where they differ.

Note [What ranks are compared by]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Ranks of one job should compile as often and skip the same things; where they do not, one of them
compiles while the others wait in a collective: the table has both. Bytes may differ, as shards of
uneven parameters do: that is imbalance, not a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import mean

from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.devices import main_device, timelines
from memprof.profiler.model import LedgerKind, Process, Profile

_LISTED = 8
_SKIPS = (LedgerKind.SKIP, LedgerKind.NOT_GRAPHED, LedgerKind.TREE_FAILURE, LedgerKind.FALLBACK)


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank.

    Attributes:
        rank: from 0 in order of files where unknown.
        peak, categories: known live memory of ``device``, bytes; where every profile has an
            account, all that was reserved there.
        recompiles: graphs that Dynamo compiled again for code that it had compiled before.
        skips: how often something ran without a graph or without memprof.
        complete: False if its file ends before its session did.
    """

    rank: int
    host: str
    pid: int
    device: str
    peak: int
    categories: dict[str, int]
    graphs: int
    calls: int
    recompiles: int
    skips: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Bytes of the peak, or of a category in it, over all ranks."""

    name: str
    lowest: int
    lowest_rank: int
    highest: int
    highest_rank: int
    mean: float

    @property
    def excess(self) -> float:
        """Difference of the highest figure and the mean, as a part of the mean."""
        return self.highest / self.mean - 1 if self.mean else 0.0


@dataclass(frozen=True, slots=True)
class RankSummary:
    """All ranks of a job of ``world_size``, or runs that are no ranks (then 0).

    In ``imbalance`` the peak is first, then categories, most bytes first; ``warnings`` say
    which ranks are missing, there twice, not whole, or out of memory.
    """

    world_size: int
    rows: list[RankRow]
    imbalance: list[Imbalance]
    warnings: list[str]


def ranks_of(profiles: Sequence[Profile]) -> list[int]:
    """Rank of each profile; where a profile has none, its index in ``profiles``."""
    return [p.process.rank if p.process else i for i, p in enumerate(profiles)]


def world_size(profiles: Sequence[Profile]) -> int:
    """Number of ranks of the profiles' job; 0 if no profile knows of a job."""
    return max((p.process.world_size for p in profiles if p.process), default=0)


def compare_ranks(profiles: Sequence[Profile], device: str | None = None) -> RankSummary:
    """Compare the profiles of one job's processes, or of several runs, at least one; by default the
    main device of each.

    Raises:
        ValueError: no program of one of them uses ``device``.
    """
    ranked = sorted(
        (
            (p.process or Process(rank, rank, len(profiles)), p)
            for rank, p in zip(ranks_of(profiles), profiles, strict=True)
        ),
        key=lambda r: r[0].rank,
    )
    reserved = all(p.accounts for p in profiles)
    rows = [_row(process, profile, device, reserved) for process, profile in ranked]
    return RankSummary(
        world_size=world_size(profiles),
        rows=rows,
        imbalance=_imbalance(rows),
        warnings=_warnings(ranked, rows),
    )


def _row(process: Process, profile: Profile, device: str | None, reserved: bool) -> RankRow:
    found = timelines(profile)
    name = main_device(found, device)
    shares = Attribution(profile).breakdown(found[name].at_peak(), View.CATEGORY)
    peak, categories = shares.total, {s.key: s.nbytes for s in (*shares.parts, *shares.remainder)}
    fullest = [a for a in profile.accounts if device in (None, a.device)]
    if reserved and fullest:
        account = max(fullest, key=lambda a: a.reserved)
        name, peak = account.device, account.reserved
        categories = {p.label: n for p, n in account.by_category().items()}
        categories |= {part: n for part, _, n in account.other_parts() if n}
    return RankRow(
        rank=process.rank,
        host=process.host,
        pid=process.pid,
        device=name,
        peak=peak,
        categories=categories,
        graphs=len(profile.graphs),
        calls=len(profile.calls) + profile.calls.dropped,
        recompiles=_recompiles(profile),
        skips=sum(e.count for e in profile.ledger if e.kind in _SKIPS),
        complete=profile.complete,
    )


def _recompiles(profile: Profile) -> int:
    # `0/1` is the second compilation of Dynamo's frame 0; `!1` is a captured backward, no frame.
    parts = {g.compile_id.rpartition("/") for g in profile.graphs if g.compile_id}
    return sum(1 for frame, _, number in parts if frame and number != "0")


def _imbalance(rows: list[RankRow]) -> list[Imbalance]:
    def over(name: str, figures: list[tuple[int, int]]) -> Imbalance:
        low, high = min(figures), max(figures, key=lambda f: (f[0], -f[1]))
        return Imbalance(name, low[0], low[1], high[0], high[1], mean(f[0] for f in figures))

    out = [over("peak", [(r.peak, r.rank) for r in rows])]
    names = Counter[str]()
    for row in rows:
        names.update(row.categories)
    for name, _ in names.most_common():
        out.append(over(name, [(r.categories.get(name, 0), r.rank) for r in rows]))
    return out


def _warnings(ranked: list[tuple[Process, Profile]], rows: list[RankRow]) -> list[str]:
    out = []
    present = [r.rank for r in rows]
    world = max(p.world_size for p, _ in ranked)
    if lacking := world - len({r for r in present if r < world}):
        # Of a job of any size; a file can say what it likes.
        first = islice((r for r in range(world) if r not in present), _LISTED)
        missing = _list([*first], lacking)
        out.append(f"of {world} ranks {missing} missing: their files were not given")
    if twice := sorted(r for r, n in Counter(present).items() if n > 1):
        out.append(f"rank {_list(twice)} there more than once: are these files of one job?")
    if unfinished := [r.rank for r in rows if not r.complete]:
        out.append(f"rank {_list(unfinished)} did not come to the end of its session")
    for process, profile in ranked:
        if profile.left_out:
            n = len(profile.left_out)
            more = f" and {n - 1} parts more" if n > 1 else ""
            out.append(f"rank {process.rank}: left out: {profile.left_out[0]}{more}")
        if any(account.failure is not None for account in profile.accounts):
            out.append(f"rank {process.rank} ran out of memory")
    return out


def _list(ranks: Sequence[int], count: int | None = None) -> str:
    shown = ", ".join(map(str, ranks[:_LISTED]))
    more = (len(ranks) if count is None else count) - _LISTED
    return shown + (f" and {more} more" if more > 0 else "")
