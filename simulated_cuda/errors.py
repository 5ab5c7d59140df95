"""Errors that keep a process from a simulated device."""

from __future__ import annotations


class SimulationError(RuntimeError):
    """The simulated device cannot be had: for want of Linux on x86-64, a CUDA 13 build of torch, a
    C++ compiler or a folder to build in. The message says which, and what to do."""


class UnknownGpuError(SimulationError, ValueError):
    """No known GPU has this name, or several have, or a size cannot be read."""
