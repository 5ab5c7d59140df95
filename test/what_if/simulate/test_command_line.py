"""What stands after ``memprof simulate … --``, and ranks of a job."""

from __future__ import annotations

import sys

import pytest

from memprof.what_if.simulate.command_line import BadInput, Command, Ranks, jobs_of, parse


@pytest.mark.parametrize(
    ("words", "options", "program"),
    [
        ("python train.py --a -b 1", (), ("train.py", "--a", "-b", "1")),
        ("python3.11 -u -X dev train.py", ("-u", "-X", "dev"), ("train.py",)),
        ("python -m pkg.train --lr 1", (), ("-m", "pkg.train", "--lr", "1")),
        ("python -W ignore -m pkg", ("-W", "ignore"), ("-m", "pkg")),
        ("train.py -m x", (), ("train.py", "-m", "x")),
        ("-m pkg", (), ("-m", "pkg")),
    ],
)
def test_parses(words: str, options: tuple[str, ...], program: tuple[str, ...]) -> None:
    assert parse(tuple(words.split())) == Command(sys.executable, options, program)


def test_a_path_names_another_python() -> None:
    assert parse(("/opt/env/bin/python", "a.py")).interpreter == "/opt/env/bin/python"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "there is no script"),
        ("python", "has no script"),
        ("python -m", "has no script"),
        ("python -c print()", "put it into a file"),
        ("torchrun --nproc-per-node 8 train.py", "--world-size"),
        ("python -m torch.distributed.run train.py", "--world-size"),
        ("accelerate launch train.py", "--world-size"),
        ("python -m accelerate.commands.launch train.py", "--world-size"),
        ("bash train.sh", "is a program"),
        ("--gpus h100 train.py", "is no script"),
    ],
)
def test_refuses_and_says_what_to_write(words: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse(tuple(words.split()))


def test_environment_of_a_rank() -> None:
    (job,) = jobs_of(128, (11,), None)
    assert job is not None
    environment = job.environment()
    assert {k: environment[k] for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE")} == {
        "RANK": "11",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "128",
    }
    assert (environment["LOCAL_WORLD_SIZE"], environment["GROUP_WORLD_SIZE"]) == ("8", "16")
    assert environment["GROUP_RANK"] == "1"


def test_jobs() -> None:
    assert jobs_of(None, (), None) == (None,)
    ranks = [(j.rank, j.ranks_per_host) for j in jobs_of(4, (3, 0, 3), None) if j is not None]
    assert ranks == [(3, 4), (0, 4)]
    assert [j.rank for j in jobs_of(3, "all", None) if j is not None] == [0, 1, 2]


@pytest.mark.parametrize(
    ("size", "ranks", "per_host", "says"),
    [
        (None, (1,), None, "--world-size"),
        (None, "all", None, "--world-size"),
        (None, (), 4, "--world-size"),
        (0, (), None, "at least 1"),
        (8, (8,), None, "0 to 7"),
        (8, (-1,), None, "0 to 7"),
        (8, (), 16, "1 to 8"),
    ],
)
def test_refuses_jobs(size: int | None, ranks: Ranks, per_host: int | None, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        jobs_of(size, ranks, per_host)
