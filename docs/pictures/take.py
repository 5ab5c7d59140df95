"""Takes the profile that ``draw.py`` draws; needs a CUDA device, real or simulated.

python docs/pictures/take.py docs/pictures/explained.memprof
"""

from __future__ import annotations

import dataclasses
import sys

import torch
from torch import nn

import memprof
from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import Machine, NodeProvenance, Profile


class Block(nn.Module):
    """The MLP half of a transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return x + y


class Model(nn.Module):
    """Three blocks and a loss."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block(width) for _ in range(3)])
        self.head = nn.Linear(width, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x)).square().mean()


def main(path: str) -> None:
    """Seven steps with 1024 rows, then seven with 512."""
    torch.manual_seed(0)
    model = Model().cuda()
    compiled = torch.compile(model, backend="memprof", dynamic=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memprof.profile() as session:
        for rows in (1024, 512):
            for _ in range(7):
                compiled(torch.randn(rows, 256, device="cuda")).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    write_profile(without_place(session.profile()), path)


def without_place(profile: Profile) -> Profile:
    """The same without what is of the machine: its name, its paths."""

    def moved(node: NodeProvenance) -> NodeProvenance:
        stack = tuple(dataclasses.replace(f, file="take.py") for f in node.stack)
        return dataclasses.replace(node, stack=stack)

    for graph in profile.graphs:
        graph.code_path = None
        graph.nodes = {name: moved(node) for name, node in graph.nodes.items()}
        graph.description = dataclasses.replace(
            graph.description,
            outputs=tuple(dataclasses.replace(o, frame=None) for o in graph.outputs),
        )
        graph.statements = ()
    return dataclasses.replace(profile, machine=Machine(), process=None)


if __name__ == "__main__":
    main(sys.argv[1])
