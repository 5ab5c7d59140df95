"""A CUDA device that is simulated: torch's CUDA build runs on it on a machine without a GPU.

    environment = simulated_environment(find_gpu("h100-80gb"))
    subprocess.run([sys.executable, "train.py"], env=environment)

NVIDIA's driver, runtime and math libraries are replaced by ours, which keep the books of memory,
streams, events and graphs as the real ones do; torch, Inductor and Triton are the unmodified code
of their wheels. Kernels compute nothing unless ``values`` is asked for; see
docs/simulated-device.md.

Nothing here imports torch.
"""

from __future__ import annotations

from .environment import simulated_environment
from .errors import SimulationError
from .gpus import GPUS, Gpu, find_gpu, parse_size
from .torch_build import TorchBuild, find_torch

__all__ = [
    "GPUS",
    "Gpu",
    "SimulationError",
    "TorchBuild",
    "find_gpu",
    "find_torch",
    "parse_size",
    "simulated_environment",
]
