"""Experts that get the same number of tokens each.

Note [Balanced experts]
~~~~~~~~~~~~~~~~~~~~~~~
A router takes the ``topk`` of scores that nothing has computed: all tokens go to expert 0, or,
where a mask is searched, none to any. ``--balanced-experts`` has integers computed (Note [Integers
that compute]) and lets each ``topk`` deal: row ``r`` of ``n`` entries gets the indices ``r k`` to
``r k + k - 1`` modulo ``n``. So each of ``E`` experts gets ``T k / E`` of ``T`` tokens, or one
more. Where ranks tell each other in ``all_to_all`` how many tokens they send, integers are what
they were if every rank were this one. Other choices (``argmax``) and routers in compiled code are
zero as without.
"""

from __future__ import annotations

from typing import Any

import torch

from memprof.simulated_cuda.integers import INTEGERS, compute_known, contents, overwritten
from memprof.simulated_cuda.overrides import Kernel, wrap_kernels

MAX_EXPERTS = 4096
"""More entries than that are a vocabulary, of which a search takes the best."""


def balance_experts() -> None:
    """Deal tokens to experts from here on."""
    compute_known({"topk": _deal, "topk.values": _deal})
    if torch.distributed.is_available():
        wrap_kernels("c10d", {"alltoall_base_": _even_parts, "alltoall_": _even_lists})


def _deal(result: Any, args: tuple[Any, ...]) -> None:
    """Indices of ``topk(scores, k, dim)``, in turn."""
    indices, scores = result[1], args[0]
    if not indices.numel():
        return
    dim = (args[2] if len(args) > 2 else -1) % scores.dim() if scores.dim() else 0
    n = scores.shape[dim] if scores.dim() else 1
    if n > MAX_EXPERTS:
        return
    k = indices.shape[dim] if indices.dim() else 1
    dealt = torch.arange(indices.numel()) % n
    if indices.dim():
        rows = [n for i, n in enumerate(indices.shape) if i != dim]
        dealt = dealt.reshape(*rows, k).movedim(-1, dim)
    overwritten(indices, dealt.reshape(indices.shape))


def _even_parts(run: Kernel) -> Kernel:
    """``all_to_all_single``: its arguments are the group, sizes of what comes and of what goes."""

    def alltoall(keys: Any, output: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        work = run(keys, output, given, *args, **kwargs)
        if given.dtype in INTEGERS and given.is_cuda and given.dim():
            ranks, rank = _ranks(args[0])
            come, go = list(args[1]), list(args[2])
            parts = torch.split(contents(given), go or len(given) // ranks)
            outputs = torch.split(output, come or len(output) // ranks)
            for part in outputs if len(parts) > rank else ():
                if part.shape == parts[rank].shape:
                    overwritten(part, parts[rank])
        return work

    return alltoall


def _even_lists(run: Kernel) -> Kernel:
    """``all_to_all``: a tensor for each rank."""

    def alltoall(keys: Any, outputs: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        work = run(keys, outputs, given, *args, **kwargs)
        _, rank = _ranks(args[0])
        if given[rank].dtype in INTEGERS and given[rank].is_cuda:
            mine = contents(given[rank])
            for part in outputs:
                if part.shape == mine.shape:
                    overwritten(part, mine)
        return work

    return alltoall


def _ranks(group: Any) -> tuple[int, int]:
    """Size of a group, and the rank in it."""
    unboxed = torch.distributed.ProcessGroup.unbox(group)
    return unboxed.size(), unboxed.rank()
