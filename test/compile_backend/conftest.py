"""Fixtures of the tests of straight calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch._functorch import config as functorch_config

from memprof.compile_backend import straight_calls as calls


@pytest.fixture
def at_once() -> Iterator[None]:
    """Straight calls from the first call on."""
    with functorch_config.patch(check_custom_op_aliasing=False):
        yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For each graph that is compiled: ``straight``, or ``torch's`` for torch's wrapper."""
    found: list[str] = []
    plain = calls._straight

    def straight(*args: Any) -> Any:
        out = plain(*args)
        found.append("torch's" if out is None else "straight")
        return out

    monkeypatch.setattr(calls, "_straight", straight)
    return found
