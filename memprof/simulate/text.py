"""A simulation as text: whether it fits, then the account of its fullest device."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.profiler.report.device_text import render_accounts
from memprof.profiler.report.page import PLAIN, Page, Style

from .parent import Simulation

__all__ = ["render"]


def render(simulations: Sequence[Simulation], style: Style = PLAIN) -> str:
    """Simulations as text, ending in a newline.

    Args:
        simulations: one a rank; the one that needs most is shown in full.
        style: of the page.
    """
    worst = max(simulations, key=lambda s: s.needed)
    page = Page(style)
    _verdict(page, worst)
    if len(simulations) > 1:
        _ranks(page, simulations)
    page.line()
    text = page.text()
    if worst.outcome.accounts:
        text += render_accounts(worst.outcome.accounts, style)
    return text


def _verdict(page: Page, s: Simulation) -> None:
    gpu = f"{s.gpu.name} ({page.bytes(s.gpu.memory)})"
    account = s.account
    failure = s.outcome.failure
    if account is None:
        page.line(f"No memory of {gpu} was used.", "bold red")
        if failure is None and not s.outcome.status:
            page.indented(_WHY_NOTHING, 2)
        return
    if s.fits:
        spare = s.gpu.memory - s.needed
        page.line(f"Fits {gpu}: needs {page.bytes(s.needed)}, {page.bytes(spare)} to spare", "bold")
    elif s.fits is False and failure is None:
        over = s.needed - s.gpu.memory
        page.line(f"Does not fit {gpu}: needs {page.bytes(s.needed)}", "bold red")
        if over > 0:
            page.line(f"  {page.bytes(over)} too little; below is a run on a device that has them")
        else:
            page.indented(_TIGHT, 2)
        for request in [f for a in s.failed_at for f in a.failed][: page.top]:
            where = page.location(request.frame) if request.frame is not None else request.modules
            page.line(f"  out of memory for {page.bytes(request.nbytes)}: {where}", "red")
    elif s.fits is False:
        page.line(f"Does not fit {gpu}, nor 1 TiB: below is how far it came", "bold red")
    else:
        page.line(f"It cannot be said whether this fits {gpu}: the script failed", "bold red")
    if s.smallest is not None:
        page.line(f"  smallest memory on which it ran: {page.bytes(s.smallest)}, to 1 %")
    else:
        page.line(
            f"  smallest memory on which it runs: between {page.bytes(s.least)} (allocated) and "
            f"{page.bytes(s.needed)} (reserved); --smallest finds it"
        )
    if s.outcome.uncovered:
        names = ", ".join(s.outcome.uncovered[: page.top])
        page.indented(f"called, and not simulated: {names}; what they would take is missing", 2)
    if s.gpu.memory_is_nominal:
        page.line("  this GPU's memory is its nominal one: the driver leaves some per cent less")


_WHY_NOTHING = (
    "Nothing in the script's own process put a tensor on a CUDA device. If it starts others "
    "(torchrun, accelerate launch), simulate the training script itself, with --world-size; if it "
    "chooses its device, see that it chose cuda."
)
_TIGHT = (
    "the allocator could not find one range for a request although there are enough bytes in all: "
    "fragmentation. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may help."
)


def _ranks(page: Page, simulations: Sequence[Simulation]) -> None:
    page.section("By rank")
    table = page.table("rank", ">needed", ">reserved", ">allocated", "fits")
    for s in simulations:
        reserved = s.account.reserved if s.account else 0
        allocated = s.account.most_allocated if s.account else 0
        fits = {True: "yes", False: "no", None: "failed"}[s.fits]
        table.add_row(str(s.rank), *(page.bytes(n) for n in (s.needed, reserved, allocated)), fits)
    page.show(table)
