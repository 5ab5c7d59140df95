"""On real models memprof computes exactly what Inductor computes, dropout included."""

from __future__ import annotations

import pytest
import torch
from models import zoo
from torch import Tensor

import memprof
from memprof.profiler.model import GraphKind, LedgerKind

from .training import train


@pytest.mark.parametrize("name", zoo.MODELS)
def test_bitwise_equal_to_inductor(name: str) -> None:
    # GIVEN three AdamW steps under Inductor
    expected = train(name, "inductor")
    # WHEN the same steps run under memprof
    with memprof.profile() as session:
        actual = train(name, "memprof")
    profile = session.profile()

    # THEN every bit is the same
    assert [_bits(t) for t in actual.losses] == [_bits(t) for t in expected.losses]
    assert [_bits(t) for t in actual.outputs] == [_bits(t) for t in expected.outputs]
    _assert_same("gradient", actual.gradients, expected.gradients)
    _assert_same("state", actual.state, expected.state)
    # AND the comparison was worth something: losses move, gradients are there
    assert len({_bits(t) for t in actual.losses}) == len(actual.losses)
    assert any(t.count_nonzero() for t in actual.gradients.values())
    # AND memprof was there all the time
    for kind in (GraphKind.FORWARD, GraphKind.BACKWARD):
        assert sum(g.calls for g in profile.graphs if g.kind is kind) >= 3
    fallbacks = [e.reason for e in profile.ledger if e.kind is LedgerKind.FALLBACK]
    assert fallbacks == []


def _bits(t: Tensor) -> bytes:
    """The bits of a tensor: unlike ``torch.equal``, tells -0.0 from 0.0 and finds NaN equal."""
    return t.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _assert_same(what: str, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    different = [name for name in expected if _bits(actual[name]) != _bits(expected[name])]
    assert different == [], f"{what} differs in {len(different)} of {len(expected)}"
