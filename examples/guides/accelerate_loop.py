"""A loop with Accelerate and memprof: docs/guides/accelerate.md."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import memprof

accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=8)
# In the place of Accelerator(dynamo_backend="memprof").
model = torch.compile(model, backend="memprof")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

with memprof.profile("run.{rank}.memprof", steps="steps.{rank}.jsonl") as session:
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
if accelerator.is_main_process:
    session.report()
