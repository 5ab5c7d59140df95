"""A model and its inputs on the way to a process with a simulated device, without their values.

Tensors go as what decides about memory: size, strides, type, and which storage they share. So a
model of many gigabytes on the ``meta`` device or the CPU is a small file, and what shares memory
here shares it there. Everything else goes by value, as cloudpickle does it: classes and functions
of a notebook too.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch


class NoParcel(ValueError):
    """Something that cannot be sent; the message says what."""


class _Packer:
    """Turns tensors into what decides about memory."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no other storage gets its address

    def persistent_id(self, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return None
        plain = type(value) in (torch.Tensor, torch.nn.Parameter)
        strided = value.layout is torch.strided and not value.is_nested
        if not plain or not strided or value.is_quantized:
            raise NoParcel(
                f"a {type(value).__name__} of layout {value.layout} cannot be sent to a simulated "
                "device: only plain strided tensors and parameters; write a script and run "
                "memprof simulate"
            )
        if value.requires_grad and not value.is_leaf:
            raise NoParcel(
                "a tensor that was computed with gradients cannot be sent: detach() it first"
            )
        storage = value.untyped_storage()
        # Storages of the meta device have no address; the object itself is their identity.
        key = storage._cdata
        self._kept.append(storage)
        return (
            "parameter" if isinstance(value, torch.nn.Parameter) else "tensor",
            self._storages.setdefault(key, len(self._storages)),
            storage.nbytes(),
            value.dtype,
            tuple(value.size()),
            tuple(value.stride()),
            value.storage_offset(),
            value.requires_grad,
            id(value),
        )


def pack(value: object) -> bytes:
    """A value with all tensors in it emptied.

    Raises:
        NoParcel: something in it cannot be sent.
    """
    import cloudpickle  # type: ignore[import-untyped]

    file = io.BytesIO()
    pickler = cloudpickle.Pickler(file)
    pickler.persistent_id = _Packer().persistent_id
    try:
        pickler.dump(value)
    except (TypeError, AttributeError, pickle.PicklingError) as e:
        raise NoParcel(f"this cannot be sent to another process: {e}") from e
    return file.getvalue()


class _Unpacker(pickle.Unpickler):
    """Makes tensors of what ``_Packer`` has left of them; nothing is written to them."""

    def __init__(self, file: io.BytesIO, device: str) -> None:
        super().__init__(file)
        self._device = device
        self._storages: dict[int, torch.Tensor] = {}
        self._tensors: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        kind, storage, nbytes, dtype, size, stride, offset, requires_grad, identity = pid
        if identity not in self._tensors:
            if storage not in self._storages:
                self._storages[storage] = torch.empty(
                    nbytes, dtype=torch.uint8, device=self._device
                )
            base = self._storages[storage].untyped_storage()
            found = torch.empty(0, dtype=dtype, device=self._device)
            found.set_(base, offset, size, stride)
            if kind == "parameter":
                found = torch.nn.Parameter(found, requires_grad)
            else:
                found.requires_grad_(requires_grad)
            self._tensors[identity] = found
        return self._tensors[identity]


def unpack(data: bytes, device: str) -> Any:
    """What ``pack`` has packed, with every tensor on ``device``. Only for what it has packed."""
    return _Unpacker(io.BytesIO(data), device).load()
