"""What memprof knows of a compiled graph, stored for later processes that find it in a cache.

Note [Beside torch's entries]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
It is written as AOTAutograd writes entries of its cache: in that cache, under a key of its own, in
a file named for its content that appears whole or not at all. So any number of processes may write
at once, what clears that cache clears it too, and ``torch.compiler.save_cache_artifacts()`` carries
it to other machines, where a process without memprof can load it: to torch it is one more entry,
which nobody asks for. (Inductor's own cache would do up to torch 2.12; later ones look into what is
loaded there.) Remote caches do not have it: a graph from there is compiled again.
"""

from __future__ import annotations

import importlib.util
from typing import Generic, TypeVar

import msgspec

from . import _torch_compat

T = TypeVar("T")

# Stored values hold code objects, which are a Python version's own.
_PYTHON = importlib.util.MAGIC_NUMBER.hex()[:4]


class Stored(Generic[T]):
    """One kind of what is stored for graphs in Inductor's cache, by their keys there.

    Args:
        name: of the kind, with the version of its form.
        type: of the values, which msgspec can encode.
    """

    def __init__(self, name: str, type: type[T]) -> None:
        self._suffix = f"-memprof-{name}-{_PYTHON}"
        self._type = type
        self._encoder = msgspec.msgpack.Encoder()

    def write(self, value: T, key: str) -> None:
        """Keeps ``value`` for the graph ``key``.

        Raises:
            OSError: the folder cannot be written.
        """
        _torch_compat.write_to_cache(key + self._suffix, self._encoder.encode(value))

    def read(self, key: str) -> T | None:
        """The value for the graph ``key``; None if there is none that is whole."""
        for content in _torch_compat.read_from_cache(key + self._suffix):
            try:
                found = msgspec.msgpack.decode(content, type=self._type)
            except msgspec.MsgspecError:
                continue
            # Known to torch again, since this process may be the one whose artifacts are saved.
            _torch_compat.record_for_saving(key + self._suffix, content)
            return found
        return None
