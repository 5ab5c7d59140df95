"""Says which functions of NVIDIA's an engine's packages want that the simulated device has not.

    serving_symbols.py VENV DEVICE

DEVICE is the simulated device's folder of libraries. As ``nm`` would, it reads what every extension
in the environment leaves undefined; one that wants what is missing fails as it is loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path

from memprof.simulated_cuda.elf import read_elf
from memprof.simulated_cuda.libraries import NVIDIAS


def main(venv: str, device: str) -> int:
    there = set().union(*(read_elf(path).functions for path in Path(device).glob("lib*.so*")))
    wanted: dict[str, set[str]] = {}
    for path in Path(venv).glob("lib/python*/site-packages/**/*.so*"):
        try:
            found = read_elf(path)
        except ValueError:  # of another machine
            continue
        there |= found.functions
        for name in found.wanted.keys() - found.weakly_wanted:
            if NVIDIAS.match(name):
                wanted.setdefault(name, set()).add(f"{path.parent.name}/{path.name}")
    missing = {name: files for name, files in wanted.items() if name not in there}
    for name, files in sorted(missing.items()):
        print(f"{name}: wanted by {', '.join(sorted(files))}")
    print(f"{len(wanted):,} functions of NVIDIA's are wanted, {len(missing):,} are missing")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
