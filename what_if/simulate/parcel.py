"""A model and its inputs on the way to a process with a simulated device, without their values.

Tensors go as what decides about memory: size, strides, type, and which storage they share. So a
model of many gigabytes on the ``meta`` device or the CPU is a small file, and what shares memory
here shares it there. Of a storage that lies elsewhere than on a GPU only what tensors reach goes:
eight rows of a data set are as large as they are after ``.cuda()``. Everything else goes by value,
as cloudpickle does it: classes and functions of a notebook too.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from memprof.what_if._torch_compat import has_hooks, identity_of, tensors_in


class NoParcel(ValueError):
    """Something that cannot be sent; the message says what."""


_ALIGNMENT = 16
"""Bytes, no fewer than any element has, so that what is cut off moves no element off its place."""

_LENGTH = 8
"""Bytes of the length of what has been reached."""


class _Packer:
    """Turns tensors into what decides about memory; ``reached`` has of each storage the first byte
    that a tensor reaches, and the one behind the last."""

    def __init__(self) -> None:
        self.reached: list[tuple[int, int]] = []
        self._storages: dict[int, int] = {}
        self._kept: list[Any] = []  # so that nothing else gets their addresses

    def persistent_id(self, value: object) -> object:
        if isinstance(value, torch.Generator):  # Its state would arrive as a tensor of the device.
            raise NoParcel("a torch.Generator cannot be sent: make it in the model's forward")
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
        if has_hooks(value):
            raise NoParcel(
                "a tensor with hooks of its own (register_hook, "
                "register_post_accumulate_grad_hook) cannot be sent without them: write a script "
                "and run memprof simulate"
            )
        if value.requires_grad and not value.is_leaf:
            raise NoParcel(
                "a tensor that was computed with gradients cannot be sent: detach() it first"
            )
        storage = value.untyped_storage()
        self._kept += (storage, value)
        number = self._storages.setdefault(identity_of(storage), len(self._storages))
        reached = _bytes_of(value)
        if number == len(self.reached):
            self.reached.append(reached)
        else:
            ranges = [r for r in (reached, self.reached[number]) if r[0] < r[1]] or [reached]
            self.reached[number] = min(r[0] for r in ranges), max(r[1] for r in ranges)
        return (
            "parameter" if isinstance(value, torch.nn.Parameter) else "tensor",
            number,
            value.dtype,
            tuple(value.size()),
            tuple(value.stride()),
            value.storage_offset(),
            value.requires_grad,
            id(value),
        )


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor cannot be without; an empty range for none."""
    if tensor.device.type == "cuda":  # There the rest of the storage is kept with it.
        return 0, tensor.untyped_storage().nbytes()
    if tensor.numel() == 0:
        return 0, 0
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    first = int(tensor.storage_offset())
    last = int(first + sum((size - 1) * stride for size, stride in steps))
    low = first * tensor.itemsize // _ALIGNMENT * _ALIGNMENT
    return low, (last + 1) * tensor.itemsize


def pack(value: object) -> bytes:
    """A value with all tensors in it emptied.

    Raises:
        NoParcel: something in it cannot be sent.
    """
    import cloudpickle  # type: ignore[import-untyped]

    file = io.BytesIO()
    pickler = cloudpickle.Pickler(file)
    packer = _Packer()
    pickler.persistent_id = packer.persistent_id
    try:
        pickler.dump(value)
    except (TypeError, AttributeError, pickle.PicklingError) as e:
        raise NoParcel(f"this cannot be sent to another process: {e}") from e
    # Known when all is packed, so behind it; its own length at the very end.
    reached = pickle.dumps(packer.reached)
    return file.getvalue() + reached + len(reached).to_bytes(_LENGTH, "little")


class _Unpacker(pickle.Unpickler):
    """Makes tensors of what ``_Packer`` has left of them; nothing is written to them."""

    def __init__(self, data: bytes, device: str) -> None:
        super().__init__(io.BytesIO(data))
        reached = int.from_bytes(data[-_LENGTH:], "little")
        self._reached: list[tuple[int, int]] = pickle.loads(data[-reached - _LENGTH : -_LENGTH])
        self._device = device
        self._storages: dict[int, torch.Tensor] = {}
        self._tensors: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        kind, storage, dtype, size, stride, offset, requires_grad, identity = pid
        if identity not in self._tensors:
            low, high = self._reached[storage]
            if storage not in self._storages:
                self._storages[storage] = torch.empty(
                    high - low, dtype=torch.uint8, device=self._device
                )
            base = self._storages[storage].untyped_storage()
            found = torch.empty(0, dtype=dtype, device=self._device)
            # One without elements may lie anywhere, also in what is left out.
            first = 0 if 0 in size else offset - low // dtype.itemsize
            found.set_(base, first, size, stride)
            if kind == "parameter":
                found = torch.nn.Parameter(found, requires_grad)
            else:
                found.requires_grad_(requires_grad)
            self._tensors[identity] = found
        return self._tensors[identity]


def unpack(data: bytes, device: str) -> Any:
    """Unpack ``data``, with every tensor on ``device``. Only for what ``pack`` has packed."""
    return _Unpacker(data, device).load()


def default_loss(output: Any) -> torch.Tensor:
    """The loss of an output where nobody says: its ``loss``, or the sum of all its floats.

    Raises:
        TypeError: there is nothing to take a gradient of.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    found = [
        leaf.float().sum()
        for leaf in tensors_in(output)
        if leaf.is_floating_point() and leaf.requires_grad
    ]
    if not found:
        raise TypeError(
            f"the model returned a {type(output).__name__} with nothing to take a gradient of: "
            "give memprof.estimate a loss="
        )
    return torch.stack(found).sum()


def _run_steps(path: str) -> None:
    with open(path, "rb") as f:
        model, args, kwargs, options = unpack(f.read(), "cuda")
    optimizer = options["optimizer"]
    loss: Callable[[Any], torch.Tensor] = options["loss"] or default_loss
    run: Any = model if options["compile"] is None else torch.compile(model, **options["compile"])
    autocast = options["autocast"]

    def context() -> AbstractContextManager[Any]:
        return nullcontext() if autocast is None else torch.autocast("cuda", dtype=autocast)

    if optimizer is None:
        for _ in range(options["steps"]):
            with torch.no_grad(), context():
                run(*args, **kwargs)
        return
    made = optimizer(model.parameters())
    for _ in range(options["steps"]):
        with context():
            value = loss(run(*args, **kwargs))
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"the loss is a {type(value).__name__} and must be a tensor")
        torch.autograd.backward(value)
        made.step()
        made.zero_grad()


if __name__ == "__main__":
    try:
        _run_steps(sys.argv[1])
    except SystemExit as e:  # What was sent ended it: nobody knows what all steps take.
        raise RuntimeError(f"the steps ended their process: SystemExit({e.code!r})") from e
