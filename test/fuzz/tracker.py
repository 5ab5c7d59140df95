"""Fuzzes what a tracker reads when it starts in somebody's training: settings.

python -m fuzz.tracker --help          # with test/ on PYTHONPATH; or make fuzz-tracker

TOML files and environment variables. Reading them ends in settings that a tracker starts with, or
in one line that says what is wrong; so do `memprof config show` and `update`, and a file that was
changed can be read again.

Cases are tried in a child process that may take ``MEMORY`` beside what it has imported and
``CPU_S`` of CPU time for one case: the time is the process's own, so that a busy machine changes
nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from click.testing import CliRunner

from memprof.cli import main as command_line
from memprof.profiler._text import visible
from memprof.profiler.reading import LIMIT_VARIABLE
from memprof.profiler.tracker.settings import SettingsError, TrackerSettings, configured, toml_value
from memprof.profiler.tracker.tracker import MemoryTracker

from .hostile import NUMBERS, TEXTS
from .hostile_tracker import TOML, VARIABLES
from .mutations import corrupted

MEMORY = 384 << 20
"""Bytes that one case may take."""
CPU_S = 30
"""CPU seconds for one case; the slowest of the corpus takes 1."""
MAX_READ = "64MiB"
"""What readers may read and unpack meanwhile."""
_BATCH = 300


class Hang(Exception):
    """One case has taken ``CPU_S``."""


_NAMES = [*TrackerSettings.__dataclass_fields__, "intervall", "x", "\x1b[2J"]


def _toml(rng: random.Random) -> str:
    values: list[Callable[[], object]] = [
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice([True, False, 0.5, 5, 1e-9, float("nan"), float("inf")]),
        lambda: rng.choice(TEXTS),
    ]
    lines = []
    for _ in range(rng.randint(0, 6)):
        name, value = rng.choice(_NAMES), rng.choice(values)()
        key = rng.choice([name, json.dumps(name), f"{name}.{name}", f"'{name}'"])
        # As TOML writes it, or as Python or JSON does.
        text = rng.choice([toml_value, repr, lambda v: json.dumps(v, ensure_ascii=False)])(value)
        lines.append(
            rng.choice([f"{key} = {text}", f"{key} = [{text}]", f"{key} = {{a = {text}}}"])
        )
        if rng.random() < 0.2:
            lines.append(
                rng.choice(["[other]", "[[memprof]]", "[memprof.x]", "# comment", "", "]"])
            )
    return "\n".join([rng.choice(["[memprof]", "[ memprof ] # x", "memprof = {}", ""]), *lines, ""])


def settings_of(seed: int) -> tuple[bytes, dict[str, str]]:
    """The content of ``memprof.toml`` and the environment variables of a seed."""
    corpus: list[tuple[str | bytes, dict[str, str]]] = [
        *((text, {}) for text in TOML.values()),
        *(("", {name: value}) for name, value in VARIABLES.items()),
    ]
    if seed < len(corpus):
        text, variables = corpus[seed]
        return text.encode() if isinstance(text, str) else text, variables
    rng = random.Random(seed)
    data = _toml(rng).encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        data = corrupted(rng, data)
    variables = {}
    for _ in range(rng.choice([0, 0, 1, 2])):
        value = rng.choice(
            [str(rng.choice(NUMBERS)), rng.choice(TEXTS), "1e10", "nan", "on", " 5 "]
        )
        variables[f"MEMPROF_{rng.choice(_NAMES[:-1]).upper()}"] = value.replace("\0", "")
    return data, variables


def try_settings(seed: int) -> str:
    """Read the settings of a seed in every way; how that ended.

    Raises:
        AssertionError: something is not as it should be.
    """
    data, variables = settings_of(seed)
    before, environment = os.getcwd(), dict(os.environ)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "memprof.toml")
        path.write_bytes(data)
        os.chdir(name)
        os.environ.update(variables)
        try:
            ended = _settings_here(Path(name), random.Random(seed))
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)
        left = path.read_bytes()
        for command in (["show"], ["show", "--json"], ["update", "largest=3"], ["update", "x="]):
            os.chdir(name)
            try:
                done = CliRunner().invoke(command_line, ["config", *command])
                if command == ["update", "largest=3"] and done.exit_code == 0:
                    assert configured(environment={}).settings.largest == 3
            finally:
                os.chdir(before)
            assert done.exit_code in (0, 2), (command, done.exception, done.output)
            assert done.exit_code == 0 or done.output.count("\n") <= 4, done.output
            assert done.exit_code == 0 or path.read_bytes() == left or command[0] == "show"
            left = path.read_bytes()
    return ended


def _settings_here(folder: Path, rng: random.Random) -> str:
    try:
        found = configured()
    except SettingsError as e:
        if len(str(e)) > 1_000:
            raise AssertionError(f"{len(str(e))} characters for a mistake in a setting") from e
        return "SettingsError"
    s = found.settings
    assert 0.01 <= s.interval <= 1_000_000
    assert 0 <= s.operation_share <= 1
    assert 10 <= s.max_snapshots <= 100_000
    assert 0 <= s.max_operations <= 1_000_000
    assert 0 <= s.largest <= 10_000
    if rng.random() < 0.1:
        tracker = MemoryTracker(s)
        tracker.start()
        with tracker.track_operation("a"):
            tracker.checkpoint("b")
        assert tracker.started
        assert tracker._thread is not None
        assert tracker._thread.is_alive()
        tracker.stop()
        for path in folder.glob("memory_profile_*"):
            path.unlink()
        return "tracked"
    return "settings"


def child(first: int, count: int) -> None:
    """Try cases; prints a line before each, so that whoever waits knows where this died."""
    logging.disable(logging.CRITICAL)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, _hang)
    found: Counter[str] = Counter()
    most = 0.0
    for seed in range(first, first + count):
        print(f"seed {seed}", flush=True)
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        found[try_settings(seed)] += 1
        signal.setitimer(signal.ITIMER_PROF, 0)
        most = max(most, time.process_time() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"done {json.dumps([found, most, peak])}", flush=True)


def _hang(signum: int, frame: FrameType | None) -> None:
    raise Hang(f"{CPU_S} s of CPU time were not enough")


def main() -> None:
    """Try cases from a seed on, for so many seconds; ends with 1 at the first that fails."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="0: one batch")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.seed, options.child)
        return
    begin, seed = time.monotonic(), options.seed
    found: Counter[str] = Counter()
    slowest, highest = 0.0, 0
    while seed == options.seed or time.monotonic() - begin < options.seconds:
        counts, most, peak = _batch(seed, _BATCH)
        found.update(counts)
        slowest, highest = max(slowest, most), max(highest, peak)
        seed += _BATCH
        print(f"{seed - options.seed} cases, {time.monotonic() - begin:.0f} s", flush=True)
    said = ", ".join(f"{n:,} {visible(name)}" for name, n in found.most_common())
    print(
        f"{seed - options.seed:,} cases from seed {options.seed} ({said}): no hang, "
        f"nothing raised; at most {slowest:.1f} s of CPU time and {highest >> 20} MiB resident"
    )


def _batch(seed: int, count: int) -> tuple[dict[str, int], float, int]:
    command = [sys.executable, "-m", "fuzz.tracker", "--seed", str(seed), "--child", str(count)]
    environment = {**os.environ, LIMIT_VARIABLE: MAX_READ}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False, text=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines or not lines[-1].startswith("done "):
        at = next((x for x in reversed(lines) if x.startswith("seed ")), "no seed")
        again = f"make fuzz-tracker ARGS='--seconds 0 --{at}'"
        sys.exit(f"{at}: ended with {done.returncode}; again: {again}")
    counts, most, peak = json.loads(lines[-1].removeprefix("done "))
    return counts, most, peak


if __name__ == "__main__":
    main()
