"""The static planner: pure data."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from memprof.compile_backend.cpu_arena.plan import Lifetime, Offsets, pack

lifetimes = st.lists(
    st.builds(
        lambda n, b, d: Lifetime(n, b, b + d),
        st.integers(0, 1 << 20),
        st.integers(0, 60),
        st.integers(0, 30),
    ),
    max_size=60,
)


def check(buffers: list[Lifetime], made: Offsets) -> None:
    for i, (a, o) in enumerate(zip(buffers, made.offsets, strict=True)):
        assert o >= 0
        assert o % 64 == 0
        assert o + a.nbytes <= made.nbytes
        for b, p in list(zip(buffers, made.offsets, strict=True))[i + 1 :]:
            together = a.begin < b.end and b.begin < a.end
            overlap = o < p + b.nbytes and p < o + a.nbytes
            assert not (together and overlap), (a, o, b, p)
    most = max(
        (sum(b.nbytes for b in buffers if b.begin <= t < b.end) for t in range(100)), default=0
    )
    assert made.nbytes >= made.lower_bound >= most


@given(lifetimes)
@settings(max_examples=200)
def test_no_two_live_buffers_overlap(buffers: list[Lifetime]) -> None:
    made = pack(buffers)
    check(buffers, made)
    assert pack(buffers) == made


def test_nothing_to_place() -> None:
    assert pack([]) == Offsets((), 0, 0)
    assert pack([Lifetime(0, 0, 5), Lifetime(0, 1, 2)]) == Offsets((0, 0), 0, 0)


def test_a_chain_needs_two_buffers() -> None:
    # GIVEN a chain in which each step reads one buffer and writes the next
    chain = [Lifetime(1 << 20, i, i + 2) for i in range(50)]
    # THEN two places are enough
    assert pack(chain).nbytes == 2 << 20 == pack(chain).lower_bound


def test_an_exact_plan() -> None:
    made = pack([Lifetime(100, 0, 4), Lifetime(200, 1, 2), Lifetime(60, 2, 4)])
    assert made == Offsets((256, 0, 0), 384, 384)


def realistic(seed: int) -> list[Lifetime]:
    """Like a backward of a deep network: many short lives of a few sizes, nested longer
    ones that begin early and end late, and small change."""
    r = random.Random(seed)
    sizes = [r.choice([1, 2, 3, 4, 6]) * r.choice([1 << 16, 1 << 18, 1 << 20]) for _ in range(6)]
    out = []
    for time in range(r.randrange(20, 80)):
        n = r.choice(sizes)
        out.append(Lifetime(n, time, time + r.choice([1, 2, 2, 3, 4])))
        if r.random() < 0.3:
            out.append(Lifetime(r.choice(sizes), time, time + r.randrange(5, 60)))
        if r.random() < 0.5:
            out.append(Lifetime(r.randrange(8, 4096), time, time + r.randrange(1, 9)))
    return out


def test_plans_of_realistic_programs_are_near_the_lower_bound() -> None:
    ratios = []
    for seed in range(60):
        buffers = realistic(seed)
        made = pack(buffers)
        check(buffers, made)
        ratios.append(made.nbytes / made.lower_bound)
    ratios.sort()
    assert ratios[len(ratios) // 2] <= 1.02
    assert ratios[-1] <= 1.15
