"""Libraries that stand in for NVIDIA's, and the functions that each must have.

A library has the functions that somebody may ask it for: those that torch's libraries were linked
against, those whose names they look up at run time, the driver's that Triton's header declares, the
public ones in ``functions.txt``, to which extensions of other packages (vLLM's, SGLang's) link, and
whatever is written by hand. Where there is no code for one, it is a stub (see `stubs`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from .elf import read_elf, read_only_data
from .errors import SimulationError
from .torch_build import TorchBuild

CORE = "libsimgpu.so"
"""The simulated device itself, which all other libraries use."""
_FUNCTIONS = Path(__file__).resolve().parent / "functions.txt"
PROGRAM = "nvidia-smi"
"""Program beside the libraries, which scripts run to see what device there is."""


@dataclass(frozen=True)
class NvidiaLibrary:
    """A library of NVIDIA's, by the middle of its name."""

    stem: str
    names: str
    """A pattern of the functions that are its own."""
    refused: int
    """The library's status code for "not supported"."""


KINDS = (
    NvidiaLibrary("cudart", r"cuda[A-Z]|__cuda", 801),
    NvidiaLibrary("cublas", r"cublas(?!Lt)", 0),  # A computation is a kernel that computes nothing.
    NvidiaLibrary("cublasLt", r"cublasLt", 15),
    NvidiaLibrary("cudnn", r"cudnn", 3000),
    NvidiaLibrary("cufft", r"cufft", 5),
    NvidiaLibrary("curand", r"curand", 102),
    NvidiaLibrary("cusparse", r"cusparse(?!Lt)", 10),
    NvidiaLibrary("cusparseLt", r"cusparseLt", 10),
    NvidiaLibrary("cusolver", r"cusolver", 9),
    NvidiaLibrary("nccl", r"p?nccl", 5),
    NvidiaLibrary("cufile", r"cuFile", 5001),
    NvidiaLibrary("cupti", r"cupti", 15),
    NvidiaLibrary("nvshmem_host", r"nvshmem", 7),
    NvidiaLibrary("nvrtc", r"nvrtc", 5),
)
_DRIVER = NvidiaLibrary("cuda", r"cu[A-Z](?<!cuF)|cuF(?!ile)", 801)
_NVML = NvidiaLibrary("nvidia-ml", r"nvml", 3)
NVIDIAS = re.compile("|".join(kind.names for kind in (*KINDS, _DRIVER, _NVML)))
"""Names of functions of all these libraries, by their beginning."""

# Functions that return no code: as a pointer, one would be read and crash the caller.
_RETURNS_TEXT = re.compile(r"(Error|Status|Result)(String|Name)$|GetLastError(String)?$")
_RETURNS_POINTER = re.compile(r"nvshmem\w*(alloc|align|_ptr)$")


@dataclass(frozen=True)
class HandWritten:
    """A file written by hand, and how it is compiled for one library."""

    path: Path
    defines: tuple[str, ...] = ()


@dataclass
class Library:
    """One shared library that is to be built."""

    soname: str
    kind: NvidiaLibrary
    version: str | None = None
    """The symbol version that torch's libraries ask for."""
    functions: set[str] = field(default_factory=set)
    """Functions that it has at least, by hand or as a stub."""

    @property
    def stem(self) -> str:
        """The middle of its name: ``cudart``."""
        return self.kind.stem


def libraries_for(torch: TorchBuild) -> list[Library]:
    """The libraries that a torch needs, with the functions that are asked of each.

    Raises SimulationError where torch wants a library or a function of NVIDIA's that is not known
    here, which a newer torch may do.
    """
    wanted: dict[str, str | None] = {}
    optional: set[str] = set()
    needed: set[str] = set()
    own: set[str] = set()
    for path in torch.libraries:
        elf = read_elf(path)
        wanted.update({n: v for n, v in elf.wanted.items() if not n.startswith("_Z")})
        optional |= elf.weakly_wanted
        needed |= set(elf.needed)
        own |= elf.functions
    public = public_functions()
    libraries = [
        Library(soname, kind)
        for kind in KINDS
        for soname in sorted(needed)
        if soname.startswith(f"lib{kind.stem}.so")
    ]
    libraries += [Library("libcuda.so.1", _DRIVER), Library("libnvidia-ml.so.1", _NVML)]
    unknown = {n for n in needed if re.match(r"lib(cu|nv|nccl)", n)} - {x.soname for x in libraries}
    for library in libraries:
        names = re.compile(library.kind.names)
        library.functions = {n for n in (wanted.keys() | public) - own if names.match(n)}
        versions = {wanted.get(n) for n in library.functions} - {None}
        if len(versions) > 1:
            raise SimulationError(f"torch asks {library.soname} for several versions: {versions}")
        library.version = versions.pop() if versions else None
    driver, nvml = libraries[-2:]
    looked_up = _looked_up(torch)
    driver.functions |= {n for n in looked_up if re.match(_DRIVER.names, n)} | _declared(torch)
    nvml.functions |= {n for n in looked_up if re.match(_NVML.names, n)}
    covered = set().union(*(library.functions for library in libraries))
    missing = {n for n in wanted if NVIDIAS.match(n)} - covered - optional - own
    if unknown or missing:
        raise SimulationError(
            f"torch {torch.version} wants what the simulated device does not know: "
            f"{', '.join(sorted(unknown | missing))}. memprof is tested with torch 2.11 to "
            "2.15; a newer memprof may know it"
        )
    return libraries


def public_functions() -> frozenset[str]:
    """Names of functions that NVIDIA's libraries have, whether or not torch asks for them."""
    lines = _FUNCTIONS.read_text().splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def _looked_up(torch: TorchBuild) -> set[str]:
    """Names of functions that torch's libraries look up at run time."""
    found: set[str] = set()
    for name in ("libc10_cuda.so", "libtorch_cuda.so"):
        constants = read_only_data(torch.lib / name)
        found |= {
            match.decode()
            for match in re.findall(rb"(?<=\0)(?:cu[A-Z]|nvml[A-Z])\w{2,60}(?=\0)", constants)
        }
    return found


def _declared(torch: TorchBuild) -> set[str]:
    """The driver's functions, with those names of theirs that say a version."""
    if torch.triton_header is None:
        return set()
    text = torch.triton_header.read_text(errors="replace")
    declared = set(re.findall(r"\bCUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    renamed = re.findall(r"^\s*#\s*define\s+(cu[A-Z]\w*)\s+(?:\w+\()?(cu[A-Z]\w*)", text, re.M)
    return declared | {new for old, new in renamed if old in declared}


def sources_of(stem: str, sources: Path, torch: TorchBuild) -> list[HandWritten]:
    """The code written by hand for a library: ``STEM.cpp`` with all ``STEM_*.cpp``."""
    main = sources / f"{stem}.cpp"
    if not main.is_file():
        return []
    defines = _cudnn_version(torch) if stem == "cudnn" else ()
    files = [main, *sorted(sources.glob(f"{stem}_*.cpp"))]
    return [HandWritten(path, defines) for path in files]


def _cudnn_version(torch: TorchBuild) -> tuple[str, ...]:
    """The version that torch was built for, as cudnnGetVersion gives it: 9.19.0 is 91900.

    torch compares it with the one it finds, and asks it before it tries attention.
    """
    found = re.search(r"^nvidia-cudnn-cu\d+==(\d+)\.(\d+)\.(\d+)", torch.requirements, re.M)
    if found is None:
        return ()
    major, minor, patch = map(int, found.groups())
    return (f"-DCUDNN_VERSION={major * 10_000 + minor * 100 + patch}",)


def stubs(library: Library) -> str:
    """Assembly of a weak function for each of a library's, which code written by hand replaces.

    A stub says once on standard error that its function is not simulated, and returns the library's
    code for that. One that would return a text returns a text, and one that would return memory
    returns none.
    """
    lines = [".text"]
    for name in sorted(library.functions):
        lines += [f".weak {name}", f".type {name},@function", f"{name}:"]
        text = f".Lname_{name}(%rip)"
        if library.stem == "cublas" and not _RETURNS_TEXT.search(name):
            lines += ["movq %rdi, %rsi", f"leaq {text}, %rdi", "jmp simgpu_blas@PLT"]
        elif _RETURNS_TEXT.search(name) or _RETURNS_POINTER.search(name):
            result = f"leaq .Lsaid_{name}(%rip), %rax"
            if _RETURNS_POINTER.search(name):
                result = "xorl %eax, %eax"
            lines += [f"leaq {text}, %rdi", "xorl %esi, %esi", "subq $8, %rsp"]
            lines += ["call simgpu_unimplemented@PLT", "addq $8, %rsp", result, "ret"]
        else:
            lines += [f"leaq {text}, %rdi", f"movl ${library.kind.refused}, %esi"]
            lines.append("jmp simgpu_unimplemented@PLT")
        lines.append(f".size {name}, .-{name}")
    lines.append(".section .rodata")
    for name in sorted(library.functions):
        lines += [f'.Lname_{name}: .string "{name}"', f'.Lsaid_{name}: .string "not simulated"']
    return "\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""])
