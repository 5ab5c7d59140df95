"""The GPUs that can be simulated, as data.

``memory`` is what ``torch.cuda.get_device_properties(0).total_memory`` says on a real one, from
published output of that call (or of deviceQuery, or from the "total capacity" of an out-of-memory
error, which are the same number). It varies by some MiB with the driver. Where no such output was
found, it is what nvidia-smi says, which counts what the driver keeps for itself as well, one to
four per cent more: ``memory_is_nominal``. L2 caches and numbers of multiprocessors are those of
NVIDIA's architecture whitepapers, and of the same outputs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .errors import UnknownGpuError

__all__ = ["GPUS", "Gpu", "Limits"]

_KIB = 1 << 10
_MIB = 1 << 20
_GIB = 1 << 30

_CODE = "https://github.com/search?type=code&q=%22_CudaDeviceProperties%28name%3D%27{}%27%22"
_MODAL = "https://github.com/modal-labs/modal-client/pull/2797"


@dataclass(frozen=True)
class Limits:
    """What a compute capability fixes, from the CUDA programming guide's technical specifications.

    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
    """

    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_multiprocessor: int
    """In bytes."""
    shared_per_block: int
    """In bytes, for a kernel that opts in."""
    shared_reserved: int
    """In bytes of each block, for the system."""


_LIMITS = {
    (7, 0): Limits(2048, 32, 96 * _KIB, 96 * _KIB, 0),
    (7, 5): Limits(1024, 16, 64 * _KIB, 64 * _KIB, 0),
    (8, 0): Limits(2048, 32, 164 * _KIB, 163 * _KIB, _KIB),
    (8, 6): Limits(1536, 16, 100 * _KIB, 99 * _KIB, _KIB),
    (8, 9): Limits(1536, 24, 100 * _KIB, 99 * _KIB, _KIB),
    (9, 0): Limits(2048, 32, 228 * _KIB, 227 * _KIB, _KIB),
    (10, 0): Limits(2048, 32, 228 * _KIB, 227 * _KIB, _KIB),
    (12, 0): Limits(1536, 24, 100 * _KIB, 99 * _KIB, _KIB),
}


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    key: str
    """What users call it: ``h100-80gb``."""
    name: str
    """What the driver calls it: ``NVIDIA H100 80GB HBM3``."""
    memory: int
    """Total device memory in bytes, as torch reports it."""
    capability: tuple[int, int]
    """Compute capability: ``(9, 0)``."""
    multiprocessors: int
    l2_cache: int
    """In bytes."""
    source: str
    """Where the size of the memory was published."""
    memory_is_nominal: bool = False
    """Whether ``memory`` is nvidia-smi's number, some per cent more than torch would report."""

    @property
    def limits(self) -> Limits:
        """What its compute capability fixes."""
        return _LIMITS[self.capability]

    def with_memory(self, memory: int) -> Gpu:
        """The same GPU with another total of device memory, in bytes."""
        if memory <= 0:
            raise UnknownGpuError(f"a GPU has more than {memory} bytes of memory")
        return dataclasses.replace(self, memory=memory, memory_is_nominal=False)


def _printed(name: str) -> str:
    """A search for files that hold torch's own description of a device."""
    return _CODE.format(name.replace(" ", "%20"))


GPUS = (
    Gpu(
        key="h100-80gb",
        name="NVIDIA H100 80GB HBM3",
        memory=81090 * _MIB,
        capability=(9, 0),
        multiprocessors=132,
        l2_cache=50 * _MIB,
        source=_printed("NVIDIA H100 80GB HBM3"),
    ),
    Gpu(
        key="h100-pcie",
        name="NVIDIA H100 PCIe",
        memory=81008 * _MIB,
        capability=(9, 0),
        multiprocessors=114,
        l2_cache=50 * _MIB,
        source=_printed("NVIDIA H100 PCIe"),
    ),
    Gpu(
        key="h200-141gb",
        name="NVIDIA H200",
        memory=143156 * _MIB,
        capability=(9, 0),
        multiprocessors=132,
        l2_cache=60 * _MIB,
        source=_printed("NVIDIA H200"),
    ),
    Gpu(
        key="gh200-96gb",
        name="NVIDIA GH200 480GB",
        memory=97871 * _MIB,
        memory_is_nominal=True,
        capability=(9, 0),
        multiprocessors=132,
        l2_cache=60 * _MIB,
        source="https://github.com/search?type=code&q=%22GH200+480GB%22+97871MiB",
    ),
    Gpu(
        key="b200",
        name="NVIDIA B200",
        memory=182631 * _MIB,
        capability=(10, 0),
        multiprocessors=148,
        l2_cache=132644864,
        source="https://github.com/pytorch/ao/pull/4002",
    ),
    Gpu(
        key="a100-40gb",
        name="NVIDIA A100-SXM4-40GB",
        memory=42298834944,
        capability=(8, 0),
        multiprocessors=108,
        l2_cache=40 * _MIB,
        source="https://github.com/bottlerocket-os/bottlerocket/pull/3873",
    ),
    Gpu(
        key="a100-80gb",
        name="NVIDIA A100-SXM4-80GB",
        memory=81049 * _MIB,
        capability=(8, 0),
        multiprocessors=108,
        l2_cache=40 * _MIB,
        source="https://github.com/ekondis/mixbench/issues/47",
    ),
    Gpu(
        key="a10",
        name="NVIDIA A10",
        memory=23028 * _MIB,
        memory_is_nominal=True,
        capability=(8, 6),
        multiprocessors=72,
        l2_cache=6 * _MIB,
        source=_MODAL,
    ),
    Gpu(
        key="a10g",
        name="NVIDIA A10G",
        memory=22587 * _MIB,
        capability=(8, 6),
        multiprocessors=80,
        l2_cache=6 * _MIB,
        source=_printed("NVIDIA A10G"),
    ),
    Gpu(
        key="a6000",
        name="NVIDIA RTX A6000",
        memory=48676 * _MIB,
        capability=(8, 6),
        multiprocessors=84,
        l2_cache=6 * _MIB,
        source=_printed("NVIDIA RTX A6000"),
    ),
    Gpu(
        key="l4",
        name="NVIDIA L4",
        memory=23034 * _MIB,
        memory_is_nominal=True,
        capability=(8, 9),
        multiprocessors=58,
        l2_cache=48 * _MIB,
        source=_MODAL,
    ),
    Gpu(
        key="l40s",
        name="NVIDIA L40S",
        memory=45589 * _MIB,
        capability=(8, 9),
        multiprocessors=142,
        l2_cache=96 * _MIB,
        source=_printed("NVIDIA L40S"),
    ),
    Gpu(
        key="rtx-6000-ada",
        name="NVIDIA RTX 6000 Ada Generation",
        memory=49140 * _MIB,
        memory_is_nominal=True,
        capability=(8, 9),
        multiprocessors=142,
        l2_cache=96 * _MIB,
        source="https://github.com/search?type=issues&q=%22RTX+6000+Ada%22+49140MiB",
    ),
    Gpu(
        key="rtx-3090",
        name="NVIDIA GeForce RTX 3090",
        memory=24259 * _MIB,
        capability=(8, 6),
        multiprocessors=82,
        l2_cache=6 * _MIB,
        source=_printed("NVIDIA GeForce RTX 3090"),
    ),
    Gpu(
        key="rtx-4090",
        name="NVIDIA GeForce RTX 4090",
        memory=int(23.64 * _GIB),
        capability=(8, 9),
        multiprocessors=128,
        l2_cache=72 * _MIB,
        source="https://github.com/3DTopia/Phidias-Diffusion/issues/8",
    ),
    Gpu(
        key="rtx-5090",
        name="NVIDIA GeForce RTX 5090",
        memory=33680457728,
        capability=(12, 0),
        multiprocessors=170,
        l2_cache=96 * _MIB,
        source="https://github.com/NVIDIA/nccl/issues/1637",
    ),
    Gpu(
        key="t4",
        name="Tesla T4",
        memory=15095 * _MIB,
        capability=(7, 5),
        multiprocessors=40,
        l2_cache=4 * _MIB,
        source=_printed("Tesla T4"),
    ),
    Gpu(
        key="v100-16gb",
        name="Tesla V100-SXM2-16GB",
        memory=16160 * _MIB,
        capability=(7, 0),
        multiprocessors=80,
        l2_cache=6 * _MIB,
        source=_printed("Tesla V100-SXM2-16GB"),
    ),
    Gpu(
        key="v100-32gb",
        name="Tesla V100-SXM2-32GB",
        memory=int(31.74 * _GIB),
        capability=(7, 0),
        multiprocessors=80,
        l2_cache=6 * _MIB,
        source="https://github.com/haotian-liu/LLaVA/issues/812",
    ),
)
"""All of them."""
