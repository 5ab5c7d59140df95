"""The GPUs that can be simulated, as data.

``memory`` is what ``torch.cuda.get_device_properties(0).total_memory`` says on a real one, from
published output of that call (or of deviceQuery, or from the "total capacity" of an out-of-memory
error, which are the same number). It varies by some MiB with the driver. Where no such output was
found, it is what nvidia-smi says, which counts what the driver keeps for itself as well, one to
four per cent more: ``SMI``. L2 caches and numbers of multiprocessors are those of NVIDIA's
architecture whitepapers, and of the same outputs.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ROWS", "SMI", "TORCH", "Row"]

_MIB = 1 << 20
_GIB = 1 << 30

TORCH = "torch"
"""`Row.reported_by`: the size is the one that torch reports."""
SMI = "nvidia-smi"
"""`Row.reported_by`: the size is nvidia-smi's, slightly more than torch reports."""

_CODE = "https://github.com/search?type=code&q=%22_CudaDeviceProperties%28name%3D%27{}%27%22"
_MODAL = "https://github.com/modal-labs/modal-client/pull/2797"


class Row(NamedTuple):
    """One GPU."""

    key: str
    """What users call it."""
    name: str
    """What the driver calls it."""
    memory: int
    """Total device memory in bytes."""
    reported_by: str
    """Whose number the memory is: `TORCH` or `SMI`."""
    capability: tuple[int, int]
    multiprocessors: int
    l2_cache: int
    """In bytes."""
    source: str
    """Where the size of the memory was published."""


def _printed(name: str) -> str:
    """A search for files that hold torch's own description of a device."""
    return _CODE.format(name.replace(" ", "%20"))


ROWS = (
    Row(
        "h100-80gb",
        "NVIDIA H100 80GB HBM3",
        81090 * _MIB,
        TORCH,
        (9, 0),
        132,
        50 * _MIB,
        _printed("NVIDIA H100 80GB HBM3"),
    ),
    Row(
        "h100-pcie",
        "NVIDIA H100 PCIe",
        81008 * _MIB,
        TORCH,
        (9, 0),
        114,
        50 * _MIB,
        _printed("NVIDIA H100 PCIe"),
    ),
    Row(
        "h200-141gb",
        "NVIDIA H200",
        143156 * _MIB,
        TORCH,
        (9, 0),
        132,
        60 * _MIB,
        _printed("NVIDIA H200"),
    ),
    Row(
        "gh200-96gb",
        "NVIDIA GH200 480GB",
        97871 * _MIB,
        SMI,
        (9, 0),
        132,
        60 * _MIB,
        "https://github.com/search?type=code&q=%22GH200+480GB%22+97871MiB",
    ),
    Row(
        "b200",
        "NVIDIA B200",
        182631 * _MIB,
        TORCH,
        (10, 0),
        148,
        132644864,
        "https://github.com/pytorch/ao/pull/4002",
    ),
    Row(
        "a100-40gb",
        "NVIDIA A100-SXM4-40GB",
        42298834944,
        TORCH,
        (8, 0),
        108,
        40 * _MIB,
        "https://github.com/bottlerocket-os/bottlerocket/pull/3873",
    ),
    Row(
        "a100-80gb",
        "NVIDIA A100-SXM4-80GB",
        81049 * _MIB,
        TORCH,
        (8, 0),
        108,
        40 * _MIB,
        "https://github.com/ekondis/mixbench/issues/47",
    ),
    Row(
        "a10",
        "NVIDIA A10",
        23028 * _MIB,
        SMI,
        (8, 6),
        72,
        6 * _MIB,
        _MODAL,
    ),
    Row(
        "a10g",
        "NVIDIA A10G",
        22587 * _MIB,
        TORCH,
        (8, 6),
        80,
        6 * _MIB,
        _printed("NVIDIA A10G"),
    ),
    Row(
        "a6000",
        "NVIDIA RTX A6000",
        48676 * _MIB,
        TORCH,
        (8, 6),
        84,
        6 * _MIB,
        _printed("NVIDIA RTX A6000"),
    ),
    Row(
        "l4",
        "NVIDIA L4",
        23034 * _MIB,
        SMI,
        (8, 9),
        58,
        48 * _MIB,
        _MODAL,
    ),
    Row(
        "l40s",
        "NVIDIA L40S",
        45589 * _MIB,
        TORCH,
        (8, 9),
        142,
        96 * _MIB,
        _printed("NVIDIA L40S"),
    ),
    Row(
        "rtx-6000-ada",
        "NVIDIA RTX 6000 Ada Generation",
        49140 * _MIB,
        SMI,
        (8, 9),
        142,
        96 * _MIB,
        "https://github.com/search?type=issues&q=%22RTX+6000+Ada%22+49140MiB",
    ),
    Row(
        "rtx-3090",
        "NVIDIA GeForce RTX 3090",
        24259 * _MIB,
        TORCH,
        (8, 6),
        82,
        6 * _MIB,
        _printed("NVIDIA GeForce RTX 3090"),
    ),
    Row(
        "rtx-4090",
        "NVIDIA GeForce RTX 4090",
        int(23.64 * _GIB),
        TORCH,
        (8, 9),
        128,
        72 * _MIB,
        "https://github.com/3DTopia/Phidias-Diffusion/issues/8",
    ),
    Row(
        "rtx-5090",
        "NVIDIA GeForce RTX 5090",
        33680457728,
        TORCH,
        (12, 0),
        170,
        96 * _MIB,
        "https://github.com/NVIDIA/nccl/issues/1637",
    ),
    Row(
        "t4",
        "Tesla T4",
        15095 * _MIB,
        TORCH,
        (7, 5),
        40,
        4 * _MIB,
        _printed("Tesla T4"),
    ),
    Row(
        "v100-16gb",
        "Tesla V100-SXM2-16GB",
        16160 * _MIB,
        TORCH,
        (7, 0),
        80,
        6 * _MIB,
        _printed("Tesla V100-SXM2-16GB"),
    ),
    Row(
        "v100-32gb",
        "Tesla V100-SXM2-32GB",
        int(31.74 * _GIB),
        TORCH,
        (7, 0),
        80,
        6 * _MIB,
        "https://github.com/haotian-liu/LLaVA/issues/812",
    ),
)
