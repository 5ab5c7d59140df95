"""The devices of one process of a simulated run, the script's own or one that it has started."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from memprof.profiler.model import DeviceAccount
from memprof.simulated_cuda import control

from .leaving import BY_ITSELF, Step, why_undecided
from .outside import asked_for, taken
from .sglang import pools


def name_among_all(accounts: Iterable[DeviceAccount]) -> None:
    """Give devices of this process the numbers that they have among all of a simulated host: with
    CUDA_VISIBLE_DEVICES a process sees some of them, and counts these from 0."""
    import torch

    for account in accounts if control.simulated() else ():
        own: Any = torch.cuda.get_device_properties(torch.device(account.device))
        # Whose buses count from 1: simulated_cuda/src/cudart.cpp.
        account.device = f"cuda:{own.pci_bus_id - 1}"


def counted() -> Step:
    """What torch's counters have, of the device with most, and which stream is the current one."""
    from memprof.profiler.sources.allocator.totals import device_counters

    found = [of for _, of in device_counters()]
    if not found:
        return Step()
    import torch

    allocated, _, most_allocated, most_reserved = map(max, zip(*found, strict=True))
    aside = torch.cuda.current_stream() != torch.cuda.default_stream()
    return Step(most_reserved, most_allocated, allocated, aside)


def grouped() -> bool:
    """Tells whether this process has a process group, in which it is not alone."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


class Followed:
    """Follows the devices of this process from ``begin`` on; imports torch.

    Args:
        on_step: as of an ``AllocatorSession``.
        began: ``time.monotonic()`` from which accounts count their time.
        on_failure: called with each new ``out_of_memory``.

    Attributes:
        allocator: what follows them.
        out_of_memory: the account of the last moment at which an allocation failed.
    """

    def __init__(
        self,
        on_step: Callable[[int, int], None],
        began: float,
        on_failure: Callable[[DeviceAccount], None] = lambda _: None,
    ) -> None:
        from memprof.profiler.sources.allocator.allocator_session import AllocatorSession

        self.allocator = AllocatorSession(on_step=on_step)
        self.out_of_memory: DeviceAccount | None = None
        self._began = began
        self._on_failure = on_failure

    def begin(self) -> None:
        """Follow from here on, or from where CUDA starts."""
        from memprof.profiler.sources.allocator.out_of_memory import REPORTS

        self.allocator.install()
        REPORTS.follow(self.allocator)
        REPORTS.keep_with(self._keep)
        REPORTS.start()

    def _keep(self, account: DeviceAccount) -> str:
        self.out_of_memory = replace(account)
        name_among_all((self.out_of_memory,))
        self._on_failure(self.out_of_memory)
        return ""

    def accounts(self, ended: str, *, failed: bool) -> list[DeviceAccount]:
        """Accounts of the devices, the one with most reserved first, of a process that ``ended``
        so, or whose end was an exception that nobody caught.

        Raises:
            RuntimeError: there are none, for the reason that it says.
        """
        import torch

        elapsed_ns = int((time.monotonic() - self._began) * 1e9)
        self.allocator.objects.others += pools()
        found = self.allocator.accounts(cut_off=failed or ended != BY_ITSELF)
        for account in found:
            account.simulated = True
            account.elapsed_ns = elapsed_ns
            account.ended = ended
        for account in found[:1]:
            account.outside = [*taken(), *asked_for(torch.device(account.device))]
        return found

    def why_undecided(self, ended: str) -> str:
        """As the function of that name, of what this process did until it ``ended`` so."""
        allocator = self.allocator
        has_optimizer = allocator.objects.has_optimizer
        if self.out_of_memory is not None and has_optimizer and not allocator.steps:
            return f"{ended}: it went on after running out of memory, and no optimizer made a step"
        return why_undecided(
            ended, allocator.fewest_steps, allocator.steps, allocator.backwards, has_optimizer
        )
