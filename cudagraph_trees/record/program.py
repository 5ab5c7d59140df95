"""The allocation program of a recording, from what the allocator did while it was captured.

A replay allocates nothing: it uses the bytes that the captured run used, in the same order.
So the program that the capture shows is the truth for every replay.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from memprof.profiler.model import (
    AllocationProgram,
    Category,
    Event,
    EventKind,
    Origin,
    StatementKind,
    Storage,
)

from ..device.protocol import AllocatorEvent, Output, TensorSpec
from ..replay.spec import CompilationMode, FunctionSpec

_ASSIGNED = re.compile(r"\s*(\w+)\s*=[^=]")
_NOT_GENERATED = re.compile(r"torch/_inductor|cudagraph_trees/")
_GENERATED = re.compile(r"^(call|partition_\d+|.*Runner\.call)$")


def program_of(
    function: FunctionSpec,
    inputs: Mapping[int, TensorSpec],
    outputs: Sequence[Output],
    events: Sequence[AllocatorEvent],
) -> tuple[AllocationProgram, tuple[int, ...]]:
    """The program of one recording, and the address of each of its storages.

    Args: ``inputs`` are those in the pool: buffers of copied inputs, and outputs of earlier nodes;
    ``outputs`` what the recording returned; ``events`` what the allocator did for all of them.
    """
    device = str(next((t.device for t in outputs if isinstance(t, torch.Tensor)), "cuda"))
    by_output: dict[int, list[int]] = {}
    for i, o in enumerate(outputs):
        if isinstance(o, torch.Tensor):
            by_output.setdefault(o.untyped_storage().data_ptr(), []).append(i)
    storages: list[Storage] = []
    addresses: list[int] = []
    live: dict[int, int] = {}

    def add(address: int, **fields: Any) -> None:
        live[address] = len(storages)
        addresses.append(address)
        storages.append(Storage(id=len(storages), device=device, **fields))

    at_entry: dict[int, tuple[int, list[int]]] = {}
    for i, spec in inputs.items():
        if spec.address:
            at_entry.setdefault(spec.address, (spec.nbytes, []))[1].append(i)
    for address, (nbytes, which) in at_entry.items():
        add(
            address,
            nbytes=nbytes,
            origin=Origin.INPUT,
            name=function.description.inputs[which[0]].name or f"input_{which[0]}",
            category=_input_category(function, which[0]),
            inputs=tuple(which),
        )
    code = None if function.record is None else function.record.code_path
    out: list[Event] = []
    last_alloc = {e.address: k for k, e in enumerate(events) if e.alloc}
    for k, e in enumerate(events):
        storage = live.get(e.address)
        if not e.alloc:
            if storage is not None:
                del live[e.address]
                out.append(Event(EventKind.FREE, storage, _line(e, code)[0]))
            continue
        if storage is not None and storages[storage].origin is Origin.INPUT and not out:
            continue  # the buffer of a copied input, which is listed already
        line, name = _line(e, code)
        returned = tuple(by_output.get(e.address, ())) if last_alloc[e.address] == k else ()
        owner = _owner(function, line, name)
        out.append(Event(EventKind.ALLOC, len(storages), line, owner))
        add(
            e.address,
            nbytes=e.nbytes,
            origin=Origin.INTERNAL if owner is None else Origin.BUFFER,
            name=owner or "",
            category=_output_category(function, returned),
            outputs=returned,
        )
    program = AllocationProgram(function.key, tuple(storages), tuple(out))
    return program, tuple(addresses)


def _line(e: AllocatorEvent, code: str | None) -> tuple[int, str | None]:
    """Line of the generated code, at ``code`` or in functions of such names, and what its text
    assigns."""
    for file, line, name in e.frames:
        generated = file == code if code else not _NOT_GENERATED.search(file)
        if generated and _GENERATED.match(name):
            match = _ASSIGNED.match(linecache.getline(file, line))
            return line, match.group(1) if match else None
    return 0, None


def _owner(function: FunctionSpec, line: int, name: str | None) -> str | None:
    """Buffer that the line makes, or None for scratch memory of a kernel that it calls."""
    made = (StatementKind.ALLOC, StatementKind.FALLBACK, StatementKind.CALL)
    for s in function.record.statements if function.record is not None and line else ():
        if s.line == line and s.targets:
            return s.targets[0] if s.kind in made else None
    return name


def _input_category(function: FunctionSpec, i: int) -> Category:
    value = function.description.inputs[i]
    if value.index >= 0:
        return value.category
    backward = function.mode is CompilationMode.BACKWARD
    return Category.ACTIVATION if backward else Category.INPUT


def _output_category(function: FunctionSpec, outputs: tuple[int, ...]) -> Category:
    if not outputs:
        return Category.TEMPORARY
    for i in outputs:
        if (value := function.output_value(i)) is not None:
            return value.category
    backward = function.mode is CompilationMode.BACKWARD
    return Category.GRADIENT if backward else Category.OUTPUT
