"""Text of the description of every graph of some programs, as it is stored beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest
from compile_backend.describe.capture import capturing
from compile_backend.describe.cases import CASES

STORED = Path(__file__).parent / "descriptions"
SCREEN = 44
PROGRAMS = (
    "batch_norm",
    "adam_step",
    "two_tensor",
    "nested_two_tensor",
    "mutated_two_tensor",
    "mutation_of_overlapping_views",
)


@pytest.mark.zero_kernels
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_description_is_a_stable_text_of_at_most_a_screen(name: str) -> None:
    with capturing(inductor=False) as capture:
        CASES[name](capture.backend)
    texts = [f"{g.kind.value}\n{g.io.description}\n" for g in capture.graphs]
    assert all(text.count("\n") <= SCREEN for text in texts)
    stored = STORED / f"{name}.txt"
    if not stored.exists():
        stored.write_text("\n".join(texts))
        pytest.fail(f"there was no {stored.name}; it is written now: read it, and run again")
    assert "\n".join(texts) == stored.read_text()
