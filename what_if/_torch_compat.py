"""Private parts of torch that simulated runs use."""

from __future__ import annotations

import threading
from collections.abc import Callable


def allocate_by(settings: Callable[[], str]) -> None:
    """Give the allocator all its settings, as in ``PYTORCH_ALLOC_CONF``, when CUDA starts; an empty
    text leaves what it has read."""
    import torch

    def put() -> None:
        text = settings()
        if text:
            torch._C._accelerator_setAllocatorSettings(text)

    on_cuda_start(put)


def on_cuda_start(do: Callable[[], object]) -> None:
    """Call ``do`` as CUDA starts in a process, or now if it has; a forked process does so too."""
    import torch

    torch.cuda._lazy_call(do)  # type: ignore[no-untyped-call]


def cuda_may_start_after_fork() -> bool:
    """Tells, in a forked process, whether CUDA can start there: it had not before the fork."""
    import torch

    # Another thread may have held the lock as it started CUDA: nobody would ever release it here.
    torch.cuda._initialization_lock = threading.Lock()
    return not (torch.cuda._is_in_bad_fork() or torch.cuda._initialized)
