"""Counters and controls of a simulated device, for tests and measurements.

Everything but `simulated` needs a process that runs on the simulated device, and raises OSError in
any other.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Literal

STREAMS, EVENTS, GRAPHS, EXECS = range(4)
"""Kinds of handles, for `live`."""
OUT_OF_MEMORY, LAUNCH_FAILED = 2, 719
"""Error codes of CUDA, for `fail`."""
KERNEL, COPY, SET, EVENT, WAIT, GRAPH = 0, 1, 2, 100, 101, 102
"""Kinds of records of the log of work: an ``OpKind`` or ``LogKind`` of the device."""
TO_HOST, TO_DEVICE, ON_DEVICE = 1, 2, 3
"""Types of a copy there; 0 leaves the device alone."""
_OnHostRead = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int)
_WHICH = ("launched", "captured", "replayed")


class Logged(ctypes.Structure):
    """A record of the log of work: Note [The log of work] in ``src/core_log.cpp``, whose ``Record``
    has the same fields; times are in ns, a copy's and a fill's bytes are what it writes, a kernel's
    the threads of a block; m, n and k of a kernel without ``batches`` are its grid."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("at", "operation", "stream", "subject", "bytes")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batches")),
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("type", ctypes.c_int32),
    )


def simulated() -> bool:
    """Tells whether this process runs on the simulated device."""
    return hasattr(ctypes.CDLL(None), "simgpu_calls")


@functools.cache
def library() -> ctypes.CDLL:
    """The simulated device's own library, whose functions have their types."""
    device = ctypes.CDLL("libsimgpu.so")
    name, count, size = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_size_t
    pointer, number = ctypes.c_void_p, ctypes.c_int
    functions: tuple[tuple[Any, Any, list[Any] | None], ...] = (
        (device.simgpu_calls, count, [name]),
        (device.simgpu_fail, None, [name, ctypes.c_int64, number]),
        (device.simgpu_async, None, [number]),
        (device.simgpu_kernels, count, [name, number]),
        (device.simgpu_report, size, [name, size]),
        (device.simgpu_used, size, [number]),
        (device.simgpu_live_handles, size, [number]),
        (device.simgpu_active_captures, number, []),
        (device.simgpu_uncovered, size, [name, size]),
        (device.simgpu_on_host_read, None, [_OnHostRead]),
        (device.simgpu_written, None, [pointer, size]),
        (device.simgpu_known, number, [pointer, size]),
        (device.simgpu_overwritten, None, [pointer, pointer, size]),
        (device.simgpu_bind_writes, None, [pointer, pointer, number]),
        (device.simgpu_log, None, [number]),
        (device.simgpu_log_records, pointer, [ctypes.POINTER(size)]),
        (device.simgpu_log_edges, pointer, [ctypes.POINTER(size)]),
        (device.simgpu_number_operations, None, [count]),
        # Of the values mode.
        (device.simgpu_capture_id, count, [pointer]),
        (device.simgpu_submit_python, number, [pointer, count]),
        (device.simgpu_image_hash, count, None),
        (device.simgpu_bind, None, [pointer, pointer, pointer, number]),
        (device.simgpu_dropped, size, None),
    )
    for function, result, arguments in functions:
        function.restype = result
        function.argtypes = arguments
    return device


def calls(api: str) -> int:
    """Number of calls so far of an entry point such as ``cudaMalloc``."""
    return int(library().simgpu_calls(api.encode()))


def fail(api: str, after: int = 0, err: int = OUT_OF_MEMORY) -> None:
    """Make an entry point return an error once, after this many more calls that succeed."""
    library().simgpu_fail(api.encode(), after, err)


def kernels(sub: str = "", which: Literal["launched", "captured", "replayed"] = "launched") -> int:
    """Number of kernels so far whose name contains ``sub``: launched, captured or replayed."""
    return int(library().simgpu_kernels(sub.encode(), _WHICH.index(which)))


def async_events(on: bool) -> None:
    """Has events become ready as simulated time passes, or at once."""
    library().simgpu_async(int(on))


def used(device: int = 0) -> int:
    """Bytes of a device in use, its context's included."""
    return int(library().simgpu_used(device))


def take(nbytes: int) -> bool:
    """Take memory of the current device as a library would, and never give it back; False where it
    has not so much left."""
    pointer = ctypes.c_void_p()
    status = ctypes.CDLL(None).cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(nbytes))
    return int(status) == 0


def uncovered() -> list[str]:
    """Functions that this process called and that are not simulated, by name."""
    return _text(library().simgpu_uncovered).splitlines()


def on_host_read(do: Callable[[int, int, bool], bool]) -> None:
    """Call ``do`` after each copy from a device to the host, with its bytes, where they went, and
    whether they are known.

    It runs on the thread that asks, and may write there; the frame that called is that of the
    program. Several run in the order in which they came, and each returns whether the bytes are
    known from then on. What they raise is printed and goes no further.
    """
    _readers.append(do)
    if len(_readers) == 1:
        library().simgpu_on_host_read(_host_read)


_readers: list[Callable[[int, int, bool], bool]] = []


def _read(nbytes: int, address: int, known: int) -> None:
    for do in _readers:
        known = do(nbytes, address, bool(known))


_host_read = _OnHostRead(_read)


def written(address: int, nbytes: int) -> None:
    """Say that the host wrote to memory of a device: it is known, and all other memory is zero as
    long as there are no values."""
    library().simgpu_written(address, nbytes)


def known(address: int, nbytes: int) -> bool:
    """Tells whether memory of a device holds what the program put there, as nothing wrote over
    it.
    """
    return bool(library().simgpu_known(address, nbytes))


def forget(stream: int, address: int, nbytes: int) -> None:
    """Say that a stream writes what nobody knows to memory of a device, which is zero then: at
    once, or at each launch of the graph into which the stream is being captured."""
    library().simgpu_overwritten(stream, address, nbytes)


def live(kind: int) -> int:
    """Number of handles not destroyed yet, of a kind: `STREAMS`, `EVENTS`, `GRAPHS`, `EXECS`."""
    return int(library().simgpu_live_handles(kind))


def active_captures() -> int:
    """Number of stream captures under way."""
    return int(library().simgpu_active_captures())


def log(on: bool) -> None:
    """Begin an empty log of what streams are given, or end it."""
    library().simgpu_log(int(on))


def number_operations(first: int) -> None:
    """Add a number to those by which the profiler knows its operations from now on: each of its
    runs counts from 1."""
    library().simgpu_number_operations(first)


def logged() -> list[Logged]:
    """Records of the last log, in order."""
    return list(_copied(library().simgpu_log_records, Logged))


def edges() -> list[tuple[int, int]]:
    """Nodes of graphs in the last log, each with one that it comes after."""
    flat = [int(address) for address in _copied(library().simgpu_log_edges, ctypes.c_uint64)]
    return list(zip(flat[::2], flat[1::2], strict=True))


def _copied(read: Any, kind: Any) -> Any:
    count = ctypes.c_size_t()
    first = read(ctypes.byref(count))
    return (kind * count.value).from_buffer_copy(
        ctypes.string_at(first, count.value * ctypes.sizeof(kind))
    )


def report() -> str:
    """Every entry point that was called, and every kernel, with how often; a line each."""
    return _text(library().simgpu_report)


def _text(write: Any) -> str:
    """Text that ``write`` puts into a buffer; without a buffer it returns the size in bytes."""
    size = write(None, 0)
    buffer = ctypes.create_string_buffer(size)
    write(buffer, size)
    return buffer.value.decode()
