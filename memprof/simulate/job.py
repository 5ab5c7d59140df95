"""The distributed job of which one rank, or a few, are simulated."""

from __future__ import annotations

from dataclasses import dataclass

RANKS_PER_HOST = 8
"""GPUs of the usual host, where nobody says how many."""


class BadJob(ValueError):
    """Ranks that no job has; the message says which there are."""


@dataclass(frozen=True, slots=True)
class Job:
    """The distributed job of which a rank is simulated.

    Attributes:
        world_size: ranks.
        rank: the simulated one.
        ranks_per_host: ranks on a host, with a device each.
    """

    world_size: int
    rank: int
    ranks_per_host: int

    @property
    def local_rank(self) -> int:
        """Number of the rank on its host."""
        return self.rank % self.ranks_per_host

    def environment(self) -> dict[str, str]:
        """What torchrun would have set."""
        hosts = -(-self.world_size // self.ranks_per_host)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_host),
            "GROUP_RANK": str(self.rank // self.ranks_per_host),
            "GROUP_WORLD_SIZE": str(hosts),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "memprof-simulate",
        }


def jobs_of(
    world_size: int | None, ranks: tuple[int, ...], ranks_per_host: int | None
) -> tuple[Job | None, ...]:
    """One job for each rank to simulate; None alone for a process without a job.

    Args:
        world_size: ranks of the job, None for no job.
        ranks: to simulate; rank 0 if there are none.
        ranks_per_host: None for 8, or as many as there are.

    Raises:
        BadJob: there is no such rank, or ranks without a job.
    """
    if world_size is None:
        if ranks or ranks_per_host is not None:
            raise BadJob("ranks belong to a job: say of how many with --world-size")
        return (None,)
    if world_size < 1:
        raise BadJob(f"a job of {world_size} ranks: it is at least 1")
    per_host = min(world_size, RANKS_PER_HOST) if ranks_per_host is None else ranks_per_host
    if not 1 <= per_host <= world_size:
        raise BadJob(f"{per_host} ranks on a host, of {world_size}: it is 1 to {world_size}")
    for rank in ranks:
        if not 0 <= rank < world_size:
            raise BadJob(f"there is no rank {rank} in a job of {world_size}: 0 to {world_size - 1}")
    return tuple(Job(world_size, rank, per_host) for rank in dict.fromkeys(ranks or (0,)))
