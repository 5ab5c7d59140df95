"""Memory: what GPT-2 takes under memprof, Inductor and reduce-overhead, and what the report says.

A configuration is a process of its own, since an allocator's peaks and its free segments are those
of all that ran before.
"""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import Any

import torch

import memprof
from proof import subjects
from proof.common import Part, Rows, ledger, smi, used

STEPS = 6
BATCH = {"124M": 8, "350M": 4}
ALONE = "124M"
"""The size whose runs with memprof have the device to themselves, to read what all of it has."""


def measure(rows: Rows, size: str, mode: str, contender: str) -> None:
    """One model that is trained, or asked, under one way to compile. memprof follows the allocator,
    so that it can say what each byte was for; that takes nothing of the device."""
    ours = contender == "memprof"
    with memprof.profile(eager=True) if ours else contextlib.nullcontext() as session:
        compiler = partial(torch.compile, **subjects.CONTENDERS[contender])
        layers = 1 if rows.simulated else None
        step = subjects.gpt_step(compiler, size, BATCH[size], 1024, layers, mode == "training")
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        segments = torch.cuda.memory_snapshot()
        rows.add(
            kind="peaks",
            reserved_peak=torch.cuda.max_memory_reserved(),
            allocated_peak=torch.cuda.max_memory_allocated(),
            reserved=torch.cuda.memory_reserved(),
            pools=sum(s["total_size"] for s in segments if any(s["segment_pool_id"])),
        )
    if ours:
        account = session.profile().accounts[0]
        parts = dict(account.parts())
        rows.add(
            kind="report",
            counter=torch.cuda.max_memory_reserved(),
            total=sum(parts.values()),
            unexplained=account.unexplained,
            outside=account.outside_bytes,
            parts=parts,
            notes=account.notes,
        )
        rows.add(kind="graphs", **ledger())
        if size == ALONE:
            rows.add(kind="device", **of_device())


def of_device() -> dict[str, Any]:
    """Bytes of the device in use by the driver, and by NVML, which has processes in words too; else
    by nvidia-smi, and why."""
    try:
        said = torch.cuda.list_gpu_processes()
        by_nvml = torch.cuda.device_memory_used()
    except Exception as error:
        said, mib = repr(error), smi("memory.used") or ""
        by_nvml = int(mib) << 20 if mib.isdigit() else None
    return {
        "reserved": torch.cuda.memory_reserved(),
        "device_used": used(),
        "nvml_used": by_nvml,
        "nvml_processes": said,
    }


PART = Part(
    name="memory",
    module="proof.memory",
    about="Bytes that torch's allocator and the device give to GPT-2 in bfloat16 autocast with "
    "fused AdamW, from the first call on, and the report's total beside the counters of others.",
    cases={
        " ".join(case): partial(measure, size=case[0], mode=case[1], contender=case[2])
        for case in itertools.product(BATCH, ("training", "inference"), subjects.CONTENDERS)
        if case[0] == "124M" or case[2] != "inductor again"
    },
    alone=lambda case: case.startswith(ALONE) and case.endswith("memprof"),
)
