"""The environment variables under which a process sees a simulated device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .build import cache_folder, libraries, preload
from .gpus import Gpu
from .torch_build import TorchBuild, find_torch

MAX_DEVICES = 32
"""Devices that one process can be shown."""

_RUNTIME = Path(__file__).resolve().parent / "runtime"
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "VLLM_CACHE_ROOT": "vllm",
    "SGLANG_CACHE_DIR": "sglang",
}
"""Names of folders in our cache, by the variable of a cache that a real device of the same name and
capability would read: engines keep there which kernel was fastest, where nothing computed."""

# Which real devices a process may see, and in which order: nothing to a simulated one, of which
# torch would see none where this is "". The others are of a simulated process that starts this one.
_OF_OTHER_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "SIMGPU_MEM_MB",
    "SIMGPU_REPORTED_BYTES",
    "SIMGPU_SHARED",
)


def simulated_environment(
    device: Gpu,
    *,
    devices: int = 1,
    torch: TorchBuild | None = None,
    base: Mapping[str, str] | None = None,
    values: bool = False,
) -> dict[str, str]:
    """``base`` (default: this process's environment), changed so that a child sees such GPUs.

    The child must have the torch that is given (default: this interpreter's). With ``values`` its
    kernels compute, which needs memprof in the child's interpreter; without, they run and do
    nothing. Compiled code, and what was tuned, is kept apart from that for real GPUs, in the cache
    of the simulated device, or below the folder that a variable of `_CACHES` names.

    The first call for a torch compiles the stub libraries, which takes some seconds. Raises
    SimulationError where there can be no simulated device, ValueError for a number of devices that
    is not from 1 to `MAX_DEVICES`.
    """
    if not 1 <= devices <= MAX_DEVICES:
        raise ValueError(f"there can be 1 to {MAX_DEVICES} simulated devices, not {devices}")
    result = dict(os.environ if base is None else base)
    torch = torch or find_torch()
    folder = libraries(torch, base=result)
    for name in _OF_OTHER_DEVICES:
        result.pop(name, None)
    result["LD_PRELOAD"] = _first(preload(folder, torch), result.get("LD_PRELOAD", ""))
    result["LIBRARY_PATH"] = _first([folder], result.get("LIBRARY_PATH", ""))
    result["PATH"] = _first([folder], result.get("PATH", os.defpath))  # for nvidia-smi
    result["TRITON_LIBCUDA_PATH"] = str(folder)
    major, minor = device.capability
    kind = f"{torch.version.replace('+', '-')}-sm{major}{minor}{'-values' if values else ''}"
    # What an older memprof has kept has no lines of partitions (``keep_lines_of_partitions``).
    kind += "-lines"
    compiled = cache_folder(result) / "compiled" / kind
    for variable, name in _CACHES.items():
        chosen = result.get(variable)
        place = Path(chosen) / "simulated" / kind if chosen else compiled / name
        result[variable] = str(place)
    limits = device.limits
    settings = {
        "NAME": device.name,
        "DEVICES": devices,
        "MEM_BYTES": device.memory,
        "CC": 10 * major + minor,
        "SMS": device.multiprocessors,
        "L2": device.l2_cache,
        "THREADS_PER_SM": limits.threads_per_multiprocessor,
        "BLOCKS_PER_SM": limits.blocks_per_multiprocessor,
        "SHARED_PER_SM": limits.shared_per_multiprocessor,
        "SHARED_PER_BLOCK": limits.shared_per_block,
        "SHARED_RESERVED": limits.shared_reserved,
        "VALUES": int(values),
    }
    result.update({f"SIMGPU_{name}": str(value) for name, value in settings.items()})
    if values:
        result["PYTHONPATH"] = _first([_RUNTIME], result.get("PYTHONPATH", ""))
    return result


def _first(paths: list[Path], rest: str) -> str:
    """Our paths before others, once: a simulated process may start another."""
    ours = {path.name for path in paths}
    others = [path for path in rest.split(":") if path and Path(path).name not in ours]
    return ":".join([*map(str, paths), *others])
