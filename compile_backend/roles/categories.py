"""The category of each storage of a program, read from the graph's inputs and outputs.

See Note [How a category is decided] in ``profiler/model/category.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from memprof.profiler.model import Category, GraphValue, Origin, Role

from ..observation.program_builder import Categorize

# Where several values share a storage, the one that decides how long it lives wins.
_PRECEDENCE = (
    Category.PARAMETER,
    Category.PERSISTENT_STATE,
    Category.OPTIMIZER_STATE,
    Category.CONSTANT,
    Category.GRADIENT,
    Category.CHECKPOINTED_INPUT,
    Category.ACTIVATION,
    Category.INPUT,
    Category.OUTPUT,
    Category.AUTOGRAD_DETAIL,
    Category.TEMPORARY,
    Category.UNKNOWN,
)


# Memory that no graph makes for itself.
_OF_OTHERS = (
    Category.PARAMETER,
    Category.PERSISTENT_STATE,
    Category.OPTIMIZER_STATE,
    Category.CONSTANT,
    Category.INPUT,
)


def _made_for(value: GraphValue) -> Category:
    """Category of memory that the graph made for an output.

    Metadata name an output for its value, and the value may be that of an input where the
    memory is not: Inductor gives a convolution's backward the weight in another memory
    format, a copy that the forward makes and that lives until the backward has run.
    """
    if value.category not in _OF_OTHERS:
        return value.category
    return Category.ACTIVATION if value.role is Role.SAVED_FOR_BACKWARD else Category.OUTPUT


def categorizer(inputs: Sequence[GraphValue], outputs: Sequence[GraphValue]) -> Categorize:
    """The rule for one graph, in the form that ``build_program`` takes."""

    from_inputs = [v.category for v in inputs]
    from_outputs = [_made_for(v) for v in outputs]

    def strongest(categories: Sequence[Category], indices: tuple[int, ...]) -> Category:
        found = [categories[i] for i in indices if i < len(categories)]
        return min(found, key=_PRECEDENCE.index, default=Category.UNKNOWN)

    def categorize(
        origin: Origin, ins: tuple[int, ...], outs: tuple[int, ...], survives: bool
    ) -> Category:
        if origin is Origin.INPUT:
            return strongest(from_inputs, ins)
        if origin is Origin.EXTERNAL:
            return Category.CONSTANT
        if outs:
            return strongest(from_outputs, outs)
        # What outlives the call without being returned is held by a library, for a
        # purpose that nothing at hand can tell.
        return Category.UNKNOWN if survives else Category.TEMPORARY

    return categorize
