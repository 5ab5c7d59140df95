"""One rank of a job, alone: every process group is torch's fake one.

Note [A rank alone]
~~~~~~~~~~~~~~~~~~~
``torch.testing._internal.distributed.fake_pg`` registers a backend whose collectives return at once
and leave tensors as they are. All of torch.distributed goes through two functions of
``distributed_c10d`` to make a group: ``rendezvous`` and ``_new_process_group_helper``. Replacing
them there, before anything else imports them, reaches ``init_process_group``, ``new_group``,
``init_device_mesh`` and what is built on these, whatever backend a script names.

What collectives *of objects* bring is unpickled, so that fake bytes would raise: each rank has its
own object in place of every other's. What is known of a tensor (Note [What the host knows]) is
known as if every rank had it, sums of that too; messages between two ranks have a Note of their own
in ``messages.py``. The sizes of shards are those of this rank: on the last rank of an uneven split,
or of a pipeline, they are different, which ``--ranks`` shows.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


def fake_groups(distributed: Any, rank: int, world_size: int) -> None:
    """Make every process group from here on a fake one, in ``torch.distributed.distributed_c10d``,
    which was just imported."""
    helper = distributed._new_process_group_helper

    def rendezvous(
        url: str, given_rank: int = -1, given_size: int = -1, **_: Any
    ) -> Iterator[tuple[Any, int, int]]:
        # Keys that the process sets it can get, and nobody else's are waited for.
        yield sys.modules["torch.distributed"].HashStore(), rank, world_size

    @functools.wraps(helper)
    def new_group(
        group_size: int, group_rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers it
        for name in ("backend_options", "pg_options", "device_id"):
            kwargs.pop(name, None)
        return helper(group_size, group_rank, ranks, "fake", *args, **kwargs)

    distributed.rendezvous = rendezvous
    distributed._new_process_group_helper = new_group
    distributed._store_based_barrier = _nothing
    distributed.all_reduce = _adding(distributed, distributed.all_reduce)
    for name, replacement in _OBJECTS.items():
        setattr(distributed, name, functools.partial(replacement, distributed))


def fake_reductions(parallel: Any) -> None:
    """Let ``DistributedDataParallel`` reduce its buckets without a group's answer, in
    ``torch.nn.parallel.distributed``, which was just imported.

    Its reducer asks a collective's future for tensors, which the fake group's does not have. A
    communication hook that reduces and hands the bucket back takes its place, and that of hooks of
    the script: what such a hook would allocate is missing, and said.
    """
    wrapped = parallel.DistributedDataParallel
    init = wrapped.__init__

    @functools.wraps(init)
    def with_hook(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        parallel.dist._register_comm_hook(self.reducer, self.process_group, _hand_back)

    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        name = getattr(hook, "__qualname__", type(hook).__name__)
        print(
            f"memprof simulate: DDP's communication hook {name} does not run with one rank alone; "
            "what it would allocate is not counted",
            file=sys.stderr,
        )

    wrapped.__init__ = with_hook
    wrapped.register_comm_hook = register_comm_hook


def refuse_symmetric_memory(module: Any) -> None:
    """Have nobody wait for memory of ranks that are not there, in
    ``torch.distributed._symmetric_memory``, which was just imported."""

    def rendezvous(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("one rank alone has no symmetric memory of the other ranks")

    module._SymmetricMemory.rendezvous = staticmethod(rendezvous)


def _hand_back(group: Any, bucket: Any) -> Any:
    import torch

    work = group.allreduce([bucket.buffer()])
    # As DDP's reducer, which waits for all buckets where the backward ends.
    torch.autograd.Variable._execution_engine.queue_callback(work.wait)
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nobody else would come to a barrier or get an object, and what would come from another rank
    stays what it was."""


def _adding(distributed: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """``all_reduce`` that adds up what is known as if every rank had it; what is reduced in another
    way stays what it is."""

    add = distributed.ReduceOp.SUM

    @functools.wraps(run)
    def all_reduce(tensor: Any, op: Any = add, group: Any = None, async_op: bool = False) -> Any:
        from memprof.simulated_cuda.integers import SMALL, contents, is_known, overwritten

        work = run(tensor, op, group, async_op)
        ranks = distributed.get_world_size(group)
        small = tensor.is_cuda and tensor.nbytes <= SMALL
        if op == add and ranks > 1 and small and is_known(tensor):
            overwritten(tensor, contents(tensor) * ranks)
        return work

    return all_reduce


def _all_gather_object(_: Any, objects: list[Any], obj: Any, group: Any = None) -> None:
    objects[:] = [obj] * len(objects)


def _gather_object(
    _: Any, obj: Any, objects: list[Any] | None = None, *args: Any, **kwargs: Any
) -> None:
    if objects is not None:
        objects[:] = [obj] * len(objects)


def _recv_object_list(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError(
        "recv_object_list: the rank that would send is not there. A PipelineStage receives so to "
        "learn shapes: give it input_args and output_args"
    )


def _scatter_object_list(
    distributed: Any,
    output: list[Any],
    objects: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    **kwargs: Any,
) -> None:
    if objects:
        output[0] = objects[min(distributed.get_rank(group), len(objects) - 1)]


_OBJECTS: dict[str, Callable[..., None]] = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object_list": _nothing,
    "scatter_object_list": _scatter_object_list,
    "send_object_list": _nothing,
    "recv_object_list": _recv_object_list,
}
