"""A CUDA device that is simulated: torch's CUDA build runs on it on a machine without a GPU.

    environment = simulated_environment(find_gpu("h100-80gb"))
    subprocess.run([sys.executable, "train.py"], env=environment)

NVIDIA's driver, runtime and math libraries are replaced by ours, which keep the books of memory,
streams, events and graphs as the real ones do; torch, Inductor and Triton are the unmodified code
of their wheels. Kernels compute nothing unless ``values`` is asked for; see
docs/simulated-device.md.

Nothing here but the values imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .environment import simulated_environment
    from .errors import SimulationError
    from .gpus import Gpu, find_gpu, known_gpus, parse_size
    from .torch_build import TorchBuild, find_torch

__all__ = [
    "Gpu",
    "SimulationError",
    "TorchBuild",
    "find_gpu",
    "find_torch",
    "known_gpus",
    "parse_size",
    "simulated_environment",
]

_PLACES = {
    "Gpu": "gpus",
    "SimulationError": "errors",
    "TorchBuild": "torch_build",
    "find_gpu": "gpus",
    "find_torch": "torch_build",
    "known_gpus": "gpus",
    "parse_size": "gpus",
    "simulated_environment": "environment",
}


def __getattr__(name: str) -> Any:
    # Every interpreter that a simulated process starts imports this package: it must cost nothing.
    if name in _PLACES:
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
