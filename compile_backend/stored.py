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

import hashlib
import importlib.util
from typing import Generic, TypeVar

import msgspec

from . import _torch_compat

T = TypeVar("T")

# Stored values hold code objects, which are a Python version's own.
_PYTHON = importlib.util.MAGIC_NUMBER.hex()[:4]


class Stored(Generic[T]):
    """One kind of what is stored for graphs beside AOTAutograd's cache.

    A thing is found by all that it depends on: the graph's key in that cache alone is not enough.
    One key can have several graphs, for sizes that their guards tell apart, and one graph can be
    a part of several programs.

    Args:
        name: of the kind, with the version of its form.
        type: of the values, which msgspec can encode.
    """

    def __init__(self, name: str, type: type[T]) -> None:
        self._suffix = f"-memprof-{name}-{_PYTHON}"
        self._encoder = msgspec.msgpack.Encoder()
        # At import: threads that decode a type for the first time at once crash msgspec 0.22.
        self._decoder = msgspec.msgpack.Decoder(type)

    def _key(self, depends_on: tuple[str, ...]) -> str:
        return hashlib.sha256(repr(depends_on).encode()).hexdigest() + self._suffix

    def write(self, value: T, *depends_on: str) -> None:
        """Keeps ``value`` for what has all of ``depends_on``.

        Raises:
            OSError: the folder cannot be written.
        """
        _torch_compat.write_to_cache(self._key(depends_on), self._encoder.encode(value))

    def read(self, *depends_on: str) -> T | None:
        """The value for what has all of ``depends_on``; None if there is none that is whole."""
        key = self._key(depends_on)
        for content in _torch_compat.read_from_cache(key):
            try:
                found = self._decoder.decode(content)
            except msgspec.MsgspecError:
                continue
            # Known to torch again, since this process may be the one whose artifacts are saved.
            _torch_compat.record_for_saving(key, content)
            return found
        return None
