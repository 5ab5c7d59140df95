"""The properties of a GPU that decide what a program does with its memory, and names for them.

`find_gpu` reads a name the way people write one, `parse_size` a size.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass

from .data_sheet import ROWS, SMI
from .errors import UnknownGpuError

__all__ = ["DEFAULT_GPU", "GPUS", "Gpu", "Limits", "find_gpu", "parse_size"]

DEFAULT_GPU = "h100-80gb"
"""What is simulated where nobody says which."""

_KIB = 1 << 10
_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)},
    **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)},
}


@dataclass(frozen=True)
class Limits:
    """What a compute capability fixes, from the CUDA programming guide's technical specifications.

    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
    """

    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_multiprocessor: int
    """In bytes."""
    shared_per_block: int
    """In bytes, for a kernel that opts in."""
    shared_reserved: int
    """In bytes of each block, for the system."""


_LIMITS = {
    (7, 0): Limits(2048, 32, 96 * _KIB, 96 * _KIB, 0),
    (7, 5): Limits(1024, 16, 64 * _KIB, 64 * _KIB, 0),
    (8, 0): Limits(2048, 32, 164 * _KIB, 163 * _KIB, _KIB),
    (8, 6): Limits(1536, 16, 100 * _KIB, 99 * _KIB, _KIB),
    (8, 9): Limits(1536, 24, 100 * _KIB, 99 * _KIB, _KIB),
    (9, 0): Limits(2048, 32, 228 * _KIB, 227 * _KIB, _KIB),
    (10, 0): Limits(2048, 32, 228 * _KIB, 227 * _KIB, _KIB),
    (12, 0): Limits(1536, 24, 100 * _KIB, 99 * _KIB, _KIB),
}


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    key: str
    """What users call it: ``h100-80gb``."""
    name: str
    """What the driver calls it: ``NVIDIA H100 80GB HBM3``."""
    memory: int
    """Total device memory in bytes, as torch reports it."""
    memory_is_nominal: bool
    """Whether ``memory`` is nvidia-smi's number, some per cent more than torch would report."""
    capability: tuple[int, int]
    """Compute capability: ``(9, 0)``."""
    multiprocessors: int
    l2_cache: int
    """In bytes."""
    source: str
    """Where the size of the memory was published."""

    @property
    def limits(self) -> Limits:
        """What its compute capability fixes."""
        return _LIMITS[self.capability]

    def with_memory(self, memory: int) -> Gpu:
        """The same GPU with another total of device memory, in bytes."""
        if memory <= 0:
            raise UnknownGpuError(f"a GPU has more than {memory} bytes of memory")
        return dataclasses.replace(self, memory=memory, memory_is_nominal=False)


GPUS = tuple(
    Gpu(
        key=row.key,
        name=row.name,
        memory=row.memory,
        memory_is_nominal=row.reported_by == SMI,
        capability=row.capability,
        multiprocessors=row.multiprocessors,
        l2_cache=row.l2_cache,
        source=row.source,
    )
    for row in ROWS
)
"""The GPUs of the data sheet."""


def find_gpu(name: str = DEFAULT_GPU) -> Gpu:
    """The GPU of this name.

    Case, blanks and punctuation do not count, the driver's name will do as well, and so does the
    beginning of a name that no other GPU shares: ``H100 80GB``, ``h200``, ``RTX4090``. Raises
    UnknownGpuError, which lists the nearest names and all of them.
    """
    wanted = _plain(name)
    names = {_plain(alias): gpu for gpu in GPUS for alias in (gpu.key, gpu.name)}
    if wanted in names:
        return names[wanted]
    short = [g for plain, g in names.items() if wanted and _without_maker(plain, wanted)]
    begun = list(dict.fromkeys(short))
    if len(begun) == 1:
        return begun[0]
    everything = ", ".join(gpu.key for gpu in GPUS)
    if begun:
        some = ", ".join(gpu.key for gpu in begun)
        raise UnknownGpuError(f"{name!r} may be any of {some}: say which")
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.4)
    nearest = ", ".join(dict.fromkeys(names[plain].key for plain in near))
    raise UnknownGpuError(
        f"there is no data sheet of a GPU {name!r}"
        + (f"; the nearest: {nearest}" if nearest else "")
        + f". There are {everything}"
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _without_maker(name: str, wanted: str) -> bool:
    """Whether a name begins as wanted, whatever family of products it is said to be of."""
    return any(
        part.startswith(wanted)
        for part in (name, re.sub(r"^(nvidia|tesla|geforce|rtx)+", "", name))
    )


def parse_size(text: str) -> int:
    """A number of bytes from ``80GiB``, ``24 GB``, ``81559MiB`` or ``1073741824``.

    KiB, MiB, GiB and TiB are powers of 1024, KB, MB, GB and TB powers of 1000, as on data sheets.
    Raises UnknownGpuError, a ValueError, for anything else and for sizes that are not positive.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    unit = _UNITS.get(match[2]) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size <= 0:
        raise UnknownGpuError(f"{text!r} is no size: write one like 80GiB, 24GB or 81559MiB")
    return size
