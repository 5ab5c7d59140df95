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
* random numbers are those that the function draws without a graph, and so are the next; no
  two calls draw the same;
* a warm-up or a capture that fails changes none of this;
* what the program holds the trees know to be live, and nothing else (``program_checks``);
* gradients obey Euler's identity, and hooks run once (``program_training``);
* held tensors share memory only where their mirrors do;
* in the end nothing is left: no block, no pool, no graph.

``test_model`` draws them.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import Generator, Tensor

from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees.call.container import get_manager, reset_cudagraph_trees
from memprof.cudagraph_trees.call.entry import cudagraphify_impl
from memprof.cudagraph_trees.replay.path import ExecutionState

from .program_checks import Leftovers, check_books, check_liveness, check_values
from .program_functions import (
    BACKWARD,
    FORWARD,
    GRAPHED_SIZES,
    SPECS,
    Interrupt,
    N,
    Spec,
    call_and_drop,
    storage_of,
)
from .program_random import RANDOM_SPECS
from .program_training import Training

MOST_HELD = 14
FAULTS = ("at its end", "at its beginning", "a synchronisation", "out of memory", "an interrupt")
"""How a warm-up or a capture fails."""

Program = Sequence["tuple[int, int]"]
Note = tuple[str, list[float]]


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
        inference: it was made in inference mode. A replay's output need not be such a tensor, so
            the program must not ask itself.
    """

    tensor: Tensor
    mirror: Tensor
    step: int | None
    shared: bool = False
    kept: bool = False
    inference: bool = False


class Machine:
    """A program under way: the trees, and what must be true.

    Args:
        outputs: the option of that name.
        marks: steps are marked; otherwise each is an invocation of a compiled function.
        values: the device computes.
        graphs: False to run every function as it is.
        without: names of functions, pairs, operations and faults that are left out.

    Attributes:
        held: what the program holds.
        notes: what every call and step came to; the same for the same program and seed.
        replays: calls that were replays: programs without are no test of trees.
    """

    def __init__(
        self,
        outputs: str = "error",
        *,
        marks: bool = True,
        values: bool = True,
        graphs: bool = True,
        without: Sequence[str] = (),
    ) -> None:
        reset_cudagraph_trees()
        self.device = torch.device("cuda", 0)
        self.leftovers = Leftovers()
        self.marks = marks
        self.values = values
        self.graphs = graphs
        self.without = without
        self.moves_out = compat.can_swap_storage()
        self.clones_all = outputs == "clone"
        self.keeps_all = self.clones_all and self.moves_out
        self.held: list[Held] = []
        self.step = 0
        self.calls = 0
        self.moved = False
        self.pending = False
        # What forwards returned since the last backward.
        self.awaited: list[Tensor] = []
        # Cycles and graphs of autograd may hold what the program does not.
        self.garbage = False
        self.weight = torch.full((N,), 0.5)
        self.weight_there = torch.nn.Parameter(self.weight.to(self.device, copy=True))
        self.buffer = torch.full((N,), 0.5)
        self.buffer_there = self.buffer.to(self.device, copy=True)
        self.generators = [torch.Generator(self.device).manual_seed(k) for k in (11, 12)]
        # Mirror of the weight's gradient.
        self.gradient: Tensor | None = None
        # How the next warm-up or capture fails.
        self.fault = ""
        self.training = Training(self)
        self.functions: dict[Any, Callable[[list[Any]], list[Any]]] = {}
        self.drawn: set[bytes] = set()
        self.specs = [s for s in (*SPECS, *RANDOM_SPECS) if s.fn.__name__ not in without]
        training = self.training
        operations: tuple[Callable[[int], None], ...] = (
            *([self.call] * 9),
            *([self.new_step] * 4),
            *([self.drop] * 3),
            *([self.repeat_the_step] * 3),
            *([training.train] * 5),
            training.late_backward,
            training.forget_losses,
            training.step_of_an_optimizer,
            training.move_parameter,
            self.forward_and_backward,
            self.accumulate,
            self.fail,
            self.drop_old,
            self.keep_view,
            self.write_in_place,
            self.hold_outside,
            self.tag,
            self.drop_in_cycle,
            self.move_weight,
            self.seed,
            self.sometimes_let_functions_die,
            self.sometimes_reset,
        )
        self.operations = [o for o in operations if o.__name__ not in without]
        # What the step that runs consists of.
        self.script: list[tuple[Callable[[int], None], int]] = []
        self.notes: list[Note] = []
        self.replays = 0

    # ---- functions

    def function(self, spec: Spec) -> Callable[[list[Any]], list[Any]]:
        """``spec`` on the trees, wrapped when it is first needed."""
        first = spec.weight + spec.buffer
        example: list[Any] = [self.weight_there] * (first + spec.inputs)
        if spec.sizes:
            example.append(spec.sizes[0])
        if spec.generator is not None:
            example.append(self.generators[spec.generator])
        return self.wrapped(
            spec,
            spec.fn,
            example,
            tuple(range(first)),
            writes=(0,) if spec.buffer else spec.writes,
            is_backward=spec.backward,
            is_forward=spec is FORWARD,
            clones=spec.clones,
        )

    def wrapped(
        self,
        key: Any,
        fn: Callable[..., list[Any]],
        example: list[Any],
        static: tuple[int, ...],
        *,
        writes: tuple[int, ...],
        is_backward: bool,
        is_forward: bool,
        clones: bool = False,
    ) -> Callable[[list[Any]], list[Any]]:
        """``fn`` on the trees, by ``key``; as it is where there are to be no graphs."""
        found = self.functions.get(key)
        if found is None:
            found = self.boxed(fn)
            if self.graphs:
                found = cudagraphify_impl(
                    found,
                    list(example),
                    static,
                    device_index=0,
                    is_backward=is_backward,
                    is_inference=not is_backward and not is_forward,
                    mutated_input_idxs=writes,
                    clone_outputs=clones or self.clones_all,
                )
            self.functions[key] = found
        return found

    def boxed(self, fn: Callable[..., list[Any]]) -> Callable[[list[Any]], list[Tensor]]:
        def run(args: list[Any]) -> list[Tensor]:
            own = list(args)
            args.clear()
            if self.fault == "at its beginning":
                self.maybe_fail()
            out = call_and_drop(fn, own)
            if self.fault:
                self.maybe_fail()
            return out

        return run

    def maybe_fail(self) -> None:
        """In a warm-up or a capture."""
        capturing = torch.cuda.is_current_stream_capturing()
        manager = get_manager(self.device, create_if_none_exists=False)
        if not capturing and (manager is None or manager.recorder.active_warm_up is None):
            return
        fault, self.fault = self.fault, ""
        if fault == "an interrupt":
            raise Interrupt
        if fault == "a synchronisation" and capturing:
            torch.cuda.synchronize()  # which no capture survives
        if fault == "out of memory":
            raise torch.OutOfMemoryError("on purpose")
        raise ArithmeticError("on purpose")

    # ---- operations

    def usable(self) -> list[Held]:
        """What a program may use now: nothing of a former step, unless that owns its memory."""
        return [h for h in self.held if h.step in (None, self.step) or h.kept]

    def argument(self, p: int, *, to_write: bool = False) -> tuple[Tensor, Tensor]:
        usable = [
            h
            for h in self.usable()
            if h.mirror.shape == (N,) and not (to_write and (h.shared or h.inference))
        ]
        if usable and p % 5 < 3:
            h = usable[p // 5 % len(usable)]
            return h.tensor, h.mirror
        mirror = torch.full((N,), float(p // 5 % 100))
        return mirror.to(self.device, copy=True), mirror

    def begin_call(self, is_backward: bool = False) -> None:
        """What the rules of generations say about a call that comes now."""
        self.calls += 1
        if self.pending and not self.backward_is_pending():
            self.pending = False
        if self.moved and (self.marks or not self.pending):
            self.step += 1
        self.moved = False
        if is_backward:
            self.pending = False
        if not self.pending:
            self.awaited.clear()

    def backward_is_pending(self) -> bool:
        """Tells whether trees still wait for a backward: they do not once they have noticed that
        nothing of the step is held."""
        manager = get_manager(self.device, create_if_none_exists=False)
        if manager is None or manager.path.pending_backward:
            return True
        awaited = {storage_of(m) for m in self.awaited}
        assert not [
            h
            for h in self.held
            if storage_of(h.mirror) in awaited and not (h.kept or h.shared) and h.step == self.step
        ], "no backward is pending of a forward whose output is held"
        return False

    def count_call(self) -> None:
        """A call came back."""
        manager = get_manager(self.device, create_if_none_exists=False)
        if manager is not None and manager.path.state is ExecutionState.EXECUTION:
            self.replays += 1

    def note(self, what: str, values: list[float]) -> None:
        """Something that another run of the program must come to as well."""
        if self.values:
            self.notes.append((what, values))

    def run(
        self,
        spec: Spec,
        arguments: list[tuple[Tensor, Tensor]],
        p: int = 0,
        *,
        inference: bool = False,
    ) -> list[tuple[Any, Any]]:
        """Call it, and hold some of the outputs. All of them are returned, with their mirrors;
        nothing if it was interrupted."""
        self.begin_call(spec.backward)
        inputs: list[Any] = []
        mirrors: list[Any] = []
        if spec.weight:
            inputs.append(self.weight_there)
            mirrors.append(self.weight)
        if spec.buffer:
            inputs.append(self.buffer_there)
            mirrors.append(self.buffer)
        inputs += [a for a, _ in arguments]
        mirrors += [b for _, b in arguments]
        arguments.clear()
        if spec.sizes:
            size = spec.sizes[p % len(spec.sizes)]
            inputs.append(size)
            mirrors.append(size)
        if spec.generator is not None:
            inputs.append(self.generators[spec.generator])
        expected, states = self.expected(spec, inputs, mirrors)
        theirs = {storage_of(m) for m in mirrors if isinstance(m, Tensor)}
        shared = theirs & {storage_of(m) for m in expected if isinstance(m, Tensor) and m.numel()}
        for h in self.held:
            h.shared |= storage_of(h.mirror) in shared
        del mirrors
        function = self.function(spec)
        try:
            with torch.inference_mode() if inference else torch.no_grad():
                out = function(inputs)
        except Interrupt:
            for g, state in zip(self.all_generators(), states, strict=bool(states)):
                g.set_state(state)
            if spec.buffer:  # it may have been written to or not
                self.buffer_there.copy_(self.buffer)
            return []
        assert not inputs
        self.count_call()
        for g, state in zip(self.all_generators(), states, strict=bool(states)):
            assert torch.equal(g.get_state(), state), "other random numbers were drawn"
        if spec is FORWARD:
            self.pending = True
            self.awaited += [m for m in expected if isinstance(m, Tensor)]
        pairs = list(zip(out, expected, strict=True))
        kept = self.keeps_all or ((spec.clones or spec.backward) and self.moves_out)
        for i, (t, m) in enumerate(pairs):
            if not isinstance(m, Tensor):
                assert t == m
                continue
            assert t.shape == m.shape
            if storage_of(m) not in theirs:
                assert_new(t, inference)
            if (p >> i) % 4 and len(self.held) < MOST_HELD:
                aliases = storage_of(m) in shared
                keeps = self.keeps_all or (kept and not aliases)
                self.held.append(Held(t, m, self.step, aliases, keeps, inference))
        self.note(
            spec.fn.__name__, [float(m.double().sum()) for _, m in pairs if isinstance(m, Tensor)]
        )
        return pairs

    def expected(
        self, spec: Spec, inputs: list[Any], mirrors: list[Any]
    ) -> tuple[list[Any], list[Tensor]]:
        """What a call must return, and the states that the generators have then, if the
        function draws random numbers: what it does without a graph."""
        if not spec.random:
            return spec.fn(*mirrors), []
        before = [g.get_state() for g in self.all_generators()]
        own = [x.detach().clone() if isinstance(x, Tensor) else x for x in inputs]
        with torch.no_grad():
            made = [t.cpu() for t in spec.fn(*own)]
        after = [g.get_state() for g in self.all_generators()]
        for g, state in zip(self.all_generators(), before, strict=True):
            g.set_state(state)
        if self.values:
            numbers = made[-1].numpy().tobytes()
            assert numbers not in self.drawn, "the same random numbers were drawn twice"
            self.drawn.add(numbers)
        return made, after

    def all_generators(self) -> list[Generator]:
        """The default one, and the program's own."""
        return [torch.cuda.default_generators[0], *self.generators]

    def call(self, p: int) -> None:
        spec = self.specs[p % len(self.specs)]
        p //= len(self.specs)
        # An argument of the call that begins a step may be an output of the last one.
        arguments = [
            self.argument(p + 3 * i, to_write=i in spec.writes) for i in range(spec.inputs)
        ]
        if spec.writes and len({storage_of(m) for _, m in arguments}) < 2:
            return
        if p % 2:
            self.drop(p)
        if spec.writes and self.fault == "an interrupt":
            self.fault = ""  # what it has written then is the program's own affair
        self.run(spec, arguments, p, inference=p % 11 == 0)

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
        made = self.run(BACKWARD, arguments)
        if not made:
            return
        g, mirror = made[1]
        if self.weight_there.grad is None:
            self.weight_there.grad, self.gradient = g, mirror
        else:
            assert self.gradient is not None
            self.weight_there.grad.add_(g)
            self.gradient.add_(mirror)

    def fail(self, p: int) -> None:
        fault = FAULTS[p // 2 % len(FAULTS)] if p % 2 == 0 else ""
        self.fault = "" if fault in self.without else fault

    def new_step(self, p: int) -> None:
        self.script.clear()
        self.moved = True
        if self.marks:
            torch.compiler.cudagraph_mark_step_begin()
        else:
            self.new_generation()

    def new_generation(self) -> None:
        """Another compiled function is called; where steps are marked, that begins none."""
        if not self.marks:
            from torch._dynamo.mutation_guard import GenerationTracker

            self.moved = True
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
                view = replace(h, tensor=h.tensor[1:], mirror=h.mirror[1:])
                self.held.append(view)

    def write_in_place(self, p: int) -> None:
        """The user's own code writes to what it holds: a weight is not among that."""
        mine = [
            h
            for h in self.usable()
            if storage_of(h.mirror) not in (storage_of(self.weight), storage_of(self.buffer))
            and h.step in (None, self.step)
            and not h.shared
            and 0 not in h.mirror.stride()
        ]
        if mine:
            h = mine[p % len(mine)]
            with torch.inference_mode(h.tensor.is_inference()):
                h.tensor.mul_(0.5)
            h.mirror.mul_(0.5)

    def hold_outside(self, p: int) -> None:
        if len(self.held) < MOST_HELD:
            mirror = torch.full((N,), float(p % 100))
            self.held.append(Held(mirror.to(self.device, copy=True), mirror, None))

    def hold_a_copy_of(self, t: Tensor) -> None:
        """Hold ``t``, which nobody writes to, with the value that it has now."""
        if len(self.held) < MOST_HELD:
            mirror = t.cpu().clone()
            self.held.append(Held(t, mirror, self.step, shared=True, kept=self.keeps_all))

    def tag(self, p: int) -> None:
        """Attributes, as libraries give tensors."""
        if self.held:
            self.held[p % len(self.held)].tensor.tag = p  # type: ignore[attr-defined]

    def drop_in_cycle(self, p: int) -> None:
        if self.held:
            cycle: list[Any] = [self.held.pop(p % len(self.held))]
            cycle.append(cycle)
            self.garbage = True

    def move_weight(self, p: int) -> None:
        """``p.data = …``: somewhere else, and perhaps with another value."""
        self.weight = self.weight.clone()
        if p % 2:
            self.weight.mul_(0.5).add_(p % 3)
        self.weight_there.data = self.weight.to(self.device, copy=True)
        if p % 4 == 0:
            self.buffer_there = self.buffer_there.clone()

    def seed(self, p: int) -> None:
        """The generators start again, and with them what may be drawn."""
        self.drawn.clear()
        torch.manual_seed(p)
        for k, g in enumerate(self.generators):
            g.manual_seed(p + k + 1)

    def sometimes_let_functions_die(self, p: int) -> None:
        # A function that dies at once is never replayed, and replays are what this is about.
        if p % 8:
            return
        p //= 8
        if p % 4 == 0:
            self.collect()
        for key in list(self.functions)[p % 3 :: 3] if p % 2 else list(self.functions):
            del self.functions[key]
        if not self.functions:
            self.manager_is_gone()

    def sometimes_reset(self, p: int) -> None:
        if p % 16 == 0:
            reset_cudagraph_trees()
            self.manager_is_gone()
            if self.marks:
                torch.compiler.cudagraph_mark_step_begin()

    def collect(self) -> None:
        gc.collect()
        self.garbage = False

    def manager_is_gone(self) -> None:
        """What was valid owns its memory from now on."""
        for h in self.held:
            if h.step == self.step:
                h.step = None
        self.step += 1
        self.moved = self.pending = False
        self.awaited.clear()
        self.script.clear()

    # ---- checks

    def check(self) -> None:
        """All that must be true between operations."""
        valid = check_values(self)
        self.training.check()
        check_liveness(self, valid)
        check_books(self)

    def run_program(self, program: Program) -> None:
        """Run it, with all checks after every operation.

        Raises:
            AssertionError: something is not as it must be; the message tells the operation.
        """
        for i, (what, p) in enumerate(program):
            operation = self.operations[what % len(self.operations)]
            try:
                operation(p)
                if operation not in (self.repeat_the_step, self.new_step):
                    self.script.append((operation, p))
                self.check()
            except Exception as e:
                raise AssertionError(f"operation {i}, {operation.__name__}({p}): {e}") from e

    def let_go(self) -> None:
        """Of everything."""
        self.held.clear()
        self.functions.clear()
        self.weight_there.grad = None
        self.training.let_go()
        self.script.clear()
        self.operations = []

    def finish(self) -> None:
        """Let go of everything and look what is left."""
        self.let_go()
        gc.collect()
        reset_cudagraph_trees()
        self.leftovers.check(self.parts())

    def parts(self) -> list[Tensor]:
        """Tensors of its own."""
        return [self.weight_there, self.buffer_there, *self.training.parts()]


def assert_new(t: Tensor, inference: bool) -> None:
    """Nothing of an earlier output that was the same object is left."""
    assert not t.requires_grad, "it requires a gradient"
    assert t.grad_fn is None, "it has a grad_fn"
    assert not t.retains_grad, "it retains its gradient"
    assert t._backward_hooks is None, "it has hooks"
    assert not t.__dict__, f"it has attributes: {t.__dict__}"
    assert inference or not t.is_inference(), "it was made in inference mode"


@contextmanager
def _sizes() -> Iterator[None]:
    with inductor_config.patch({"triton.cudagraph_capture_sizes": GRAPHED_SIZES}):
        yield


def run(program: Program, outputs: str = "error", **how: Any) -> Machine:
    """One program from nothing to nothing.

    Args:
        program: see above.
        outputs, **how: see ``Machine``.

    Returns:
        The machine that ran it; it holds nothing any more.

    Raises:
        AssertionError: something was not as it must be.
    """
    torch.manual_seed(0)
    with _sizes():
        machine = Machine(outputs, **how)
        try:
            machine.run_program(program)
        except BaseException:
            machine.let_go()
            reset_cudagraph_trees()
            raise
        machine.finish()
    return machine


def compare(a: Sequence[Note], b: Sequence[Note]) -> None:
    """Two runs of one program at the same seed.

    Raises:
        AssertionError: they differ.
    """
    assert len(a) == len(b), f"{len(a)} notes and {len(b)}"
    for k, ((what, x), (other, y)) in enumerate(zip(a, b, strict=True)):
        assert what == other, f"note {k}: {what} and {other}"
        assert len(x) == len(y), f"note {k}, {what}: {x} and {y}"
        for v, w in zip(x, y, strict=True):
            same = math.isclose(v, w, rel_tol=1e-5, abs_tol=1e-4) or (v != v and w != w)
            assert same, f"note {k}, {what}: {x} and {y}"
