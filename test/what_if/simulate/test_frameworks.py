"""What people train with, as one process and as one rank of a job that is not there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from .test_simulate import MIB, adds_up, rows, simulate

pytestmark = pytest.mark.simgpu

JOB = ("--world-size", "8", "--ranks", "0,7")

SETUP = """
import os, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
"""


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def optimizer_state(tmp_path: Path, source: str, *options: str) -> list[int]:
    """Bytes of optimizer state of each simulated rank, its accounts having been added up."""
    result, _ = simulate(tmp_path, source, *options)
    found = []
    for number, rank in enumerate(result["ranks"]):
        assert rank["ended"] == "3 optimizer steps"
        assert adds_up(rank["accounts"][0])
        found.append(rows(result, number)["optimizer_state"])
    return found


@pytest.mark.parametrize("gpu", ["rtx-4090", "t4"])
def test_an_embedding_of_many_tokens_trains(tmp_path: Path, gpu: str) -> None:
    # Its backward sorts with CUB, which takes the image's architecture: 8.6 on a device of 8.9.
    source = """
import torch
table = torch.nn.Embedding(1024, 1024, device="cuda")
optimizer = torch.optim.Adam(table.parameters(), fused=True)
while True:
    table(torch.zeros(4096, dtype=torch.int64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert optimizer_state(tmp_path, source, "--gpu", gpu) == [2 * 4 * MIB + 4]


def test_tensor_parallel(tmp_path: Path) -> None:
    source = f"""{SETUP}
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cuda", (world,))
model = nn.Sequential(
    nn.Linear(1024, 4096, bias=False, device=device),
    nn.Linear(4096, 1024, bias=False, device=device),
)
plan = {{
    "0": ColwiseParallel(input_layouts=Shard(1)),
    "1": RowwiseParallel(output_layouts=Shard(1)),
}}
parallelize_module(model, mesh, plan)
optimizer = torch.optim.Adam(model.parameters(), foreach=True, capturable=False)
while True:
    out = model(torch.ones(2, 16, 1024, device=device))
    assert out.shape == (2, 16, 1024)
    out.sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
    # Two moments of an eighth of two matrices of 16 MiB.
    assert optimizer_state(tmp_path, source, *JOB) == [2 * 2 * 16 * MIB // 8] * 2


PIPELINE = f"""{SETUP}
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
stage_module = nn.Linear(1024, 1024, bias=False, device=device)
shapes = {{}}
if KNOWN:
    example = torch.empty(2, 1024, device="meta", requires_grad=True)
    shapes = {{"input_args": (example,), "output_args": (example,)}}
stage = PipelineStage(stage_module, rank, world, device, **shapes)
schedule = Schedule1F1B(stage, 4 * world, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.Adam(stage_module.parameters(), fused=True)
data = torch.ones(8 * world, 1024, device=device)
while True:
    if rank == 0:
        schedule.step(data)
    elif rank == world - 1:
        schedule.step(target=data)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_ends_of_a_pipeline(tmp_path: Path) -> None:
    state = optimizer_state(tmp_path, "KNOWN = True\n" + PIPELINE, *JOB)
    assert state == [2 * 4 * MIB + 4] * 2


def test_a_pipeline_that_asks_other_ranks_for_shapes_is_told_what_to_do(tmp_path: Path) -> None:
    options = ("--world-size", "8", "--ranks", "7")
    _, errors = simulate(tmp_path, "KNOWN = False\n" + PIPELINE, *options, status=3)
    # From 2.14 on torch itself sees that nobody is there.
    assert "give it input_args and output_args" in errors or "PipelineStage constructor" in errors


def test_context_parallel(tmp_path: Path) -> None:
    source = f"""{SETUP}
import torch.nn.functional as F
from torch.distributed.tensor.experimental import context_parallel
mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("cp",))
model = nn.Linear(512, 3 * 512, bias=False, device=device, dtype=torch.bfloat16)
optimizer = torch.optim.Adam(model.parameters(), fused=True)
while True:
    x = torch.ones(2, 1024, 512, device=device, dtype=torch.bfloat16)
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1], no_restore_buffers={{x}}):
        q, k, v = (t.unflatten(-1, (8, 64)).transpose(1, 2) for t in model(x).chunk(3, -1))
        assert q.shape[2] == 1024 // world
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    # 3 × 512 × 512 parameters, two moments of 2 bytes; the count of steps is float32.
    assert optimizer_state(tmp_path, source, *JOB) == [2 * 2 * 3 * 512 * 512 + 4] * 2


TINY_BERT = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(
    vocab_size=4096, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=128,
)
data = [{"input_ids": torch.ones(32, dtype=torch.long), "labels": 0}] * 800
settings = TrainingArguments(
    output_dir="unused", per_device_train_batch_size=4, max_steps=100, bf16=True,
    save_strategy="no", report_to="none", optim="adamw_torch_fused",
)
model = BertForSequenceClassification(config)
print("parameters:", sum(p.numel() for p in model.parameters()), len(list(model.parameters())))
Trainer(model, settings, train_dataset=data).train()
"""


@needs("transformers", "accelerate")
@pytest.mark.parametrize("options", [(), JOB], ids=["alone", "one of eight"])
def test_transformers_trainer(tmp_path: Path, options: tuple[str, ...]) -> None:
    result, errors = simulate(tmp_path, TINY_BERT, *options)
    numbers = errors.partition("parameters: ")[2].split()
    elements, tensors = int(numbers[0]), int(numbers[1])
    for number, rank in enumerate(result["ranks"]):
        assert rank["ended"] == "3 optimizer steps"
        assert adds_up(rank["accounts"][0])
        assert rows(result, number)["optimizer_state"] == 2 * 4 * elements + 4 * tensors
