"""Random programs against a simple reference: see ``programs``.

Hypothesis drives few of them here and shrinks one that fails to the operations that matter;
``make fuzz-trees`` runs as many as one likes, from a seed. That the reference would notice
is tested too: trees that are broken on purpose fail within a few programs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from . import programs
from .support import VALUES

pytestmark = pytest.mark.simgpu

OPERATION = st.tuples(st.integers(0, 1 << 10), st.integers(0, 1 << 16))
PROGRAM = st.lists(OPERATION, min_size=10, max_size=80)

MODEL = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


@pytest.mark.usefixtures("quick_collections")
@pytest.mark.parametrize("marks", [True, False], ids=["marked", "unmarked"])
@pytest.mark.parametrize("outputs", ["error", "clone"])
def test_random_programs(outputs: str, marks: bool) -> None:
    @MODEL
    @given(program=PROGRAM)
    def test(program: programs.Program) -> None:
        replays.append(programs.run(program, "cuda", outputs, marks=marks, values=VALUES))

    replays: list[int] = []
    test()
    assert sum(replays) >= 20


BROKEN = {
    "paths end although outputs are held": (
        "from memprof.cudagraph_trees.node_recorded import CUDAGraphNode as c\n"
        "c.all_outputs_are_dead = lambda self: True"
    ),
    "the allocator's books are never restored": (
        "from memprof.cudagraph_trees.device.cuda import CudaPool as c\n"
        "c.restore = lambda self, checkpoint, live, dead: None"
    ),
    "a recording fits whatever the addresses are": (
        "import memprof.cudagraph_trees.node_replay as m\n"
        "m._pointers_equal = lambda inputs, pointers, which: True"
    ),
    "what must be dead before a replay is not looked at": (
        "import memprof.cudagraph_trees.node_replay as m\nm.all_dead = lambda refs: True"
    ),
    "no output is invalidated when its step is over": (
        "from memprof.cudagraph_trees.device.cuda import CudaPool as c\n"
        "c.invalidate = c.invalidate_tensor = lambda self, *args: None"
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(not VALUES, reason="nothing is computed")
@pytest.mark.parametrize("code", BROKEN.values(), ids=BROKEN)
def test_the_reference_notices_broken_trees(code: str) -> None:
    folder = Path(__file__).parents[1]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}\n"
            "sys.argv = ['fuzz', '--operations=6000']\n"
            "from trees import fuzz; fuzz.shrink = lambda program, fails: program\n"
            "fuzz.main()",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    assert "operation" in done.stderr, done.stderr[-2000:]
