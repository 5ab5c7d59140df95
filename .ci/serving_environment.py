"""Makes an environment with a serving engine on the simulated device's torch.

    serving_environment.py ENGINE TORCH SIMGPU_VENV VENV

The engine's packages come from its metadata, without torch, NVIDIA's libraries, and packages of
kernels for GPUs that are imported where somebody asks for them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = {
    ("vllm", "2.11.0"): "0.26.0",
    ("vllm", "2.13.0"): "0.32.0",
    ("vllm", "2.14.0"): "0.33.0",
    ("sglang", "2.11.0"): "0.5.17",
    ("sglang", "2.13.0"): "0.5.21",
    ("sglang", "2.14.1"): "0.5.23",
}
"""The last version of each engine that pins a version of torch."""

LEFT_OUT = re.compile(
    r"nvidia-(?!ml-py|cudnn-frontend|cutlass-dsl).*|torch|torchaudio|triton|cuda-toolkit|numpy|setuptools|z3-solver"
    r"|tilelang|tokenspeed-.*|quack-kernels|flash-attn-.*|sgl-deep-gemm|flashinfer-(cubin|jit-cache)"
)
OF_SGLANG = re.compile(r"flashinfer-python|cuda-.*|nvidia-cutlass-dsl.*")
"""Packages that SGLang imports whatever it is asked for, and vLLM only to use them."""


def run(python: Path, *arguments: str) -> str:
    """Standard output of a Python; its errors are shown, and end this program."""
    done = subprocess.run([python, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def requirements(python: Path, engine: str, version: str) -> list[str]:
    """What the engine needs, pinned."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        look = ("--dry-run", "--ignore-installed", "--report", str(report))
        run(python, "-m", "pip", "install", "-q", *look, f"{engine}=={version}")
        found = json.loads(report.read_text())["install"]
    pinned = []
    for package in found:
        name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
        unused = engine != "sglang" and OF_SGLANG.fullmatch(name)
        if not (LEFT_OUT.fullmatch(name) or unused):
            pinned.append(f"{name}=={package['metadata']['version']}")
    return sorted(pinned)


def main(engine: str, torch: str, below: str, venv: str) -> None:
    version = VERSIONS.get((engine, torch))
    if version is None:
        known = ", ".join(f"ENGINE={e} TORCH={t}" for e, t in VERSIONS)
        sys.exit(f"no version of {engine} is known that pins torch {torch}; there are {known}")
    base = Path(below, "bin", "python").resolve()
    run(base, "-m", "venv", venv)
    python, site = (
        Path(venv, "bin", "python"),
        "import sysconfig; print(sysconfig.get_path('purelib'))",
    )
    # A .pth file of a folder that another one names is not read, so both are named here.
    shared = Path(run(Path(below, "bin", "python"), "-c", site), "simgpu.pth").read_text()
    paths = [run(Path(below, "bin", "python"), "-c", site), shared.strip()]
    Path(run(python, "-c", site), "simgpu.pth").write_text("\n".join(paths) + "\n")
    run(python, "-m", "pip", "install", "-q", "--no-deps", "-e", ".")
    wanted = Path(venv, "requirements.txt")
    wanted.write_text("\n".join(requirements(python, engine, version)) + "\n")
    run(python, "-m", "pip", "install", "-q", "--no-deps", "-r", str(wanted))


if __name__ == "__main__":
    main(*sys.argv[1:])
