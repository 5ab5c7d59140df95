"""Trees that are broken on purpose: does a random program notice?

Each sabotage replaces a piece of the product by one with a defect, as a mistake of ours
would. ``report`` runs random programs with each in a process of its own until one fails.
One that nothing notices tells what random programs do not look at.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees import node, pool_owner, record_policy, step_end
from memprof.cudagraph_trees.capture import recovery
from memprof.cudagraph_trees.capture import run as capture
from memprof.cudagraph_trees.device import _torch_compat as allocator
from memprof.cudagraph_trees.device import cuda
from memprof.cudagraph_trees.device.cuda import GeneratorStates
from memprof.cudagraph_trees.manager import CUDAGraphTreeManager
from memprof.cudagraph_trees.node import CUDAGraphNode
from memprof.cudagraph_trees.path import TreePath
from memprof.cudagraph_trees.replay import inputs, liveness, outputs
from memprof.cudagraph_trees.spec import CompilationMode, GraphSpec

OPERATIONS = 8000
"""So many are run with each sabotage."""


@dataclass(frozen=True)
class Sabotage:
    """One defect.

    Attributes:
        name: in words.
        apply: breaks the process that it is called in.
        needs: whether it does something with this torch.
    """

    name: str
    apply: Callable[[], None]
    needs: Callable[[], bool] = lambda: True


ALL: list[Sabotage] = []


def sabotage(
    name: str, needs: Callable[[], bool] = lambda: True
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Add one to the list."""

    def add(apply: Callable[[], None]) -> Callable[[], None]:
        ALL.append(Sabotage(name, apply, needs))
        return apply

    return add


def _set(where: Any, name: str, value: Any) -> None:
    assert hasattr(where, name), f"{where} has no {name} to be broken"
    setattr(where, name, value)


def _wrap(
    where: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    _set(where, name, wrapper(getattr(where, name)))


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


# ---- paths and steps


@sabotage("paths end although outputs are held")
def _() -> None:
    _set(CUDAGraphNode, "all_outputs_are_dead", lambda self: True)


@sabotage("no path ever ends quickly, and those that end slowly invalidate nothing")
def _() -> None:
    from memprof.cudagraph_trees import manager

    _set(manager, "end_quickly", lambda *args: False)
    _set(cuda.CudaPool, "invalidate", _nothing)


@sabotage("an output that is held alone is not invalidated")
def _() -> None:
    _set(cuda.CudaPool, "replace", lambda self, tensor, twin, message: compat.another(tensor, twin))


@sabotage("no step ever waits for a pending backward")
def _() -> None:
    _set(TreePath, "step_may_begin", TreePath.generation_moved)
    _wrap(
        CUDAGraphTreeManager,
        "call",
        lambda call: (
            lambda self, function, inputs: (
                setattr(self.path, "pending_backward", False),
                call(self, function, inputs),
            )[1]
        ),
    )


@sabotage("a call without a graph does not belong to the step that runs")
def _() -> None:
    _set(TreePath, "ran_without_graph", _nothing)


@sabotage("arguments that the ending step made are not cloned")
def _() -> None:
    _wrap(
        step_end, "_copy_out", lambda copy: lambda pool, p, holders, _: copy(pool, p, holders, [])
    )


@sabotage("what the next call writes to is not moved out")
def _() -> None:
    _set(step_end, "_lying_in", lambda values, pointer: [])


@sabotage("gradients stay in the pool")
def _() -> None:
    _set(step_end, "CompilationMode", type("M", (), {"BACKWARD": CompilationMode.INFERENCE}))
    _set(outputs, "CompilationMode", type("M", (), {"BACKWARD": CompilationMode.INFERENCE}))


@sabotage("what moves out of the pool gets other memory, and not its content")
def _() -> None:
    _set(allocator, "swap_storage", _swap_with_nothing)
    _wrap(
        step_end,
        "_copies",
        lambda copies: lambda pool, tensors: [torch.zeros_like(t) for t in copies(pool, tensors)],
    )


def _swap_with_nothing(a: torch.UntypedStorage, b: torch.UntypedStorage) -> None:
    b.fill_(0)
    a._swap_data_ptr_(b)


@sabotage("a function's own clone_outputs is forgotten", needs=compat.can_swap_storage)
def _() -> None:
    def function(self: Any, *args: Any, **how: Any) -> Any:
        spec = made(self, *args, **how)
        spec.clone_outputs = False
        return spec

    made = GraphSpec.function
    _set(GraphSpec, "function", function)


# ---- what a replay compares


@sabotage("a recording fits whatever the addresses are")
def _() -> None:
    _set(node, "same_addresses", lambda pointers, which: lambda inputs: True)


@sabotage("static inputs are not compared, managed ones are")
def _() -> None:
    _wrap(capture, "InputPlan", lambda plan: lambda *a: _checks(plan(*a), "managed"))


@sabotage("managed inputs are not compared, static ones are")
def _() -> None:
    _wrap(capture, "InputPlan", lambda plan: lambda *a: _checks(plan(*a), "static"))


def _checks(plan: inputs.InputPlan, which: str) -> inputs.InputPlan:
    plan.checked = list(getattr(plan, which))
    return plan


@sabotage("what must be dead before a replay is not looked at")
def _() -> None:
    _set(
        CUDAGraphNode,
        "fits",
        lambda self, inputs: self.same_addresses is None or self.same_addresses(inputs),
    )


@sabotage("a replay copies its inputs only once")
def _() -> None:
    _set(node, "Copies", _OnceCopied)


class _OnceCopied:
    odd, buffers = False, ()

    def __init__(self, buffers: Any) -> None:
        pass

    def fit(self, inputs: Any) -> bool:
        return True


@sabotage("inputs that a graph copies may be written to")
def _() -> None:
    _set(record_policy.RecordPolicy, "_look", lambda *args: None)


@sabotage("an input of an output's storage dies before the output is made")
def _() -> None:
    _wrap(
        CUDAGraphNode,
        "__init__",
        lambda init: (
            lambda self, *a, **k: (init(self, *a, **k), setattr(self, "keep_inputs", []))[0]
        ),
    )


@sabotage("inputs of a call that is called off lie in free memory")
def _() -> None:
    def found(pool: Any, specs: Any, refs: Any) -> Any:
        return {i: pool.tensor_at(spec) for i, spec in specs.items()}

    _set(node, "inputs_again", found)
    _set(recovery, "inputs_again", found)


# ---- what is handed out


@sabotage("hooks stay on an output that is handed out again")
def _() -> None:
    _wrap(liveness, "let_go_of_stale_graphs", lambda _: _detached)


def _detached(refs: Any) -> bool:
    found = False
    for r in refs:
        t = None if r.cache is None or sys.getrefcount(r.cache[r.slot]) != 2 else r.cache[r.slot]
        if t is not None and t.grad_fn is not None:
            t.detach_()
            found = True
    return found


@sabotage("what was done to an output stays on it when it is handed out again")
def _() -> None:
    _set(outputs.OutputCache, "_clean", _nothing)


@sabotage("an output made in inference mode is handed out outside of it")
def _() -> None:
    _set(allocator, "cuda_tensor", allocator._cuda_tensor)
    _set(compat, "likeness", compat.reinterpret_tensor)


@sabotage("outputs that share a storage are handed out apart")
def _() -> None:
    def rebuild(self: Any, i: int, out: list[Any]) -> torch.Tensor:
        t = self.pool.tensor_at(self.specs[i]).clone()
        self.refs[i].rebind(t)
        return t

    _set(outputs.OutputCache, "_rebuild", rebuild)


@sabotage("an output that a later graph returns as well is cached all the same")
def _() -> None:
    _set(CUDAGraphNode, "output_is_aliased", _nothing)


@sabotage("stale graphs of autograd count as holders")
def _() -> None:
    _set(liveness, "let_go_of_stale_graphs", lambda refs: False)


# ---- the pool


@sabotage("the allocator's books are never restored")
def _() -> None:
    _set(cuda.CudaPool, "restore", _nothing)


@sabotage("the books are restored to what they were when the parent was recorded")
def _() -> None:
    def restore(self: CUDAGraphNode) -> None:
        mine = self.checkpoint
        if self.parent is not None and self.parent.checkpoint is not None:
            self.checkpoint = self.parent.checkpoint
        try:
            restore_pool(self)
        finally:
            self.checkpoint = mine

    restore_pool = CUDAGraphNode.restore_pool
    _set(CUDAGraphNode, "restore_pool", restore)


@sabotage("what died since a recording stays live in the books")
def _() -> None:
    _wrap(
        cuda.CudaPool,
        "restore",
        lambda restore: lambda self, checkpoint, live, dead: restore(self, checkpoint, live, ()),
    )


@sabotage("the trees do not know what a warm-up returned")
def _() -> None:
    _set(capture, "StorageWeakRefWrapper", _Forgets)


class _Forgets:
    def __new__(cls, of: Any) -> Any:
        return None


@sabotage("a pool is never given back")
def _() -> None:
    _set(cuda.CudaPool, "release", _nothing)
    kept: list[Any] = []
    _wrap(
        cuda.CudaPool,
        "__init__",
        lambda init: lambda self, *a: (init(self, *a), kept.append(self._keep_alive))[0],
    )


@sabotage("a graph of each recording is never destroyed")
def _() -> None:
    kept: list[Any] = []
    _wrap(
        allocator,
        "graph_launch",
        lambda launch_of: lambda graph: (kept.append(graph), launch_of(graph))[1],
    )


@sabotage("a pool beyond its budget is dropped while its last step's outputs lie in it")
def _() -> None:
    def check(self: pool_owner.PoolOwner, function: Any) -> None:
        checked(self, function)
        self.pool.restore(self.pool.checkpoint(), [], self.pool.live_addresses())

    checked = pool_owner.PoolOwner.check_budget
    _set(pool_owner.PoolOwner, "check_budget", check)


# ---- failures


@sabotage("what a failed warm-up wrote is not put back")
def _() -> None:
    def backup(*args: Any) -> Any:
        made = warm_up(*args)
        made.written.clear()
        return made

    warm_up = recovery.InputBackup.warm_up
    _set(recovery.InputBackup, "warm_up", staticmethod(backup))


@sabotage("generators are not put back after a capture or a failure")
def _() -> None:
    _set(GeneratorStates, "restore", _nothing)


@sabotage("inputs that died are lost in a failed warm-up")
def _() -> None:
    def find(self: Any) -> None:
        for i, spec in self.specs.items():
            self.inputs[i] = torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device)

    _set(recovery.InputBackup, "_find_after_warm_up", find)


@sabotage("a failed capture leaves the allocator as it was")
def _() -> None:
    _set(allocator, "end_failed_capture", lambda *args: False)


@sabotage("a function that failed is called again with what is left of its inputs")
def _() -> None:
    _set(recovery.InputBackup, "call_again", lambda self, error: list(self.inputs))


# ---- random numbers


@sabotage("every replay draws what the recording drew")
def _() -> None:
    def launches(graph: Any) -> Callable[[], None]:
        launch = launch_of(graph)
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        state = default.get_state()

        def run() -> None:
            after = default.get_state()
            default.set_state(state)
            launch()
            default.set_state(after)

        return run

    launch_of = allocator.graph_launch
    _set(allocator, "graph_launch", launches)


@sabotage("a replay does not move the generator")
def _() -> None:
    def launches(graph: Any) -> Callable[[], None]:
        launch = launch_of(graph)
        default = torch.cuda.default_generators[torch.cuda.current_device()]

        def run() -> None:
            before = default.get_state()
            launch()
            default.set_state(before)

        return run

    launch_of = allocator.graph_launch
    _set(allocator, "graph_launch", launches)


@sabotage("the generator is put back a second time, after the call")
def _() -> None:
    def call(self: Any, function: Any, inputs: Any) -> Any:
        before = GeneratorStates(self.pool.device)
        recorded = self.path.state.name == "RECORDING"
        out = theirs(self, function, inputs)
        if self.path.state.name == "RECORDING" and not recorded:
            before.restore()
        return out

    theirs = CUDAGraphTreeManager.call
    _set(CUDAGraphTreeManager, "call", call)


# ---- running them


def _run(name: str, operations: int, into: Any) -> None:
    from . import fuzz

    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    fuzz.quiet()
    fuzz.shrink = lambda program, fails: program
    begin = time.monotonic()
    try:
        for s in ALL:
            if s.name == name:
                s.apply()
    except Exception as e:
        # Not noticed: a sabotage that breaks nothing any more has to be mended.
        into.put((False, f"it could not be applied: {e}"))
        return
    try:
        counts = fuzz.fuzz(operations)
        into.put((False, f"{counts}, {time.monotonic() - begin:.0f} s"))
    except AssertionError as e:
        into.put((True, str(e).splitlines()[0][:150]))


def try_one(name: str, operations: int = OPERATIONS) -> tuple[bool, str]:
    """Run random programs with a sabotage, in a process of its own.

    Args:
        name: of the sabotage; "" for none.
        operations: most that are run.

    Returns:
        Whether it was noticed, and by what: a message, or the signal that ended the process.
    """
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_run, args=(name, operations, answers))
    process.start()
    process.join()
    if not answers.empty():
        return answers.get()  # type: ignore[no-any-return]
    return True, f"the process ended with {process.exitcode}"


def report(which: str, operations: int) -> int:
    """Try one sabotage, or all, and print what noticed it.

    Returns:
        How many were not noticed.
    """
    here = [s for s in ALL if s.needs()]
    if which == "list":
        print("\n".join(s.name for s in here))
        return 0
    chosen = here if which == "all" else [s for s in here if s.name == which]
    if not chosen:
        raise SystemExit(f"there is no sabotage {which!r}; --sabotage list names them")
    missed = []
    for s in chosen:
        noticed, how = try_one(s.name, min(operations, OPERATIONS))
        print(f"{'noticed' if noticed else 'NOT NOTICED'}: {s.name}: {how}", flush=True)
        if not noticed:
            missed.append(s.name)
    print(
        f"torch {torch.__version__}: {len(chosen) - len(missed)} of {len(chosen)} "
        f"sabotages noticed{', not: ' if missed else ''}{'; '.join(missed)}"
    )
    return len(missed)
