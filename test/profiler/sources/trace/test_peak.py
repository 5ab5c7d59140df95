"""The live set at the peak."""

from __future__ import annotations

import inspect

import torch

from memprof.profiler import data_flow_device, profile_memory
from memprof.profiler.live.attribution import View
from memprof.profiler.model import Category
from memprof.profiler.sources.trace.to_model import by_category, storages_at

from .models import at_peak, mlp, optimizer, profiled, train


def test_shares_add_up_and_agree_with_the_timeline() -> None:
    case = mlp()
    opt = optimizer("adam", case.model)
    with profiled() as prof:
        train(case, opt, 2)
    profile = profile_memory(prof)
    nbytes = at_peak(profile, "cpu").total
    for view in (View.CATEGORY, View.MODULE, View.NODE, View.LINE):
        found = at_peak(profile, "cpu", view)
        assert found.attributed + found.unattributed == found.total == nbytes
        assert sum(s.nbytes for s in (*found.parts, *found.remainder)) == nbytes
    # The same peak, found from the changes instead of from lifetimes
    table = by_category(profile, "cpu")
    assert int(table.totals.max()) == nbytes
    # AND at every time, not only there
    for i in range(0, len(table.time), max(1, len(table.time) // 50)):
        live = storages_at(profile, 0, int(table.time[i]))
        assert int(table.totals[i]) == sum(storage.nbytes for storage in live)


def test_the_largest_saved_activations_have_module_operator_and_line() -> None:
    case = mlp()
    x = torch.randn(1024, 64)  # so many that the peak is in the backward
    with profiled() as prof:
        loss = case.model(x).sum()
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        loss.backward()
    device = data_flow_device(profile_memory(prof, modules=case.model), "cpu")
    # THEN the output of the first ReLU is first: the second one's is released by the peak
    largest = next(s for s in device.live if s.awaited)
    assert (largest.nbytes, largest.module, largest.op) == (
        1024 * 128 * 4,
        "1",
        "aten::clamp_min",
    )
    assert largest.frame is not None
    assert largest.frame.location.endswith(f"test_peak.py:{line}")


def test_a_closure_that_runs_the_backward_is_not_the_optimizers() -> None:
    # GIVEN LBFGS, whose step calls a closure with forward and backward
    case = mlp()
    x = case.batch()
    opt = torch.optim.LBFGS(case.model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = case.loss(case.model, x)
        loss.backward()
        return loss

    with profiled() as prof:
        opt.step(closure)
    profile = profile_memory(prof)
    activation = [
        i for i in range(len(profile.storages)) if (profile.module(i) or "").endswith("ReLU_0")
    ]
    # THEN activations inside the step are activations
    assert {profile.category(i, 0) for i in activation if i < profile.storages.keys} <= {
        Category.ACTIVATION,
        Category.AUTOGRAD_DETAIL,
    }
