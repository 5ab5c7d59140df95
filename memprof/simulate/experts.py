"""Experts that get the same number of tokens each.

Note [Balanced experts]
~~~~~~~~~~~~~~~~~~~~~~~
A router takes the ``topk`` of scores that nothing has computed: all tokens go to expert 0, or,
where a mask is searched, none to any. ``--balanced-experts`` has integers computed (Note [Integers
that compute]) and lets each ``topk`` deal: row ``r`` of ``n`` entries gets the indices ``r k`` to
``r k + k - 1`` modulo ``n``. A row's are all different, and over ``n`` rows each index comes ``k``
times. So each of ``E`` experts gets ``T k / E`` of ``T`` tokens, or one more: what a router is
trained to, and what capacity factors are chosen for.

Where experts lie on several ranks, ranks tell each other in ``all_to_all`` how many tokens they
send. Of integers that has here what it would have if every rank were this one: from each the part
that is this rank's.

Other choices (the ``argmax`` of one expert per token) and routers in compiled code, whose masks are
made by kernels of Inductor, are as they are without: zero.
"""

from __future__ import annotations

from typing import Any

import torch

from memprof.simulated_cuda.integers import compute_integers, overwritten
from memprof.simulated_cuda.overrides import Kernel, wrap_kernels

__all__ = ["balance_experts"]


def balance_experts() -> None:
    """Deal tokens to experts in this process from here on."""
    compute_integers({"topk": _deal})
    if torch.distributed.is_available():
        _tell_counts()


def _deal(result: Any, args: tuple[Any, ...]) -> None:
    """Indices of ``topk(scores, k, dim)``, in turn."""
    indices, scores = result[1], args[0]
    if not indices.numel():
        return
    dim = (args[2] if len(args) > 2 else -1) % scores.dim() if scores.dim() else 0
    k = indices.shape[dim] if indices.dim() else 1
    dealt = torch.arange(indices.numel()) % (scores.shape[dim] if scores.dim() else 1)
    if indices.dim():
        rows = [n for i, n in enumerate(indices.shape) if i != dim]
        dealt = dealt.reshape(*rows, k).movedim(-1, dim)
    overwritten(indices, dealt.reshape(indices.shape))


def _tell_counts() -> None:
    def wrapper(run: Kernel) -> Kernel:
        def alltoall(keys: Any, output: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
            work = run(keys, output, given, *args, **kwargs)
            group = torch.distributed.ProcessGroup.unbox(args[0])
            even = not any(args[1]) and not any(args[2])
            if even and not given.is_floating_point() and output.numel() == given.numel():
                mine = given.cpu().reshape(group.size(), -1)[group.rank()]
                overwritten(output, mine.repeat(group.size()).reshape(output.shape))
            return work

        return alltoall

    wrap_kernels("c10d", {"alltoall_base_": wrapper})
