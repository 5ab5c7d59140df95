"""The category of a storage, from what the graph's inputs and outputs are."""

from __future__ import annotations

import pytest

from memprof.compile_backend.stages.observe.program_builder import categorizer
from memprof.profiler.model import Category, GraphValue, Origin, Role

INPUTS = (
    GraphValue(0, "w", Role.PARAMETER, Category.PARAMETER),
    GraphValue(1, "x", Role.USER_INPUT, Category.INPUT),
)
OUTPUTS = (
    GraphValue(0, "y", Role.USER_OUTPUT, Category.OUTPUT),
    GraphValue(1, "h", Role.SAVED_FOR_BACKWARD, Category.ACTIVATION),
    GraphValue(2, "w", Role.SAVED_FOR_BACKWARD, Category.PARAMETER),
    GraphValue(3, "x", Role.SAVED_FOR_BACKWARD, Category.INPUT),
    GraphValue(4, "x", Role.MUTATED_INPUT, Category.INPUT),
)


@pytest.mark.parametrize(
    ("origin", "ins", "outs", "survives", "category"),
    [
        (Origin.INPUT, (0,), (2,), True, Category.PARAMETER),
        (Origin.INPUT, (1, 0), (), True, Category.PARAMETER),
        (Origin.INPUT, (1,), (3,), True, Category.INPUT),
        (Origin.EXTERNAL, (), (), True, Category.CONSTANT),
        (Origin.BUFFER, (), (0,), True, Category.OUTPUT),
        # Returned to the user and saved as well: it lives until the backward has run.
        (Origin.BUFFER, (), (0, 1), True, Category.ACTIVATION),
        # A copy that the graph made of an input for the backward is no input.
        (Origin.BUFFER, (), (2,), True, Category.ACTIVATION),
        (Origin.BUFFER, (), (3,), True, Category.ACTIVATION),
        (Origin.BUFFER, (), (4,), True, Category.OUTPUT),
        (Origin.BUFFER, (), (), False, Category.TEMPORARY),
        (Origin.INTERNAL, (), (), False, Category.TEMPORARY),
        (Origin.INTERNAL, (), (), True, Category.UNKNOWN),
    ],
)
def test_category(
    origin: Origin,
    ins: tuple[int, ...],
    outs: tuple[int, ...],
    survives: bool,
    category: Category,
) -> None:
    assert categorizer(INPUTS, OUTPUTS)(origin, ins, outs, survives) is category
