"""Describes what can keep a process from a simulated GPU."""

from __future__ import annotations

__all__ = [
    "BuildFailedError",
    "CacheError",
    "CompilerMissingError",
    "SimulationError",
    "TorchBuildError",
    "TorchMissingError",
    "UnknownGpuError",
    "UnsupportedPlatformError",
]


class SimulationError(RuntimeError):
    """The simulated GPU cannot be had; the message says why and what to do."""


class UnsupportedPlatformError(SimulationError):
    """The stub libraries exist for Linux on x86-64 alone."""


class TorchMissingError(SimulationError):
    """The interpreter has no torch."""


class TorchBuildError(SimulationError):
    """The torch that is there is no CUDA 13 build."""


class CompilerMissingError(SimulationError):
    """There is no C++ compiler."""


class CacheError(SimulationError):
    """The folder of built libraries cannot be written, or has a name that cannot be used."""


class BuildFailedError(SimulationError):
    """The compiler or the linker refused the sources; the message ends with what it said."""


class UnknownGpuError(SimulationError, ValueError):
    """No known GPU has this name, or several have, or a size cannot be read."""
