"""A restricted unpickler; and, run as a program, the trial whether it gets to the end of a pickle
with the memory and the time that its size allows. Needs the standard library alone."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from typing import NoReturn

_MEMORY = 512 << 20
_MEMORY_A_BYTE = 10
"""Bytes of address space allowed a byte of the file: snapshots of torch take five."""
_SECONDS = 5
_BYTES_A_SECOND = 4 << 20
"""Lowest loading speed allowed: snapshots of torch are loaded at a hundred MB a second."""


class PlainUnpickler(pickle.Unpickler):
    """C's unpickler without what executes something: it looks no name up."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a snapshot names nothing")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it asks for an object outside of the file")


def loads_within_limits(data: bytes) -> bool:
    """Tells whether another process gets through a pickle, or to an error in it, within limits; see
    Note [Who may load a snapshot].

    Raises:
        OSError: it cannot be started.
    """
    command = [sys.executable, "-I", "-S", __file__, str(len(data))]
    nowhere = subprocess.DEVNULL
    return not subprocess.run(command, input=data, stdout=nowhere, stderr=nowhere).returncode


def _main(size: int) -> NoReturn:
    import resource  # Windows has none: there no snapshot is loaded.

    seconds = _SECONDS + size // _BYTES_A_SECOND
    memory = _MEMORY + _MEMORY_A_BYTE * size
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory)):
        _, most = resource.getrlimit(kind)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()
    try:
        PlainUnpickler(sys.stdin.buffer).load()
    except MemoryError:
        os._exit(1)
    except Exception:
        pass  # The reader finds it again, and says it.
    os._exit(0)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
