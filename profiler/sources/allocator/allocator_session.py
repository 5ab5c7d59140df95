"""Accounts of a process's CUDA devices, and what grows on them, from the allocator's history."""

from __future__ import annotations

import functools
from typing import Any

import torch

from memprof.profiler.model import Category, DeviceAccount, Growth

from . import _torch_compat as compat
from .account import HolderOf, add_history_notes, explain
from .growing_blocks import growth_of
from .history import AllocatorInstant
from .history_follower import HistoryFollower
from .holders import Holders
from .totals import counted, named, outside, peaks


class AllocatorSession(HistoryFollower):
    """Makes accounts of devices from what it has followed of the allocator's history."""

    def accounts(self, cut_off: bool = False) -> list[DeviceAccount]:
        """Accounts of the peak of each device that was used, most bytes first, of a run that is
        over: but for a guest's, cuBLAS's workspaces are given back.

        Args:
            cut_off: whether the program ended in the middle: by an exception, or as it was left.

        Raises:
            RuntimeError: ``why_not`` says why there are none.
        """
        self._end_thread()
        if not self._guest:
            compat.unfreeze()
        self._count_updates()
        if self.why_not:
            raise RuntimeError(self.why_not)
        if not self.started:
            return []
        if not self.histories:
            return counted(self.steps)
        self._mark_process(None)
        self.drain()
        stats = {d: torch.cuda.memory_stats(d) for d in self.histories}
        if not self._guest:
            self._mark(None, clears=True)
            compat.clear_workspaces()
            self.drain()
        found = [self._account(d, stats[d], cut_off and self.trains) for d in self.histories]
        return sorted((a for a in found if a.reserved), key=lambda a: -a.reserved)

    def _account(self, device: int, stats: dict[str, Any], cut_off: bool) -> DeviceAccount:
        history = self.histories[device]
        # A script may set the counters back (``reset_peak_memory_stats``), the history has no such
        # end. And what they had before the watch began they may have from an earlier peak.
        reserved, allocated = (
            max(followed, counted if counted > before else 0)
            for followed, counted, before in zip(
                (history.peak.reserved, history.most_allocated),
                peaks(stats),
                self._peaks_before[device],
                strict=True,
            )
        )
        sizes = compat.workspace_sizes(device) if self._guest else ()
        holders = functools.cache(Holders)
        account = self._explained(
            device,
            history.peak,
            reserved,
            cut_off=cut_off,
            is_workspace=lambda b: b.requested in sizes and holders().of(b) is None,
            transient_workspaces=compat.transient_workspace_sizes(device),
        )
        account.most_allocated = allocated
        account.outside = outside(device) if self._guest else []
        return account

    def _explained(
        self, device: int, peak: AllocatorInstant, reserved: int, **how: Any
    ) -> DeviceAccount:
        account = named(device, self.steps)
        account.reserved = reserved
        explain(account, peak, self.marks, **how)
        add_history_notes(account, self.histories[device], self.times_full)
        return account

    def account_now(self, device: int, holder_of: HolderOf) -> tuple[DeviceAccount, int]:
        """Account of a device that is followed at this instant, in the midst of the program, and
        bytes of the request that failed last; 0 if none did. ``holder_of`` as for ``explain``."""
        self._mark_process(None)
        self.drain()
        history = self.histories[device]
        peak = history.now()
        account = self._explained(
            device,
            peak,
            peak.reserved,
            cut_off=self.trains,
            now=True,
            holder_of=holder_of,
            is_workspace=lambda b: holder_of(b)[0] is Category.WORKSPACE,
        )
        account.most_allocated = history.most_allocated
        failed = history.out_of_memory
        return account, failed[-1][0] if failed else 0

    def growth(self) -> list[Growth]:
        """Memory that is held across steps and grows, on all devices, most bytes a step first."""
        if not self.follows:
            return []
        known = self._mark_process(None)
        self.drain()
        found = [
            growth
            for device, history in self.histories.items()
            for growth in growth_of(device, history, self.marks, known)
        ]
        return sorted(found, key=lambda g: -g.a_step)
