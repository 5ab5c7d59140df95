"""What a device's allocator counts at one instant."""

from __future__ import annotations

from dataclasses import dataclass

from .limits import Int


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """The counters of one device's allocator, in bytes.

    Attributes:
        device: e.g. ``cuda:0``.
        total: of the device's memory.
        allocated, reserved: handed out to the program, and taken from the device, at that instant.
        most_allocated, most_reserved: the most of each since the process began, or since it has
            reset these counters.
    """

    device: str
    total: Int = 0
    allocated: Int = 0
    reserved: Int = 0
    most_allocated: Int = 0
    most_reserved: Int = 0
