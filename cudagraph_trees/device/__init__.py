"""Devices that graph trees run on; ``protocol`` says what one must offer."""

from .protocol import (
    Block,
    CapturedRun,
    Checkpoint,
    Device,
    Input,
    Model,
    Output,
    Pool,
    Segment,
    TensorSpec,
)

__all__ = [
    "Block",
    "CapturedRun",
    "Checkpoint",
    "Device",
    "Input",
    "Model",
    "Output",
    "Pool",
    "Segment",
    "TensorSpec",
]
