"""The category of each storage of a program, read from the graph's inputs and outputs.

See Note [How a category is decided] in ``profiler/model/category.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from memprof.profiler.model import Category, GraphValue, Origin

from .observation.program_builder import Categorize

# Where several values share a storage, the one that decides how long it lives wins.
_PRECEDENCE = (
    Category.PARAMETER,
    Category.OPTIMIZER_STATE,
    Category.CONSTANT,
    Category.GRADIENT,
    Category.ACTIVATION,
    Category.INPUT,
    Category.OUTPUT,
    Category.AUTOGRAD_DETAIL,
    Category.TEMPORARY,
    Category.UNKNOWN,
)


def categorizer(inputs: Sequence[GraphValue], outputs: Sequence[GraphValue]) -> Categorize:
    """The rule for one graph, in the form that ``build_program`` takes."""

    def strongest(values: Sequence[GraphValue], indices: tuple[int, ...]) -> Category:
        found = [values[i].category for i in indices if i < len(values)]
        return min(found, key=_PRECEDENCE.index, default=Category.UNKNOWN)

    def categorize(
        origin: Origin, ins: tuple[int, ...], outs: tuple[int, ...], survives: bool
    ) -> Category:
        if origin is Origin.INPUT:
            return strongest(inputs, ins)
        if origin is Origin.EXTERNAL:
            return Category.CONSTANT
        if outs:
            return strongest(outputs, outs)
        # What outlives the call without being returned is held by a library, for a
        # purpose that nothing at hand can tell.
        return Category.UNKNOWN if survives else Category.TEMPORARY

    return categorize
