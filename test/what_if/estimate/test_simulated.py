"""The time of a step in what ``memprof simulate`` and ``memprof fit`` say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from as_a_user import memprof
from outputs import checked

pytestmark = pytest.mark.simgpu

SCRIPT = """
import sys, torch
width, batch = 1024, int(sys.argv[1])
model = torch.nn.Linear(width, width, bias=False, device="cuda", dtype=torch.bfloat16)
if len(sys.argv) > 2:
    model = torch.compile(model, backend=sys.argv[2])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
for _ in range(9):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def time_of(tmp_path: Path, gpu: str, *arguments: str) -> dict[str, Any] | None:
    """The time of the script's step, whose products are three for each step: 2 b w² FLOPs."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = memprof("simulate", "--json", "--gpu", gpu, "--", "python", str(script), *arguments)
    found: dict[str, Any] | None = checked("simulate", done.stdout)["ranks"][0]["time"]
    return found


def products(time: dict[str, Any]) -> dict[str, Any]:
    return next(kind for kind in time["kinds"] if kind["kind"] == "matrix products")


@pytest.mark.parametrize("backend", [(), ("inductor",), ("memprof",)], ids=str)
def test_a_step_has_its_products_once(tmp_path: Path, backend: tuple[str, ...]) -> None:
    time = time_of(tmp_path, "h200-141gb", "4096", *backend)
    assert time is not None
    # THEN there is a forward, and the gradient of the weight: that of the input nobody needs
    found = products(time)
    assert found["flops"] == 2 * 2 * 4096 * 1024 * 1024
    assert time["measured"]
    assert time["unknown"] == 0
    assert (time["graphs"] > 0) == (backend == ("memprof",))
    # AND the time is that of its kinds, of which a graph may run some at once
    of_kinds = sum(kind["device_ns"] for kind in time["kinds"])
    assert found["device_ns"] < time["device_ns"] <= 1.001 * of_kinds
    assert backend or time["device_ns"] == pytest.approx(of_kinds, rel=1e-3)


def test_without_a_table_it_is_a_bound_and_without_a_data_sheet_nothing(tmp_path: Path) -> None:
    time = time_of(tmp_path, "a100-80gb", "4096")
    assert time is not None
    assert not time["measured"]
    assert products(time)["device_ns"] == pytest.approx(
        2 * 2 * 4096 * 1024 * 1024 / 312e12 * 1e9, rel=1e-3
    )
    assert time_of(tmp_path, "titan-v", "4096") is None


RANKS = """
import os, sys, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
layers = [torch.nn.Linear(1024, 1024, bias=False, device="cuda") for _ in range(2)]
model = torch.nn.Sequential(*layers)
if sys.argv[1] == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
elif sys.argv[1].startswith("by hand"):
    pass
elif sys.argv[1] == "fsdp":
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
else:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(2048, 1024, device="cuda")
for _ in range(4):
    y = model(x)
    if sys.argv[1].startswith("by hand"):
        work = dist.all_reduce(y.detach(), async_op=True)
        if sys.argv[1].endswith("waited for"):
            work.wait()
    y.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WEIGHT = 4 << 20
OUTPUT = 8 << 20


@pytest.mark.parametrize(
    ("kind", "nbytes", "beside"),
    [
        # An all-reduce of each gradient, for which the end of the backward waits.
        ("ddp", 2 * 2 * WEIGHT, True),
        ("by hand", 2 * OUTPUT, True),
        ("by hand, waited for", 2 * OUTPUT, False),
        # Both weights gathered in forward and backward, and each gradient scattered.
        ("fsdp", (4 + 2) * WEIGHT, True),
        # The output of the second layer is a sum over ranks.
        ("tensor parallel", 2 * OUTPUT, False),
    ],
)
def test_collectives_of_a_rank(tmp_path: Path, kind: str, nbytes: int, beside: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(RANKS)
    # GIVEN four ranks on two hosts
    options = ("--gpu", "h200-141gb", "--world-size", "4", "--ranks-per-host", "2")
    done = memprof(
        "simulate", "--json", *options, "--network", "10", "--", "python", str(script), kind
    )
    time = checked("simulate", done.stdout)["ranks"][0]["time"]
    found = next(kind for kind in time["kinds"] if kind["kind"] == "communication")
    # THEN each rank sends three quarters, over the network of both GPUs of its host
    assert found["nbytes"] == nbytes * 3 // 4
    assert found["device_ns"] == pytest.approx(nbytes * 3 / 4 / 20e9 * 1e9, rel=1e-3)
    # AND what waits for it comes after it
    others = sum(k["device_ns"] for k in time["kinds"] if k is not found)
    in_turn = others + found["device_ns"]
    if beside:
        assert max(others, found["device_ns"]) < time["device_ns"] < 0.99 * in_turn
    else:
        assert time["device_ns"] == pytest.approx(in_turn, rel=1e-3)


LAYERS = """
import sys, torch

class First(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(1024, 1024, bias=False)
        self.b = torch.nn.Linear(1024, 1024, bias=False)

    def forward(self, x):
        return self.b(self.a(x))

class Last(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c = torch.nn.Linear(1024, 1024, bias=False)

    def forward(self, x):
        return self.c(x)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = First(), Last()

    def forward(self, x):
        return self.last(self.first(x))

model = Model().to("cuda", torch.bfloat16)
act = {
    "eager": lambda: model,
    "inductor": lambda: torch.compile(model),
    "reduce-overhead": lambda: torch.compile(model, mode="reduce-overhead"),
    "memprof": lambda: torch.compile(model, backend="memprof"),
}[sys.argv[1]]()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
for _ in range(9):
    torch.compiler.cudagraph_mark_step_begin()
    act(x).backward(x)
    optimizer.step()
    optimizer.zero_grad()
"""


def of_layers(tmp_path: Path, how: str) -> tuple[dict[str, int], list[str]]:
    """What each class of modules takes on the device in ns, without its linear layers' own rows,
    and modules of which compiled code has memory at the peak."""
    script = tmp_path / "script.py"
    script.write_text(LAYERS)
    words = ("--gpu", "h200-141gb", "--", "python", str(script), how)
    (rank,) = checked("simulate", memprof("simulate", "--json", *words).stdout)["ranks"]
    times: Counter[str] = Counter()
    for row in rank["time"]["modules"]:
        times[row["module"].removesuffix(" > Linear")] += row["device_ns"]
    rows = rank["accounts"][0]["rows"]
    return dict(times), sorted({r["modules"] for r in rows if r["compiled"]})


@pytest.mark.parametrize("how", ["inductor", "reduce-overhead", "memprof"])
def test_compiled_code_has_the_modules_of_eager_code(tmp_path: Path, how: str) -> None:
    eager, _ = of_layers(tmp_path, "eager")
    compiled, owners = of_layers(tmp_path, how)
    # THEN products are the same, compiled now or taken from Inductor's cache
    for name in ("Model > First", "Model > Last"):
        assert compiled[name] == pytest.approx(eager[name], rel=0.01)
    assert of_layers(tmp_path, how)[0] == compiled
    # AND memory has the same modules
    assert "Model > First" in owners


def test_fit_says_samples_a_second_and_finds_the_fastest(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = ("--gpu", "h200-141gb", "--vary", "BATCH=64..256:64", "--json", "-q")
    command = ("--", "python", str(script), "{BATCH}")
    done = memprof("fit", "--best", "throughput", *options, *command)
    (row,) = json.loads(done.stdout)["rows"]
    rates = {t["values"]["BATCH"]: int(t["values"]["BATCH"]) / t["step_ns"] for t in row["tries"]}
    assert row["best"]["values"]["BATCH"] == max(rates, key=rates.__getitem__)
    # AND on a GPU of which nothing is known it says so
    options = (*options, "--gpu", "titan-v")
    done = memprof("fit", "--best", "throughput", *options, *command, status=3)
    assert "docs/simulated-time.md" in done.stderr
