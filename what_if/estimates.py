"""``memprof.estimate``: what a model takes on a GPU, asked from inside of a program."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from memprof.profiler.model import DeviceAccount, Profile
from memprof.profiler.verbs import Views
from memprof.profiler.views.report.format import format_bytes
from memprof.simulated_cuda.gpus import DEFAULT_GPU, find_gpu

from .simulate.changes import WITHOUT_TIMING
from .simulate.command_line import Command
from .simulate.parent import Settings, Simulation, simulate
from .simulate.result import profile_of

_WANTED = {
    "model": "give a torch.nn.Module, and its inputs after it",
    "optimizer": "give a class such as torch.optim.AdamW, or a functools.partial of one",
    "loss": "give a function of what the model returns",
}


class EstimateFailed(RuntimeError):
    """The steps failed on the simulated device for another reason than memory.

    Attributes:
        trace: of the failure there.
    """

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


class Estimate(Views):
    """Device memory that a model takes; ``report()``, ``to_html()``, ``export()`` and ``diff()`` as
    of a profile.

    Attributes:
        device: name of the GPU.
        fits: whether it ran there without running out of memory; None if that is undecided.
        undecided: why, in a sentence: one step of a training shows too little; else empty.
        needed: bytes of the device in all: reserved, and what is outside of torch's allocator.
        reserved: the most bytes that torch's allocator had from the device.
        allocated: the most bytes of blocks at any time.
        total: bytes of the device.
    """

    def __init__(self, simulation: Simulation, account: DeviceAccount) -> None:
        self._profile = profile_of(simulation)
        self.device = simulation.gpu.name
        self.fits = simulation.fits
        self.undecided = simulation.outcome.undecided
        self.needed = simulation.needed
        self.reserved = account.reserved
        self.allocated = account.most_allocated
        self.total = simulation.gpu.memory

    def profiles(self) -> list[Profile]:
        return [self._profile]

    def __repr__(self) -> str:
        words = {True: "fits", False: "does not fit", None: "undecided whether it fits"}
        return (
            f"<memprof estimate: needs {format_bytes(self.needed)}, {words[self.fits]} "
            f"{self.device} ({format_bytes(self.total)})>"
        )


def estimate(
    model: Any,
    *args: Any,
    optimizer: Callable[[Any], Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    device: str = DEFAULT_GPU,
    compile: bool | str | Mapping[str, Any] = False,
    autocast: Any = None,
    steps: int = 3,
    timeout: float | None = None,
    python: str | None = None,
    **kwargs: Any,
) -> Estimate:
    """Estimate the GPU memory that ``model(*args, **kwargs)`` takes, for training if there is an
    optimizer.

    It runs in a process of its own on the simulated device (docs/simulate.md), which computes
    nothing: the model and its inputs stay where they are, on the CPU or the ``meta`` device, and
    what is sent is how large their tensors are.

        with torch.device("meta"):
            model = Llama(config)
        tokens = torch.empty(8, 4096, dtype=torch.long, device="meta")
        found = memprof.estimate(model, tokens, optimizer=torch.optim.AdamW, device="h100-80gb")
        found.fits, found.needed
        found.report()

    Args:
        model: a ``torch.nn.Module``, or any callable that holds its tensors and can be pickled.
        args, kwargs: of a call; tensors anywhere in them.
        optimizer: makes one of the parameters, e.g. ``torch.optim.AdamW`` or a
            ``functools.partial`` of it. Without it forwards alone run, without gradients.
        loss: of what the model returns, a tensor of one element; by default its ``loss`` if it has
            one, else the sum of all that it returns.
        device: a GPU of ``memprof simulate --list-gpus``.
        compile: whether ``torch.compile`` is used; a backend's name, or its arguments.
        autocast: a dtype for ``torch.autocast``; None for none.
        steps: how many.
        timeout: seconds after which it is given up.
        python: an interpreter with a CUDA build of torch; by default this one.

    Raises:
        EstimateFailed: the steps failed for another reason than memory.
        memprof.what_if.simulate.parcel.NoParcel: something cannot be sent: a tensor subclass, an
            open file.
        memprof.simulated_cuda.errors.SimulationError: there is no such GPU, or the device cannot be
            had here: no CUDA build of torch, no compiler.
        TypeError: ``model``, ``optimizer`` or ``loss`` cannot be called.
        ValueError: ``steps`` is less than 1.
    """
    from .simulate.parcel import pack

    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be 1 or more")
    for name, value in (("model", model), ("optimizer", optimizer), ("loss", loss)):
        if not callable(value) and (name == "model" or value is not None):
            raise TypeError(
                f"{name} is a {type(value).__name__}, which cannot be called: {_WANTED[name]}"
            )
    options = {
        "optimizer": optimizer,
        "loss": loss,
        "compile": _compile_arguments(compile),
        "autocast": autocast,
        "steps": steps,
    }
    settings = Settings(
        gpu=find_gpu(device),
        steps=sys.maxsize,
        until_still=False,
        timeout_s=timeout,
        quiet=True,
        torch_config=tuple(f"{k}={v}" for k, v in WITHOUT_TIMING.items()),
    )
    with tempfile.TemporaryDirectory(prefix="memprof-estimate-") as folder:
        path = os.path.join(folder, "parcel")
        with open(path, "wb") as f:
            f.write(pack((model, args, kwargs, options)))
        program = ("-m", "memprof.what_if.simulate.parcel", path)
        command = Command(python or sys.executable, (), program)
        found = simulate(command, settings, {**os.environ, "PYTHONPATH": _search_path()})
    failure = found.outcome.failure
    if failure is not None and not failure.out_of_memory:
        first = failure.message.partition("\n")[0]
        raise EstimateFailed(
            f"on the simulated {found.gpu.name}: {failure.kind}: {first}", failure.trace
        )
    if found.account is None:
        raise EstimateFailed(
            found.outcome.undecided or "nothing in the model or its inputs was put on the device"
        )
    return Estimate(found, found.account)


def _search_path() -> str:
    """Folders of ``sys.path`` with the program's own modules, as for PYTHONPATH; what is installed,
    that interpreter has itself.

    A project may well lie under ``sys.prefix``: in a container's ``/usr/src/app`` that is ``/usr``.
    """
    paths = sysconfig.get_paths()
    library = {os.path.abspath(paths[name]) for name in ("stdlib", "platstdlib")}
    library |= {os.path.join(path, "lib-dynload") for path in library}

    def is_installed(path: str) -> bool:
        folders = {"site-packages", "dist-packages"}.intersection(path.split(os.sep))
        zipped = re.fullmatch(r"python\d+t?\.zip", os.path.basename(path))
        return bool(folders or zipped) or path in library

    found = (os.path.abspath(path) for path in sys.path)
    return os.pathsep.join(path for path in found if not is_installed(path))


def _compile_arguments(compile: bool | str | Mapping[str, Any]) -> dict[str, Any] | None:
    if isinstance(compile, bool):
        return {} if compile else None
    return {"backend": compile} if isinstance(compile, str) else dict(compile)
