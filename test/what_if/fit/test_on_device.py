"""``memprof fit`` on the simulated device, as a user runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from as_a_user import memprof
from outputs import checked

pytestmark = pytest.mark.simgpu

BLOCK = 64
"""MiB of each of the script's tensors."""

SCRIPT = f"""
import sys
import torch
count = int(sys.argv[1])
kept = [torch.empty({BLOCK} << 20, dtype=torch.int8, device="cuda") for _ in range(count)]
"""


def fit(tmp_path: Path, source: str, *options: str, status: int = 0) -> tuple[dict[str, Any], str]:
    """JSON and standard error, with the exit status that is expected."""
    script = tmp_path / "script.py"
    script.write_text(source)
    name = "fit-try" if "--try" in options else "fit"
    count = () if "--try" in options else ("{N}",)
    done = memprof("fit", "--json", *options, "--", "python", str(script), *count, status=status)
    return checked(name, done.stdout) if done.stdout else {}, done.stderr


def test_the_next_larger_one_runs_out_of_memory(tmp_path: Path) -> None:
    found, _ = fit(tmp_path, SCRIPT, "--memory", "3GiB", "--vary", "N=1..64")
    (row,) = found["rows"]
    best, failed = row["best"], row["failed"]
    context = best["needed"] - best["reserved"]
    assert int(best["values"]["N"]) == ((3 << 30) - context) // (BLOCK << 20)
    assert int(failed["values"]["N"]) == int(best["values"]["N"]) + 1
    assert f"{BLOCK}.0 MiB at" in failed["limit"]
    assert "script.py:5" in failed["limit"]
    assert len(row["tries"]) <= 5


SAVING = """
import sys
import torch

def block(x):
    return torch.nn.functional.gelu(x @ weight).sin().cos()

weight = torch.nn.Parameter(torch.empty(512, 512, device="cuda"))

@torch.compile(backend="aot_eager_decomp_partition")
def step(x):
    for _ in range(6):
        x = block(x)
    return x.sum()

optimizer = torch.optim.SGD([weight])
for _ in range(3):
    step(torch.empty(int(sys.argv[1]), 512, device="cuda")).backward()
    optimizer.step()
"""


def test_a_setting_of_torch_decides_what_is_saved(tmp_path: Path) -> None:
    config = "torch._functorch.config.activation_memory_budget={B}"
    options = ("--vary", "B=0.0,1.0", "--vary", "N=8192", "--torch-config", config)
    found, _ = fit(tmp_path, SAVING, *options)
    saved = {
        row["values"]["B"]: dict(row["best"]["parts"]).get("activation", 0) for row in found["rows"]
    }
    # Of what six blocks save, little is left; without Inductor the graph that recomputes it needs
    # as much for a while.
    assert saved["0.0"] <= saved["1.0"] - 4 * 8192 * 512 * 4


def test_an_unknown_setting_is_said(tmp_path: Path) -> None:
    config = "torch._functorch.config.no_such_thing={N}"
    options = ("--vary", "N=8", "--torch-config", config)
    _, errors = fit(tmp_path, SAVING, *options, status=3)
    assert "this torch has no torch._functorch.config.no_such_thing" in errors


SETS_ITS_OWN = """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:512"
import torch
for mib in (27, 34, 41, 48):
    blocks = [torch.empty(mib << 20, dtype=torch.uint8, device="cuda") for _ in range(10)]
    del blocks
"""


def test_an_option_that_the_script_sets_otherwise_was_not_tried(tmp_path: Path) -> None:
    found, _ = fit(tmp_path, SETS_ITS_OWN, "--try", "expandable-segments")
    (result,) = found["results"]
    assert result["idle"]


TEACHER = """
import torch
def model(width, count):
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(count)
    ]
    return torch.nn.Sequential(*blocks).cuda()
teacher, student = model(512, 3).requires_grad_(False), model(256, 6)
optimizer = torch.optim.SGD(student.parameters())
x = torch.zeros(1 << 16, 256, device="cuda")
for _ in range(4):
    with torch.no_grad():
        wanted = teacher(torch.cat([x, x], 1))[:, :256].clone()
    torch.nn.functional.mse_loss(student(x), wanted).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_blocks_of_a_student_are_recomputed_where_a_teacher_comes_first(tmp_path: Path) -> None:
    found, _ = fit(tmp_path, TEACHER, "--try", "checkpoint")
    (result,) = found["results"]
    assert result["tried"]["changed"] == ["checkpoint: 9 Sequential"]
    assert result["saved_allocated"] >= 4 << 26  # 64 MiB between the two of each block


BLOCKS = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))

with torch.device("cuda"):
    model = torch.nn.Sequential(*[Block() for _ in range(4)])
compiled = torch.compile(model, backend="aot_eager_decomp_partition")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    compiled(torch.zeros(1 << 14, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_class_of_compiled_modules_is_recomputed_beside_torchs_settings(tmp_path: Path) -> None:
    changes = "checkpoint=Block,checkpoint=Nobody,memory-budget"
    found, _ = fit(tmp_path, BLOCKS, "-q", "--try", changes)
    block, nobody, budget, *_ = found["results"]
    assert block["tried"]["changed"] == ["checkpoint=Block: 4 Block"]
    assert block["recomputed"] > 0
    # Of what the gelus of four blocks have read, one is there at a time.
    assert block["saved_allocated"] >= 3 * (1 << 14) * 1024 * 4
    assert nobody["idle"] is True
    assert (budget["idle"], budget["problem"]) == (False, "")
