"""What becomes a node, a child, a root; what is warmed up, recorded, replayed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from in_threads import run_in_threads

from memprof.cudagraph_trees.replay.node import path_to
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.profiler.model import LedgerKind, TreeCause

from .support import (
    descendants,
    graphed,
    in_steps,
    live_blocks,
    manager,
    next_step,
    no_manager,
    roots,
    same,
)

pytestmark = pytest.mark.simgpu


def kinds() -> list[str]:
    return [e.kind.value for e in manager().entries()]


def test_a_function_is_warmed_up_recorded_and_replayed() -> None:
    # GIVEN a function and inputs that differ from call to call
    runs = []

    def foo(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x * 2 + 1

    f = graphed(foo, [torch.zeros(4, device="cuda")])
    states = []
    # WHEN it is called four times
    for i in in_steps(range(4)):
        x = torch.full((4,), float(i), device="cuda")
        (out,) = f([x])
        same(out, torch.full((4,), 2.0 * i + 1))
        states.append(manager().path.state)
        del out
    # THEN its code ran twice, and the last two calls were replays of one recording
    assert len(runs) == 2
    assert states == [
        ExecutionState.WARMUP,
        ExecutionState.RECORDING,
        ExecutionState.EXECUTION,
        ExecutionState.EXECUTION,
    ]
    (root,) = roots()
    assert root.replays == 2
    assert descendants(root) == 0


def test_each_combination_of_integers_is_a_function_of_its_own() -> None:
    runs = []

    def foo(n: int, x: torch.Tensor) -> torch.Tensor:
        runs.append(n)
        return x * n

    f = graphed(foo, [2, torch.ones(2, device="cuda")])
    for n in in_steps((2, 2, 2, 3, 3, 3, 2)):
        (out,) = f([n, torch.ones(n, device="cuda")])
        same(out, torch.full((n,), float(n)))
    assert runs == [2, 2, 3, 3]
    assert [root.wrapped_function.key for root in roots()] == [(2,), (3,)]


def test_functions_of_one_step_form_a_path() -> None:
    f = graphed(lambda x: x + 1, [torch.ones(4, device="cuda")])
    g = graphed(lambda x: x * 3, [torch.ones(4, device="cuda")])
    for i in in_steps(range(4)):
        (y,) = f([torch.full((4,), float(i), device="cuda")])
        (z,) = g([y])
        same(z, torch.full((4,), (i + 1.0) * 3))
        del y, z
    (root,) = roots()
    assert descendants(root) == 1
    (child,) = next(iter(root.children.values()))
    # The first output is an input of the second function, where it is.
    assert child.input_plan.managed == [0]
    assert child.parent is root


def test_the_same_function_after_different_predecessors_is_recorded_twice() -> None:
    a = graphed(lambda x: x + 1, [torch.ones(4, device="cuda")])
    b = graphed(lambda x: x + 2, [torch.ones(4, device="cuda")])
    tail = graphed(lambda x: x * 2, [torch.ones(4, device="cuda")])
    for i in in_steps(range(8)):
        (y,) = (a if i % 2 else b)([torch.full((4,), float(i), device="cuda")])
        (z,) = tail([y])
        same(z, torch.full((4,), (i + (1.0 if i % 2 else 2.0)) * 2))
        del y, z
    assert sorted(descendants(r) for r in roots()) == [1, 1]


def test_another_pattern_of_live_outputs_is_another_node() -> None:
    f = graphed(lambda x: (x + 1, x + 2), [torch.ones(4, device="cuda")])
    g = graphed(lambda x: x * 2, [torch.ones(4, device="cuda")])
    for i in in_steps(range(8)):
        p, q = f([torch.full((4,), float(i), device="cuda")])
        if i % 2:
            del q  # dead before the second function runs
        (z,) = g([p])
        same(z, torch.full((4,), (i + 1.0) * 2))
        if not i % 2:
            same(q, torch.full((4,), i + 2.0))
            del q
        del p, z
    (root,) = roots()
    (children,) = root.children.values()
    assert len(children) == 2
    assert [c.dead_before for c in children] == [[root.outputs_weakrefs[1]], []]


def test_a_child_is_recorded_after_a_replay_of_its_parent() -> None:
    # GIVEN a recording that was replayed: the allocator's books are out of date
    f = graphed(lambda x: (x + 1, x + 2), [torch.ones(4, device="cuda")])
    for _ in in_steps(range(3)):
        f([torch.ones(4, device="cuda")])
    next_step()
    p, q = f([torch.ones(4, device="cuda")])
    assert manager().owner.restored == 0
    del q
    # WHEN another function follows in the same step
    g = graphed(lambda x: x * 3, [p])
    args = [p]
    del p
    (z,) = g(args)
    # THEN the books are restored first, and what has died since is free
    assert manager().owner.restored == 1
    same(z, torch.full((4,), 6.0))
    assert live_blocks() == 1
    del z
    assert live_blocks() == 0


def test_warm_ups_are_only_followed_by_warm_ups() -> None:
    f = graphed(lambda x: x + 1, [torch.ones(4, device="cuda")])
    g = graphed(lambda x: x * 2, [torch.ones(4, device="cuda")])
    # GIVEN f is warm
    f([torch.ones(4, device="cuda")])
    # WHEN a step begins with a warm-up of g and f follows
    next_step()
    (y,) = g([torch.ones(4, device="cuda")])
    (z,) = f([y])
    # THEN f is run, not recorded, since y is where no later call will put it
    assert roots() == []
    assert manager().path.state is ExecutionState.WARMUP
    same(z, torch.full((4,), 3.0))


def test_a_path_ends_when_nobody_holds_its_outputs() -> None:
    # GIVEN one step that never ends
    torch.compiler.cudagraph_mark_step_begin()
    f = graphed(lambda x: x + 1, [torch.ones(4, device="cuda")])
    for _ in range(5):
        (y,) = f([torch.ones(4, device="cuda")])
        del y
    # THEN the function is a root again each time
    (root,) = roots()
    assert descendants(root) == 0
    assert root.replays == 3


def test_within_a_step_what_is_held_is_respected() -> None:
    torch.compiler.cudagraph_mark_step_begin()
    f = graphed(lambda x: x + 1, [torch.ones(4, device="cuda")])
    f([torch.ones(4, device="cuda")])
    # WHEN outputs of the same step are kept
    kept = [f([torch.full((4,), float(i), device="cuda")])[0] for i in range(4)]
    # THEN each call is a node below the last, and all values are there
    for i, k in enumerate(kept):
        same(k, torch.full((4,), i + 1.0))
    assert len({k.data_ptr() for k in kept}) == 4


def test_the_manager_dies_with_its_last_function() -> None:
    f = graphed(lambda x: x + 1, [torch.ones(4, device="cuda")])
    for _ in in_steps(range(3)):
        f([torch.ones(4, device="cuda")])
    reference = weakref.ref(manager())
    del f
    assert no_manager()
    # AND nothing else keeps it, with the code and the constants of its functions
    gc.collect()
    assert reference() is None


def test_the_last_function_dies_while_another_is_called_for_the_first_time() -> None:
    # GIVEN a function that is garbage in a cycle
    f = graphed(lambda x: x + 1, [torch.ones(4, device="cuda")])
    f([torch.ones(4, device="cuda")])
    cycle: list[object] = [f]
    cycle.append(cycle)
    del f, cycle

    def foo(x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        return x + 2

    # WHEN the collector comes by in the first call of the only other one
    g = graphed(foo, [torch.ones(4, device="cuda")])
    for i in in_steps(range(4)):
        (y,) = g([torch.full((4,), float(i), device="cuda")])
        same(y, torch.full((4,), i + 2.0))
    # THEN the manager is the one that there was
    assert manager().path.state is ExecutionState.EXECUTION


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_outputs_outlive_their_functions(calls: int) -> None:
    f = graphed(lambda x: (x + 1, x + 2), [torch.ones(4, device="cuda")])
    for _ in in_steps(range(calls)):
        out = f([torch.ones(4, device="cuda")])
    del f
    assert no_manager()
    # New memory must not come out of what they lie in.
    junk = [torch.zeros(4, device="cuda") for _ in range(64)]
    torch.cuda.empty_cache()
    same(out[0], torch.full((4,), 2.0))
    same(out[1], torch.full((4,), 3.0))
    assert not {j.data_ptr() for j in junk} & {o.data_ptr() for o in out}
    assert live_blocks() == 2


def test_the_manager_dies_while_its_ledger_is_read() -> None:
    # GIVEN a function that is garbage, and a collector that comes by inside the ledger's lock
    f = graphed(lambda x: x + 1, [torch.ones(4, device="cuda")])
    for _ in in_steps(range(3)):
        f([torch.ones(4, device="cuda")])
    cycle: list[object] = [f]
    cycle.append(cycle)
    del f, cycle
    ledger = manager().ledger
    lock = ledger._lock

    class Collecting:
        def __enter__(self) -> None:
            lock.acquire()
            gc.collect()

        def __exit__(self, *error: object) -> None:
            lock.release()

    ledger._lock = Collecting()  # type: ignore[assignment]
    # WHEN it is read
    told: list[LedgerKind] = []
    run_in_threads(lambda: told.extend(e.kind for e in ledger.entries()))
    # THEN the manager goes, and nobody waits for ever
    assert LedgerKind.REPLAY in told
    assert no_manager()


def test_sizes_that_get_no_graph_are_noted() -> None:
    from torch._inductor import config

    aligned = []

    def foo(n: int, x: torch.Tensor) -> torch.Tensor:
        aligned.append(x.data_ptr() % 16 == 0)
        return x * n

    with config.patch({"triton.cudagraph_capture_sizes": (2,)}):
        f = graphed(foo, [2, torch.ones(2, device="cuda")])
        for n in in_steps((2, 2, 3, 3, 2)):
            (out,) = f([n, torch.ones(n + 1, device="cuda")[1:]])
            same(out, torch.full((n,), float(n)))
            del out
    # What Inductor's code takes for aligned is.
    assert aligned == [True] * len(aligned)
    (skip,) = [e for e in manager().entries() if e.kind is LedgerKind.SKIP]
    assert skip.count == 2
    assert skip.tree is not None
    assert skip.tree.key == (3,)
    assert "cudagraph_capture_sizes" in skip.reason


def test_the_ledger_tells_the_story() -> None:
    w = torch.ones(4, device="cuda")
    f = graphed(lambda w, x: w + x, [w, w], static=(0,))
    for _ in in_steps(range(4)):
        f([w, torch.ones(4, device="cuda")])
    v = torch.ones(4, device="cuda")
    next_step()
    f([v, torch.ones(4, device="cuda")])
    told = [(e.kind, e.count) for e in manager().entries()]
    assert (LedgerKind.WARM_UP, 1) in told
    assert (LedgerKind.RECORD, 1) in told
    assert (LedgerKind.REPLAY, 2) in told
    kinds = [kind for kind, _ in told]
    assert kinds.index(LedgerKind.WARM_UP) < kinds.index(LedgerKind.RECORD)
    assert kinds.index(LedgerKind.RECORD) < kinds.index(LedgerKind.REPLAY)
    again = next(e for e in manager().entries() if e.kind is LedgerKind.RERECORD)
    assert "static input data pointer changed" in again.reason
    assert again.tree is not None
    assert again.tree.duration_ns > 0


@pytest.mark.parametrize("marked", [False, True])
def test_a_compiled_optimizer_belongs_to_the_step_whose_gradients_it_takes(marked: bool) -> None:
    # GIVEN a forward, its backward and an optimizer, called in turn as compiled functions
    w = torch.full((4,), 8.0, device="cuda")
    x = torch.ones(4, device="cuda")

    def update(w: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        w.sub_(g)
        return []

    forward = graphed(lambda w, x: [w * x], [w, x], (0,), is_inference=False)
    backward = graphed(lambda y, t: [t * 1.0], [x, x], (0,), is_backward=True)
    optimizer = graphed(update, [w, x], (0,), mutated_input_idxs=(0,))
    for i in range(6):
        if marked:
            torch.compiler.cudagraph_mark_step_begin()
        next_step()
        (y,) = forward([w, x])
        gradient = backward([y, x])
        del y
        if marked:
            torch.compiler.cudagraph_mark_step_begin()
        next_step()
        optimizer([w, gradient[0]])
        same(w, torch.full((4,), 7.0 - i))
        # THEN all of a step is one path, unless the program says otherwise
        node = manager().path.node
        assert node is not None
        assert len(path_to(node)) == (1 if marked else 3)
        del gradient
    # AND a gradient is read where the backward has put it
    moved = [e for e in manager().entries() if e.kind is LedgerKind.MOVED_OUT]
    assert bool(moved) == marked
    assert all(e.tree is not None and e.tree.cause is TreeCause.HELD_GRADIENT for e in moved)
    recorded = [e for e in manager().entries() if e.kind is LedgerKind.RECORD]
    assert len(recorded) == 3


@pytest.mark.parametrize("in_the_step", [False, True], ids=["begins a step", "in the step"])
def test_state_that_a_compiled_optimizer_makes_lasts(in_the_step: bool) -> None:
    # GIVEN a compiled optimizer that makes state in its first step, as SGD does with momentum,
    # and compiled code or none that makes the gradients
    x = torch.ones(4, device="cuda")

    def first(w: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            w.sub_(g)
            return [g * 1.0]

    def later(w: torch.Tensor, g: torch.Tensor, momentum: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            w.sub_(momentum.mul_(0.5).add_(g))
            return []

    forward = graphed(lambda w, x: [w * x], [x, x], (0,), is_inference=not in_the_step)
    backward = graphed(lambda y, t: [t * 1.0], [x, x], (0,), is_backward=True)
    begin = graphed(first, [x.clone().requires_grad_(), x], (0,), mutated_input_idxs=(0,))
    go_on = graphed(later, [x.clone().requires_grad_(), x, x], (0, 2), mutated_input_idxs=(0, 2))
    # WHEN three optimizers are made, so that the first step is warmed up, recorded and replayed
    for _ in range(3):
        w = torch.full((4,), 8.0, device="cuda", requires_grad=True)
        state: list[torch.Tensor] = []
        want, momentum = 8.0, 0.0
        for i in in_steps(range(4)):
            (y,) = forward([w, x])
            (gradient,) = backward([y, x]) if in_the_step else (torch.ones(4, device="cuda"),)
            del y
            next_step()
            if i == 0:
                state = begin([w, gradient])
            else:
                go_on([w, gradient, *state])
            del gradient
            # THEN each step finds what the last one has left
            momentum = momentum * 0.5 + 1.0
            want -= momentum
            same(w.detach(), torch.full((4,), want))
            same(state[0], torch.full((4,), momentum))
    moved = {e.reason for e in manager().entries() if e.kind is LedgerKind.MOVED_OUT}
    assert "output 0 is held beyond its step: state of an optimizer" in moved
    assert not [e for e in manager().entries() if e.kind is LedgerKind.INVALIDATED]
