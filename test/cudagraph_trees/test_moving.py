"""Static inputs that move: once, in turn, again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config

from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees.call.inductor import use_in_inductor
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.profiler.model import LedgerEntry, LedgerKind, TreeCause

from .support import counts, graphed, in_steps, live_blocks, manager, next_step, pool_segments, same

pytestmark = pytest.mark.simgpu

MIB = 1 << 20
LARGE = 2 * MIB  # elements: 8 MiB
SMALL = 1024


def recordings() -> int:
    found = counts()
    return found[LedgerKind.RECORD] + found[LedgerKind.RERECORD]


def caused(cause: TreeCause) -> list[LedgerEntry]:
    return [e for e in manager().entries() if e.tree is not None and e.tree.cause is cause]


def scale(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns a view of the weight as well, as a forward does that saves it."""
    return [w[: x.numel()] * x, compat.reinterpret_tensor(w, (w.numel() // 2, 2), (2, 1), 0)]


def call(f: Callable[[list[Any]], Any], w: torch.Tensor, value: float) -> None:
    next_step()
    x = torch.full((4,), value, device="cuda")
    y, _ = f([w, x])
    same(y, torch.full((4,), value * float(w[0]) if w.numel() else 0.0))


def moving(n: int, steps: int) -> tuple[object, list[int]]:
    """A function whose weight is somewhere else in each step, and how many recordings there were
    after each."""
    w = nn.Parameter(torch.full((n,), 2.0, device="cuda"), requires_grad=False)
    f = graphed(scale, [w, torch.ones(4, device="cuda")], static=(0,))
    found, room = [], []
    for i in range(steps):
        # What moves is not to come back: its old place is taken.
        w.data = w.data.clone()
        room.append(torch.empty(n, device="cuda"))
        call(f, w, float(i))
        found.append(recordings())
    return f, found


def test_what_keeps_moving_is_not_recorded_from_the_fourth_step_on() -> None:
    # WHEN a large parameter is somewhere else in each step
    _f, found = moving(LARGE, 10)
    # THEN it is recorded twice at most, and nothing is left of that
    assert found == [0, 1, 2, *[2] * 7]
    assert list(manager().nodes()) == []
    assert pool_segments() == []
    assert manager().path.state is ExecutionState.NONE
    # and one entry says so
    (entry,) = caused(TreeCause.KEEPS_MOVING)
    assert (entry.kind, entry.count) == (LedgerKind.SKIP, 7)
    assert entry.tree is not None
    assert entry.tree.nbytes == 4 * LARGE
    assert f"{4 * LARGE} bytes of {4 * LARGE} in static inputs" in entry.reason
    # and each of the recordings says that it was made because an input moved
    assert [e.kind for e in caused(TreeCause.MOVED)] == [LedgerKind.RERECORD]


def test_a_small_input_that_keeps_moving_is_copied() -> None:
    _f, found = moving(SMALL, 10)
    # THEN the recording of the fourth step is the last one, and all calls are replays of it
    assert found == [0, 1, 2, *[3] * 7]
    (node,) = manager().nodes()
    assert node.replays == 6
    assert node.input_plan.copied == [0, 1]
    (entry,) = caused(TreeCause.KEEPS_MOVING)
    assert (entry.kind, entry.count) == (LedgerKind.DEMOTION, 1)
    assert "that is little: they are copied from now on" in entry.reason


def test_a_small_share_of_large_inputs_is_copied() -> None:
    # GIVEN a large weight that stays and one of a hundredth of it that moves
    large = torch.full((100 * LARGE,), 2.0, device="cuda")
    few = nn.Parameter(torch.full((LARGE,), 3.0, device="cuda"), requires_grad=False)
    f = graphed(
        lambda a, b, x: [a[:4] * b[:4] * x], [large, few, torch.ones(4, device="cuda")], (0, 1)
    )
    room = []
    for _ in in_steps(range(8)):
        few.data = few.data.clone()
        room.append(torch.empty(LARGE, device="cuda"))
        (y,) = f([large, few, torch.ones(4, device="cuda")])
        same(y, torch.full((4,), 6.0))
    (node,) = manager().nodes()
    assert (node.input_plan.static, node.input_plan.copied) == ([0], [1, 2])


def test_an_input_that_is_written_to_is_never_copied() -> None:
    # GIVEN a function that writes to one static input; another moves
    seen = torch.zeros(4, device="cuda")
    w = nn.Parameter(torch.full((SMALL,), 2.0, device="cuda"), requires_grad=False)

    def count(seen: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        seen.add_(x)
        return [w[:4] * x]

    f = graphed(count, [seen, w, seen], (0, 1), mutated_input_idxs=(0,))
    room = []
    for _ in in_steps(range(8)):
        w.data = w.data.clone()
        room.append(torch.empty(SMALL, device="cuda"))
        f([seen, w, torch.ones(4, device="cuda")])
    same(seen, torch.full((4,), 8.0))
    (entry,) = caused(TreeCause.KEEPS_MOVING)
    assert entry.kind is LedgerKind.SKIP


def test_what_moves_once_is_recorded_once_more_and_its_old_memory_is_free() -> None:
    # GIVEN a function that returns a view of its weight, as a forward does for its backward
    w = nn.Parameter(torch.full((LARGE,), 2.0, device="cuda"), requires_grad=False)
    f = graphed(scale, [w, torch.ones(4, device="cuda")], static=(0,))
    for i in range(4):
        call(f, w, float(i))
    before = torch.cuda.memory_allocated()
    # WHEN the weight is replaced, as by load_state_dict(assign=True)
    w = nn.Parameter(torch.full((LARGE,), 5.0, device="cuda"), requires_grad=False)
    for i in range(4):
        call(f, w, float(i))
    # THEN there is one more recording, which is replayed
    assert recordings() == 2
    (node,) = manager().nodes()
    assert node.replays == 3
    assert caused(TreeCause.KEEPS_MOVING) == []
    # and the old weight's memory is nobody's
    assert torch.cuda.memory_allocated() == before
    # Now and then it may move as often as it likes.
    for k in range(6):
        w.data = torch.full((LARGE,), float(k), device="cuda")
        for i in range(10):
            call(f, w, float(i))
    assert caused(TreeCause.KEEPS_MOVING) == []
    assert recordings() == 8
    assert torch.cuda.memory_allocated() == before


def test_a_parameter_can_be_swapped() -> None:
    # GIVEN a function that was recorded with a parameter
    w = nn.Parameter(torch.full((SMALL,), 2.0, device="cuda"), requires_grad=False)
    f = graphed(scale, [w, torch.ones(4, device="cuda")], static=(0,))
    for i in range(3):
        call(f, w, float(i))
    # WHEN torch swaps it for another, as module.to() and load_state_dict() do after
    # torch.__future__.set_swap_module_params_on_conversion(True), THEN nothing is in the way
    other = nn.Parameter(torch.full((SMALL,), 3.0, device="cuda"), requires_grad=False)
    torch.utils.swap_tensors(w, other)
    # AND calls find what it is now: it has moved once
    for i in range(3):
        call(f, w, float(i))
    assert counts()[LedgerKind.RERECORD] == 1


def test_modules_that_share_code_have_a_recording_each() -> None:
    # GIVEN eight weights that are passed to one function in turn, each in a step of its own
    weights = [torch.full((LARGE,), float(k), device="cuda") for k in range(8)]
    f = graphed(scale, [weights[0], torch.ones(4, device="cuda")], static=(0,))
    for i in range(4):
        for w in weights:
            call(f, w.detach(), float(i))  # a new tensor each time, as autograd makes them
    assert recordings() == 8
    assert all(n.replays >= 2 for n in manager().nodes())
    assert caused(TreeCause.KEEPS_MOVING) == []


def test_eight_modules_that_are_replaced_at_once_have_moved_once() -> None:
    weights = [torch.full((LARGE,), float(k), device="cuda") for k in range(8)]
    f = graphed(scale, [weights[0], torch.ones(4, device="cuda")], static=(0,))
    for _ in range(2):  # one warm-up each, then all are replaced
        for w in weights:
            call(f, w, 1.0)
        weights = [w + 1 for w in weights]
    for _ in range(3):
        for w in weights:
            call(f, w, 1.0)
    assert caused(TreeCause.KEEPS_MOVING) == []
    assert all(n.replays >= 2 for n in list(manager().nodes())[-8:])


def test_two_places_in_turn_are_no_moves() -> None:
    # GIVEN one parameter whose data are swapped in each step, say for its averaged weights
    a, b = (torch.full((LARGE,), float(k), device="cuda") for k in (1, 2))
    w = nn.Parameter(a, requires_grad=False)
    f = graphed(scale, [w, torch.ones(4, device="cuda")], static=(0,))
    for i in range(12):
        w.data = b if i % 2 else a
        call(f, w, float(i))
    assert caused(TreeCause.KEEPS_MOVING) == []
    assert recordings() == 2
    assert all(n.replays >= 4 for n in manager().nodes())


def test_storages_that_are_resized_as_fsdp_does() -> None:
    # GIVEN a weight that has memory only while it is used, and not twice the same
    w = torch.full((LARGE,), 2.0, device="cuda")
    nbytes = w.untyped_storage().nbytes()
    f = graphed(scale, [w, torch.ones(4, device="cuda")], static=(0,))
    found, room = [], []
    for _ in in_steps(range(8)):
        w.untyped_storage().resize_(nbytes)
        w.fill_(2.0)
        out = f([w, torch.ones(4, device="cuda")])
        same(out[0], torch.full((4,), 2.0))
        del out
        w.untyped_storage().resize_(0)
        room.append(torch.empty(LARGE, device="cuda"))
        found.append(recordings())
    assert found[-4:] == [found[-5]] * 4
    assert found[-1] <= 3
    assert pool_segments() == []


def test_the_rest_of_the_graph_and_its_other_sizes_stop_as_well() -> None:
    # GIVEN a forward of two sizes and its backward, and another graph
    w = nn.Parameter(torch.full((LARGE,), 2.0, device="cuda"), requires_grad=False)
    x = torch.ones(4, device="cuda")
    forward = graphed(
        lambda n, w, x: [w[:n] * x[:n]], [4, w, x], (1,), is_inference=False, compile_id="0/0"
    )
    backward = graphed(
        lambda g: [g * 2], [x], is_backward=True, is_inference=False, compile_id="0/0"
    )
    other = graphed(lambda x: [x + 1], [x], compile_id="1/0")
    room = []

    def step(n: int) -> None:
        next_step()
        w.data = w.data.clone()
        room.append(torch.empty(LARGE, device="cuda"))
        (o,) = other([x])
        (y,) = forward([n, w, x])
        same(y, torch.full((n,), 2.0))
        (g,) = backward([y])
        same(g, torch.full((n,), 4.0))
        del o

    for _ in range(6):
        step(4)
    for _ in range(4):
        step(3)
    labels = {n.wrapped_function.label for n in manager().nodes()}
    assert labels == {"1/0 inference"}
    last = [e for e in manager().entries() if e.kind is LedgerKind.SKIP and e.count > 1]
    assert {e.tree.function for e in last if e.tree} == {"0/0 forward", "0/0 backward"}
    assert any("0/0 forward runs without a graph" in e.reason for e in last)
    # The other graph was recorded again into the new pool, and is replayed.
    (node,) = manager().nodes()
    assert node.replays >= 4
    assert counts()[LedgerKind.EVICTION] >= 1


def test_outputs_of_a_step_in_which_the_pool_is_given_back_are_right() -> None:
    # GIVEN a path that is in the midst of a replay when a function turns out to move
    w = nn.Parameter(torch.full((LARGE,), 2.0, device="cuda"), requires_grad=False)
    first = graphed(lambda x: [x + 1, x + 2], [torch.ones(MIB, device="cuda")])
    second = graphed(scale, [w, torch.ones(4, device="cuda")], static=(0,))
    kept = []
    for i in in_steps(range(6)):
        w.data = w.data.clone()
        a, b = first([torch.full((MIB,), float(i), device="cuda")])
        y, _ = second([w, a[:4]])
        same(y, torch.full((4,), 2.0 * (i + 1)))
        same(a[:2], torch.full((2,), i + 1.0))
        same(b[-2:], torch.full((2,), i + 2.0))
        kept.append(manager().path.state)
        del a, b, y
    assert caused(TreeCause.KEEPS_MOVING) != []
    assert ExecutionState.NONE in kept
    assert live_blocks() <= 4


def test_a_storage_that_is_freed_between_uses_says_so_in_the_first_step() -> None:
    # GIVEN two modules that share code, whose weights have memory while they run alone
    weights = [torch.empty(LARGE, device="cuda") for _ in range(2)]
    f = graphed(scale, [weights[0], torch.ones(4, device="cuda")], static=(0,))
    for w in weights:
        w.untyped_storage().resize_(0)
    next_step()
    for w in weights:
        w.untyped_storage().resize_(4 * LARGE)
        w.fill_(2.0)
        y, view = f([w, torch.ones(4, device="cuda")])
        same(y, torch.full((4,), 2.0))
        del y, view
        w.untyped_storage().resize_(0)
    # THEN the second call knows, though its weight may lie where the first one's was
    (entry,) = caused(TreeCause.KEEPS_MOVING)
    assert (entry.kind, entry.count) == (LedgerKind.SKIP, 1)
    assert recordings() == 0


def test_an_error_where_one_was_asked_for() -> None:
    with (
        config.patch({"triton.cudagraph_or_error": True}),
        pytest.raises(RuntimeError, match=r"inputs keep moving: .*nothing of this graph"),
    ):
        moving(LARGE, 6)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(1024, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.up(x))


@pytest.mark.usefixtures("one_of_two_ranks")
@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp(reshard: bool) -> None:
    """Parameters are gathered into memory that the next step does not get again."""
    from torch.distributed.fsdp import fully_shard

    blocks = [Block() for _ in range(3)]
    model = nn.Sequential(*blocks).cuda()
    with use_in_inductor():
        for b in blocks:
            b.compile(mode="reduce-overhead")
            fully_shard(b, reshard_after_forward=reshard)
        fully_shard(model, reshard_after_forward=reshard)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        room, found = [], []
        for _ in range(8):
            # Takes the places that parameters were gathered into before.
            room += [torch.empty_like(p) for _ in range(4) for p in Block().parameters()]
            room = [r.cuda() for r in room]
            optimizer.zero_grad()
            model(torch.ones(16, 1024, device="cuda")).sum().backward()
            optimizer.step()
            found.append(recordings())
    # THEN nothing is recorded from the fourth step on, nor kept
    assert found[3:] == [found[3]] * 5
    assert caused(TreeCause.KEEPS_MOVING) != []
    assert list(manager().nodes()) == []
    assert pool_segments() == []
