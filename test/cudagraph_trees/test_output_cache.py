"""What a replay hands out, whatever the last holder did to it or still does."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch

from memprof.cudagraph_trees import _torch_compat
from memprof.cudagraph_trees.replay import native
from memprof.cudagraph_trees.replay.outputs import OutputCache
from memprof.profiler.model import LedgerKind

from .support import graphed, in_steps, manager, next_step, roots, same

pytestmark = pytest.mark.simgpu


@pytest.fixture(autouse=True, params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here also as where there is no compiler: nothing else runs that way."""
    monkeypatch.delenv("MEMPROF_NATIVE", raising=False)
    if request.param == "python":
        monkeypatch.setattr(native, "load", lambda: None)
    assert (native.load() is None) == (request.param == "python")


SHAPE = (4, 3)
Change = Callable[[torch.Tensor], object]


def full(value: float) -> torch.Tensor:
    return torch.full(SHAPE, float(value), device="cuda")


def plus_one() -> Callable[[float | torch.Tensor], torch.Tensor]:
    """One step each: ``x + 1``, which is replayed from the next call on."""
    f = graphed(lambda x: [x + 1], [full(0)])

    def step(x: float | torch.Tensor) -> torch.Tensor:
        next_step()
        inputs = [x if isinstance(x, torch.Tensor) else full(x)]
        del x
        (y,) = f(inputs)
        return y

    for _ in range(3):
        step(0.0)
    return step


def raises(t: torch.Tensor, step: int) -> None:
    """Its use raises, and says that it came from ``step``."""
    with pytest.raises(RuntimeError, match=f"made in step {step} .*; step {step + 1},"):
        t + 1


SIZES: dict[str, Change] = {
    "unsqueeze_": lambda t: t.unsqueeze_(0),
    "t_": lambda t: t.t_(),
    "as_strided_": lambda t: t.as_strided_((2,), (1,)),
    "set_": lambda t: t.set_(torch.zeros(5, device="cuda")),  # type: ignore[call-overload]
}
OTHERS: dict[str, Change] = {
    "data": lambda t: setattr(t, "data", torch.zeros(5, device="cuda")),
    "mul_": lambda t: t.mul_(0),
    "requires_grad_": lambda t: t.requires_grad_().register_hook(print),
    "grad": lambda t: t.requires_grad_().sum().backward(),
    "grad without requires_grad": lambda t: (
        t.requires_grad_().sum().backward(),
        t.requires_grad_(False),
    ),
    "grad of what was detached": lambda t: (t.requires_grad_().sum().backward(), t.detach_()),
    "hook without requires_grad": lambda t: (
        t.requires_grad_().register_hook(print),
        t.requires_grad_(False),
    ),
    "hook after the gradient": lambda t: t.requires_grad_().register_post_accumulate_grad_hook(
        print
    ),
    "grad_dtype": lambda t: setattr(t.requires_grad_(), "grad_dtype", torch.float64),
    "class": lambda t: setattr(t, "__class__", torch.nn.Parameter),
}


@pytest.mark.parametrize("name", [*SIZES, *OTHERS])
def test_a_changed_output_does_not_reach_the_next_replay(name: str) -> None:
    step = plus_one()
    # GIVEN an output that was changed and dropped
    y = step(1.0)
    (SIZES | OTHERS)[name](y)
    del y
    # THEN the next one is as it should be
    z = step(2.0)
    same(z, torch.full(SHAPE, 3.0))
    assert z.stride() == (3, 1)
    assert z.is_leaf
    assert not z.requires_grad
    assert z.grad is None
    assert not z._backward_hooks
    assert not z._post_accumulate_grad_hooks
    assert type(z) is torch.Tensor
    z.requires_grad_().sum().backward()
    assert z.grad is not None
    same(z.grad, torch.ones(SHAPE))
    assert [r.replays for r in roots()] == [3]


@pytest.mark.parametrize("name", SIZES)
def test_nor_does_one_that_was_changed_in_inference_mode(name: str) -> None:
    with torch.inference_mode():
        step = plus_one()
        y = step(1.0)
        SIZES[name](y)
        del y
        z = step(2.0)
    same(z, torch.full(SHAPE, 3.0))
    assert z.stride() == (3, 1)


@pytest.mark.parametrize("name", ["data", "set_"])
def test_what_has_memory_of_its_own_can_be_used_for_good(name: str) -> None:
    step = plus_one()
    y = step(1.0)
    (SIZES | OTHERS)[name](y)
    for i in range(3):
        same(step(2.0 + i), torch.full(SHAPE, 3.0 + i))
        same(y, torch.zeros(5))
    assert not [e for e in manager().entries() if e.kind is LedgerKind.INVALIDATED]


def test_an_output_held_from_step_to_step() -> None:
    step = plus_one()
    old = step(1.0)
    first = manager().path.step
    # WHEN a loop holds each output while the next step runs, as ``loss = model(x)`` does
    for i in range(4):
        new = step(float(i))
        # THEN the old one says so, the new one is right, and it is another object
        raises(old, first + i)
        same(new, torch.full(SHAPE, i + 1.0))
        assert new is not old
        old = new
    # and nothing was recorded again or restored for it
    assert {e.kind for e in manager().entries()} == {
        LedgerKind.WARM_UP,
        LedgerKind.RECORD,
        LedgerKind.REPLAY,
        LedgerKind.INVALIDATED,
    }
    # and once it is dropped, nothing is held
    node = manager().path.node
    assert node is not None
    assert not node.all_outputs_are_dead()
    del old, new
    assert node.all_outputs_are_dead()


def test_a_view_held_with_it_or_without() -> None:
    step = plus_one()
    for with_it in (True, False, True):
        # Before, the output itself is held once: its storage stays for the next.
        old = step(5.0)
        y = step(1.0)
        raises(old, manager().path.step - 1)
        view = y[1:]
        made_in = manager().path.step
        if not with_it:
            del y
        z = step(2.0)
        raises(view, made_in)
        if with_it:
            raises(y, made_in)
            del y
        same(z, torch.full(SHAPE, 3.0))
        del z, old, view


@pytest.mark.parametrize("view", [False, True])
def test_a_held_output_that_is_the_next_steps_argument(view: bool) -> None:
    step = plus_one()
    h = step(0.0)
    h = step(1.0)
    for i in range(3):
        # The call gets a clone, the holder an error.
        old = h
        x = h.view(SHAPE) if view else h
        h = step(x)
        same(h, torch.full(SHAPE, 3.0 + i))
        raises(old, manager().path.step - 1)
        del x


def test_hooks_and_gradients_of_a_held_output_stay_with_it() -> None:
    step = plus_one()
    y = step(1.0)
    w = torch.ones(SHAPE, device="cuda", requires_grad=True)
    (y * w).sum().backward()
    y.requires_grad_()
    kept = y
    z = step(2.0)
    assert not z.requires_grad
    raises(kept, manager().path.step - 1)
    same(w.grad, torch.full(SHAPE, 2.0))


def test_gradients_keep_their_values_for_whoever_holds_them() -> None:
    # GIVEN a backward whose gradient nobody puts into a ``.grad``
    g = graphed(lambda x: [x * 2, x * 3], [full(0)], is_backward=True)
    held = []
    for i in in_steps(range(6)):
        twice, thrice = g([full(i)])
        held.append(twice if i % 2 else thrice)
        del twice, thrice
    # THEN each is what it was
    for i, t in enumerate(held):
        same(t, torch.full(SHAPE, float(i) * (2 if i % 2 else 3)))


def test_a_gradient_of_a_parameter_is_moved_out_and_nothing_else_is_noted() -> None:
    # GIVEN parameters, whose gradients a forward and a backward in the pool make
    w = torch.nn.Parameter(full(2))
    f = graphed(lambda w, x: [w * x, x + 0], [w, full(0)], static=(0,), is_inference=False)
    g = graphed(lambda x: [x * 1], [full(0)], is_backward=True)
    for i in in_steps(range(6)):
        y, saved = f([w, full(i)])
        made = [saved]
        del saved
        (grad,) = g(made)
        # As autograd accumulates: it takes over what nobody else holds.
        w.grad = grad.detach() if w.grad is None else w.grad + grad
        del y, grad
    # THEN nothing was overwritten
    same(w.grad, torch.full(SHAPE, 15.0))
    entries = manager().entries()
    assert LedgerKind.INVALIDATED not in {e.kind for e in entries}
    assert [e.kind for e in entries].count(LedgerKind.MOVED_OUT) == 1


def test_hooks_of_a_parameter_that_is_handed_out_stay() -> None:
    # GIVEN a function that returns a parameter beside its result, as forwards do that save one
    w = torch.ones(SHAPE, device="cuda", requires_grad=True)
    w.register_hook(lambda g: g * 3)

    def forward(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        return [w * x, w]

    f = graphed(forward, [w, full(0)], static=(0,), is_inference=False)
    for value in in_steps(range(4)):
        with torch.no_grad():
            y, saved = f([w, full(value)])
        assert saved is w
        same(y, full(value))
        del y, saved
    assert [r.replays for r in roots()] == [2]
    # THEN replays left the hook alone
    w.sum().backward()
    same(w.grad, full(3))


class Left:
    """What a program leaves on an output."""


def test_what_was_done_to_an_output_without_memory_does_not_reach_the_next_replay() -> None:
    # GIVEN a function whose second output has no elements, in every phase
    f = graphed(lambda x: [x + 1, x.new_zeros(0, 3)], [full(0)])
    left = []
    for _ in in_steps(range(5)):
        _, empty = f([full(1)])
        # THEN it is as if nobody had ever seen it
        assert not vars(empty)
        assert not empty.requires_grad
        assert empty.shape == (0, 3)
        # WHEN its holder leaves things on it, and gives it another size
        empty.mine = Left()
        left.append(weakref.ref(empty.mine))
        empty.requires_grad_().register_hook(print)
        empty.data = torch.ones(2, device="cuda")
        del empty
    # AND nothing of it is kept
    assert [r() for r in left] == [None] * 5
    with torch.inference_mode():
        next_step()
        assert not f([full(1)])[1].is_inference()


@pytest.mark.parametrize("keeps", [False, True])
def test_a_view_of_an_output_that_was_given_other_memory_raises(keeps: bool) -> None:
    step = plus_one()
    y = step(1.0)
    view = y.detach()
    y.data = torch.zeros(5, device="cuda")
    held = y if keeps else None
    del y
    # WHEN the next step overwrites what only the view is over THEN it is the view that says so
    z = step(7.0)
    same(z, full(8))
    with pytest.raises(RuntimeError, match="overwritten"):
        view + 1
    if held is not None:
        same(held, torch.zeros(5))


def test_a_replay_that_is_interrupted_while_its_outputs_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a recording, of which no output was made before
    f = graphed(lambda x: [x + 1, x + 2], [full(0)])
    for _ in in_steps(range(2)):
        f([full(0)])
    made = OutputCache._fill_slot

    def interrupted(cache: OutputCache, i: int) -> None:
        if i == 1:
            raise KeyboardInterrupt
        made(cache, i)

    # WHEN its first replay is interrupted after one of them
    next_step()
    with monkeypatch.context() as patch:
        patch.setattr(OutputCache, "_fill_slot", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f([full(1)])
    # THEN later ones return both
    for i in in_steps((2, 3)):
        same(f([full(i)]), [full(i + 1), full(i + 2)])


def test_the_end_of_a_step_that_is_interrupted_while_a_held_output_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN an output that is held with a view of it, so that its tensor leaves the cache
    step = plus_one()
    held = step(1)
    view = held[1:]

    def interrupted(t: torch.Tensor) -> None:
        raise KeyboardInterrupt

    # WHEN that is interrupted
    with monkeypatch.context() as patch:
        patch.setattr(_torch_compat, "remove_cached_tensor", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(2)
    # THEN later steps return what they compute, whoever holds the old one
    for i in (3, 4):
        same(step(i), full(i + 1))
    del held, view
    same(step(5), full(6))
