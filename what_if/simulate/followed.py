"""The devices of one process of a simulated run, the script's own or one that it has started."""

from __future__ import annotations

import time
from collections.abc import Callable

from memprof.profiler.model import DeviceAccount

from .engines import pools
from .leaving import BY_ITSELF, why_undecided
from .outside import taken


class Followed:
    """Follows the devices of this process from ``begin`` on; imports torch.

    Args:
        on_step: as of an ``AllocatorSession``.
        began: ``time.monotonic()`` from which accounts count their time.

    Attributes:
        session: what follows them.
        out_of_memory: the account of the last moment at which an allocation failed.
    """

    def __init__(self, on_step: Callable[[int, int], None], began: float) -> None:
        from memprof.profiler.sources.allocator.allocator_session import AllocatorSession

        self.session = AllocatorSession(on_step=on_step)
        self.out_of_memory: DeviceAccount | None = None
        self._began = began

    def begin(self) -> None:
        """Follow from here on, or from where CUDA starts."""
        from memprof.profiler.sources.allocator.out_of_memory import REPORTS

        self.session.install()
        REPORTS.follow(self.session)
        REPORTS.keep_with(self._keep)
        REPORTS.start()

    def _keep(self, account: DeviceAccount) -> str:
        self.out_of_memory = account
        return ""

    @property
    def elapsed_s(self) -> float:
        """Seconds since ``began``."""
        return time.monotonic() - self._began

    def accounts(self, ended: str, *, failed: bool) -> list[DeviceAccount]:
        """Accounts of the devices, the one with most reserved first, of a process that ``ended``
        so, or whose end was an exception that nobody caught.

        Raises:
            RuntimeError: there are none, for the reason that it says.
        """
        elapsed_ns = int(self.elapsed_s * 1e9)
        self.session.objects.others += pools()
        found = self.session.accounts(cut_off=failed or ended != BY_ITSELF)
        for account in found:
            account.simulated = True
            account.elapsed_ns = elapsed_ns
            account.ended = ended
        for account in found[:1]:
            account.outside = taken()
        return found

    def why_undecided(self, ended: str) -> str:
        """As the function of that name, of what this process did until it ``ended`` so."""
        session = self.session
        has_optimizer = session.objects.has_optimizer
        return why_undecided(
            ended, session.fewest_steps, session.steps, session.backwards, has_optimizer
        )
