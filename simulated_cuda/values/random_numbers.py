"""Random numbers of operators that compute on the CPU.

Note [Random numbers of the simulated device]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The numbers are a function of seed and Philox offset, as on a device (but other numbers): a replay
gives what the eager run would have given at the same state of the generator, replays differ, and
seeding repeats them. How far an operator moves the offset is seen where it runs eagerly, and taken
to be the same in a capture, by operator and shapes; one that only ever ran in captures is told from
others by its number there instead.

``CUDAGraph.replay`` moves the offsets before the launch, and the graph's nodes want those of before
it: they are noted for each replay. Which state a generator has now is what counts in a capture: it
may have been swapped for another one, and is put back.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import torch

from ..control import library

_device = library()
_increments: dict[object, int] = {}
"""Amount by which an operator moves the offset, by operator and shapes."""


class _Drawn:
    """One state of a generator in one capture."""

    def __init__(self, generator: torch.Generator) -> None:
        self.state = generator.graphsafe_get_state()
        self.offset = 0
        """Sum by which the operators so far move the state's offset."""
        self.unknown = 0
        """Number of operators so far that move the offset by an unknown amount."""
        self.base: int | None = None
        """The state's offset as the replay under way began."""


_drawn: dict[int, dict[int, _Drawn]] = {}
"""States that were drawn from, by capture and then by address of the state."""


def source(
    device: int, generator: torch.Generator | None, key: object
) -> tuple[Callable[[], torch.Generator], Callable[[], None]]:
    """Random numbers for one call of an operator.

    Args:
        device: its number.
        generator: the device's default one if None.
        key: the operator and the shapes of its tensors.

    Returns:
        What gives a generator of the CPU each time that the operator computes, and what is to be
        called when the operator's own kernel has run.
    """
    generator = generator or torch.cuda.default_generators[device]
    capture = _device.simgpu_capture_id(torch._C._cuda_getCurrentRawStream(device))
    if not capture:
        return _eager_source(generator, key)
    states = _drawn.setdefault(capture, {})
    address = _word(_implementation(generator) + _state_place())
    if address not in states:
        states[address] = _Drawn(generator)
    drawn = states[address]
    offset, unknown = drawn.offset, drawn.unknown

    def done() -> None:
        drawn.offset += _increments.get(key, 0)
        drawn.unknown += key not in _increments

    def now() -> torch.Generator:
        assert drawn.base is not None
        place = [drawn.base + offset] + ([unknown] if unknown else [])
        return _generator(drawn.state.initial_seed(), *place)

    return now, done


def _eager_source(
    generator: torch.Generator, key: object
) -> tuple[Callable[[], torch.Generator], Callable[[], None]]:
    seed, offset = generator.initial_seed(), generator.get_offset()

    def done() -> None:
        _increments[key] = generator.get_offset() - offset

    return lambda: _generator(seed, offset), done


def _generator(*values: int) -> torch.Generator:
    digest = hashlib.blake2b(repr(values).encode(), digest_size=7).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little"))


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _implementation(generator: torch.Generator) -> int:
    """The address of the CUDAGeneratorImpl: it stands behind the head of the Python object."""
    return _word(id(generator) + 16)


@functools.cache
def _state_place() -> int:
    """Offset in bytes of the pointer to the state within a CUDAGeneratorImpl.

    It is what a generator and a view of its state share, and two generators do not. Several are
    looked at, since what lies between their fields is chance.
    """
    generators = [torch.Generator("cuda") for _ in range(8)]
    views = [generator.graphsafe_get_state() for generator in generators]

    def words(of: list[torch.Generator], place: int) -> list[int]:
        return [_word(_implementation(generator) + place) for generator in of]

    return next(
        place
        for place in range(8, 160, 8)
        if words(generators, place) == words(views, place)
        and len(set(words(generators, place))) == len(generators)
    )


def hook_graphs() -> None:
    """Hook CUDA graphs, see Note [Random numbers of the simulated device]."""
    graph: Any = torch.cuda.CUDAGraph
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        _state_place()  # which no capture can look for, as no generator can be made in one
        return begin(self, *args, **kwargs)

    def capture_end(self: Any) -> Any:
        stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
        capture = _device.simgpu_capture_id(stream)
        self._simgpu_drawn = list(_drawn.pop(capture, {}).values())
        return end(self)

    def replay_graph(self: Any) -> Any:
        for drawn in getattr(self, "_simgpu_drawn", ()):
            drawn.base = drawn.state.get_offset()
        return replay(self)

    graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replay_graph
