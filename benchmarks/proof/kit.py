"""Makes the folder that is carried to a GPU: ``python benchmarks/proof/kit.py FOLDER``.

It holds memprof's wheel, the wheels that a bare Python with torch lacks, the scripts and tests in
the places that they have here, and what ``memprof simulate`` says of the training scripts
beforehand. It runs where the simulated device does, and where there is a network.
"""

from __future__ import annotations

import email
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from proof.scripts import SCRIPT, SCRIPTS, SIMULATED, STEPS  # noqa: E402

CARDS = ("h100-80gb", "h200-141gb")
"""GPUs that are simulated beforehand."""
PYTHON = "3.12"
"""What the wheels with compiled code are for."""
SOURCES = (
    *("memprof", "compile_backend", "compiled_autograd", "cudagraph_trees", "profiler", "what_if"),
    *("simulated_cuda", "pyproject.toml", "README.md", "LICENSE"),
)
CARRIED = (
    *("benchmarks/proof", "benchmarks/shared.py", "benchmarks/memory_models.py"),
    "benchmarks/train_models.py",
    *("examples/gpt", "test", "pyproject.toml"),
)
LARGE, MOST = 4 << 20, 20 << 20
"""Bytes of a wheel that is compressed again, and of a whole kit."""


def requirements(metadata: str, python: str = PYTHON) -> list[str]:
    """What a wheel's METADATA and its extra ``proof`` require, but for torch, without markers."""
    texts = email.message_from_string(metadata).get_all("Requires-Dist", [])
    places = [{"python_version": python, "extra": extra} for extra in ("", "proof")]
    return [
        f"{wanted.name}{wanted.specifier}"
        for wanted in map(Requirement, texts)
        if wanted.name != "torch"
        and (wanted.marker is None or any(map(wanted.marker.evaluate, places)))
    ]


def copy(names: tuple[str, ...], to: Path) -> None:
    """Copy files and folders of this repository, links as links."""
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, to / name)


def run(*command: str) -> str:
    """What a Python module says, run without the simulated device of this process, and with nothing
    in Inductor's cache, since what it benchmarks to choose kernels takes memory."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SIMGPU_", "LD_PRELOAD"))}
    line = [sys.executable, "-m", *command]
    with tempfile.TemporaryDirectory() as empty:
        of_its_own = {**kept, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": empty}
        done = subprocess.run(line, env=of_its_own, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def collect_wheels(folder: Path) -> None:
    """Memprof's wheel, of the working tree as it is, and those of what it requires."""
    with tempfile.TemporaryDirectory() as temporary:
        tree, downloads = Path(temporary) / "tree", Path(temporary) / "wheels"
        copy(SOURCES, tree)
        run("pip", "-q", "wheel", "--no-deps", "-w", str(folder), str(tree))
        (own,) = folder.glob("torch_memprof-*.whl")
        with zipfile.ZipFile(own) as wheel:
            (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
            wanted = requirements(wheel.read(name).decode())
        platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in (28, 27, 24, 17, 12, 5)]
        for_them = ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
        pins = ["-c", str(ROOT / "constraints.txt"), "-d", str(downloads)]
        run("pip", "-q", "download", *for_them, *platforms, *pins, *wanted)
        for path in downloads.iterdir():
            how = zipfile.ZIP_LZMA if path.stat().st_size > LARGE else zipfile.ZIP_DEFLATED
            with zipfile.ZipFile(path) as old, zipfile.ZipFile(folder / path.name, "w") as new:
                for item in old.infolist():
                    new.writestr(item, old.read(item), how)


def simulate(card: str, name: str) -> dict[str, int]:
    """Peaks in bytes that a training script has on a simulated card."""
    options = ("--json", "-q", "--to-the-end", "--gpu", card)
    script = (str(SCRIPT), *SCRIPTS[name].split(), *STEPS)
    (rank,) = json.loads(run("memprof", "simulate", *options, "--", "python", *script))["ranks"]
    return {peak: rank["counters"][peak] for peak in ("reserved", "allocated")}


def main() -> None:
    kit = Path(sys.argv[1])
    (kit / "wheels").mkdir(parents=True)
    copy(CARRIED, kit)
    collect_wheels(kit / "wheels")
    runs = list(itertools.product(CARDS, SCRIPTS))
    with ThreadPoolExecutor(2) as pool:
        peaks = dict(zip(runs, pool.map(lambda of: simulate(*of), runs), strict=True))
    cards = {card: {name: peaks[card, name] for name in SCRIPTS} for card in CARDS}
    (kit / SIMULATED.name).write_text(json.dumps({"cards": cards}, indent=1) + "\n")
    size = sum(p.stat().st_size for p in kit.rglob("*") if p.is_file())
    if size > MOST:
        sys.exit(f"the kit has {size:,} bytes, more than {MOST:,}")
    # Last: without it there is no kit.
    shutil.move(kit / "benchmarks" / "proof" / "run.sh", kit)
    print(f"{kit}: {size / 2**20:.1f} MiB. On a machine with a GPU: bash {kit.name}/run.sh OUT")


if __name__ == "__main__":
    main()
