"""The pool's initial size, and how sizes are written."""

from __future__ import annotations

import pytest
import torch

from memprof.cudagraph_trees.settings import configure, parse_bytes

from .support import graphed, in_steps, pool_segments

pytestmark = pytest.mark.simgpu

MIB = 1 << 20


def test_a_pool_starts_with_one_segment() -> None:
    configure(pool_initial="32MiB")
    f = graphed(lambda x: [x * 2 + 1], [torch.ones(4, device="cuda")])
    for _ in in_steps(range(3)):
        f([torch.ones(2 * MIB, device="cuda")])
    (segment,) = pool_segments()
    assert segment["total_size"] == 32 * MIB


@pytest.mark.parametrize(
    ("text", "value"), [("8GiB", 8 << 30), ("512 MB", 512 * 10**6), ("17", 17), (5, 5)]
)
def test_bytes_in_words(text: str | int, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["8 GiBs", "", "GiB", -1, True, "1e9"])
def test_what_is_no_number_of_bytes(text: str | int) -> None:
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_bytes(text)
