"""memory_viz: torch's own functions read the snapshot, and its addresses are sound."""

from __future__ import annotations

import io
import pickle
import pickletools
import random
from typing import Any

import pytest
from profile_builder import MIB, training

from memprof.profiler.model import Profile
from memprof.profiler.model.allocator_rules import rounded
from memprof.profiler.views.export.made_up_addresses import MadeUpAddresses
from memprof.profiler.views.export.memory_viz import device_index, write_memory_viz


def snapshot(profile: Profile) -> dict[str, Any]:
    file = io.BytesIO()
    write_memory_viz(profile, file)
    loaded = pickle.loads(file.getvalue())
    assert isinstance(loaded, dict)
    return loaded


def test_memory_viz_opens_in_torch() -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    taken = snapshot(training())
    # segsum and trace assert that their sums are right; they must also be ours
    assert f"total_allocated: {10 * MIB / MIB:.1f}MiB" in viz.segsum(taken)
    text = viz.trace(taken)
    assert text.startswith("Device 0 -")
    # (its total is wrong: the loop that adds it up uses the same variable for the position)
    assert text.count(" = cudaMalloc(") == len(taken["segments"])
    assert "# free completed for" in text
    assert "= MEM[" not in text  # every allocation lies in a segment
    flame = viz.memory(taken, format_flamegraph=lambda lines: lines)
    active = [line for line in flame.splitlines() if ";active_allocated;" in line]
    assert sum(int(line.rpartition(" ")[2]) for line in active) == 10 * MIB
    assert any("0_0 forward>:0:parameter l1.weight" in line for line in active)
    assert viz.segments(taken, format_flamegraph=lambda lines: lines)
    for plot in (viz.trace_plot, viz.segment_plot):
        assert "snapshot.pickle" in plot(taken)
    assert "snapshot.pickle" in viz.trace_plot(taken, plot_segments=True)
    viz.trace_plot(taken, filter_freed=True)
    left = [e for e in taken["device_traces"][0] if e["action"] == "alloc"]
    assert sum(e["size"] for e in left) == 10 * MIB


def test_memory_viz_compares_two_snapshots() -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    before, after = snapshot(training(1)), snapshot(training(4))
    text = viz.compare(before["segments"], after["segments"], format_flamegraph=lambda lines: lines)
    # One step fits into the first segments; four need more.
    assert text
    assert all(line.startswith("only_after;") for line in text.splitlines())


def test_memory_viz_shows_inside_of_calls_with_frames() -> None:
    events = snapshot(training())["device_traces"][0]
    saved = next(e for e in events if e.get("category") == "activation")
    assert saved["frames"] == [
        {"name": "mm aten.mm.default", "filename": "<0_0 forward>", "line": 10},
        {"name": "module l1", "filename": "<module>", "line": 0},
        {"name": "forward", "filename": "/nowhere/site-packages/zoo/model.py", "line": 3},
    ]
    assert saved["size"] == 8 * MIB
    # A reuse gives the same address to the next owner.
    relu, sum_1 = (
        next(i for i, e in enumerate(events) if e["frames"] and e["frames"][0]["name"] == name)
        for name in ("relu aten.relu.default", "sum_1 aten.sum.dim_IntList")
    )
    assert events[relu]["addr"] == events[sum_1]["addr"]
    assert [e["action"] for e in events[sum_1 - 2 : sum_1]] == ["free_requested", "free_completed"]


def test_memory_viz_segments_hold_what_is_in_them() -> None:
    for s in snapshot(training())["segments"]:
        assert sum(b["size"] for b in s["blocks"]) == s["total_size"]
        assert s["blocks"][0]["address"] == s["address"]
        for b, c in zip(s["blocks"], s["blocks"][1:], strict=False):
            assert b["address"] + b["size"] == c["address"]
        assert all(b["requested_size"] <= b["size"] for b in s["blocks"])


def test_memory_viz_in_javascript_knows_all_opcodes_and_finds_an_unknown_category() -> None:
    # GIVEN the opcodes of the unpickler in MemoryViz.js
    known = (
        "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT "
        "EMPTY_LIST EMPTY_TUPLE FRAME LIST LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE "
        "NEWTRUE NONE PROTO SETITEM SETITEMS SHORT_BINUNICODE STOP TUPLE TUPLE1 TUPLE2 "
        "TUPLE3"
    )
    file = io.BytesIO()
    write_memory_viz(training(), file)
    used = {op.name for op, _, _ in pickletools.genops(file.getvalue())}
    assert used <= {*known.split()}
    # Without one event of category "unknown" that script throws.
    assert snapshot(training())["device_traces"][0][0]["category"] == "unknown"


def addresses_are_sound(taken: dict[str, Any]) -> None:
    """Allocations lie in segments and never on each other."""
    for trace in taken["device_traces"]:
        segments: list[tuple[int, int]] = []
        live: dict[int, int] = {}
        for e in trace:
            first, end = e["addr"], e["addr"] + e["size"]
            if e["action"] == "segment_alloc":
                assert all(end <= a or b <= first for a, b in segments)
                segments.append((first, end))
            elif e["action"] == "alloc":
                assert any(a <= first and end <= b for a, b in segments)
                assert all(end <= a or a + n <= first for a, n in live.items())
                live[first] = e["size"]
            elif e["action"] == "free_completed":
                assert live.pop(first) == e["size"]


def test_devices_have_places_of_their_own() -> None:
    assert device_index(["cpu", "cuda:0", "cuda:2"]) == {"cuda:0": 0, "cuda:2": 2, "cpu": 3}
    assert device_index(["cuda:0", "xpu:0"]) == {"cuda:0": 0, "xpu:0": 1}
    assert device_index(["cpu"]) == {"cpu": 0}


@pytest.mark.parametrize("seed", range(5))
def test_addresses_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    space = MadeUpAddresses(1 << 40)
    live: dict[int, int] = {}
    for _ in range(600):
        if live and rng.random() < 0.45:
            address = rng.choice(list(live))
            del live[address]
            space.free(address)
        else:
            nbytes = rng.choice([1, 500, 4096, 2 * MIB, 11 * MIB, rng.randrange(1, 30 * MIB)])
            address, _ = space.allocate(rounded(nbytes))
            live[address] = nbytes
    # THEN blocks lie side by side in segments, and those handed out are ours
    used: dict[int, int] = {}
    for s in space.segments:
        end = s.address
        for address, nbytes, out in s.blocks(space.taken):
            assert address == end
            end += nbytes
            if out:
                used[address] = nbytes
        assert end == s.address + s.nbytes
    assert used.keys() == live.keys()
    # what remains of up to 1 MiB is not cut off
    assert all(0 <= used[a] - n < 512 + MIB for a, n in live.items())
    for address in live:
        space.free(address)
    # AND what was split is whole again
    for s in tuple(space.segments):
        whole = [MIB] * (s.nbytes // MIB) if s.small else [s.nbytes]
        assert [made for nbytes in whole for _, made in [space.allocate(nbytes)] if made] == []
