"""Which process of a job a profile is of."""

from __future__ import annotations

from dataclasses import dataclass

from .limits import Count, Int, Positive


@dataclass(frozen=True, slots=True)
class Process:
    """A process and its place in a distributed job; alone it is rank 0 of 1.

    Attributes:
        rank: in the job, from 0.
        local_rank: on its host, from 0.
        world_size: number of processes of the job.
        host: name of the machine, "" if unknown.
        pid: process identifier.
    """

    rank: Count = 0
    local_rank: Count = 0
    world_size: Positive = 1
    host: str = ""
    pid: Int = 0
