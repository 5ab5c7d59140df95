"""Decisions of the trees that follow from one field of a graph's description."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from memprof.profiler.model import (
    Category,
    GraphDescription,
    GraphValue,
    InputAliasInfo,
    LedgerKind,
    OutputAliasInfo,
    OutputType,
    Role,
    ViewAndMutationMeta,
)

from .support import graphed, in_steps, manager, next_step, roots, same

pytestmark = pytest.mark.simgpu

X = GraphValue(0, "arg0_1", Role.USER_INPUT, Category.INPUT, "L['x']")
VIEW_OF_OUTPUT = OutputType.ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT
OUT = GraphValue(0, "out", Role.USER_OUTPUT, Category.OUTPUT)


def full(value: float, n: int = 4) -> torch.Tensor:
    return torch.full((n,), value, device="cuda")


def reasons(kind: LedgerKind) -> list[str]:
    return [e.reason for e in manager().entries() if e.kind is kind]


@pytest.mark.parametrize("mutated", [False, True])
def test_an_input_that_is_written_to_is_refused_by_name(mutated: bool) -> None:
    description = GraphDescription((replace(X, mutated=mutated),), (OUT,))
    f = graphed(lambda x: [x + 1], [full(0)], description=description)
    for i in in_steps(range(4)):
        same(f([full(i)]), [full(i + 1)])
    why = ["it writes to inputs that graphs copy: L['x']"] if mutated else []
    assert reasons(LedgerKind.SKIP) == why
    assert len(roots()) == (not mutated)


@pytest.mark.parametrize("static", [False, True])
def test_what_stays_is_read_where_it_lies(static: bool) -> None:
    description = GraphDescription((replace(X, static=static),), (OUT,))
    x = full(1)
    f = graphed(lambda x: [x + 1], [x], (), description=description)
    for _ in in_steps(range(3)):
        f([x])
    (node,) = roots()
    assert (node.input_plan.static, node.input_plan.copied) == (([0], []) if static else ([], [0]))


@pytest.mark.parametrize("saved", [False, True])
def test_an_output_that_is_the_users_is_kept(saved: bool) -> None:
    """GIVEN outputs that are to be cloned where they outlive their step WHEN one does THEN it keeps
    its value if it is the user's, and raises if it was saved for a backward."""
    out = replace(OUT, role=Role.SAVED_FOR_BACKWARD) if saved else OUT
    f = graphed(
        lambda x: [x + 1], [full(0)], description=GraphDescription((X,), (out,)), clone_outputs=True
    )
    for i in in_steps(range(4)):
        (held,) = f([full(i)])
    next_step()
    f([full(9)])
    if saved:
        with pytest.raises(RuntimeError, match="It was saved for a backward"):
            held + 1
    else:
        same(held, full(4))


@pytest.mark.parametrize("donated", [False, True])
def test_a_donated_input_is_freed(donated: bool) -> None:
    """GIVEN a backward whose saved input no node made WHEN it is donated THEN it is copied, and its
    memory is let go of before the recording begins."""
    value = replace(X, role=Role.SAVED_FOR_BACKWARD, static=True, donated=donated)
    source: list[weakref.ref[torch.Tensor]] = []
    lives: list[bool] = []

    def double(x: torch.Tensor) -> list[torch.Tensor]:
        lives.append(source[-1]() is not None)
        return [x * 2]

    description = GraphDescription((value,), (OUT,))
    f = graphed(double, [full(0)], is_backward=True, description=description)
    for i in in_steps(range(2)):
        given = [full(i)]
        source.append(weakref.ref(given[0]))
        same(f(given), [full(2 * i)])
    (node,) = roots()
    assert (node.input_plan.static, node.input_plan.copied) == (([], [0]) if donated else ([0], []))
    assert lives == [True, not donated]


@pytest.mark.parametrize("leaf", [False, True])
def test_what_updates_leaves_returns_state_that_lasts(leaf: bool) -> None:
    metadata = ViewAndMutationMeta((InputAliasInfo(is_leaf=leaf, requires_grad=True),))
    value = replace(X, static=True, mutated=True, info=0)
    f = graphed(
        lambda x: [x.detach() * 2],
        [full(1)],
        description=GraphDescription((value,), (OUT,), metadata),
    )
    x = full(1)
    for _ in in_steps(range(4)):
        (held,) = f([x])
    next_step()
    f([x])
    if leaf:
        same(held, full(2))
    else:
        with pytest.raises(RuntimeError, match="has been overwritten"):
            held + 1


def test_a_partition_with_sizes_is_described() -> None:
    """GIVEN a graph with a size that varies, which Inductor hands its partition as well WHEN it
    runs THEN the trees decide by its description, and the size has the role of one."""
    weight = full(2.0).requires_grad_()
    compiled = torch.compile(
        lambda x: (x * weight).sum(0), backend="memprof", dynamic=True, options={"observe_runs": 0}
    )
    for n in (3, 5):
        for _ in in_steps(range(3)):
            compiled(torch.ones(n, 4, device="cuda"))
    assert {f.mode.name for f in manager().owner.functions} == {"FORWARD"}
    for function in manager().owner.functions:
        roles = {v.role for v in function.description.inputs}
        assert roles == {Role.USER_INPUT, Role.SIZE}


@pytest.mark.parametrize("more", [[7], [7, 8], [full]])
def test_what_comes_after_the_described_inputs_is_a_size_or_no_description(
    more: list[object],
) -> None:
    """GIVEN a description of one input, which is written to WHEN the code takes numbers after it
    THEN they are sizes; WHEN it takes a tensor THEN it is of another function."""
    extra = [full(1) if m is full else m for m in more]
    given = [full(0), *extra]
    description = GraphDescription((replace(X, mutated=True),), (OUT,))
    f = graphed(lambda x, *_: [x + 1], given, description=description)
    for _ in in_steps(range(3)):
        f(list(given))
    assert bool(reasons(LedgerKind.SKIP)) == (more != [full])


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("said", [None, 0])
def test_a_view_of_an_input_is_checked(said: int | None, view: bool) -> None:
    """GIVEN an output that is a static input's memory, or is not WHEN the description says that it
    is THEN one that is not is handed out as a new tensor each time, and the ledger says so."""
    x = full(1)
    description = GraphDescription((replace(X, static=True),), (replace(OUT, alias_of_input=said),))
    f = graphed(lambda x: [x[1:] if view else x + 1], [x], description=description)
    for _ in in_steps(range(3)):
        (out,) = f([x])
        same(out, x[1:] if view else x + 1)
    (node,) = roots()
    differs = said is not None and not view
    assert node.output_cache.cacheable == [said is None and not view]
    told = ["AOTAutograd alone says that output 0 is memory of L['x']"] if differs else []
    assert reasons(LedgerKind.COMPILED) == told


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("kind", [OutputType.NON_ALIAS, VIEW_OF_OUTPUT])
def test_a_view_of_an_output_is_checked(kind: OutputType, view: bool) -> None:
    infos = (
        OutputAliasInfo(OutputType.NON_ALIAS, None, False, True, False, None),
        OutputAliasInfo(kind, 0, False, True, False, None),
    )
    outputs = (replace(OUT, info=0), replace(OUT, index=1, name="view", info=1))
    metadata = ViewAndMutationMeta(output_info=infos)

    def double(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        return [y, y[1:] if view else x[1:] * 2]

    f = graphed(double, [full(0)], description=GraphDescription((X,), outputs, metadata))
    for i in in_steps(range(3)):
        first, second = f([full(i)])
        same(first, full(2 * i))
        same(second, full(2 * i)[1:])
    (node,) = roots()
    said = kind is VIEW_OF_OUTPUT
    assert node.output_cache.cacheable == ([False] * 2 if said or view else [True] * 2)
    told = ["AOTAutograd alone says that output 1 is memory of output 0"]
    assert reasons(LedgerKind.COMPILED) == (told if said and not view else [])


def test_bases_of_outputs() -> None:
    def out(i: int, name: str, **fields: Any) -> GraphValue:
        return GraphValue(i, name, Role.USER_OUTPUT, Category.OUTPUT, **fields)

    def info(kind: OutputType, base: int | None) -> OutputAliasInfo:
        return OutputAliasInfo(kind, base, False, True, False, None)

    outputs = (
        out(0, "", info=None),
        out(1, "mm", info=0),
        out(2, "t", info=1),
        out(3, "select", info=2),
        replace(out(4, "base"), role=Role.INTERMEDIATE_BASE),
        replace(out(5, "mm"), role=Role.SAVED_FOR_BACKWARD),
    )
    infos = (
        info(OutputType.NON_ALIAS, None),
        info(VIEW_OF_OUTPUT, 0),
        info(OutputType.ALIAS_OF_INTERMEDIATE, 0),
    )
    metadata = ViewAndMutationMeta(output_info=infos)
    assert GraphDescription((), outputs, metadata).bases() == (None, None, 1, 4, None, 1)
    # A partition that has not all of them.
    part = GraphDescription((), outputs, metadata).part([], [None, 3, 2, 5])
    assert part.bases() == (None, None, None, None)
