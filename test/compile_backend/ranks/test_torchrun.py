"""Jobs of several processes under torchrun, on the CPU: one file a rank, no collective of ours."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from memprof.cli import main
from memprof.profiler.file.profile_file import read_profile, read_profiles
from memprof.profiler.views.compare.ranks import compare_ranks

ROOT = Path(__file__).parents[3]
STEPS = 5


def torchrun(processes: int, kind: str, out: str, **environment: str) -> str:
    """Run the job; what rank 0 printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    # A free port of its own: two jobs may run at once.
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += [str(Path(__file__).parent / "worker.py"), kind, out, str(STEPS)]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


# Whole copies on four ranks say nothing new, and shards of four are as uneven as those of two.
@pytest.mark.parametrize(("kind", "processes"), [("ddp", 2), ("fsdp2", 4)])
def test_one_file_a_rank(kind: str, processes: int, tmp_path: Path) -> None:
    # WHEN a job is profiled
    ran = torchrun(processes, kind, str(tmp_path / "{rank}.memprof"))
    # THEN it ran the collectives that it runs with inductor, and no other
    word, inductors, ours = ran.split()
    assert word == "collectives"
    assert ours == inductors
    assert int(ours) >= STEPS
    # AND each rank has its file
    paths = sorted(tmp_path.iterdir())
    assert [p.name for p in paths] == [f"{r}.memprof" for r in range(processes)]
    profiles = [read_profile(p) for p in paths]
    for r, profile in enumerate(profiles):
        assert profile.complete
        assert profile.process is not None
        assert (profile.process.rank, profile.process.local_rank) == (r, r)
        assert profile.process.world_size == processes
    assert len({p.process.pid for p in profiles if p.process}) == processes
    # AND they merge and compare
    out = str(tmp_path / "all.memprof")
    assert (
        CliRunner().invoke(main, ["export", *map(str, paths), "-f", "memprof", "-o", out]).exit_code
        == 0
    )
    found = compare_ranks(read_profiles(out))
    assert found.warnings == []
    assert [row.rank for row in found.rows] == list(range(processes))
    # AND rank 1, whose batch is larger by half, is named as the one with the most
    peak = next(i for i in found.imbalance if i.name == "peak")
    activations = next(i for i in found.imbalance if i.name == "activation")
    assert peak.highest_rank == activations.highest_rank == 1
    assert activations.highest == 1.5 * activations.lowest
    report = CliRunner().invoke(main, ["report", out])
    assert report.exit_code == 0
    assert f"{processes} of {processes} ranks" in report.output


def test_four_ranks_start_warm_together(tmp_path: Path) -> None:
    def shown() -> dict[tuple[object, ...], tuple[object, ...]]:
        return {
            (rank, g.compile_id, g.kind): (g.description, g.buffers, g.statements)
            for rank in range(4)
            for g in read_profile(tmp_path / f"{rank}.memprof").graphs
        }

    # GIVEN four ranks that filled one empty cache at the same time
    cache, out = str(tmp_path / "cache"), str(tmp_path / "{rank}.memprof")
    torchrun(4, "fsdp2", out, TORCHINDUCTOR_CACHE_DIR=cache)
    cold = shown()
    assert len(cold) == 4 * 4
    # WHEN the job starts again
    torchrun(4, "fsdp2", out, TORCHINDUCTOR_CACHE_DIR=cache)
    # THEN each graph of each rank is a hit, under the same names
    assert shown() == cold
    for rank in range(4):
        profile = read_profile(tmp_path / f"{rank}.memprof")
        assert {g.fx_cache for g in profile.graphs} == {"hit"}
        hits = [e for e in profile.ledger if e.reason == "found in AOTAutograd's cache"]
        assert sum(e.count for e in hits) == len(profile.graphs)


def test_memprof_asks_the_process_group_for_its_place_only() -> None:
    # Whatever a job looks like: nothing else of torch.distributed is used on any path.
    allowed = {"is_available", "is_initialized", "get_rank", "get_world_size"}
    used = set()
    folders = ("memprof", "compile_backend", "cudagraph_trees", "compiled_autograd", "profiler")
    # A simulated rank's groups are made fake in its own process, which is no job's.
    fakes = ROOT / "memprof" / "simulate"
    files = [p for folder in folders for p in (ROOT / folder).rglob("*.py")]
    for path in (p for p in files if fakes not in p.parents):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith(
                ("torch.distributed", "dist")
            ):
                used.add(node.attr)
    assert used <= allowed
    assert used >= {"get_rank", "get_world_size"}
