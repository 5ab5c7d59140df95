"""Which graphs' last forward ran without a graph, which their backward has to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .function import Function


class PlainForwards(dict[object, set[int | None]]):
    """By ``compile_id``: partitions of the forward whose last call ran without a graph, of
    whatever sizes.

    What such a forward saves for its backward is somewhere else each time, so a backward that comes
    after it is not recorded. Which sizes a backward belongs to its own integers do not tell; the
    forward before it is mostly its own.
    """

    def ran_plainly(self, function: Function) -> None:
        """``function``, a forward, ran without a graph."""
        if function.compile_id is not None:
            self.setdefault(function.compile_id, set()).add(function.partition)

    def forget(self, function: Function) -> None:
        """``function``, a forward, ran with a graph, or is gone."""
        plain = self.get(function.compile_id)
        if plain is not None:
            plain.discard(function.partition)
            if not plain:
                del self[function.compile_id]
