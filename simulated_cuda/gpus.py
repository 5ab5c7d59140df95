"""GPUs by name, as ``gpus.toml`` describes them, and sizes of memory, as people write both."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import sys
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UnknownGpuError

DEFAULT_GPU = "h100-80gb"
"""Key of the GPU that is simulated where nobody names one."""

_ROWS = Path(__file__).resolve().parent / "gpus.toml"
_CODE_SEARCH = "https://github.com/search?type=code&q="
_MAKERS = frozenset({"nvidia", "tesla", "geforce", "rtx"})
_KIB = 1 << 10
_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)},
    **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)},
}


@dataclass(frozen=True)
class Limits:
    """Limits of a compute capability, from the CUDA programming guide's technical specifications.

    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
    """

    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_multiprocessor: int
    """Bytes of shared memory."""
    shared_per_block: int
    """Bytes of shared memory, for a kernel that opts in."""
    shared_reserved: int
    """Bytes of shared memory of each block that the system keeps."""


_LIMITS = {
    (7, 0): Limits(2048, 32, 96 * _KIB, 96 * _KIB, 0),
    (7, 5): Limits(1024, 16, 64 * _KIB, 64 * _KIB, 0),
    (8, 0): Limits(2048, 32, 164 * _KIB, 163 * _KIB, _KIB),
    (8, 6): Limits(1536, 16, 100 * _KIB, 99 * _KIB, _KIB),
    (8, 9): Limits(1536, 24, 100 * _KIB, 99 * _KIB, _KIB),
    (9, 0): Limits(2048, 32, 228 * _KIB, 227 * _KIB, _KIB),
    (10, 0): Limits(2048, 32, 228 * _KIB, 227 * _KIB, _KIB),
    (10, 3): Limits(2048, 32, 228 * _KIB, 227 * _KIB, _KIB),
    (12, 0): Limits(1536, 24, 100 * _KIB, 99 * _KIB, _KIB),
    (12, 1): Limits(1536, 24, 100 * _KIB, 99 * _KIB, _KIB),
}


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One kind of GPU."""

    key: str
    """Name that users write: ``h100-80gb``."""
    name: str
    """The driver's name: ``NVIDIA H100 80GB HBM3``. GPUs of two sizes may share it."""
    memory: int
    """Total device memory in bytes, as torch reports it."""
    capability: tuple[int, int]
    """Compute capability: ``(9, 0)``."""
    multiprocessors: int
    l2_cache: int
    """Bytes of L2 cache."""
    source: str
    """URL of the publication, or of a search for it, that has the size of the memory."""
    memory_is_nominal: bool = False
    """Whether ``memory`` is nvidia-smi's number, some per cent more than torch would report."""
    aliases: tuple[str, ...] = ()
    """Other names that mean this GPU."""

    @property
    def limits(self) -> Limits:
        """Limits of its compute capability."""
        return _LIMITS[self.capability]

    def with_memory(self, memory: int) -> Gpu:
        """Copies the GPU with another total of device memory, in bytes."""
        if memory <= 0:
            raise UnknownGpuError(f"a GPU has more than {memory} bytes of memory")
        return dataclasses.replace(self, memory=memory, memory_is_nominal=False)


@functools.cache
def known_gpus() -> tuple[Gpu, ...]:
    """All GPUs that can be simulated: those of ``gpus.toml``, in its order.

    They are read at the first call, as that takes some 20 ms, which most imports of this module
    need not spend.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    rows = tomllib.loads(_ROWS.read_text(encoding="utf-8"))
    return tuple(_from_row(key, row) for key, row in rows.items())


def _from_row(key: str, row: dict[str, Any]) -> Gpu:
    """The GPU that a table of ``gpus.toml`` describes; raises ValueError, which names the table."""
    try:
        gpu = Gpu(
            **{
                **row,
                "key": key,
                "memory": parse_size(str(row["memory"])),
                "l2_cache": parse_size(str(row["l2_cache"])),
                "capability": tuple(row["capability"]),
                "aliases": tuple(row.get("aliases", ())),
                "source": _url(row["source"]),
            }
        )
        if gpu.capability not in _LIMITS:
            raise ValueError("no limits of compute capability {}.{}".format(*gpu.capability))
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"{_ROWS.name}: [{key}]: {e!r}") from e
    return gpu


def _url(source: str) -> str:
    """URL of a source: itself, or a code search for the text that was published."""
    if source.startswith("https://"):
        return source
    return _CODE_SEARCH + urllib.parse.quote(f'"{source}"', safe="")


def find_gpu(name: str = DEFAULT_GPU) -> Gpu:
    """The GPU of this name.

    Case, blanks and punctuation do not count, and the driver's name will do as well, with or
    without the words that many names begin with: ``H100 80GB``, ``h200``, ``4090``. So does the
    beginning of a name that no other GPU shares, if it cuts no number: ``l2`` is no beginning of
    ``l20``. Raises UnknownGpuError, which lists the nearest names, or all if none is near.
    """
    wanted = _words(name)
    names = [(form, gpu) for gpu in known_gpus() for form in _forms(gpu)]
    exact = [gpu for form, gpu in names if "".join(form) == "".join(wanted)]
    begun = [gpu for form, gpu in names if _begins(form, wanted)]
    found = list(dict.fromkeys(exact or begun))
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(gpu.key for gpu in found)
        raise UnknownGpuError(f"{name!r} may be any of {some}: say which")
    keys = {"".join(form): gpu.key for form, gpu in names}
    near = difflib.get_close_matches("".join(wanted), keys, n=5, cutoff=0.4)
    listed = list(dict.fromkeys(keys[form] for form in near))
    what = "the nearest are" if listed else "there are"
    every = ", ".join(listed or [gpu.key for gpu in known_gpus()])
    raise UnknownGpuError(
        f"no GPU {name!r} is known; {what} {every}. `memprof simulate --list-gpus` lists all"
    )


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z]+|\d+", name.lower()))


def _forms(gpu: Gpu) -> list[tuple[str, ...]]:
    """The GPU's names in words, and what is left of each without its first words."""
    forms = []
    for name in (gpu.key, *gpu.aliases, gpu.name):
        words = _words(name)
        forms.append(words)
        while words[0] in _MAKERS and words[1:]:
            words = words[1:]
            forms.append(words)
    return forms


def _begins(form: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Tells whether a name begins as wanted, whose last word may be the beginning of one."""
    if not wanted or len(form) < len(wanted):
        return False
    *whole, last = wanted
    word = form[len(whole)]
    return form[: len(whole)] == tuple(whole) and (
        word == last or (last.isalpha() and word.startswith(last))
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
