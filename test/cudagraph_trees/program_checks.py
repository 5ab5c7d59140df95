"""What must be true between the operations of a random program, and after the last."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from memprof.cudagraph_trees.call.container import get_manager
from memprof.cudagraph_trees.replay.liveness import held as held_outputs
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.simulated_cuda.control import simulated

from .program_functions import storage_of

if TYPE_CHECKING:
    from .programs import Held, Machine

SIMULATED = simulated()


def check_values(machine: Machine) -> list[tuple[int, Held]]:
    """What is held has its value or says that it is gone; nothing overlaps.

    Returns:
        What has its value, with the address of its storage.
    """
    from .programs import Held

    valid = []
    held = list(machine.held)
    if machine.gradient is not None:
        assert machine.weight_there.grad is not None
        held.append(Held(machine.weight_there.grad, machine.gradient, None))
    held.append(Held(machine.buffer_there, machine.buffer, None))
    for h in held:
        try:
            address = h.tensor.untyped_storage().data_ptr()
            value = h.tensor.cpu()
        except RuntimeError as e:
            if "overwritten by a subsequent run" not in str(e):
                raise
            assert h.step is not None, "a tensor that owns its memory was given up"
            assert h.step < machine.step, "a tensor of the current step was given up"
            assert not h.kept, "a tensor was given up that should be kept"
            continue
        if machine.values:
            assert torch.equal(value, h.mirror), f"wrong value, {h.step=} {machine.step=}"
        valid.append((address, h))
    own: list[Tensor] = [*machine.training.gradients()]
    spans = sorted(
        [
            (a, a + h.tensor.untyped_storage().nbytes(), storage_of(h.mirror))
            for a, h in valid
            if h.mirror.numel()
        ]
        + [
            (a := s.data_ptr(), a + s.nbytes(), s._cdata)
            for s in (t.untyped_storage() for t in own)
        ]
    )
    for (_, end, a), (begin, _, b) in itertools.pairwise(spans):
        assert a == b or end <= begin, "live tensors overlap"
    return valid


def check_liveness(machine: Machine, valid: list[tuple[int, Held]]) -> None:
    """What the trees take for live is what the program holds."""
    manager = get_manager(machine.device, create_if_none_exists=False)
    node = None if manager is None else manager.path.node
    if manager is None or node is None:
        return
    refs = node.path_refs
    live = {r.address for r in refs if not r.expired()}
    dead = {r.address for r in refs} - live
    held = {address for address, h in valid if h.mirror.numel()}
    lost = dead & held
    assert not lost, "the trees take for dead what the program holds"
    if machine.garbage or machine.training.pending:
        return
    held |= {t.untyped_storage().data_ptr() for t in machine.parts() if t.numel()}
    held |= {t.untyped_storage().data_ptr() for t in machine.training.gradients()}
    if not live <= held:
        let_workers_go(machine.device)
        # Stale graphs of autograd may hold some, those of other paths too: the trees look twice.
        others = [r for n in manager.nodes() for r in n.outputs_weakrefs if r is not None]
        assert {r.address for r in held_outputs(refs, others)} <= held, (
            "the trees take for live what nobody holds"
        )


def let_workers_go(device: torch.device) -> None:
    """Autograd's thread for ``device`` lets go of the last graph that it ran a moment after the
    backward has returned; when it has run another one, it has."""
    with torch.enable_grad(), torch.inference_mode(False):
        x = torch.zeros((), device=device, requires_grad=True)
        torch.autograd.grad(x * 1, x)


def check_books(machine: Machine) -> None:
    """After a warm-up or a recording the pool has what its path knows of, and nothing else."""
    manager = get_manager(machine.device, create_if_none_exists=False)
    node = None if manager is None else manager.path.node
    if manager is None or node is None:
        return
    if manager.path.state not in (ExecutionState.RECORDING, ExecutionState.WARMUP):
        return
    known = {r.address for r in node.path_live_weakrefs()}
    lost = manager.pool.live_addresses() - known
    assert not lost, f"{len(lost)} blocks of the pool are live and nobody knows them"


class Leftovers:
    """What there was before a program, to be compared with what it leaves."""

    def __init__(self) -> None:
        torch.cuda.empty_cache()
        self.handles = _handles()
        self.allocated = torch.cuda.memory_allocated()

    def check(self, parts: list[Tensor]) -> None:
        """Args: ``parts`` are still there, and may be.

        Raises:
            AssertionError: there is more than there was.
        """
        blocks = [b["state"] for s in _pools() for b in s["blocks"]]
        assert all(b == "inactive" for b in blocks), "live blocks of pools are left"
        torch.cuda.empty_cache()
        assert not _pools(), "segments of pools are left"
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in parts}
        own = sum(-(-n // 512) * 512 for n in storages.values())
        grown = torch.cuda.memory_allocated() - self.allocated
        assert grown <= own, f"{grown - own} bytes outside of pools are left"
        found = _handles()
        assert all(a <= b for a, b in zip(found, self.handles, strict=True)), (
            f"graphs and instances of graphs: {found} are left, there were {self.handles}"
        )


def _pools() -> list[dict[str, Any]]:
    return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]


def _handles() -> tuple[int, int]:
    """Graphs and instances of graphs that are alive, on the simulated device."""
    if not SIMULATED:
        return (0, 0)
    from memprof.simulated_cuda import control as simgpu

    return simgpu.live(simgpu.GRAPHS), simgpu.live(simgpu.EXECS)
