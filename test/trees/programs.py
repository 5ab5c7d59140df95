"""Random programs of calls, holds, drops, steps and resets, on trees and on a simple reference.

A program is a list of pairs of numbers: an operation and what it is done with. The reference
is the same functions on the CPU: each tensor that the program holds has a *mirror*, which
shares memory with other mirrors exactly where the tensors do, so that writing is mirrored
too. What must be true after every operation:

* a tensor of the current step, and any that owns its memory, has its mirror's value;
* one of a former step has its value or says that it was overwritten; with
  ``outputs="clone"``, of a function with ``clone_outputs``, and of a backward, it has its
  value, with torch from 2.12 on;
* a parameter's gradient has its value, over how many steps it may be accumulated;
* random numbers are those that the function draws without a graph, and so are the next;
* a warm-up or a capture that fails changes none of this;
* held tensors share memory only where their mirrors do;
* in the end nothing is left: no block, no pool, no lease.

``fuzz`` runs many of them, from a seed; ``make fuzz-trees``.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import Tensor

from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees.arena import LeasePool
from memprof.cudagraph_trees.container import get_manager, reset_cudagraph_trees
from memprof.cudagraph_trees.entry import cudagraphify_impl
from memprof.cudagraph_trees.path_state import ExecutionState
from memprof.cudagraph_trees.settings import configure

from .program_functions import (
    BACKWARD,
    FORWARD,
    GRAPHED_SIZES,
    SPECS,
    N,
    Spec,
    call_and_drop,
    leased,
    storage_of,
)

MOST_HELD = 14

Program = Sequence["tuple[int, int]"]


@dataclass(eq=False)
class Held:
    """A tensor that the program holds.

    Attributes:
        tensor: on the trees' device.
        mirror: of the reference.
        step: in which it was made; None for memory of its own.
        shared: a function returned a view of it, or it is such a view. It depends on how the
            function ran whether the two share memory (a graph may have read a copy), so nobody
            writes to it. Compilers return no such views.
        kept: it outlives its step.
    """

    tensor: Tensor
    mirror: Tensor
    step: int | None
    shared: bool = False
    kept: bool = False


class Machine:
    """A program under way: the trees, and what must be true.

    Args:
        device: "cuda" or "cpu".
        outputs: the setting of that name.
        marks: steps are marked; otherwise each is an invocation of a compiled function.
        values: the device computes.
        budget: of the pool, bytes; 0 for none.
    """

    def __init__(
        self,
        device: str,
        outputs: str = "error",
        *,
        marks: bool = True,
        values: bool = True,
        budget: int = 0,
    ) -> None:
        configure(outputs=outputs, pool_budget=budget)
        reset_cudagraph_trees()
        self.device = torch.device(device, 0) if device == "cuda" else torch.device(device)
        self.on_cpu = device == "cpu"
        self.marks = marks
        self.values = values
        self.moves_out = compat.can_swap_storage() and not self.on_cpu
        self.keeps_all = self.on_cpu or (outputs == "clone" and self.moves_out)
        self.held: list[Held] = []
        self.step = 0
        self.calls = 0
        self.moved = False
        self.pending = False
        self.leases = LeasePool()
        self.user: Any = type("User", (), {})()
        self.leases.add_user(self.user)
        self.weight = torch.full((N,), 0.5)
        self.weight_there = torch.nn.Parameter(self.weight.to(self.device, copy=True))
        # Mirror of the weight's gradient.
        self.gradient: Tensor | None = None
        # The next warm-up or capture fails.
        self.fault = False
        self.functions: dict[Spec, Callable[[list[Any]], list[Any]]] = {}
        self.operations: tuple[Callable[[int], None], ...] = (
            *([self.call] * 9),
            *([self.new_step] * 4),
            *([self.drop] * 3),
            *([self.repeat_the_step] * 2),
            self.forward_and_backward,
            self.accumulate,
            self.fail,
            self.drop_old,
            self.keep_view,
            self.write_in_place,
            self.hold_outside,
            self.drop_in_cycle,
            self.sometimes_let_functions_die,
            self.sometimes_reset,
        )
        # What the step that runs consists of.
        self.script: list[tuple[Callable[[int], None], int]] = []
        # Calls that were replays: programs without are no test of trees.
        self.replays = 0

    # ---- functions

    def function(self, spec: Spec) -> Callable[[list[Any]], list[Any]]:
        """``spec`` on the trees, wrapped when it is first needed."""
        if spec not in self.functions:
            count = spec.inputs + spec.weight
            example: list[Any] = [self.weight_there] * count
            if spec.sizes:
                example.append(spec.sizes[0])
            self.functions[spec] = cudagraphify_impl(
                self.boxed(spec),
                example,
                (0,) if spec.weight else (),
                device_index=self.device if self.on_cpu else 0,
                is_backward=spec.backward,
                is_inference=not spec.backward and spec is not FORWARD,
                mutated_input_idxs=spec.writes,
                clone_outputs=spec.clones,
            )
        return self.functions[spec]

    def boxed(self, spec: Spec) -> Callable[[list[Any]], list[Tensor]]:
        fn = leased(spec.fn, self.leases) if self.on_cpu else spec.fn

        def run(args: list[Any]) -> list[Tensor]:
            own = list(args)
            args.clear()
            out = call_and_drop(fn, own)
            if self.fault and self.in_a_warm_up_or_a_capture():
                self.fault = False
                raise ArithmeticError("on purpose, when all was done")
            return out

        return run

    def in_a_warm_up_or_a_capture(self) -> bool:
        """Whether a failure now must be made good."""
        manager = get_manager(self.device, create_if_none_exists=False)
        if manager is not None and manager.active_warm_up is not None:
            return True
        return not self.on_cpu and torch.cuda.is_current_stream_capturing()

    # ---- operations

    def usable(self) -> list[Held]:
        """What a program may use now: nothing of a former step, unless that owns its memory."""
        return [h for h in self.held if h.step in (None, self.step) or h.kept]

    def argument(self, p: int, *, to_write: bool = False) -> tuple[Tensor, Tensor]:
        usable = [h for h in self.usable() if h.mirror.numel() == N and not (to_write and h.shared)]
        if usable and p % 5 < 3:
            h = usable[p // 5 % len(usable)]
            return h.tensor, h.mirror
        mirror = torch.full((N,), float(p // 5 % 100))
        return mirror.to(self.device, copy=True), mirror

    def begin_call(self, is_backward: bool = False) -> None:
        """What the rules of generations say about a call that comes now."""
        self.calls += 1
        if self.moved and (self.marks or not self.pending):
            self.step += 1
        self.moved = False
        if is_backward:
            self.pending = False

    def run(
        self, spec: Spec, arguments: list[tuple[Tensor, Tensor]], p: int = 0
    ) -> list[tuple[Any, Any]]:
        """Call it, and hold some of the outputs. All of them are returned, with their mirrors."""
        self.begin_call(spec.backward)
        inputs: list[Any] = [self.weight_there] if spec.weight else []
        mirrors: list[Any] = [self.weight] if spec.weight else []
        inputs += [a for a, _ in arguments]
        mirrors += [b for _, b in arguments]
        arguments.clear()
        if spec.sizes:
            size = spec.sizes[p % len(spec.sizes)]
            inputs.append(size)
            mirrors.append(size)
        expected, generator = self.expected(spec, inputs, mirrors)
        theirs = {storage_of(m) for m in mirrors if isinstance(m, Tensor)}
        shared = theirs & {storage_of(m) for m in expected if isinstance(m, Tensor) and m.numel()}
        for h in self.held:
            h.shared |= storage_of(h.mirror) in shared
        del mirrors
        with torch.no_grad():
            out = self.function(spec)(inputs)
        assert not inputs
        if generator is not None:
            assert torch.equal(self.generator_state(), generator), "other random numbers were drawn"
        manager = get_manager(self.device, create_if_none_exists=False)
        if manager is not None and manager.path_state is ExecutionState.EXECUTION:
            self.replays += 1
        if spec is FORWARD:
            self.pending = True
        pairs = list(zip(out, expected, strict=True))
        kept = self.keeps_all or ((spec.clones or spec.backward) and self.moves_out)
        for i, (t, m) in enumerate(pairs):
            if not isinstance(m, Tensor):
                assert t == m
                continue
            assert t.shape == m.shape
            if (p >> i) % 4 and len(self.held) < MOST_HELD:
                aliases = storage_of(m) in shared
                keeps = self.keeps_all or (kept and not aliases)
                self.held.append(Held(t, m, self.step, aliases, keeps))
        return pairs

    def expected(
        self, spec: Spec, inputs: list[Any], mirrors: list[Any]
    ) -> tuple[list[Any], Tensor | None]:
        """What a call must return, and the state that the device's generator is in then, if the
        function draws random numbers: what it does without a graph."""
        if not (spec.random and self.values):
            return spec.fn(*mirrors), None
        before = self.generator_state()
        own = [x.detach().clone() if isinstance(x, Tensor) else x for x in inputs]
        made = [t.cpu() for t in spec.fn(*own)]
        after = self.generator_state()
        if self.on_cpu:
            torch.set_rng_state(before)
        else:
            torch.cuda.set_rng_state(before)
        return made, after

    def generator_state(self) -> Tensor:
        """Of the device's generator."""
        return torch.get_rng_state() if self.on_cpu else torch.cuda.get_rng_state()

    def call(self, p: int) -> None:
        spec = SPECS[p % len(SPECS)]
        p //= len(SPECS)
        # An argument of the call that begins a step may be an output of the last one.
        arguments = [
            self.argument(p + 3 * i, to_write=i in spec.writes) for i in range(spec.inputs)
        ]
        if spec.writes and len({storage_of(m) for _, m in arguments}) < 2:
            return
        if p % 2:
            self.drop(p)
        self.run(spec, arguments, p)

    def forward_and_backward(self, p: int) -> None:
        x = [self.argument(p)]
        before = len(self.held)
        self.run(FORWARD, x, 0b11)
        if p % 3 == 0 or len(self.held) - before < 2:
            return  # its backward never comes
        if p % 3 == 1:
            self.new_step(p)  # of another compiled function: the backward holds the step
            if self.marks:
                return
        saved = self.held.pop()
        arguments = [(saved.tensor, saved.mirror), self.argument(1)]
        del saved
        self.run(BACKWARD, arguments, p)

    def accumulate(self, p: int) -> None:
        """A step that adds to the weight's gradient, which a backward returned."""
        if p % 4 == 0:
            self.weight_there.grad = self.gradient = None
        before = len(self.held)
        self.run(FORWARD, [self.argument(p)], 0b11)
        if len(self.held) - before < 2:
            return
        saved = self.held.pop()
        arguments = [(saved.tensor, saved.mirror), self.argument(p + 3)]
        del saved
        _, (g, mirror) = self.run(BACKWARD, arguments)
        if self.weight_there.grad is None:
            self.weight_there.grad, self.gradient = g, mirror
        else:
            assert self.gradient is not None
            self.weight_there.grad.add_(g)
            self.gradient.add_(mirror)

    def fail(self, p: int) -> None:
        self.fault = p % 2 == 0

    def new_step(self, p: int) -> None:
        self.script.clear()
        self.moved = True
        if self.marks:
            torch.compiler.cudagraph_mark_step_begin()
        else:
            from torch._dynamo.mutation_guard import GenerationTracker

            GenerationTracker.generation += 1

    def drop(self, p: int) -> None:
        if self.held:
            self.held.pop(p % len(self.held))

    def repeat_the_step(self, p: int) -> None:
        """A loop, as programs have them: only what comes again is recorded and replayed."""
        script = list(self.script)
        for _ in range(1 + p % 5):
            self.new_step(p)
            if p % 7:
                self.drop_old(p)
            for operation, q in script:
                operation(q)
                self.check()
        self.script = script

    def drop_old(self, p: int) -> None:
        self.held = [h for h in self.held if h.step in (None, self.step)]

    def keep_view(self, p: int) -> None:
        usable = self.usable()
        if usable and len(self.held) < MOST_HELD:
            h = usable[p % len(usable)]
            if h.mirror.dim():
                self.held.append(Held(h.tensor[1:], h.mirror[1:], h.step, h.shared, h.kept))

    def write_in_place(self, p: int) -> None:
        """The user's own code writes to what it holds: a weight is not among that."""
        mine = [
            h
            for h in self.usable()
            if storage_of(h.mirror) != storage_of(self.weight)
            and h.step in (None, self.step)
            and not h.shared
        ]
        if mine:
            h = mine[p % len(mine)]
            h.tensor.mul_(0.5)
            h.mirror.mul_(0.5)

    def hold_outside(self, p: int) -> None:
        if len(self.held) < MOST_HELD:
            mirror = torch.full((N,), float(p % 100))
            self.held.append(Held(mirror.to(self.device, copy=True), mirror, None))

    def drop_in_cycle(self, p: int) -> None:
        if self.held:
            cycle: list[Any] = [self.held.pop(p % len(self.held))]
            cycle.append(cycle)

    def sometimes_let_functions_die(self, p: int) -> None:
        # A function that dies at once is never replayed, and replays are what this is about.
        if p % 8:
            return
        p //= 8
        if p % 4 == 0:
            gc.collect()
        for spec in list(self.functions)[p % 3 :: 3] if p % 2 else list(self.functions):
            del self.functions[spec]
        if not self.functions:
            self.manager_is_gone()

    def sometimes_reset(self, p: int) -> None:
        if p % 16 == 0:
            reset_cudagraph_trees()
            self.manager_is_gone()
            if self.marks:
                torch.compiler.cudagraph_mark_step_begin()

    def manager_is_gone(self) -> None:
        """What was valid owns its memory from now on."""
        for h in self.held:
            if h.step == self.step:
                h.step = None
        self.step += 1
        self.moved = self.pending = False
        self.script.clear()

    # ---- checks

    def check(self) -> None:
        valid = []
        held = list(self.held)
        if self.gradient is not None:
            assert self.weight_there.grad is not None
            held.append(Held(self.weight_there.grad, self.gradient, None))
        for h in held:
            try:
                address = h.tensor.untyped_storage().data_ptr()
                value = h.tensor if self.on_cpu else h.tensor.cpu()
            except RuntimeError as e:
                if "overwritten by a subsequent run" not in str(e):
                    raise
                assert h.step is not None, "a tensor that owns its memory was given up"
                assert h.step < self.step, "a tensor of the current step was given up"
                assert not h.kept, "a tensor was given up that should be kept"
                continue
            if self.values:
                assert torch.equal(value, h.mirror), f"wrong value, {h.step=} {self.step=}"
            valid.append((address, h))
        spans = sorted(
            (a, a + h.tensor.untyped_storage().nbytes(), storage_of(h.mirror))
            for a, h in valid
            if h.mirror.numel()
        )
        for (_, end, a), (begin, _, b) in itertools.pairwise(spans):
            assert a == b or end <= begin, "live tensors overlap"

    def run_program(self, program: Program) -> None:
        """Run it, with all checks after every operation.

        Raises:
            AssertionError: something is not as it must be; the message tells the operation.
        """
        for i, (what, p) in enumerate(program):
            operation = self.operations[what % len(self.operations)]
            try:
                operation(p)
                if operation != self.repeat_the_step and operation != self.new_step:
                    self.script.append((operation, p))
                self.check()
            except Exception as e:
                raise AssertionError(f"operation {i}, {operation.__name__}({p}): {e}") from e

    def finish(self) -> None:
        """Let go of everything and look what is left."""
        self.held.clear()
        self.functions.clear()
        self.weight_there.grad = None
        self.operations = ()
        gc.collect()
        reset_cudagraph_trees()
        if self.on_cpu:
            self.user = None
            assert self.leases.leased() == {}
            assert self.leases.reserved_bytes == 0
            return
        segments = [
            s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)
        ]
        assert all(b["state"] == "inactive" for s in segments for b in s["blocks"])
        torch.cuda.empty_cache()
        assert not any(tuple(s["segment_pool_id"]) != (0, 0) for s in torch.cuda.memory_snapshot())


@inductor_config.patch({"triton.cudagraph_capture_sizes": GRAPHED_SIZES})
def run(program: Program, device: str, outputs: str = "error", **how: Any) -> int:
    """One program from nothing to nothing.

    Args:
        program: see above.
        device, outputs: see ``Machine``.
        **how: see ``Machine``.

    Returns:
        How many calls were replays.
    """
    machine = Machine(device, outputs, **how)
    try:
        machine.run_program(program)
    except BaseException:
        machine.held.clear()
        machine.functions.clear()
        machine.weight_there.grad = None
        reset_cudagraph_trees()
        raise
    machine.finish()
    return machine.replays
