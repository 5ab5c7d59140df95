"""Output files: whole or not at all, also where they are too large to be held in memory."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
from collections.abc import Iterator
from typing import IO

from ..writing import replacing

Output = IO[bytes]


@contextlib.contextmanager
def output(path: str | os.PathLike[str]) -> Iterator[Output]:
    """A binary file that takes the path's place when the block ends well, see ``replacing``. A
    path that ends in ``.gz`` is compressed.

    Raises:
        ProfileNotWritableError: the operating system refuses.
    """
    with replacing(path, "the export") as fd, open(fd, "wb", closefd=False) as file:
        if os.fspath(path).endswith(".gz"):
            # Level 4: half the time of 6, a tenth more bytes.
            zipped = gzip.GzipFile("", "wb", 4, file, mtime=0)
            with zipped, io.BufferedWriter(zipped, 1 << 20) as buffered:
                yield buffered
        else:
            yield file
