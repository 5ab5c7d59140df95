"""Jobs of several processes under torchrun, on the CPU: one file a rank, no collective of ours."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from outputs import invoke

from memprof.profiler.file.profile_file import read_profile, read_profiles
from memprof.profiler.model import Profile
from memprof.profiler.views.compare.ranks import compare_ranks

ROOT = Path(__file__).parents[3]
STEPS = 5
RANKS = 2


def torchrun(kind: str, out: str, cache: str) -> str:
    """Run the job; what rank 0 printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    # A free port of its own: two jobs may run at once.
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += [str(Path(__file__).parent / "worker.py"), kind, out, str(STEPS)]
    done = subprocess.run(
        command,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@dataclass(frozen=True)
class Job:
    """A job that has ended: what rank 0 printed, and its profiles, by rank."""

    printed: str
    cache: str
    paths: list[Path]


@pytest.fixture(scope="module", params=["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job whose ranks fill one empty cache at the same time."""
    folder = tmp_path_factory.mktemp(request.param)
    cache = str(tmp_path_factory.mktemp("cache"))
    printed = torchrun(request.param, str(folder / "{rank}.memprof"), cache)
    return Job(printed, cache, sorted(folder.iterdir()))


# More ranks say nothing new: shards of two are uneven, as those of four.
def test_one_file_a_rank(job: Job, tmp_path: Path) -> None:
    # GIVEN a profiled job THEN it ran the collectives that it runs with inductor, and no other
    word, inductors, ours = job.printed.split()
    assert word == "collectives"
    assert ours == inductors
    assert int(ours) >= STEPS
    # AND each rank has its file
    assert [p.name for p in job.paths] == [f"{r}.memprof" for r in range(RANKS)]
    profiles = [read_profile(p) for p in job.paths]
    for r, profile in enumerate(profiles):
        assert profile.complete
        assert profile.process is not None
        assert (profile.process.rank, profile.process.local_rank) == (r, r)
        assert profile.process.world_size == RANKS
    assert len({p.process.pid for p in profiles if p.process}) == RANKS
    # AND they merge and compare
    out = str(tmp_path / "all.memprof")
    invoke("export", *job.paths, "-f", "memprof", "-o", out)
    found = compare_ranks(read_profiles(out))
    assert found.warnings == []
    assert [row.rank for row in found.rows] == list(range(RANKS))
    # AND rank 1, whose batch is larger by half, is named as the one with the most
    peak = next(i for i in found.imbalance if i.name == "peak")
    activations = next(i for i in found.imbalance if i.name == "activation")
    assert peak.highest_rank == activations.highest_rank == 1
    assert activations.highest == 1.5 * activations.lowest
    assert f"{RANKS} of {RANKS} ranks" in invoke("report", out).output


@pytest.mark.parametrize("job", ["fsdp2"], indirect=True)
def test_ranks_start_warm_together(job: Job, tmp_path: Path) -> None:
    def shown(profiles: list[Profile]) -> dict[tuple[object, ...], tuple[object, ...]]:
        return {
            (rank, g.compile_id, g.kind): (g.description, g.buffers, g.statements)
            for rank, profile in enumerate(profiles)
            for g in profile.graphs
        }

    # GIVEN ranks that filled one empty cache at the same time
    cold = shown([read_profile(p) for p in job.paths])
    assert len(cold) == RANKS * 4
    # WHEN the job starts again
    torchrun("fsdp2", str(tmp_path / "{rank}.memprof"), job.cache)
    # THEN each graph of each rank is a hit, under the same names
    warm = [read_profile(tmp_path / f"{rank}.memprof") for rank in range(RANKS)]
    assert shown(warm) == cold
    for profile in warm:
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
