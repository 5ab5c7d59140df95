"""The error of an overwritten output: a line, who began the step, and ways out that work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from memprof.cudagraph_trees import _torch_compat as compat

from .support import graphed, same

pytestmark = pytest.mark.simgpu

mark = torch.compiler.cudagraph_mark_step_begin


def ones() -> Tensor:
    return torch.ones(4, device="cuda")


def message_of(t: Tensor) -> str:
    with pytest.raises(RuntimeError, match="overwritten") as caught:
        t + 1
    return str(caught.value)


def made_and_overwritten(f: Callable[[list[Any]], list[Any]], i: int = 0) -> tuple[str, str]:
    """The error about output ``i`` of a call, whose step another call has ended, and the line that
    called."""
    mark()
    held = f([ones()])[i]
    line = f"{__file__}:{sys._getframe().f_lineno - 1}"
    mark()
    f([ones()])
    return message_of(held), line


@pytest.mark.parametrize("before", [0, 3])
def test_it_always_has_a_line(before: int) -> None:
    # GIVEN outputs of which the compiler knows no line, in a warm-up and in a replay
    f = graphed(lambda x: (x + 1, x + 2), [ones()], stack_traces=[None, 'File "m.py", line 3'])
    lines = set()
    for _ in range(before + 1):
        text, line = made_and_overwritten(f)
        lines.add(line)
    assert f"its graph is that of {lines.pop()}" in text
    # AND of which it knows one
    text, _ = made_and_overwritten(f, 1)
    assert 'Stack trace: File "m.py", line 3\n' in text


def test_it_says_that_a_checkpoint_began_the_step() -> None:
    # GIVEN an output that is held, and a function that a checkpoint alone runs
    f, g = (graphed(lambda x: [x + 1], [ones()], is_inference=False) for _ in range(2))
    for _ in range(4):
        mark()
        (held,) = f([ones()])
        mark()
        checkpoint(lambda x: g([x.detach()])[0], ones().requires_grad_(), use_reentrant=True)
        assert "which began with forward function 1 in torch.utils.checkpoint," in message_of(held)


def test_it_names_cloning_by_an_option_only_where_that_works_on_views() -> None:
    f = graphed(lambda x: [x + 1], [ones()])
    named = 'outputs="clone"' in made_and_overwritten(f)[0]
    assert named == compat.can_swap_storage()
    # GIVEN the option
    g = graphed(lambda x: [x + 1], [ones()], clone_outputs=True)
    for i in range(4):
        mark()
        (view,) = (t.view(2, 2)[0] for t in g([torch.full((4,), float(i), device="cuda")]))
        # WHEN a view of an output is held beyond its step
        mark()
        g([ones()])
        # THEN it has its value, or the error says why not and no more of the option
        if named or i == 0:  # what a warm-up returns owns its memory
            same(view, torch.full((2,), i + 1.0))
        else:
            said, _, ways = message_of(view).partition("Ways out: ")
            assert "torch before 2.12 cannot give views other memory" in said
            assert "clone the tensor" in ways
            assert "outputs=" not in ways


def test_of_what_was_saved_for_a_backward_no_clone_is_asked_for() -> None:
    f = graphed(
        lambda x: (x + 1, x + 2),
        [ones()],
        is_inference=False,
        user_visible_output_idxs=(0,),
        stack_traces=[None, None],
    )
    for _ in range(4):
        text, _ = made_and_overwritten(f, 1)
        assert "It was saved for a backward. Ways out: call that before the next step" in text
        assert "clone" not in text
