"""Pools of CUDA graphs in reports and files: what is said of them, and what cannot be right."""

from __future__ import annotations

import dataclasses

import pytest
from framing import decode_profile, findings
from rendering import render_graph_pools

from memprof.profiler.file.profile_file import encode_profile
from memprof.profiler.live.graph_pools import leaks, left_behind
from memprof.profiler.model import (
    Category,
    Fate,
    GraphCapture,
    GraphPool,
    Held,
    Profile,
    SharedBytes,
    SourceFrame,
)
from memprof.profiler.support.thread_activity import HERE, name_graphs

MIB = 1 << 20
LINE = SourceFrame("engine.py", 7, "forward", "y = self.head(x)")


def graph(number: int, grew: int, *left: Held, **others: object) -> GraphCapture:
    peak = Held(Category.ALLOCATED, 3 * MIB, 2, "Decoder > Linear", LINE, fate=Fate.SCRATCH)
    g = GraphCapture(number, f"batch {8 // number}", "torch.cuda.graph", LINE, grew=grew)
    return dataclasses.replace(
        g, peak=4 * MIB, rounding=MIB, used=4 * MIB, at_peak=[peak], left=list(left), **others
    )


def pool() -> GraphPool:
    leak = Held(Category.ALLOCATED, MIB, 1, "Decoder", LINE, fate=Fate.UNEXPLAINED)
    output = Held(Category.ALLOCATED, 4 * MIB, 1, "Decoder > Linear", LINE, fate=Fate.HELD)
    return GraphPool(
        "cuda:0",
        "private 0,1",
        reserved=20 * MIB,
        segments=1,
        most_reserved=20 * MIB,
        at_end=20 * MIB,
        graphs=[
            graph(1, 18 * MIB, leak, output),
            graph(2, 0, leak, deleted=True),
            graph(3, 0, failed="RuntimeError: no", deleted=True),
        ],
        grew_outside=2 * MIB,
        shares=[SharedBytes(6 * MIB, (1, 2)), SharedBytes(4 * MIB, (1,))],
        other_shares=MIB,
        live_outside=2 * MIB,
        unused=7 * MIB,
        notes=["something to know"],
    )


def test_a_report_adds_up_and_says_what_leaks_first() -> None:
    text = render_graph_pools([pool()])
    assert text.startswith("CUDA graphs in pool private 0,1 on cuda:0\n")
    for said in (
        "7.00 MiB are used by more than one graph, 4.00 MiB by one alone",
        "something to know",
        "#1 batch 8",
        "#2 batch 4 (deleted)",
        "#3 batch 2 (failed: RuntimeError: no)",
        "outside of captures",
        "2.00 MiB stay from capture to capture, and nobody in Python holds them",
        "held by a tensor",
        "What graph #1 batch 8 had asked for at its peak, 4.00 MiB",
    ):
        assert said in text, said
    assert text.index("held by nobody") < text.index("held by a tensor")


def test_what_is_gone_or_has_no_graph_says_so() -> None:
    gone = dataclasses.replace(pool(), gone=True, at_end=0)
    assert "by the end all its graphs were deleted, 0 B of it are left" in " ".join(
        render_graph_pools([gone]).split()
    )
    kept = Held(Category.ALLOCATED, 2 * MIB, 1, "", LINE, fate=Fate.HELD)
    plain = GraphPool(
        "cuda:0", "private 0,2", reserved=2 * MIB, grew_outside=2 * MIB, live_outside=2 * MIB
    )
    plain.outside = [kept]
    text = render_graph_pools([plain])
    assert "nothing was captured into it" in text
    assert "What is in the pool that no capture asked for" in text


def test_what_captures_leave_is_added_up_by_place() -> None:
    (leak, of_leak), (output, of_output) = left_behind(pool())
    assert (leaks(leak, of_leak), leak.nbytes, leak.count, of_leak) == (True, 2 * MIB, 2, (1, 2))
    assert (leaks(output, of_output), output.nbytes, of_output) == (False, 4 * MIB, (1,))
    # What one capture alone has left does not grow from capture to capture.
    alone = pool()
    alone.graphs = alone.graphs[:1]
    assert not any(leaks(*x) for x in left_behind(alone))


def test_a_file_has_them() -> None:
    profile = Profile(graph_pools=[pool()])
    assert not findings(profile)
    assert decode_profile(encode_profile(profile)).graph_pools == [pool()]


def test_names_are_of_the_innermost_block() -> None:
    with name_graphs("outer"):
        with name_graphs("inner"):
            assert HERE.graphs == "inner"
        assert HERE.graphs == "outer"
        with pytest.raises(KeyError), name_graphs("failed"):
            raise KeyError
        assert HERE.graphs == "outer"
    assert HERE.graphs == ""
