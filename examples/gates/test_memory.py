"""A step of a small transformer may not take more memory than it did."""

import pytest
import torch


class Block(torch.nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, 8, batch_first=True)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.mark.limit_device_memory("1 GiB", gpu="a100-40gb", growth="0 %")
def test_a_training_step() -> None:
    model = torch.nn.Sequential(*[Block(512) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        model(torch.empty(8, 256, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
