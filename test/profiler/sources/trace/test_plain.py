"""The columns that profile files hold say what the profile says."""

from __future__ import annotations

import inspect
import time

import msgspec

from memprof.profiler import profile_memory
from memprof.profiler.model import Category, DataFlowColumns
from memprof.profiler.sources.trace import data_flow_columns

from .models import at_peak, mlp, optimizer, profiled, train


def test_columns_are_the_profile_on_the_clock_of_calls() -> None:
    case = mlp()
    opt = optimizer("adam", case.model)
    train(case, opt, 1)
    before = time.perf_counter_ns()
    with profiled() as prof:
        train(case, opt, 2)
    after = time.perf_counter_ns()
    profile = profile_memory(prof, modules=case.model, optimizers=opt)
    found = at_peak(profile, "cpu")

    # The largest of several: this process may have to wait between the two readings.
    origin = max(time.time_ns() - time.perf_counter_ns() for _ in range(20))
    (device,) = data_flow_columns(profile, origin).devices

    # THEN times ascend and lie in the trace, on the other clock,
    assert device.device == "cpu"
    assert all(a < b for a, b in zip(device.time_ns, device.time_ns[1:], strict=False))
    assert before - 10**7 < device.time_ns[0] < device.time_ns[-1] < after + 10**7
    # the peak and what is live then are the profile's,
    assert device.peak is not None
    assert device.bytes_at(device.peak) == found.total
    assert sum(s.nbytes for s in device.live) == found.total
    by_name = {c.value: column[device.peak] for c, column in device.bytes.items()}
    assert {k: v for k, v in by_name.items() if v} == {s.key: s.nbytes for s in found.parts}
    live: dict[str, int] = {}
    for s in device.live:
        live[s.category.value] = live.get(s.category.value, 0) + s.nbytes
    assert live == {s.key: s.nbytes for s in found.parts}
    assert [s.nbytes for s in device.live] == sorted((s.nbytes for s in device.live), reverse=True)
    # what was there before has no time, what was made has one, an operator and a line,
    assert {s.category for s in device.live if s.created_ns is None} == {
        Category.PARAMETER,
        Category.OPTIMIZER_STATE,
    }
    made = next(s for s in device.live if s.created_ns is not None)
    assert made.op is not None
    assert made.op.startswith("aten::")
    assert made.frame is not None
    train_lines, start = inspect.getsourcelines(train)
    assert made.frame.function == "train"
    assert made.frame.code == train_lines[made.frame.line - start].strip()
    # and a file has it back as it was.
    columns = DataFlowColumns([device])
    assert msgspec.json.decode(msgspec.json.encode(columns), type=DataFlowColumns) == columns


def test_fewer_points_keep_the_peak_and_the_ends() -> None:
    case = mlp()
    opt = optimizer("sgd", case.model)
    with profiled() as prof:
        train(case, opt, 3)
    profile = profile_memory(prof)
    (whole,) = data_flow_columns(profile).devices
    (few,) = data_flow_columns(profile, points=50).devices
    assert len(whole.time_ns) > 200
    # One of each equal stretch of time: a machine that pauses leaves few.
    assert 3 <= len(few.time_ns) <= 50
    assert few.peak is not None
    assert whole.peak is not None
    assert few.time_ns[few.peak] == whole.time_ns[whole.peak]
    assert few.live == whole.live
    assert (few.time_ns[0], few.time_ns[-1]) == (whole.time_ns[0], whole.time_ns[-1])
    # THEN each kept instant is one that was there
    rows = {t: {c: col[i] for c, col in whole.bytes.items()} for i, t in enumerate(whole.time_ns)}
    for i, t in enumerate(few.time_ns):
        assert {c: n for c, n in rows[t].items() if n} == {
            c: col[i] for c, col in few.bytes.items() if col[i]
        }
