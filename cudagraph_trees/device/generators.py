"""Which generators of random numbers a call may draw from, and where they stood before it.

Note [Random numbers]
~~~~~~~~~~~~~~~~~~~~~
A generator of a CUDA device is a handle to a *state*: a seed and an offset. The handle can be
pointed to another state, and compiled code does that: what checkpointing recomputes has to draw
the numbers of its forward, so the code points the device's default generator to the state of a
generator that it got as an input, calls the operator, and points it back. If the operator
raises, nobody points it back.

* A *warm-up* is the call itself and moves states as the call does. If it fails and the call is
  made again, they have to be where they were, or the backward draws other numbers than its
  forward. First each handle is put back, then the content of each state: the content of the
  default state would otherwise be written over the one that it was swapped for.
* A *capture* moves no state of the device. The graph keeps those states that were drawn from, and
  a replay reads seed and offset from them and moves the offset, as the call itself would have.
  So there is nothing to put back when it has succeeded, and what another thread has drawn
  meanwhile is not drawn again. Numbers of the host that the code took for itself are
  part of the graph from then on.
* Up to torch 2.13 a capture only knows the default generator and those that were registered with
  the graph before; drawing from any other raises. So those among the inputs are registered.
* A replay that fails when it is launched has moved the states: a recording puts them back, too,
  before the call is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .protocol import Input


def generators_among(inputs: Iterable[Input]) -> list[torch.Generator]:
    """Those among the inputs of a call, each once."""
    return list({id(x): x for x in inputs if isinstance(x, torch.Generator)}.values())


class GeneratorStates:
    """Where all generators stood that a call may draw from, see Note [Random numbers]."""

    __slots__ = ("_before",)

    def __init__(
        self, before: Sequence[tuple[torch.Generator, torch.Generator | None, torch.Tensor]] = ()
    ) -> None:
        self._before = before

    @staticmethod
    def now(device: torch.device, inputs: Iterable[Input]) -> GeneratorStates:
        """Of the default generators of the host and of ``device``, and of those in ``inputs``."""
        found = [torch.default_generator, *generators_among(inputs)]
        if device.type == "cuda":
            found.append(torch.cuda.default_generators[device.index])
        return GeneratorStates(
            [
                (g, g.graphsafe_get_state() if g.device.type == "cuda" else None, g.get_state())
                for g in found
            ]
        )

    def restore(self) -> None:
        """Point each generator back to the state that it had, and give that its content."""
        for generator, handle, _ in self._before:
            if handle is not None:
                generator.graphsafe_set_state(handle)
        for generator, _, content in self._before:
            generator.set_state(content)
