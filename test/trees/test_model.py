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

from memprof.cudagraph_trees import _torch_compat as compat

from . import programs
from .support import VALUES

pytestmark = pytest.mark.simgpu

OPERATION = st.tuples(st.integers(0, 1 << 10), st.integers(0, 1 << 16))
PROGRAM = st.lists(OPERATION, min_size=10, max_size=80)

MODEL = settings(
    max_examples=8,
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
        machine = programs.run(program, outputs, marks=marks, values=VALUES)
        replays.append(machine.replays)

    replays: list[int] = []
    test()
    # How many depends on what Hypothesis draws, and that on which modules are imported.
    assert sum(replays) >= 3


BROKEN = {
    "paths end although outputs are held": (
        "from memprof.cudagraph_trees.replay.node import CUDAGraphNode as c\n"
        "c.all_outputs_are_dead = lambda self: True"
    ),
    "the allocator's books are never restored": (
        "from memprof.cudagraph_trees.device.cuda import CudaPool as c\n"
        "c.restore = lambda self, checkpoint, live, dead: None"
    ),
    "a recording fits whatever the addresses are": (
        "import memprof.cudagraph_trees.replay.node as m\n"
        "m.same_addresses = lambda pointers, which: lambda inputs: True"
    ),
    "what must be dead before a replay is not looked at": (
        "from memprof.cudagraph_trees.replay.node import CUDAGraphNode as c\n"
        "c.fits = lambda self, inputs: self.same_addresses is None or self.same_addresses(inputs)"
    ),
    "no output is invalidated when its step is over": (
        "from memprof.cudagraph_trees.device.cuda import CudaPool as c\n"
        "c.invalidate = lambda self, *args: None\n"
        "import memprof.cudagraph_trees.device.cuda as m\n"
        "m.native.load = lambda: None\n"
        "m.allocator.set_tensor_message = lambda tensor, message: None"
    ),
    "gradients stay in the pool": (
        "from memprof.cudagraph_trees.replay.spec import CompilationMode as m\n"
        "import memprof.cudagraph_trees.steps.step_end as p\n"
        "p.CompilationMode = type('M', (), {'BACKWARD': m.INFERENCE})"
    ),
    "what a failed warm-up wrote is not put back": (
        "from memprof.cudagraph_trees.record.recovery import InputBackup as c\n"
        "made = c.warm_up\n"
        "def warm_up(*args):\n"
        "    backup = made(*args)\n"
        "    backup.written.clear()\n"
        "    return backup\n"
        "c.warm_up = staticmethod(warm_up)"
    ),
    "generators are not put back after a failure": (
        "from memprof.cudagraph_trees.device.cuda import GeneratorStates as c\n"
        "c.restore = lambda self: None"
    ),
    "inputs of a call that is called off lie in free memory": (
        "import memprof.cudagraph_trees.replay.node as m\n"
        "import memprof.cudagraph_trees.record.recovery as n\n"
        "m.inputs_again = n.inputs_again = lambda pool, specs, refs: {\n"
        "    i: pool.tensor_at(spec) for i, spec in specs.items()}"
    ),
    "a function's own clone_outputs is forgotten": (
        "from memprof.cudagraph_trees.replay.spec import GraphSpec as c\n"
        "made = c.function\n"
        "def function(self, *args, **how):\n"
        "    spec = made(self, *args, **how)\n"
        "    spec.clone_outputs = False\n"
        "    return spec\n"
        "c.function = function"
    ),
}
NEEDS_SWAPPED_STORAGE = {"a function's own clone_outputs is forgotten"}
"""On torch before 2.12 a clone reaches only some of an output's holders."""


@pytest.mark.slow
@pytest.mark.skipif(not VALUES, reason="nothing is computed")
@pytest.mark.parametrize("broken", BROKEN)
def test_the_reference_notices_broken_trees(broken: str) -> None:
    if broken in NEEDS_SWAPPED_STORAGE and not compat.can_swap_storage():
        pytest.skip("storages cannot be given other memory before torch 2.12")
    folder = Path(__file__).parents[1]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(folder)!r})\n{BROKEN[broken]}\n"
            "sys.argv = ['fuzz', '--operations=6000']\n"
            "from trees import fuzz; fuzz.main()",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    assert "operation" in done.stderr, done.stderr[-2000:]
