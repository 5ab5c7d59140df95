"""A sum of losses holds every step's graph

`total += loss` keeps the graph of each step, and with it its activations: memory grows by the
same amount each step. `total += loss.item()`, or `loss.detach()`, does not.

    memprof run --interval 0.1 03_leak.py && memprof report memory_profile_*.memprof --section leaks
"""

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
total = torch.zeros(())
for _ in range(100):
    loss = model(torch.randn(512, 256)).square().mean()
    total += loss
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
