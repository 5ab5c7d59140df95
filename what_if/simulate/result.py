"""A simulation as JSON for programs, as a profile for every other command, and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from memprof.profiler.file.profile_file import write_profiles
from memprof.profiler.live.attribution import Attribution
from memprof.profiler.live.devices import main_device, timelines
from memprof.profiler.model import DeviceAccount, Process, Profile, StepTime
from memprof.profiler.views.advice import advise
from memprof.profiler.views.report import text as reports
from memprof.profiler.views.report.failure import why
from memprof.profiler.views.report.format import format_ns
from memprof.profiler.views.report.sections.about import advice as findings
from memprof.profiler.views.report.sections.account import of_accounts
from memprof.profiler.views.report.sections.step_time import of_step_time
from memprof.profiler.views.report.text_page import PLAIN, Page, Style
from memprof.simulated_cuda.gpus import Gpu

from .engine_memory import GraphSize, Serving
from .failures import Failure
from .leaving import STILL
from .parent import Simulation, limited
from .processes import ProcessOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """One rank of a simulated job, or a process alone: figures of a ``Simulation`` and of its
    ``Outcome``; ``serving`` are workers of engines."""

    rank: int
    fits: bool | None
    needed_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    steps: int
    ended: str
    undecided: str
    refusal: str
    failure: Failure | None
    status: int
    counters: dict[str, int]
    time: StepTime | None
    uncovered: list[str]
    notes: list[str]
    processes: list[ProcessOutcome]
    serving: list[Serving]
    used_at_once_bytes: list[int]
    accounts: list[DeviceAccount]
    failed_at: list[DeviceAccount]

    @staticmethod
    def of(s: Simulation) -> RankResult:
        """The result of one simulation."""
        outcome = s.outcome
        return RankResult(
            rank=s.rank,
            fits=s.fits,
            needed_bytes=s.needed,
            reserved_bytes=s.account.reserved if s.account else 0,
            allocated_bytes=s.account.most_allocated if s.account else 0,
            steps=s.account.steps if s.account else 0,
            ended=outcome.ended,
            undecided=outcome.undecided,
            refusal=outcome.refusal,
            failure=outcome.failure,
            status=outcome.status,
            counters=outcome.counters,
            time=outcome.time,
            uncovered=outcome.uncovered,
            notes=outcome.notes,
            processes=outcome.processes,
            serving=outcome.engines,
            used_at_once_bytes=outcome.used,
            accounts=outcome.accounts,
            failed_at=s.failed_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Output of ``memprof simulate --json``, in bytes and ns; ``limit_bytes`` is that of
    ``--fail-above``, and ``needed_bytes`` what the rank needs that needs most."""

    gpu: Gpu
    fits: bool | None
    needed_bytes: int
    limit_bytes: int | None
    ranks: list[RankResult]


def result_of(simulations: Sequence[Simulation], limit: int | None = None) -> SimulationResult:
    """The result of one simulation a rank."""
    worst = max(simulations, key=lambda s: s.needed)
    fits = [s.fits for s in simulations]
    return SimulationResult(
        gpu=worst.gpu,
        fits=False if False in fits else None if None in fits else True,
        needed_bytes=worst.needed,
        limit_bytes=limit,
        ranks=[RankResult.of(s) for s in simulations],
    )


def profile_of(simulation: Simulation) -> Profile:
    """The run's profile, with its accounts and its place in the job."""
    profile = simulation.outcome.profile or Profile(complete=False)
    profile.accounts = simulation.outcome.accounts
    profile.step_time = simulation.outcome.time
    job = simulation.job
    if job is not None:
        profile.process = Process(job.rank, job.local_rank, job.world_size)
    return profile


def write_profile_of(simulations: Sequence[Simulation], path: str) -> None:
    """Write what was simulated as a profile, of several ranks if there are several.

    Raises:
        ProfileNotWritableError: it cannot be written.
    """
    write_profiles([profile_of(s) for s in simulations], path)


def render(
    simulations: Sequence[Simulation], style: Style = PLAIN, limit: int | None = None
) -> str:
    """Simulations as text, one a rank, of which one is shown in full: that which needs most, of
    those that do not fit, or are undecided, if there are such. ``limit`` is that of
    ``--fail-above``."""
    worst = max(simulations, key=lambda s: (s.fits is False, s.fits is None, s.needed))
    page = Page(style)
    _verdict(page, worst, limit)
    if len(simulations) > 1:
        _ranks(page, simulations)
        page.line(f"  the verdict, and what follows, is of rank {worst.rank}")
    if worst.outcome.processes:
        _processes(page, worst)
    engines = worst.outcome.engines
    for at, engine in enumerate(engines):
        if engine not in engines[:at]:  # Ranks have the same figures.
            _serving(page, engine, workers=engines.count(engine))
    page.line()
    text = page.text()
    time, accounts = worst.outcome.time, worst.outcome.accounts
    sections = [of_step_time(time, accounts)] if time is not None else []
    if accounts:
        sections += of_accounts(accounts, style.show)
        profile = profile_of(worst)
        by_device = timelines(profile)
        found = advise(by_device[main_device(by_device)], Attribution(profile))
        if found:
            sections.append(findings(found, style.show))
    return text + reports.render(sections, style)


def _verdict(page: Page, s: Simulation, limit: int | None) -> None:
    gpu = f"{s.gpu.name} ({page.bytes(s.gpu.memory)})"
    account, failure = s.account, s.outcome.failure
    needs = f"needs {page.bytes(s.needed)}"
    seen = _steps(account.steps if account is not None else 0)
    if s.fits is None and (failure is not None or s.outcome.status):
        page.line(f"It cannot be said whether this fits {gpu}: the script failed", "bold red")
    elif s.fits is False:
        details = f": {needs}, {seen}" if account is not None and failure is None else ""
        page.line(f"Does not fit {gpu}{details}", "bold red")
        _why_not(page, s)
    elif account is None and not s.outcome.undecided:
        page.line(f"No memory of {gpu} was used.", "bold red")
        page.indented(_WHY_NOTHING, 2)
    elif s.fits is None:
        page.line(f"Undecided for {gpu}: {needs} so far, {seen}", "bold yellow")
    else:
        spare = page.bytes(s.gpu.memory - s.needed)
        above = ""
        if limit is not None and s.needed > limit:
            above = f", more than {page.bytes(limit)} of --fail-above"
        caught = sum(f.count for a in s.outcome.accounts for f in a.failed)
        times = f"{caught:,} time{'s' * (caught > 1)}"
        only = f" only as it went on after running out of memory {times}" if caught else ""
        page.line(f"Fits {gpu}{only}: {needs}{above}, {spare} to spare, {seen}", "bold")
    if s.outcome.undecided:
        page.indented(s.outcome.undecided, 2)
    elif account is not None and failure is None:
        if "optimizer step" not in s.outcome.ended:
            page.line(f"  as far as it ran: {s.outcome.ended}")
        elif s.fits:
            page.line("  evaluation and all else that comes later is not in it: see --to-the-end")
        if account.steps == 0 and s.outcome.ended.startswith(STILL):
            page.line("  a training that begins later is not in it: --steps 3 waits for it")
        # What is free in a graph's pool is not given back.
        pools = sum(p.free for p in account.pools if p.name.startswith("private"))
        least = page.bytes(min(s.least + pools, s.needed))
        if s.fits and least != page.bytes(s.needed):
            page.line(
                f"  it may also run on less, down to {least}: the allocator gives "
                "back what is free; try --memory"
            )
    if s.outcome.uncovered:
        names = ", ".join(s.outcome.uncovered[: page.top])
        page.indented(f"called, and not simulated: {names}; what they would take is missing", 2)
    for note in s.outcome.notes:
        page.indented(note, 2)
    if s.gpu.memory_is_nominal:
        page.line("  this GPU's memory is its nominal one: the driver leaves some per cent less")


def _steps(steps: int) -> str:
    return f"{steps or 'no'} optimizer step{'s' if steps > 1 else ''} seen"


def _why_not(page: Page, s: Simulation) -> None:
    for request in [f for a in s.failed_at for f in a.failed][: page.top]:
        frame = request.frame
        where = page.location(frame) if frame is not None else request.modules or "in autograd"
        page.line(f"  out of memory for {page.bytes(request.nbytes)}: {where}", "red")
    for account in s.failed_at:
        if account.failure is not None:
            page.indented(f"it did not fit: {why(account, account.failure, page.bytes)}", 2)
    failure = s.outcome.failure
    if s.outcome.refusal:
        page.indented(f"the engine ended: {s.outcome.refusal}", 2)
        return
    if limited(s.failed_at):
        page.line("  what follows is of this run: the limit is one of the program's own")
    elif failure is not None:
        more = "nor 1 TiB" if failure.out_of_memory else f"it failed: {failure.kind}"
        page.line(f"  run again on a device of 1 TiB: {more}", "red")
    elif s.account is not None and s.failed_at:
        page.line("  what follows is of a run on a device of 1 TiB")
    page.line("  to make it fit: memprof fit --try measures what saves memory, --vary the sizes")


_WHY_NOTHING = (
    "Nothing in the script or in a process that it started put a tensor on a CUDA device. If it "
    "chooses its device, see that it chose cuda."
)


_SERVING = (
    ("weights", "weights"),
    ("activations", "most beside them in the profile run"),
    ("outside", "outside of torch, as the engine found"),
    ("graphs", "CUDA graphs"),
    ("graphs_estimated", "CUDA graphs, the engine's estimate"),
    ("kv_cache", "KV cache"),
)


def _serving(page: Page, engine: Serving, *, workers: int) -> None:
    page.section(engine.engine if workers == 1 else f"{engine.engine}, each of {workers} workers")
    table = page.table(">bytes", "what")
    for name, what in _SERVING:
        nbytes = getattr(engine, name)
        if nbytes is not None:
            table.add_row(page.bytes(nbytes), what)
    page.show(table)
    if engine.graph_sizes:
        _graph_sizes(page, engine.graph_sizes)
    if engine.tokens is not None:
        page.line(
            f"  KV cache: {engine.blocks or 0:,} blocks, {engine.tokens:,} tokens, "
            f"{engine.requests or 0:,.2f} requests of {engine.longest or 0:,} tokens at once"
        )


def _graph_sizes(page: Page, sizes: Sequence[GraphSize]) -> None:
    page.line()
    table = page.table(">memory grew", ">CUDA graphs", "captured for batches of")
    shown = [size for size in sizes if size.grew][: page.top]
    rest = [size for size in sizes if size not in shown]
    for size in shown:
        what = f"{size.size:,} {size.unit}" if size.size else "a size that is not known"
        table.add_row(page.bytes(size.grew), f"{size.graphs:,}", what)
    if rest:
        grew = page.bytes(sum(size.grew for size in rest))
        table.add_row(grew, f"{sum(size.graphs for size in rest):,}", f"{len(rest):,} other sizes")
    page.show(table)


def _processes(page: Page, s: Simulation) -> None:
    """Rows of the script's own process and of each that it started, and what all used at once."""
    page.section("By process")
    table = page.table("process", "device", ">reserved", ">allocated")
    rows = [("the script's own", s.outcome.own, False)]
    rows += [(f"{p.process} {p.name}".strip(), p.accounts, p.lost) for p in s.outcome.processes]
    for what, accounts, lost in rows:
        if lost:
            table.add_row(f"{what} (was killed, and left no account)", "", "", "")
        for account in accounts:
            figures = (page.bytes(n) for n in (account.reserved, account.most_allocated))
            table.add_row(what, account.device, *figures)
    page.show(table)
    for device, nbytes in enumerate(s.outcome.used):
        if nbytes:
            page.line(f"  all processes on cuda:{device} at once: {page.bytes(nbytes)} at most")


_DIFFERENCES = 3
"""Most parts that are named of those in which a rank differs from the fullest."""


def _ranks(page: Page, simulations: Sequence[Simulation]) -> None:
    """A row for all ranks that have the same figures, the fullest first."""
    fullest, *others = sorted(simulations, key=lambda s: -s.needed)
    rows: dict[tuple[str, ...], list[int]] = {}
    for s in (fullest, *others):
        reserved = s.account.reserved if s.account else 0
        allocated = s.account.most_allocated if s.account else 0
        unknown = "undecided" if s.outcome.undecided else "failed"
        fits = {True: "yes", False: "no", None: unknown}[s.fits]
        differs = _differs(page, s, fullest)
        figures = (page.bytes(n) for n in (s.needed, reserved, allocated))
        step = format_ns(s.outcome.time.step_ns) if s.outcome.time is not None else ""
        rows.setdefault((*figures, step, fits, differs), []).append(s.rank)
    page.section("By rank")
    beside = f"beside rank {fullest.rank}"
    table = page.table(
        "rank", ">needed", ">reserved", ">allocated", ">step", "fits", beside, fold=True
    )
    for row, ranks in rows.items():
        table.add_row(_numbers(ranks), *row)
    page.show(table)


def _numbers(ranks: Sequence[int]) -> str:
    """Ranks in order, those that follow one another as ``0-3``."""
    found = []
    for _, pairs in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in pairs]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(found)


def _differs(page: Page, s: Simulation, fullest: Simulation) -> str:
    """What a rank has more and less of than the fullest, or why it failed."""
    failure = s.outcome.failure
    if s.fits is None and failure is not None:
        first = failure.message.partition("\n")[0]
        return f"{failure.kind}: {first}"
    if s.fits is None and s.outcome.status:
        return f"exit status {s.outcome.status}"
    if s.fits is None and s.account is None:
        return s.outcome.undecided or "used no GPU"
    parts = _parts(s)
    parts.subtract(_parts(fullest))
    differs = sorted(((n, what) for what, n in parts.items() if n), key=lambda d: -abs(d[0]))
    words = [f"{'+' * (n > 0)}{page.bytes(n)} {what}" for n, what in differs[:_DIFFERENCES]]
    return ", ".join([*words, *["…"] * (len(differs) > _DIFFERENCES)])


def _parts(s: Simulation) -> Counter[str]:
    """Bytes of the device by what they are for."""
    found: Counter[str] = Counter()
    if s.account is not None:
        found.update({part.label: n for part, n in s.account.by_category().items()})
        found.update({name: n for name, _, n in s.account.other_parts()})
        found.update({part.what: part.nbytes for part in s.account.outside})
    return found
