"""The torch that an interpreter has, found without importing it.

A CUDA build of torch cannot be imported where its CUDA libraries are missing, which is just where
the simulated device is wanted: everything is read from files.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import SimulationError

_SUGGESTED = "2.11.0"
_PYPI = "--index-url https://pypi.org/simple"
_FIND = (
    "import importlib.util as u, json; s = u.find_spec('torch');print(json.dumps(s and s.origin))"
)

# The version of Triton that torch.compile needs is in torch's metadata.
_TRITON = (
    'import importlib.metadata as m; print(next(r.split(";")[0].strip() '
    'for r in m.requires("torch") if r.startswith("triton")))'
)


@dataclass(frozen=True)
class TorchBuild:
    """A CUDA 13 build of torch."""

    root: Path
    """The folder of the package ``torch``."""
    version: str
    """``torch.__version__``: ``2.11.0+cu130``."""
    cuda: str
    """``torch.version.cuda``: ``13.0``."""

    @property
    def lib(self) -> Path:
        """The folder of torch's shared libraries."""
        return self.root / "lib"

    @property
    def libraries(self) -> list[Path]:
        """torch's shared libraries, sorted."""
        return sorted(self.lib.glob("lib*.so"))

    @property
    def triton_header(self) -> Path | None:
        """The driver's declarations that Triton compiles its launchers with, if it is there."""
        header = self.root.parent / "triton" / "backends" / "nvidia" / "include" / "cuda.h"
        return header if header.is_file() else None

    @property
    def requirements(self) -> str:
        """The packages that its wheel names, one a line; empty where it came by another way."""
        files = self.root.parent.glob("torch-*.dist-info/METADATA")
        text = "\n".join(path.read_text(errors="replace") for path in files)
        return "\n".join(re.findall(r"^Requires-Dist: (.*)$", text, re.M))

    @property
    def has_nvrtc(self) -> bool:
        """Tells whether NVIDIA's run-time compiler is installed beside torch; it needs no GPU."""
        return any(self.root.parent.glob("nvidia/*/lib/libnvrtc.so*"))


def find_torch(interpreter: str | None = None) -> TorchBuild:
    """The torch of this interpreter, or of another one given by its path.

    Raises SimulationError, whose message says what to install.
    """
    system, machine = platform.system(), platform.machine()
    if (system, machine) not in {("Linux", "x86_64"), ("Linux", "AMD64")}:
        raise SimulationError(
            f"the simulated device runs on Linux on x86-64, and this is {system} on {machine}: "
            "use a Linux machine, a container or WSL"
        )
    if interpreter is None or Path(interpreter) == Path(sys.executable):
        spec = importlib.util.find_spec("torch")
        origin = spec.origin if spec else None
        name = sys.executable
    else:
        origin, name = _origin_elsewhere(interpreter), interpreter
    if origin is None:
        raise SimulationError(f"{name} has no torch: {_how_to_install(_SUGGESTED)}")
    return read_torch(Path(origin).parent)


def _origin_elsewhere(interpreter: str) -> str | None:
    try:
        ran = subprocess.run(
            [interpreter, "-c", _FIND], capture_output=True, text=True, check=True, timeout=60
        )
        origin = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        output = getattr(e, "stderr", None) or str(e)
        raise SimulationError(f"{interpreter} cannot be asked for its torch: {output}") from e
    return origin if isinstance(origin, str) else None


def read_torch(root: Path) -> TorchBuild:
    """The torch in a folder ``torch`` of some site-packages.

    Raises SimulationError where there is none, or one without CUDA 13.
    """
    try:
        text = (root / "version.py").read_text()
    except OSError as e:
        raise SimulationError(f"there is no installed torch at {root}: {e}") from e
    # Lines such as ``cuda: Optional[str] = '13.0'``; what is None is left out.
    versions = dict(re.findall(r"""^(\w+)(?:: [^=]+)? = ['"]([^'"]*)['"]""", text, re.M))
    version, cuda = versions.get("__version__"), versions.get("cuda")
    if version is None:
        raise SimulationError(f"{root / 'version.py'} does not say which torch this is")
    public = version.partition("+")[0]
    kind = "a ROCm" if versions.get("hip") else "an XPU" if versions.get("xpu") else "a CPU"
    if cuda is None:
        raise SimulationError(
            f"torch {version} at {root} is {kind} build, and the simulated device needs the CUDA "
            f"build: {_how_to_install(public)}"
        )
    if cuda.partition(".")[0] != "13":
        raise SimulationError(
            f"torch {version} at {root} is built for CUDA {cuda}, and the simulated device speaks "
            "CUDA 13: device properties and versioned calls have another layout before. "
            f"torch 2.11 and newer from PyPI will do: {_how_to_install(_SUGGESTED)}"
        )
    found = TorchBuild(root=root, version=version, cuda=cuda)
    if not (found.lib / "libtorch_cuda.so").is_file():
        raise SimulationError(
            f"torch {version} at {root} is built for CUDA {cuda} and has no libtorch_cuda.so: "
            f"the installation is not complete; {_how_to_install(public)}"
        )
    return found


def _how_to_install(version: str) -> str:
    root = Path(__file__).resolve().parent.parent
    memprof = shlex.quote(str(root)) if (root / "pyproject.toml").exists() else "torch-memprof"
    return "\n    ".join(
        [
            "on Linux, PyPI's wheel is the CUDA build. In a new virtual environment:",
            f"pip install {_PYPI} torch=={version} {memprof}",
            "or, without gigabytes of NVIDIA's libraries, which the simulation does not use (such",
            "a torch works under memprof simulate alone):",
            f"pip install {_PYPI} --no-deps torch=={version} {memprof}",
            "pip install filelock fsspec jinja2 networkx numpy setuptools sympy typing_extensions",
            "pip install click msgspec rich",
            f"pip install --no-deps \"$(python -c '{_TRITON}')\"",
        ]
    )
