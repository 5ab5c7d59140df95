"""What tests spare torch changes nothing that it computes: Note [Torch's repetitions]."""

from __future__ import annotations

from typing import Any

import pytest
import repetition
import torch._inductor.dtype_propagation
import torch._inductor.lowering  # registers the rules
from torch._inductor import utils


def test_new_dtype_rules_are_seen_and_others_not_filled_in_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler: Any = torch._inductor.dtype_propagation.DtypePropagationOpsHandler
    repetition.spare_torch()
    one = handler()
    # GIVEN a rule that is filled in
    assert "sin" in vars(one)
    rule = one.sin
    # WHEN nothing is new THEN it stays
    assert handler().sin is rule
    # WHEN another one is added THEN that is there too
    rules = utils.op_dtype_propagation_rules
    monkeypatch.setitem(rules, "another", next(iter(rules.values())))
    assert handler() is one
    assert "another" in vars(one)
    assert one.sin is not rule
    monkeypatch.delattr(one, "another")
