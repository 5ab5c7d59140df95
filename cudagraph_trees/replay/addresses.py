"""Whether a call's inputs lie where they lay when the graph was captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .. import _torch_compat as compat
from .. import native

if TYPE_CHECKING:
    from ..device.protocol import Input


def same_addresses(pointers: list[int | None], checked: list[int]) -> Callable[[list[Input]], bool]:
    """A test of lists of inputs, as fast as this machine can: in C++ of our own where that was
    built, else with torch's helper.

    Args:
        pointers: ``data_ptr()`` by input; None is not compared.
        checked: which inputs are compared.
    """
    built = native.load()
    if built is not None:
        equal: Callable[[list[Input]], bool] = built.Addresses(pointers, checked).equal
        return equal
    return slowly(pointers, checked)


def slowly(pointers: Sequence[int | None], checked: Sequence[int]) -> Callable[[list[Input]], bool]:
    """The same with torch's helper."""
    helper = compat.pointers_equal
    return lambda inputs: helper(inputs, pointers, checked)
