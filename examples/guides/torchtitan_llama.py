"""torchtitan's Llama 3 with memprof, on a GPU or a simulated one: docs/guides/torchtitan.md."""

import torch
from torchtitan.models.llama3 import model_registry

import memprof

with torch.device("meta"):
    model = model_registry("debugmodel").model.build()
model.to_empty(device="cuda")
model.init_weights(buffer_device=torch.device("cuda"))
# In the place of --compile.enable --compile.backend memprof.
for block in model.layers.values():
    block.compile(backend="memprof", fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters())

with memprof.profile("run.memprof", steps="steps.jsonl") as session:
    for _ in range(3):
        tokens = torch.randint(2048, (1, 128), device="cuda")
        positions = torch.arange(128, device="cuda")[None]
        logits = model(tokens, positions, model.get_attention_masks(positions))
        logits.float().logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
session.report()
