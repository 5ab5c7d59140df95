"""What reports find about graph trees, tried on the simulated device as a user does it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from as_a_user import memprof

pytestmark = pytest.mark.simgpu

N = 4 << 20
"""Elements of the tensors that findings are about, of four bytes each."""

HEAD = f"""
import torch

N = {N}

def compiled(function, dynamic=False, **options):
    return torch.compile(function, backend="memprof", dynamic=dynamic, options=options)

def steps(step, count=8):
    with torch.no_grad():
        for i in range(count):
            torch.compiler.cudagraph_mark_step_begin()
            step(i)
"""


PROFILED = """
import sys, memprof
with memprof.profile(sys.argv[2]):
    exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), {})
"""


def advise(tmp_path: Path, program: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first try of a program's findings, and all that was printed."""
    script, profile = tmp_path / "script.py", tmp_path / "run.memprof"
    script.write_text(HEAD + program)
    # In a process of its own: what a program holds would be in the pools of the tests to come.
    subprocess.run([sys.executable, "-c", PROFILED, str(script), str(profile)], check=True)
    done = memprof("advise", "-q", "--json", str(profile), "--try", "--", "python", str(script))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["results"][0], found


def test_outputs_that_are_held(tmp_path: Path) -> None:
    program = """
x = torch.ones(N, device="cuda")
function = compiled(lambda x: x * 2 + 1, outputs="clone")
held = []
def step(i):
    held[:] = [function(x)]
steps(step)
"""
    result, found = advise(tmp_path, program)
    assert result["changes"] == ["option=outputs:error"]
    assert (result["estimate"], result["at_most"]) == (4 * N, False)
    assert result["saved"] == pytest.approx(4 * N, rel=0.1)
    assert result["saved_allocated"] == pytest.approx(4 * N, rel=0.1)
    assert result["tried"]["changed"] == ["option=outputs:error: graphs compiled with it: 1"]
    assert found["untried"] == []


def test_outputs_that_are_held_and_used(tmp_path: Path) -> None:
    program = """
x = torch.ones(N, device="cuda")
function = compiled(lambda x: x * 2 + 1, outputs="clone")
held = [x]
def step(i):
    before, held[:] = held[0], [function(x)]
    before.add(1)
steps(step)
"""
    result, _ = advise(tmp_path, program)
    assert result["changes"] == ["option=outputs:error"]
    assert result["tried"] is None
    assert "has been overwritten" in result["problem"]


def test_inputs_that_are_copied_in_every_replay(tmp_path: Path) -> None:
    program = """
table = torch.ones(N, device="cuda")
function = compiled(lambda table, x: (table[:64] * 2).repeat(2)[:x.shape[0]] + x.sin(), None)
def step(i):
    x = torch.ones((1 + i % 2) * 64, device="cuda")
    torch._dynamo.mark_dynamic(x, 0)
    function(table, x)
steps(step, 20)
"""
    result, _ = advise(tmp_path, program)
    assert result["changes"] == ["static-inputs=L['table']"]
    assert (result["estimate"], result["at_most"]) == (4 * N, True)
    assert result["saved"] == pytest.approx(4 * N, rel=0.1)
    assert result["saved_allocated"] == pytest.approx(4 * N, rel=0.1)


def test_state_that_the_graph_writes_to(tmp_path: Path) -> None:
    # GIVEN a graph that runs without a recording, and so copies nothing
    program = """
state = torch.zeros(N, device="cuda")
def update(state, x):
    state.add_(1)
    return x + 1
function = compiled(update)
x = torch.ones(64, device="cuda")
steps(lambda i: function(state, x))
"""
    result, _ = advise(tmp_path, program)
    # THEN its state can be static, which makes a pool (2 MiB at least) and saves nothing
    assert result["changes"] == ["static-inputs=L['state']"]
    assert (result["estimate"], result["at_most"], result["idle"]) == (4 * N, True, False)
    assert result["saved"] == -(2 << 20)
    assert result["saved_allocated"] == pytest.approx(0, abs=4 << 10)


@pytest.mark.slow  # twelve and five sizes, each recorded anew in every try
def test_many_sizes(tmp_path: Path) -> None:
    program = """
whole = torch.ones(12 * N // 4, device="cuda")
function = compiled(lambda x: x * 2 + 1, True)
steps(lambda i: function(whole[: (1 + i % 12) * (N // 4)]).shape, 48)
"""
    result, _ = advise(tmp_path, program)
    option, _, budget = result["changes"][0].partition(":")
    assert option == "option=pool_budget"
    assert int(budget) > 0
    assert result["at_most"]
    assert 0.5 * result["estimate"] <= result["saved"] <= result["estimate"]
