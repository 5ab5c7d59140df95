"""Inputs of a recording: read where they lie, or copied.

Note [Kinds of inputs]
~~~~~~~~~~~~~~~~~~~~~~
A CUDA graph reads addresses. Where an input's value will be at the next replay decides:

* *static*: parameters, buffers, tensors saved by a forward outside the trees. The caller
  promises that the address stays; it is compared before a replay, and if it has changed,
  the function is recorded again.
* *managed*: the output of a node on the current path. It is where that node put it, so
  the address is compared as well. If it keeps moving, the input is demoted to copied. A
  misaligned view of such an output is copied.
* *copied*: everything else that is a tensor. The recording reads a buffer of its own in
  the pool; a replay fills all of them in one grouped copy. The source may be misaligned,
  the buffer is not.
* *passed*: integers (they select the function), generators, opaque objects.

Sizes are not compared: whatever can change them is an integer among the inputs, but for what is
inside of a tensor subclass, as the values of a jagged tensor, which torch before 2.14 makes
integers of only with ``graph_partition``. There the copy fails, and the replay is called off. None
is wrong without failing: a copy into other sizes works only where a size is 1, for which Dynamo
compiles code of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _torch_compat as compat
from ..device.cuda import CudaPool
from ..device.protocol import Input, TensorSpec
from . import native
from .liveness import StorageWeakRefWrapper, address_of, live_by_address
from .spec import FunctionSpec


class InputPlan:
    """Kind of each input of a recording, see Note [Kinds of inputs].

    Attributes:
        managed: inputs read where a node of the path put them.
        static: static inputs that are not managed.
        copied: inputs with a buffer of their own.
        checked: inputs whose address is compared: ``static`` and ``managed``.
        pointers: ``data_ptr()`` of those, None for the rest; one entry an input.
        outputs: for each input the live output of the path that it lies in, or None.
    """

    def __init__(
        self,
        function: FunctionSpec,
        inputs: Sequence[Input],
        path: Sequence[StorageWeakRefWrapper],
        demoted: frozenset[int],
    ) -> None:
        """Plan a call that will be recorded after outputs of ``path``; ``demoted`` inputs are
        copied although they may lie in one."""
        managed_addresses = {r.address for r in path}
        live = live_by_address(path)
        declared, aligned = set(function.static), set(function.alignment_checked)
        self.managed: list[int] = []
        self.static: list[int] = []
        self.copied: list[int] = []
        self.pointers: list[int | None] = [None] * len(inputs)
        self.outputs: list[StorageWeakRefWrapper | None] = [None] * len(inputs)
        for i, x in enumerate(inputs):
            if not isinstance(x, torch.Tensor):
                continue
            address = address_of(x)
            self.outputs[i] = live.get(address)
            misaligned = i in aligned and compat.is_misaligned(x)
            is_managed = address in managed_addresses and (i not in demoted or i in declared)
            if is_managed and not misaligned:
                self.managed.append(i)
            elif i in declared:
                self.static.append(i)
            else:
                self.copied.append(i)
                continue
            self.pointers[i] = x.data_ptr()
        self.checked = sorted(self.managed + self.static)

    def allocate(self, inputs: list[Input], pool: CudaPool) -> list[Input]:
        """Inputs of a recording: buffers in the pool for copied ones, filled. ``inputs`` are
        emptied, so that sources can die."""
        recording = list(inputs)
        if self.copied:
            with pool.allocating():
                for i in self.copied:
                    t = inputs[i]
                    recording[i] = torch.empty_strided(
                        t.size(), t.stride(), dtype=t.dtype, device=t.device
                    )
                Copies({i: recording[i] for i in self.copied}).copy(inputs)
        inputs.clear()
        return recording

    def moved(self, inputs: Sequence[Input], which: Sequence[int]) -> list[int]:
        """Inputs among ``which`` whose address is no longer the recorded one. Not hot."""
        return [
            i
            for i in which
            if isinstance(inputs[i], torch.Tensor) and inputs[i].data_ptr() != self.pointers[i]
        ]


class Copies:
    """Fills the buffers of copied inputs.

    Attributes:
        buffers: targets of the grouped copy.
        sources: takes its sources from a list of inputs.
        odd: buffers whose elements overlap, which it cannot copy, by input.
    """

    def __init__(self, buffers: dict[int, torch.Tensor]) -> None:
        """Args: ``buffers`` are by input, with the strides of that."""
        self.odd = {i: t for i, t in buffers.items() if compat.internal_overlap(t) != 0}
        plain = [i for i in buffers if i not in self.odd]
        self._shapes = [(i, t.shape) for i, t in buffers.items()]
        self.buffers = [buffers[i] for i in plain]
        # Of one input a list as well, of several a tuple, which torch takes for a list.
        self.sources: Callable[[list[Input]], list[torch.Tensor]] = operator.itemgetter(
            *(plain if len(plain) > 1 else [slice(i, i + 1) for i in plain] or [slice(0)])
        )

    def copy(self, inputs: list[Input]) -> None:
        if self.odd:
            self.copy_odd(inputs)
        if self.buffers:
            compat.foreach_copy(self.buffers, self.sources(inputs))

    def fit(self, inputs: Sequence[Input]) -> bool:
        """Tells whether the inputs of a call have the sizes of their buffers. Not hot."""
        return all(inputs[i].shape == shape for i, shape in self._shapes)

    def copy_odd(self, inputs: list[Input]) -> None:
        """Copy the whole extent of each, the only copy with a meaning if elements overlap."""
        for i, buffer in self.odd.items():
            t = inputs[i]
            if t.shape != buffer.shape:  # less than its extent would be copied without a word
                raise RuntimeError("a copied input has other sizes")
            if t.numel():
                extent = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
                buffer.as_strided((extent,), (1,)).copy_(t.as_strided((extent,), (1,)))


def same_addresses(pointers: list[int | None], checked: list[int]) -> Callable[[list[Input]], bool]:
    """A test of lists of inputs, in C++ where that was built: do those of ``checked`` lie at their
    ``pointers``? None is not compared."""
    built = native.load()
    if built is not None:
        return built.Addresses(pointers, checked).equal  # type: ignore[no-any-return]
    helper = compat.pointers_equal
    return lambda inputs: helper(inputs, pointers, checked)


def reference_persistent(
    function: FunctionSpec, plan: InputPlan, inputs: Sequence[Input]
) -> dict[int, StorageWeakRefWrapper]:
    """Storages that outlive the call, by address: static inputs and constants. Weak, because what a
    forward saves is a static input of its backward and may die in it."""
    tensors: list[Any] = [inputs[i] for i in plan.static]
    tensors.extend(function.constants)
    return {address_of(t): StorageWeakRefWrapper(t) for t in tensors}


def inputs_again(
    pool: CudaPool,
    specs: dict[int, TensorSpec],
    refs: dict[int, StorageWeakRefWrapper],
) -> dict[int, torch.Tensor]:
    """Tensors like inputs in the pool that were let go of, while their bytes are still there: over
    the same storage if somebody else holds that; otherwise it lies in a free block, and is copied.
    ``specs`` say where they lie, ``refs`` have the storages of some, by input."""
    out: dict[int, torch.Tensor] = {}
    storages: dict[int, torch.UntypedStorage] = {}
    for i, spec in specs.items():
        storage = storages.get(spec.address)
        if storage is None and i in refs:
            storage = compat.storage_from_weak(refs[i].pointer)
        if storage is None:
            storage = pool.tensor_at(spec).untyped_storage().clone()  # type: ignore[no-untyped-call]
        storages[spec.address] = storage
        out[i] = pool.tensor_at(spec, storage)
    return out
