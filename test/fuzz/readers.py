"""Fuzzes whatever reads profiles, of one process and several, and snapshots of torch's allocator.

python -m fuzz.readers --help          # with test/ on PYTHONPATH; or make fuzz-readers

A file is made of a profile that has everything, by changes that know its structure or its bytes,
written down, read and shown in every way that memprof has. That may end in an error of the
documented type or in views; what reaches a terminal holds nothing that it would obey, and what a
file keeps of the profile reads the same. Files are tried in a child process that may not take more
than ``MEMORY`` beside what it has imported, nor ``CPU_S`` of CPU time for one file: the time is the
process's own, so that a busy machine changes nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from framing import Record, encoded, framed, packed, records_of

from memprof.profiler._json import to_json
from memprof.profiler.encoding import ProfileEncoder
from memprof.profiler.file import encode_profile
from memprof.profiler.model import CallColumns, Profile
from memprof.profiler.reading import LIMIT_VARIABLE

from .documents import everything
from .hostile import CORPUS
from .hostile_snapshots import mutated_snapshot, rewired, snapshot
from .hostile_tracker import grown
from .mutations import corrupted, mutated, mutated_file
from .views import read_and_name, read_and_show

MEMORY = 1 << 30
"""Bytes that reading and showing one file may take; files have at most some megabytes."""
CPU_S = 60
"""CPU seconds for one file: a hundred times what the slowest one of the corpus takes."""
MAX_READ = "64MiB"
"""What may be read and unpacked meanwhile."""

_BATCH = 200


class Hang(Exception):
    """One file has taken ``CPU_S``."""


def _files() -> list[list[Record]]:
    """Frames of files: one written at once, one that grew, one of two ranks, one of a tracker."""
    profile, encoder = everything(), ProfileEncoder()
    calls = profile.calls
    parts = []
    for i in range(0, len(calls), 3):
        part = slice(i, i + 3)
        columns = CallColumns(
            *(c[part] for c in (calls.graph, calls.program, calls.start_ns, calls.end_ns)),
            calls.thread[part],
        )
        last = i + 3 >= len(calls)
        now = profile if last else Profile(graphs=profile.graphs[: 1 + i // 3])
        parts.append(encoder.chunk(now, columns, end=last))
    ranks = b"".join(encode_profile(everything(r, 2)) for r in range(2))
    files = (encode_profile(everything()), b"".join(parts), ranks, grown())
    return [records_of(data) for data in files]


class Maker:
    """Makes files, each from a number.

    Args:
        snapshots_alone: no profiles.
    """

    def __init__(self, snapshots_alone: bool) -> None:
        self.snapshots_alone = snapshots_alone
        profile = everything()
        self.document = json.loads(to_json(profile))
        self.files = _files()
        self.snapshot = pickle.dumps(snapshot(), 4)
        self.corpus = list(CORPUS.values())  # Some take seconds to make: only what is asked for.

    def file(self, seed: int) -> bytes:
        """The file of a seed."""
        if seed < len(self.corpus):
            return self.corpus[seed]()
        rng = random.Random(seed)
        snapshots: list[tuple[int, Callable[[random.Random], bytes]]] = [
            (4, lambda r: mutated_snapshot(r, mutated)),
            (2, lambda r: corrupted(r, self.snapshot)),
            (4, rewired),
        ]
        kinds = [
            (8, lambda r: _framed(mutated(r, self.document))),
            (8, lambda r: mutated_file(r, r.choice(self.files))),
            (2, lambda r: corrupted(r, packed(r.choice(self.files)))),
            (1, lambda r: corrupted(r, r.choice(self.corpus)()[:200_000])),
            *snapshots,
        ]
        if self.snapshots_alone:
            kinds = snapshots
        weights, makers = zip(*kinds, strict=True)
        return rng.choices(makers, weights)[0](rng)


def _framed(document: Any) -> bytes:
    """A document as a file, or as what it has become where it has no parts any more."""
    try:
        return framed(document)
    except (TypeError, LookupError, AttributeError):
        return encoded(document)


def child(first: int, count: int, snapshots_alone: bool) -> None:
    """Try files; prints a line before each, so that whoever waits knows where this died."""
    try_one = read_and_name if snapshots_alone else read_and_show
    logging.disable(logging.CRITICAL)
    os.fsync = _no_disk
    maker = Maker(snapshots_alone)
    resident = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (resident + MEMORY, resident + MEMORY))
    signal.signal(signal.SIGPROF, _hang)
    found: Counter[str] = Counter()
    most = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        for seed in range(first, first + count):
            print(f"seed {seed}", flush=True)
            path.write_bytes(maker.file(seed))
            begin = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            ended = try_one(path)
            signal.setitimer(signal.ITIMER_PROF, 0)
            most = max(most, time.process_time() - begin)
            found[ended or "shown"] += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"done {json.dumps([found, most, peak])}", flush=True)


def _no_disk(fd: int) -> None:
    """Instead of waiting for a disk, which is no part of what is tried."""


def _hang(signum: int, frame: FrameType | None) -> None:
    raise Hang(f"{CPU_S} s of CPU time were not enough")


def main() -> None:
    """Try files from a seed on, for so many seconds; ends with 1 at the first that fails."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="0: the corpus alone")
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument(
        "--snapshots", action="store_true", help="snapshots alone, in the views that only they have"
    )
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.seed, options.child, options.snapshots)
        return
    begin, seed = time.monotonic(), options.seed
    found: Counter[str] = Counter()
    slowest, highest = 0.0, 0
    while seed == options.seed or time.monotonic() - begin < options.seconds:
        count = len(CORPUS) if seed < len(CORPUS) else _BATCH * (10 if options.snapshots else 1)
        counts, most, peak = _batch(seed, count, options.snapshots)
        found.update(counts)
        slowest, highest = max(slowest, most), max(highest, peak)
        seed += count
        print(f"{seed - options.seed} files, {time.monotonic() - begin:.0f} s", flush=True)
    said = ", ".join(f"{n:,} {name}" for name, n in found.most_common())
    print(
        f"{seed - options.seed:,} files from seed {options.seed} ({said}): no hang, no other "
        f"error, no control character; at most {slowest:.1f} s of CPU time and "
        f"{highest >> 20} MiB resident"
    )


def _batch(seed: int, count: int, snapshots: bool) -> tuple[dict[str, int], float, int]:
    command = [sys.executable, "-m", "fuzz.readers", "--seed", str(seed), "--child", str(count)]
    command += ["--snapshots"] * snapshots
    environment = {**os.environ, LIMIT_VARIABLE: MAX_READ}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False, text=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines or not lines[-1].startswith("done "):
        at = next((x for x in reversed(lines) if x.startswith("seed ")), "no seed")
        alone = " --snapshots" * snapshots
        again = f"make fuzz-readers ARGS='--seconds 0{alone} --{at}'"
        sys.exit(f"{at}: ended with {done.returncode}; again: {again}")
    counts, most, peak = json.loads(lines[-1].removeprefix("done "))
    return counts, most, peak


if __name__ == "__main__":
    try:
        main()
    except Hang:
        traceback.print_exc()
        sys.exit(1)
