"""The source text of the Python standard library, as bytes to train on."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import torch
from torch import Tensor


class Corpus:
    """Every standard-library module found on this machine, cut into training and held-out text.

    Attributes:
        train, held_out: uint8 ``[bytes]``.
        files: how many source files were read.

    Raises:
        FileNotFoundError: this Python has no readable standard-library source.
    """

    def __init__(self, held_out: float = 0.05) -> None:
        root = Path(sysconfig.get_path("stdlib"))
        # The library's own tests are half of its bytes and unlike the rest of it.
        paths = sorted(
            path
            for path in root.rglob("*.py")
            if not {"site-packages", "dist-packages", "test", "tests"} & set(path.parts)
        )
        if not paths:
            raise FileNotFoundError(
                f"no *.py file under {root}: install the Python standard library's sources"
            )
        # Shuffled, so that the held-out files are not all of one package.
        random.Random(0).shuffle(paths)
        text = b"".join(path.read_bytes() for path in paths)
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        cut = int(len(data) * (1 - held_out))
        self.train, self.held_out, self.files = data[:cut], data[cut:], len(paths)


def batches(data: Tensor, batch: int, context: int, seed: int) -> Batches:
    """Endless random windows of ``data``: the same sequence for the same seed."""
    return Batches(data, batch, context, torch.Generator().manual_seed(seed))


class Batches:
    """Iterator over ``(tokens, targets)``, both int64 ``[batch, context]``."""

    def __init__(self, data: Tensor, batch: int, context: int, generator: torch.Generator) -> None:
        self.data, self.batch, self.context, self.generator = data, batch, context, generator

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        last = len(self.data) - self.context - 1
        starts = torch.randint(0, last, (self.batch, 1), generator=self.generator)
        window = self.data[starts + torch.arange(self.context + 1)].long()
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()
