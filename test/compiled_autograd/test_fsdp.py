"""FSDP2 with captured backwards: gradients are those of the same layers without FSDP."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor

from memprof import compiled_autograd as ca

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")


class Block(nn.Module):
    """Its parameters' gradients are computed after the gradient of its input, when the graph is
    walked depth first, and from parameters that FSDP has taken away by then."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(1))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.scale.view(1, 4).expand(len(x), 4).t() * x.t()
        h = self.shift.sin().exp() * h + h
        return self.linear(h.t()) + x


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(2)))


BATCHES = [torch.randn(5, 4, generator=torch.Generator().manual_seed(i)) for i in range(4)]


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(mesh: Any) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    model = net()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def accumulate(model: Any, run: Any, batches: list[Tensor], sync_each: bool) -> None:
    for i, x in enumerate(batches):
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(sync_each or i == len(batches) - 1)
        run(x).square().sum().backward()


def check(model: nn.Module, run: Any, sync_each: bool) -> None:
    """Two steps of two micro-batches; after each step gradients and placements."""
    plain = net()
    for step in (BATCHES[:2], BATCHES[2:]):
        plain.zero_grad()
        model.zero_grad()
        with ca.disable():
            accumulate(plain, plain, step, True)
        accumulate(model, run, step, sync_each)
        # FSDP has given back what it has gathered.
        assert all(hasattr(p, "full_tensor") for p in model.parameters())
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert p.grad is not None, name
            torch.testing.assert_close(p.grad.full_tensor(), q.grad, msg=lambda m, n=name: n + m)


COMPILERS: dict[str, Any] = {
    "as_it_is": lambda graph: graph,
    "aot_eager": functools.partial(torch.compile, backend="aot_eager"),
}


@pytest.mark.parametrize(
    ("compiler", "sync_each"), [("as_it_is", True), ("as_it_is", False), ("aot_eager", False)]
)
def test_accumulation_over_micro_batches(mesh: Any, compiler: str, sync_each: bool) -> None:
    model = sharded(mesh)
    with ca.enable(COMPILERS[compiler], False):
        check(model, model, sync_each)


def test_compiled_blocks(mesh: Any) -> None:
    model = sharded(mesh)
    for block in model:
        block.compile(backend="aot_eager")
    with ca.enable(COMPILERS["as_it_is"], False):
        check(model, model, False)


@pytest.mark.slow
def test_with_the_backend_option(mesh: Any) -> None:
    model = sharded(mesh)
    run = torch.compile(
        model, backend="memprof", options={"compiled_autograd": True, "graphs": False}
    )
    check(model, run, False)
