"""One manager per device and autograd-thread family.

Note [Thread families]
~~~~~~~~~~~~~~~~~~~~~~
Autograd runs the backward of CUDA operators on threads of its own, and a backward must find
the manager of its forward. Torch carries some thread-local state over to these threads, and there
lies the *family* of the user's thread. Two user threads have two families and share no pool, since
each may overwrite outputs when its own step ends. Resetting replaces the family.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch

from memprof.profiler.support.process_hooks import on_fork, on_reset

from .. import _torch_compat as compat
from ..device.capture_lock import capturing, when_nobody_captures
from ..device.protocol import Input, Output
from ..explain import history
from ..replay.spec import FunctionSpec, GraphSpec
from .manager import CUDAGraphTreeManager

_KEY = "memprof_tree_family"


class TreeManagerContainer:
    """Keeps the manager of one device while a wrapped function lives, of which there are
    ``live_cudagraphify_fns``: ``tree_manager``, None before the first and after the last. Outputs
    that are held then own their memory from there on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tree_manager: CUDAGraphTreeManager | None = None
        self.live_cudagraphify_fns = 0

    def get_tree_manager(self, pool_initial: int = 0) -> CUDAGraphTreeManager:
        """The manager, made if there is none, with ``pool_initial`` bytes to begin with."""
        with capturing():
            if self.tree_manager is None:
                compat.also_tell_of_incomplete_warm_ups(mark_warmup_incomplete)
                self.tree_manager = CUDAGraphTreeManager(self.device, pool_initial)
                history.remember(self.tree_manager)
            return self.tree_manager

    def wrap(
        self,
        spec: GraphSpec,
        inputs: list[Input],
        static: Sequence[int],
        alignment_checked: Sequence[int],
    ) -> Callable[[list[Input]], list[Output]]:
        """Return a callable that calls ``spec.function`` in the manager. The manager and
        the function's recordings last as long as the callable does."""
        with capturing():
            manager = self.get_tree_manager()
            function = manager.add(spec, inputs, static, alignment_checked)
            self.live_cudagraphify_fns += 1
        wrapped = partial(manager.call, function)
        died = partial(self._function_died, manager, function)
        # At exit there is nothing to hand back, and perhaps no device any more.
        weakref.finalize(wrapped, when_nobody_captures, died).atexit = False
        return wrapped

    def _function_died(self, manager: CUDAGraphTreeManager, function: FunctionSpec) -> None:
        """Clean up after a wrapped function that died, see Note [What finalizers may wait for]."""
        self.live_cudagraphify_fns -= 1
        if not self.live_cudagraphify_fns:
            self.shut_down()
        elif manager is self.tree_manager:
            manager.function_died(function)

    def shut_down(self) -> None:
        with capturing():
            manager, self.tree_manager = self.tree_manager, None
            if manager is not None:
                manager.shutdown()


class Family:
    """The containers of one user thread, by device: see Note [Thread families]."""

    def __init__(self) -> None:
        self.containers: dict[torch.device, TreeManagerContainer] = {}


_local = threading.local()
_families: weakref.WeakSet[Family] = weakref.WeakSet()


def family() -> Family:
    own: Family | None = getattr(_local, "family", None)
    if own is not None:
        return own
    if compat.is_in_tls(_KEY):
        return compat.get_from_tls(_KEY)  # type: ignore[no-any-return]
    spare: Family | None = getattr(_local, "spare", None)
    return _new_family() if spare is None else spare


def _new_family() -> Family:
    new = Family()
    _families.add(new)
    if compat.graph_task() != -1:
        # This thread may be autograd's, and is lent the family of whom it works for next.
        _local.spare = new
    else:
        _local.family = new
        compat.stash_in_tls(_KEY, new)
    return new


def _as_device(device: int | torch.device) -> torch.device:
    if isinstance(device, int):
        return torch.device("cuda", device)
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def get_container(device: int | torch.device) -> TreeManagerContainer:
    """The container of a device (a number is a CUDA device), made if there is none."""
    containers = family().containers
    key = _as_device(device)
    if key not in containers:
        if key.type != "cuda":
            raise ValueError(f"graph trees run on cuda devices, not on {key}")
        containers[key] = TreeManagerContainer(key)
    return containers[key]


def get_manager(
    device: int | torch.device, create_if_none_exists: bool = True
) -> CUDAGraphTreeManager | None:
    """The manager of a device (a number is a CUDA device); None if there is none and none is to be
    made."""
    if create_if_none_exists:
        return get_container(device).get_tree_manager()
    container = family().containers.get(_as_device(device))
    return None if container is None else container.tree_manager


def all_managers() -> list[CUDAGraphTreeManager]:
    containers = [c for f in list(_families) for c in list(f.containers.values())]
    return [c.tree_manager for c in containers if c.tree_manager is not None]


def mark_warmup_incomplete() -> None:
    """Ask for another warm-up of the function that is being warmed up now, if one is.

    From torch 2.15 on, the same as ``torch.compiler.cudagraph_mark_warmup_incomplete()``.
    """
    for manager in all_managers():
        manager.recorder.mark_warmup_incomplete()


@on_reset
def reset_cudagraph_trees() -> None:
    """Drop all recordings of the calling thread's family, and begin to count steps anew. Outputs
    that are held stay valid, and functions go on working: they are recorded again."""
    for container in list(family().containers.values()):
        container.shut_down()
    _new_family()
    compat.step_counters()[0].mark_step_counter = 0
    # Cached tensors stay enabled: torch's own trees may have some, and would abort their reset.


@on_fork
def _after_fork() -> None:
    """Let go of everything without a call of the device, which a forked child has not: managers
    are kept from their destructors, and out of reach of the finalizers of their functions."""
    for f in list(_families):
        for container in f.containers.values():
            _abandoned.append(container.tree_manager)
            container.tree_manager = None
    _families.clear()
    history.forget_all()
    if hasattr(_local, "family"):
        _new_family()


_abandoned: list[CUDAGraphTreeManager | None] = []
