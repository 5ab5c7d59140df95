"""Collectives of a step that is followed: bytes over a rank's links, and what waits for them.

Note [Time of a collective]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
Ranks are not there (``simulate/ranks.py``), so that a collective launches nothing. Its bytes are
those that each rank has to send at least, which nccl-tests' PERFORMANCE.md derives for its "bus
bandwidth": of a buffer of ``S`` bytes, ``n`` ranks send ``2 S (n - 1) / n`` each in an all-reduce,
``S (n - 1) / n`` in an all-gather, a reduce-scatter and an all-to-all, ``S`` in others. Where the
group is on several hosts they go over the network, through that of all of its GPUs of a host, as
rings do; what is sent from one rank to another uses that of its GPU alone. One that its caller
waits for is done on its stream, as NCCL does it since torch 2.8; another beside all, on a stream of
its group, until ``wait_tensor`` asks for its tensor or ``Work.wait`` for it, or to the end of the
step: what waits for it otherwise, as for a future, is not seen. Those of a captured graph are not
followed. So it is a bound, too, but for
switches that add up themselves (NVLink SHARP), which can be faster.

An event on the caller's stream marks the collective's place in the log of work.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from memprof.simulated_cuda import control
from memprof.simulated_cuda.overrides import Kernel, wrap_kernels

from . import _torch_compat
from .timeline import Given
from .work import COMMUNICATION, Work

_BUFFERS = {
    "allreduce_": 2,
    "allreduce_coalesced_": 2,
    "allgather_": 1,
    "_allgather_base_": 1,
    "allgather_into_tensor_coalesced_": 1,
    "reduce_scatter_": 1,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "alltoall_": 1,
    "alltoall_base_": 1,
    "gather_": 1,
    "scatter_": 1,
}
"""How often each rank sends its share of the buffer that all have."""
_WHOLE = ("broadcast_", "reduce_", "send", "recv_")


@dataclass(frozen=True, slots=True)
class _Mark:
    """What an event in the log stands for.

    Attributes:
        work: of a collective; None for a wait.
        stream: of its group, or 0 where its caller waits.
        waited: of a wait, the event of what is waited for.
    """

    event: torch.cuda.Event
    work: Work | None = None
    stream: int = 0
    waited: int = 0


class Collectives:
    """Follows the collectives of this rank.

    Attributes:
        on: whether a step is followed now.
        problem: why not all were followed, in words; empty if they were.
    """

    def __init__(self) -> None:
        self.on = False
        self.problem = ""
        self._per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._marks: dict[int, _Mark] = {}
        self._of_tensors: dict[int, int] = {}
        self._of_works: dict[int, tuple[Any, int]] = {}
        self._streams: dict[str, int] = {}

    def install(self) -> None:
        """Follow the collectives of this process from now on."""
        names = (*_BUFFERS, *_WHOLE)
        wrap_kernels("c10d", {name: functools.partial(self._around, name) for name in names})
        wrap_kernels("_c10d_functional", {"wait_tensor": self._around_wait})
        _torch_compat.before_waits(self._before_wait)

    def given(self, record: control.Logged) -> Iterator[Given]:
        """What streams were given where the log has this record of an event."""
        mark = self._marks.get(record.subject)
        if mark is None:
            return
        if mark.work is None:
            yield Given(control.WAIT, record.stream, -mark.waited, None)
        elif mark.stream:
            yield Given(control.WAIT, mark.stream, record.subject, None)
            yield Given(control.KERNEL, mark.stream, 0, mark.work)
            yield Given(control.EVENT, mark.stream, -record.subject, None)
        else:
            yield Given(control.KERNEL, record.stream, 0, mark.work)

    def _around(self, name: str, run: Kernel) -> Kernel:
        def collective(keys: Any, *args: Any, **kwargs: Any) -> Any:
            result = run(keys, *args, **kwargs)
            if self.on:
                try:
                    self._note(name, args, result)
                except Exception as e:  # A program's collective is worth more than its time.
                    self.problem = repr(e)
            return result

        return collective

    def _around_wait(self, run: Kernel) -> Kernel:
        def wait(keys: Any, tensor: torch.Tensor) -> Any:
            waited = self._of_tensors.get(tensor.data_ptr()) if self.on else None
            if waited is not None:
                self._mark(functools.partial(_Mark, waited=waited))
            return run(keys, tensor)

        return wait

    def _before_wait(self, work: Any) -> None:
        # The work is kept with its event, so that no other has its id, and may be waited for again.
        _, waited = self._of_works.get(id(work), (None, 0))
        if not waited or not self.on:
            return
        try:
            self._mark(functools.partial(_Mark, waited=waited))
        except Exception as e:  # A program's wait is worth more than its time.
            self.problem = repr(e)

    def _note(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        place = next(i for i, arg in enumerate(args) if isinstance(arg, torch.ScriptObject))
        group = torch.distributed.ProcessGroup.unbox(args[place])
        ranks = group.size()
        if ranks == 1:
            return
        tensors = [[*_tensors(arg)] for arg in args[:place]]
        nbytes = max(sum(t.nbytes for t in of_arg) for of_arg in tensors)
        members = torch.distributed.get_process_group_ranks(group)
        host = torch.distributed.get_rank() // self._per_host
        here = sum(rank // self._per_host == host for rank in members)
        alone = name in ("send", "recv_")
        if name in _BUFFERS:
            # Of an all-to-all over hosts, what goes to them is what takes long.
            away = ranks - here if here < ranks and "alltoall" in name else ranks - 1
            nbytes = _BUFFERS[name] * nbytes * away // ranks
        way = "network" if here < ranks else "link"
        shape = (1 if alone or "alltoall" in name else here,)
        work = Work(COMMUNICATION, nbytes=nbytes, way=way, shape=shape)
        stream = 0
        if alone or not any(arg is False for arg in args[place:]):
            key = group.group_name + name * alone
            stream = self._streams.setdefault(key, -1 - len(self._streams))
        event = self._mark(functools.partial(_Mark, work=work, stream=stream))
        if stream:
            self._of_tensors |= {t.data_ptr(): event for t in tensors[0]}
            returned = result if isinstance(result, tuple) else (result,)
            pending = torch.distributed.Work.unbox(returned[-1])
            self._of_works[id(pending)] = pending, event

    def _mark(self, make: Callable[[torch.cuda.Event], _Mark]) -> int:
        if torch.cuda.is_current_stream_capturing():
            return 0
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._marks[event.cuda_event] = make(event)
        return int(event.cuda_event)


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list):
        for part in given:
            yield from _tensors(part)
