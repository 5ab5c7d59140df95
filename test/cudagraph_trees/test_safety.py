"""Nothing that is live is overwritten in silence."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from memprof.cudagraph_trees.replay import liveness
from memprof.cudagraph_trees.replay.liveness import StorageWeakRefWrapper
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.cudagraph_trees.steps import step_end
from memprof.profiler.model import LedgerKind, TreeCause
from memprof.profiler.sources.allocator._torch_compat import pool_segments as memory_snapshot

from .support import descendants, graphed, in_steps, live_blocks, manager, next_step, roots, same

pytestmark = pytest.mark.simgpu


def entries(kind: LedgerKind) -> list[str]:
    return [e.reason for e in manager().entries() if e.kind is kind]


def write(x: torch.Tensor, cache: torch.Tensor) -> list[torch.Tensor]:
    cache.add_(x)
    return [cache * 10]


def causes(kind: LedgerKind) -> list[TreeCause | None]:
    """Of each entry: findings rest on these, not on the sentences."""
    return [e.tree.cause for e in manager().entries() if e.kind is kind and e.tree is not None]


def test_a_graph_that_writes_to_what_it_would_copy_says_so() -> None:
    x = torch.ones(4, device="cuda")
    f = graphed(write, [x, x], mutated_input_idxs=(1,))
    for _ in in_steps(range(3)):
        f([x, torch.ones(4, device="cuda")])
    assert causes(LedgerKind.SKIP) == [TreeCause.WRITES_TO_COPIED]


@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("view", [False, True])
def test_an_output_of_a_former_step_raises(before: int, view: bool) -> None:
    # GIVEN a function in any phase (to be warmed up, recorded, replayed for the first time, again)
    f = graphed(
        lambda x: [x + 1], [torch.ones(4, device="cuda")], stack_traces=["model.py:3 in forward"]
    )
    for _ in in_steps(range(before)):
        f([torch.ones(4, device="cuda")])
    next_step()
    (old,) = f([torch.ones(4, device="cuda")])
    if view:
        old = old[1:]
    same(old + 0, torch.full((3 if view else 4,), 2.0))
    # WHEN the next step has begun
    next_step()
    (new,) = f([torch.full((4,), 5.0, device="cuda")])
    # THEN the old output says what happened, and the new one is right
    with pytest.raises(RuntimeError, match=r"overwritten by a subsequent run") as e:
        old + 1
    same(new, torch.full((4,), 6.0))
    text = str(e.value)
    assert "output 0" in text
    assert f"step {before + 1}" in text
    assert f"step {before + 2}" in text
    assert "model.py:3 in forward" in text
    assert "Ways out: clone" in text


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_outputs_clone_keeps_every_value(before: int) -> None:
    ones = torch.ones(4, device="cuda")
    f = graphed(lambda x: (x + 1, x * 2), [ones], clone_outputs=True)
    for _ in in_steps(range(before)):
        f([torch.ones(4, device="cuda")])
    kept = []
    for i in in_steps(range(6)):
        kept.append(f([torch.full((4,), float(i), device="cuda")]))
    for i, (p, q) in enumerate(kept):
        same(p, torch.full((4,), i + 1.0))
        same(q, torch.full((4,), i * 2.0))
    # AND each output has one entry, however it came by its memory
    assert sorted(entries(LedgerKind.MOVED_OUT)) == [
        f'output {i} is held beyond its step: outputs="clone"' for i in (0, 1)
    ]
    assert causes(LedgerKind.MOVED_OUT) == [TreeCause.HELD] * 2
    assert entries(LedgerKind.INVALIDATED) == []


def test_an_output_that_the_collector_takes_while_its_step_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN outputs that only a reference cycle holds
    ones = torch.ones(4, device="cuda")
    f = graphed(lambda x: (x + 1, x * 2), [ones], clone_outputs=True)
    cycle: list[object] = [f([torch.ones(4, device="cuda")])]
    cycle.append(cycle)
    del cycle

    # WHEN it is collected after the trees have seen that they live
    def held_then_collected(*args: Any) -> list[StorageWeakRefWrapper]:
        found = liveness.held(*args)
        gc.collect()
        return found

    monkeypatch.setattr(step_end, "held", held_then_collected)
    next_step()
    # THEN nothing is moved, and the call is right
    same(f([torch.zeros(4, device="cuda")])[0], torch.ones(4))
    assert not entries(LedgerKind.MOVED_OUT)


def test_an_output_that_the_collector_takes_while_the_books_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f = graphed(lambda x: [x + 1, x + 2], [torch.ones(4, device="cuda")])
    for _ in in_steps(range(3)):
        f([torch.ones(4, device="cuda")])
    # GIVEN two outputs of a replay, one of them garbage in a cycle
    next_step()
    kept, other = f([torch.ones(4, device="cuda")])
    cycle: list[object] = [other]
    cycle.append(cycle)
    del other, cycle
    pool = manager().pool
    restore = pool.restore

    def collected_before(*arguments: Any) -> None:
        gc.collect()
        restore(*arguments)

    monkeypatch.setattr(pool, "restore", collected_before)
    # WHEN the collector comes by just before the allocator is told what is live
    g = graphed(lambda x: [x * 2], [kept])
    (z,) = g([kept])
    # THEN the one that is held is right, and the other one's block is free
    same(kept, torch.full((4,), 2.0))
    same(z, torch.full((4,), 4.0))
    assert live_blocks() == 2


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_an_output_that_is_the_next_steps_argument_is_used_with_its_value(before: int) -> None:
    # GIVEN a recurrent cell: each step's output is the next one's input
    f = graphed(lambda x, h: [x + h], [torch.ones(4, device="cuda")] * 2)
    for _ in in_steps(range(before)):
        f([torch.ones(4, device="cuda"), torch.ones(4, device="cuda")])
    h = torch.zeros(4, device="cuda")
    for i in in_steps(range(6)):
        (h,) = f([torch.full((4,), float(i), device="cuda"), h])
    same(h, torch.full((4,), 15.0))


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_an_output_that_the_next_steps_first_call_writes_to_is_written_to(before: int) -> None:
    # GIVEN a function that makes a cache, and another that writes to it
    x = torch.ones(4, device="cuda")
    make = graphed(lambda x: [x * 2], [x])

    update = graphed(write, [x, x], mutated_input_idxs=(1,))
    for _ in in_steps(range(before)):
        make([torch.ones(4, device="cuda")])
    next_step()
    (cache,) = make([torch.ones(4, device="cuda")])
    for i in in_steps(range(4)):
        # WHEN that begins a step
        (y,) = update([torch.ones(4, device="cuda"), cache])
        # THEN whoever holds the cache sees it
        same(cache, torch.full((4,), 3.0 + i))
        same(y, torch.full((4,), 30.0 + 10 * i))
        del y


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_arguments_that_the_last_step_made_keep_their_strides_and_what_they_share(
    before: int,
) -> None:
    make = graphed(lambda x: [x + 1], [torch.ones(8, 8, device="cuda")])
    seen = []

    def use(*views: torch.Tensor) -> list[torch.Tensor]:
        seen.append([(t.stride(), t.data_ptr() - views[0].data_ptr()) for t in views])
        return [t * 2 for t in views]

    def views_of(y: torch.Tensor) -> list[torch.Tensor]:
        """A step in a row, columns, an expanded row, nothing, and all of it."""
        return [y[2:, ::2], y.t()[1:], y[3:4].expand(5, 8), y[:0], y]

    y = torch.empty(8, 8, device="cuda")
    laid_out = [(t.stride(), t.data_ptr() - y[2:].data_ptr()) for t in views_of(y)]
    call = graphed(use, views_of(y))
    x = torch.arange(64.0).view(8, 8)
    for i in in_steps(range(before + 3)):
        (y,) = make([(x + i).cuda()])
        if i < before:
            continue
        # WHEN views of an output begin the next step
        next_step()
        for got, t in zip(call(views_of(y)), views_of(x + i + 1), strict=True):
            same(got, t * 2)
        # THEN the function gets what its code was compiled for, as often as it is run
        del y
    assert len(seen) == 2
    assert [[s for s, _ in views] for views in seen] == [[s for s, _ in laid_out]] * 2
    # AND in the warm-up, which reads the clones themselves, they lie as they did
    assert [d for t, (_, d) in zip(views_of(x), seen[0], strict=True) if t.numel()] == [
        d for t, (_, d) in zip(views_of(x), laid_out, strict=True) if t.numel()
    ]


def test_the_clone_of_a_view_has_no_more_bytes_than_it_spans() -> None:
    make = graphed(lambda x: [x + 1], [torch.ones(1 << 20, device="cuda")])
    (y,) = make([torch.ones(1 << 20, device="cuda")])
    got = []
    call = graphed(lambda v: got.append(v.untyped_storage().nbytes()) or [v * 2], [y[:4]])
    # WHEN a few elements of a large output begin the next step
    next_step()
    (z,) = call([y[1000:1004]])
    same(z, torch.full((4,), 4.0))
    # THEN little is copied: 4 elements, and what comes before them in their block
    assert got == [4000 % 512 + 16]


@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["output", "gradient"])
def test_what_is_written_through_a_view_the_holder_sees(before: int, kind: str) -> None:
    # GIVEN a function that makes a tensor, and another that writes to it
    x = torch.ones(8, device="cuda")
    backward = kind == "gradient"
    make = graphed(lambda x: [x * 2], [x], is_inference=not backward, is_backward=backward)
    update = graphed(lambda v: [v.add_(1).sum()], [x[:4]], mutated_input_idxs=(0,))
    p = torch.zeros(8, device="cuda", requires_grad=True)
    forward = graphed(lambda p: [p + 1], [p], static=(0,), is_inference=False)
    with torch.no_grad():
        forward([p])  # the trees know the parameter from now on
    for i in range(before + 3):
        torch.compiler.cudagraph_mark_step_begin()
        (y,) = make([torch.full((8,), float(i), device="cuda")])
        if i < before:
            del y
            continue
        if backward:
            p.grad = y.detach()
            del y
        # WHEN the next step's first call writes to a view that is no output itself
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            update([(p.grad if backward else y)[:4]])
        # THEN its holder sees it, and the rest is what it was
        expected = torch.tensor([1.0] * 4 + [0.0] * 4) + 2 * i
        same(p.grad if backward else y, expected)
        p.grad = y = None


@pytest.mark.parametrize("of", [lambda y: y, lambda y: y[:]])
@pytest.mark.parametrize("written", [False, True])
def test_a_static_input_that_the_last_step_made_is_used_with_its_value(
    of: Callable[[torch.Tensor], torch.Tensor], written: bool
) -> None:
    # GIVEN a function that reads a buffer of its module, replayed after one that is none of its
    x = torch.ones(4, device="cuda")

    def read(buffer: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        return [(buffer.mul_(2) if written else buffer * 2) + x]

    make = graphed(lambda x: [x * 3], [x])
    mutated = (0,) if written else ()
    use = graphed(read, [x, x], static=(0,), mutated_input_idxs=mutated)
    buffer = torch.zeros(4, device="cuda")
    for i in in_steps(range(8)):
        (y,) = make([torch.full((4,), float(i), device="cuda")])
        # WHEN it is another one from now on, which the last step made
        if i >= 5:
            buffer = of(y)
            del y
        next_step()
        (z,) = use([buffer, torch.ones(4, device="cuda")])
        # THEN it is read
        same(z, torch.full((4,), 6.0 * i + 1 if i >= 5 else 1.0))
        # AND written to
        if written:
            same(buffer, torch.full((4,), 6.0 * i if i >= 5 else 0.0))


def test_a_pending_backward_holds_the_step() -> None:
    x = torch.ones(4, device="cuda")
    f = graphed(lambda x: (x + 1, x + 2), [x], is_inference=False)
    g = graphed(lambda a, b: [a + b], [x, x], is_inference=False, is_backward=True)
    for i in in_steps(range(5)):
        # GIVEN two forwards, each an invocation of a compiled function of its own
        out1, saved1 = f([torch.full((4,), float(i), device="cuda")])
        next_step()
        out2, saved2 = f([torch.full((4,), float(10 * i), device="cuda")])
        assert manager().path.pending_backward
        # THEN the first one's tensors are intact
        same(out1, torch.full((4,), i + 1.0))
        (grad2,) = g([out2, saved2])
        (grad1,) = g([out1, saved1])
        same(grad2, torch.full((4,), 20.0 * i + 3))
        same(grad1, torch.full((4,), 2.0 * i + 3))
        assert not manager().path.pending_backward
        del out1, saved1, out2, saved2, grad1, grad2


def test_a_backward_without_a_graph_leaves_another_pending_one_its_step() -> None:
    x = torch.ones(4, device="cuda")

    def uncapturable(x: torch.Tensor) -> list[torch.Tensor]:
        if torch.cuda.is_current_stream_capturing():
            raise NotImplementedError
        return [x * 3]

    first = graphed(lambda x: [x + 1, x * 2], [x], is_inference=False)
    first_backward = graphed(lambda s, g: [s * g], [x, x], is_backward=True)
    second = graphed(uncapturable, [x], is_inference=False)
    second_backward = graphed(uncapturable, [x], is_backward=True)
    for i in in_steps(range(8)):
        # GIVEN two forwards of different compiled functions, the second of which has no graph
        y, saved = first([torch.full((4,), float(i), device="cuda")])
        next_step()
        (z,) = second([y])
        # WHEN their backwards come, the second one's first
        (g,) = second_backward([z])
        (h,) = first_backward([saved, g])
        # THEN the first one's forward is still of this step
        same(h, torch.full((4,), 2.0 * i * 9 * (i + 1)))
        same(y, torch.full((4,), i + 1.0))
        del y, saved, z, g, h
    assert manager().path.state is ExecutionState.EXECUTION


def test_a_marked_step_ends_even_with_a_backward_pending() -> None:
    f = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")], is_inference=False)
    outs = []
    for i in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        outs.append(f([torch.full((4,), float(i), device="cuda")])[0])
    same(outs[-1], torch.full((4,), 4.0))
    for old in outs[:-1]:
        with pytest.raises(RuntimeError, match="overwritten"):
            old.sum()


def test_a_gradient_that_is_held_moves_out_of_the_pool() -> None:
    x = torch.ones(4, device="cuda")
    b = graphed(lambda x: [x * 2], [x], is_inference=False, is_backward=True)
    p = torch.zeros(4, device="cuda", requires_grad=True)
    f = graphed(lambda p, x: [p + x], [p, x], static=(0,), is_inference=False)
    total = torch.zeros(4)
    for i in in_steps(range(8)):
        with torch.no_grad():
            f([p, torch.ones(4, device="cuda")])
        (grad,) = b([torch.full((4,), float(i), device="cuda")])
        # What autograd's AccumulateGrad does: the first gradient is stolen, others are added.
        if p.grad is None:
            p.grad = grad.detach()
        else:
            p.grad += grad
        del grad
        total += 2.0 * i
    same(p.grad, total)
    assert entries(LedgerKind.MOVED_OUT)


def test_looking_into_a_pool_takes_no_references() -> None:
    # GIVEN another pool, and a handle of numbers that nobody else holds
    f = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    (y,) = f([torch.ones(4, device="cuda")])
    handle = (int("123456"), int("234567"))
    before = [sys.getrefcount(n) for n in handle]
    # WHEN the pool of that handle is looked at
    for _ in range(20):
        assert memory_snapshot(handle) == []
    # THEN the numbers are still held by as many, and the other pool was left out
    assert [sys.getrefcount(n) for n in handle] == before
    assert len(memory_snapshot(manager().pool.handle)) == 1
    del y


def test_memory_of_an_output_in_a_cycle_is_reclaimed() -> None:
    f = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    for _ in in_steps(range(4)):
        (out,) = f([torch.ones(4, device="cuda")])
        cycle = [out]
        cycle.append(cycle)  # type: ignore[arg-type]
        del out, cycle
    gc.collect()
    next_step()
    f([torch.ones(4, device="cuda")])
    gc.collect()
    assert live_blocks() == 0


def test_an_input_that_should_die_and_is_held_makes_another_recording() -> None:
    # GIVEN a recording of g in which its input dies
    f = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    g = graphed(lambda y: [y * 2 + 1, y.sum()], [torch.ones(4, device="cuda")])

    def run(i: float, hold: bool) -> None:
        next_step()
        (y,) = f([torch.full((4,), i, device="cuda")])
        args = [y]
        if not hold:
            del y
        z, _ = g(args)
        same(z, torch.full((4,), (i + 1) * 2 + 1))
        if hold:
            same(y, torch.full((4,), i + 1))

    for i in range(4):
        run(float(i), hold=False)
    (root,) = roots()
    ((child,),) = root.children.values()
    assert child.dead_after == root.outputs_weakrefs
    # WHEN the input is held
    for i in range(4):
        run(float(i), hold=True)
    # THEN it is not overwritten: there is a second recording in which it lives
    ((_, other),) = root.children.values()
    assert other.dead_after == []
    run(7.0, hold=False)
    assert descendants(root) == 2


def test_what_such_a_call_was_given_is_there_until_it_was_read() -> None:
    # GIVEN two outputs that die in a recording which reads the second one late
    def late(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        t = a * 2 + 1  # where b lies, if its block is free
        return [t * b]

    x = torch.ones(4, device="cuda")
    f = graphed(lambda x: [x + 1, x + 2], [x])
    g = graphed(late, [x, x])
    for i in in_steps(range(8)):
        a, b = f([torch.full((4,), float(i), device="cuda")])
        # WHEN one of them is held at a later call
        kept = a if i in (5, 6) else None
        args = [a, b]
        del a, b
        (z,) = g(args)
        # THEN the recording that this takes reads them both
        same(z, torch.full((4,), (2.0 * i + 3) * (i + 2)))
        del z, kept


def test_what_such_a_call_copied_is_recorded_again_with_its_strides() -> None:
    # GIVEN a recording in which an output dies, and which copies inputs that are not dense
    x = torch.arange(32.0).view(4, 8)
    views = [lambda x: x[:, ::2], lambda x: x[1:2].expand(4, 8)[:, 1::2]]
    seen = []

    def add(h: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        seen.append([t.stride() for t in others])
        return [h + sum(others)]

    f = graphed(lambda x: [x + 1], [torch.ones(4, 4, device="cuda")])
    g = graphed(add, [torch.ones(4, 4, device="cuda"), *(v(x.cuda()) for v in views)])
    for i in in_steps(range(6)):
        (h,) = f([torch.full((4, 4), float(i), device="cuda")])
        # WHEN it is held at a later call, which is called off when the inputs were copied
        kept = h if i == 5 else None
        there = (x + i).cuda()
        args = [h, *(v(there) for v in views)]
        del h, there
        (z,) = g(args)
        same(z, i + 1.0 + sum(v(x + i) for v in views))
        del z, kept
    # THEN the recording that this takes is one of inputs like those of the others
    assert seen == [[(8, 2), (0, 2)]] * 3


def test_an_expanded_input_of_other_sizes_is_not_copied_in_part() -> None:
    # GIVEN a recording that copies an input whose elements overlap
    def rows(*shape: int) -> torch.Tensor:
        return torch.arange(float(shape[1]), device="cuda").expand(shape)

    f = graphed(lambda x: [x * 2], [rows(4, 6)])
    for _ in in_steps(range(4)):
        same(f([rows(4, 6)])[0], rows(4, 6) * 2)
    # WHEN it comes with other sizes, of which no integer tells
    for shape in in_steps(((4, 3), (5, 6))):
        # THEN what the recording has for it is not taken for it
        same(f([rows(*shape)])[0], rows(*shape) * 2)
    assert entries(LedgerKind.RERECORD) == ["a copied input has other sizes"] * 2


def as_autograd_function(
    f: Callable[[list[torch.Tensor]], Any], *, saves_output: bool
) -> type[torch.autograd.Function]:
    """``f``, which returns an output and what is saved for the backward, for autograd: its outputs
    get a grad_fn after they were returned."""

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, p: torch.Tensor) -> torch.Tensor:
            out, saved = f([p.detach().clone()])
            ctx.save_for_backward(*([out] if saves_output else []), saved)
            return out

        @staticmethod
        def backward(ctx, g):  # type: ignore[no-untyped-def]
            return g * ctx.saved_tensors[-1]

    return Compiled


def test_stale_autograd_graphs_hold_nothing() -> None:
    # GIVEN outputs that get a grad_fn after they were returned, as autograd.Function does
    x = torch.ones(4, device="cuda")
    f = graphed(lambda x: (x + 1, x + 2), [x], is_inference=False)
    compiled = as_autograd_function(f, saves_output=False)
    p = torch.ones(4, device="cuda", requires_grad=True)
    # WHEN steps are never followed by a backward, and nobody keeps their outputs
    for _ in in_steps(range(6)):
        compiled.apply(p)
    # THEN each call starts from the root: what only the trees hold counts as dead
    (root,) = roots()
    assert descendants(root) == 0
    assert root.replays == 4


def test_stale_autograd_graphs_hold_nothing_in_inference_mode() -> None:
    # GIVEN an output that got a grad_fn, and whose graph holds the other one
    x = torch.ones(4, device="cuda")
    f = graphed(lambda x: (x + 1, x + 2), [x], is_inference=False)
    g = graphed(lambda x: [x * 3], [x])
    compiled = as_autograd_function(f, saves_output=True)
    p = torch.ones(4, device="cuda", requires_grad=True)
    for i in in_steps(range(6)):
        compiled.apply(p)
        # WHEN the next call of the step is made in inference mode, where detach_() does nothing
        with torch.inference_mode():
            (y,) = g([torch.full((4,), float(i), device="cuda")])
            same(y, torch.full((4,), 3.0 * i))
        del y
    # THEN it comes back, and begins at the root as well: what only the trees hold is dead
    assert [descendants(root) for root in roots()] == [0, 0]


def test_reset_in_the_middle_of_a_step() -> None:
    from memprof.cudagraph_trees.call.container import reset_cudagraph_trees

    f = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    g = graphed(lambda x: [x * 2], [torch.ones(4, device="cuda")])
    for calls in range(1, 5):
        for i in in_steps(range(calls)):
            (y,) = f([torch.full((4,), float(i), device="cuda")])
        reset_cudagraph_trees()
        # THEN outputs are valid, and functions go on working
        (z,) = g([y])
        same(y, torch.full((4,), float(calls)))
        same(z, torch.full((4,), 2.0 * calls))
        del y, z


@pytest.mark.parametrize("kind", ["cpu tensor", "float"])
def test_a_value_that_a_recording_would_keep_is_not_recorded(kind: str) -> None:
    f = graphed(lambda x, s: [x * s], [torch.ones(4, device="cuda"), 2.0])
    for i in in_steps(range(5)):
        s = float(i) if kind == "float" else torch.tensor(float(i))
        (y,) = f([torch.ones(4, device="cuda"), s])
        same(y, torch.full((4,), float(i)))
    kept = "on cpu" if kind == "cpu tensor" else "a float"
    assert set(entries(LedgerKind.SKIP)) == {
        f"input 1 is {kept}: a recording would keep the value it has now"
    }


def test_what_a_warm_up_took_is_given_back_where_nothing_is_recorded() -> None:
    x = torch.ones(3 << 20, device="cuda")  # a segment of its own
    f = graphed(lambda x, s: [x * s], [x, 2.0])
    for _ in in_steps(range(4)):
        (y,) = f([x, 2.0])
        same(y, 2 * x)
        del y
    # GIVEN a function that ran plainly after its warm-up
    assert entries(LedgerKind.WARM_UP)
    assert entries(LedgerKind.SKIP)
    # THEN the pool has nothing of what the general pool needs instead
    assert manager().pool.reserved_bytes() == 0


def test_a_value_elsewhere_in_the_warm_up_alone_does_not_hinder() -> None:
    # GIVEN attention's backward: it gets the random state in a CPU tensor when its forward ran,
    # and in a CUDA tensor when that was recorded
    f = graphed(lambda x, s: [x * s], [torch.ones(4, device="cuda")] * 2)
    for i in in_steps(range(5)):
        s = torch.tensor(float(i), device="cpu" if i == 0 else "cuda")
        (y,) = f([torch.ones(4, device="cuda"), s])
        same(y, torch.full((4,), float(i)))
    # THEN it is recorded all the same
    (root,) = roots()
    assert root.replays == 3
    assert entries(LedgerKind.SKIP) == []


def test_a_misaligned_view_of_an_output_is_copied() -> None:
    # GIVEN a function that was compiled for an aligned input
    f = graphed(lambda x: [x + 1], [torch.ones(65, device="cuda")])
    g = graphed(lambda x: [x * 2], [torch.ones(64, device="cuda")])
    for i in in_steps(range(5)):
        # WHEN it gets a view of another one's output that is not
        (y,) = f([torch.full((65,), float(i), device="cuda")])
        (z,) = g([y[1:]])
        same(z, torch.full((64,), 2.0 * (i + 1)))
    # THEN its recording reads a copy, which is aligned
    _, node = manager().nodes()
    assert (node.input_plan.managed, node.input_plan.copied) == ([], [0])


def test_a_first_call_with_new_sizes_writes_to_a_misaligned_input() -> None:
    def add(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        return [x.add_(n)]

    f = graphed(add, [torch.ones(4, device="cuda"), 4], mutated_input_idxs=(0,))
    f([torch.ones(4, device="cuda"), 4])
    x = torch.ones(6, device="cuda")[1:]
    f([x, 5])
    same(x, torch.full((5,), 6.0))


@pytest.mark.parametrize("before", [0, 1])
def test_a_call_inside_of_a_capture_of_the_programs_own(before: int) -> None:
    """GIVEN a function that was not called, or was warmed up WHEN the program calls it in a capture
    of its own THEN it becomes part of that, and is recorded after it."""
    x = torch.ones(4, device="cuda")
    f = graphed(lambda x: [x * 2 + 1], [x])
    for _ in in_steps(range(before)):
        f([x])
    graph = torch.cuda.CUDAGraph()
    next_step()
    with torch.cuda.graph(graph):
        (y,) = f([x])
    graph.replay()
    same(y, torch.full((4,), 3.0))
    for _ in in_steps(range(3)):
        same(f([x]), [torch.full((4,), 3.0)])
    assert len(roots()) == 1
