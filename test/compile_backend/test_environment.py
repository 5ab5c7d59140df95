"""Which process of a job this one is, by what launchers set before any process group exists."""

from __future__ import annotations

import pytest
import torch

from memprof.compile_backend.session.environment import process

JOBS = {
    "torchrun": {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
    "srun": {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
    "srun, part of an allocation": {
        "SLURM_PROCID": "5",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_NTASKS": "64",
        "SLURM_LOCALID": "1",
    },
    "mpirun, Open MPI": {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "PMIX_RANK": "5",
    },
    "mpirun, Intel MPI": {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"},
    "mpirun_rsh, MVAPICH2": {
        "MV2_COMM_WORLD_RANK": "5",
        "MV2_COMM_WORLD_SIZE": "8",
        "MV2_COMM_WORLD_LOCAL_RANK": "1",
    },
    "mpiexec, PALS": {"PALS_RANKID": "5", "PMI_SIZE": "8", "PALS_LOCAL_RANKID": "1"},
    "srun --mpi=pmix": {"PMIX_RANK": "5", "SLURM_NTASKS": "8", "PMIX_LOCAL_RANK": "1"},
    "jsrun": {
        "JSM_NAMESPACE_RANK": "5",
        "JSM_NAMESPACE_SIZE": "8",
        "JSM_NAMESPACE_LOCAL_RANK": "1",
    },
    "flux": {"FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "8", "FLUX_TASK_LOCAL_ID": "1"},
    "torchrun by srun, a task a node": {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
    },
    "mpirun in a batch script of Slurm's": {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
    },
}


@pytest.mark.parametrize("launcher", JOBS)
def test_each_launcher_says_which_rank_it_is(launcher: str) -> None:
    found = process(JOBS[launcher])
    assert (found.rank, found.world_size, found.local_rank) == (5, 8, 1)


@pytest.mark.parametrize(
    ("environment", "rank", "world"),
    [
        ({}, 0, 1),
        ({"PMIX_RANK": "3"}, 3, 4),  # no size: the rank is what names files
        ({"RANK": "3"}, 3, 4),
        ({"RANK": "5", "WORLD_SIZE": "2"}, 5, 6),
        ({"RANK": "x", "SLURM_PROCID": "2", "SLURM_NTASKS": "3"}, 2, 3),
        ({"RANK": "9" * 400, "WORLD_SIZE": "-1"}, 0, 1),
        ({"RANK": "\u0663"}, 0, 1),
        ({"WORLD_SIZE": "4"}, 0, 4),
    ],
)
def test_what_is_missing_or_strange(environment: dict[str, str], rank: int, world: int) -> None:
    found = process(environment)
    assert (found.rank, found.world_size) == (rank, world)
    assert 0 <= found.local_rank < found.world_size


@pytest.mark.parametrize(
    ("group", "wanted"), [((6, 8), (6, 8)), ((0, 1), (5, 8)), ((7, 16), (7, 16))]
)
def test_a_process_group_counts_where_it_is_the_larger(
    group: tuple[int, int], wanted: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a process group; one of a single process is in every process of many a job
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: group[0])
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: group[1])
    found = process(JOBS["srun"])
    assert (found.rank, found.world_size) == wanted
