"""Names of GPUs and sizes of memory, read the way people write them."""

from __future__ import annotations

import difflib
import re

from .data_sheet import GPUS, Gpu, Limits
from .errors import UnknownGpuError

__all__ = ["DEFAULT_GPU", "GPUS", "Gpu", "Limits", "find_gpu", "parse_size"]

DEFAULT_GPU = "h100-80gb"
"""What is simulated where nobody says which."""

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)},
    **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)},
}


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
