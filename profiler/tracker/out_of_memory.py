"""A snapshot at the moment when a CUDA device has no more memory.

A program that catches the error and goes on, or ends by it, has let go of everything by the time of
the next snapshot. torch calls observers before it raises; there is one of ours for the life of the
process, since they cannot be taken back, and it tells the tracker that runs.
"""

from __future__ import annotations

from collections.abc import Callable

from ._torch_compat import cuda_in_use, on_cuda_out_of_memory

Listener = Callable[[str, int, int], None]
"""Takes the snapshot, given the device, the bytes asked for and those that are free; must not
raise."""


_listener: Listener | None = None
_attached = False


def listen(listener: Listener | None) -> None:
    """Tell ``listener`` from now on, and nobody else; None tells nobody.

    To be called again now and then: before CUDA is in use there is nothing to observe.
    """
    global _listener, _attached
    _listener = listener
    if listener is not None and not _attached and cuda_in_use():
        _attached = True  # also where it cannot be done: it is not tried again
        on_cuda_out_of_memory(_observe)


def _observe(device: int, wanted: int, total: int, free: int) -> None:
    listener = _listener
    if listener is not None:
        listener(f"cuda:{device}", wanted, free)
