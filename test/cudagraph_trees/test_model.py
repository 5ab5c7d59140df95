"""Random programs against a simple reference: see ``programs``.

Hypothesis shrinks one that fails to the operations that matter. Few are run here;
``make fuzz-trees`` runs ``FUZZ_EXAMPLES`` others for each setting, and each once more without
graphs, which must come to the same (``Machine.notes``).
"""

from __future__ import annotations

import os
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from . import programs
from .support import VALUES

pytestmark = pytest.mark.simgpu

OPERATION = st.tuples(st.integers(0, 1 << 10), st.integers(0, 1 << 16))
PROGRAM = st.lists(OPERATION, min_size=10, max_size=80)

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
MODEL = settings(
    max_examples=EXAMPLES or 8,
    suppress_health_check=list(HealthCheck),
    derandomize=not EXAMPLES,
    database=None,
)


@pytest.mark.usefixtures("quick_collections")
@pytest.mark.parametrize("marks", [True, False], ids=["marked", "unmarked"])
@pytest.mark.parametrize("outputs", ["error", "clone"])
def test_random_programs(outputs: str, marks: bool) -> None:
    @MODEL
    @given(program=PROGRAM)
    def test(program: programs.Program) -> None:
        machine = programs.run(program, outputs, marks=marks, values=VALUES)
        replays.append(machine.replays)
        if EXAMPLES:
            run = partial(
                programs.run,
                program,
                outputs,
                marks=marks,
                values=VALUES,
                without=["an interrupt"],  # as only graphs are interrupted
            )
            programs.compare(run().notes, run(graphs=False).notes)

    replays: list[int] = []
    test()
    # How many depends on what Hypothesis draws, and that on which modules are imported.
    assert sum(replays) >= 3
