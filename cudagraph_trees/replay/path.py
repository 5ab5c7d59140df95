"""The path: what ran last in the tree, what state that is, and when its step is over.

Note [The four states]
~~~~~~~~~~~~~~~~~~~~~~
The state says what the allocator's books are worth and what may follow.

* NONE: no path. Nothing of the pool is respected; the next node is a root.
* WARMUP: the last function ran without being recorded. Its outputs own their blocks. Only
  warm-ups may follow, since addresses differ from call to call.
* RECORDING: the last function was recorded just now. Its outputs own their blocks, the books
  are right, and the next function is recorded without a look at what exists.
* EXECUTION: the last function was replayed. The books are those of the last recording;
  they are restored from the node's checkpoint before anything is warmed up or recorded.

A path ends when a new step begins (``step_end``) or when none of its outputs is held any more.
After a replay the second is looked at only if no child fits, which says the same.

Note [Generations]
~~~~~~~~~~~~~~~~~~
A *generation* is torch's name for a step, whose functions overwrite what the last one left. Its
number is torch's own: it moves with ``torch.compiler.cudagraph_mark_step_begin()``, and until
someone calls that, with every call of a function that ``torch.compile`` returned.

A generation that moved by itself does not end a step while a backward is pending:
training calls several compiled functions before it calls backward once. Waiting for
*every* backward would wait for ever where a forward is never followed by one, so the
first backward releases the step. An explicit mark ends it all the same.

Inside of a backward no step begins, marked or not: the forwards that a checkpoint runs there again
belong to the step whose gradients are under way, which only the engine of autograd holds.

A backward may be pending for inference calls, too (``step_end.continues_step``): a reentrant
checkpoint runs its function without gradients and makes what it returns part of a graph. Only what
ran since the last backward counts (``at_backward``): what a program holds of a step that is over
has a ``grad_fn`` as well.
"""

from __future__ import annotations

from enum import Enum, auto

from memprof.profiler.support.counter import Counter

from .. import _torch_compat as compat
from ..device.protocol import Input, Output
from .node import CalledOff, CUDAGraphNode, Node
from .spec import CompilationMode, FunctionSpec


class ExecutionState(Enum):
    NONE = auto()
    WARMUP = auto()
    RECORDING = auto()
    EXECUTION = auto()


_NONE = ExecutionState.NONE
_EXECUTION = ExecutionState.EXECUTION
_FORWARD = CompilationMode.FORWARD
_BACKWARD = CompilationMode.BACKWARD


REPLAYS = Counter()
"""Replays in this process, of all managers."""


class TreePath:
    """Position of one manager in its tree.

    Attributes:
        node: what ran last, None if there is no path.
        state: see Note [The four states].
        step: number of the step that runs, from 1.
        generation: torch's number of the generation in which something ran last.
        pending_backward: a forward ran, and since then no backward in the tree or out of it; and
            something of the path may be held.
        at_backward: the node that was the last one when a backward ran, None if none has.
    """

    def __init__(self) -> None:
        self._mark, self._tracker = compat.step_counters()
        self.node: Node | None = None
        self.state = _NONE
        self.step = 0
        self.generation = -1
        self.pending_backward = False
        self.at_backward: Node | None = None

    # ---- generations

    def generation_moved(self) -> bool:
        """Tells whether something ran in another generation than this one."""
        return self.generation != self._now()

    def _now(self) -> int:
        return int(self._mark.mark_step_counter or self._tracker.generation)

    def step_may_begin(self) -> bool:
        """Tells whether a step may begin that overwrites what the last one left. Hot."""
        mark = self._mark.mark_step_counter
        if mark:
            moved = self.generation != mark
        else:
            moved = not self.pending_backward and self.generation != self._tracker.generation
        return moved and compat.graph_task() == -1

    def ran_without_graph(self) -> None:
        """A function ran without a graph: it belongs to the step that runs, unless one may
        begin. Otherwise, a pending backward that comes after it would be taken for a new step."""
        if not self.step_may_begin():
            self.generation = self._now()

    def returned(self, function: FunctionSpec) -> None:
        if function.mode is _FORWARD:
            self.pending_backward = True
        elif function.mode is _BACKWARD:
            self.backward_ran()

    def backward_ran(self) -> None:
        """A backward ran, in the tree or out of it: none is pending any more."""
        self.pending_backward = False
        self.at_backward = self.node

    # ---- what ran

    def replay(self, child: CUDAGraphNode, inputs: list[Input]) -> list[Output] | None:
        """Replay a recording that fits after the node. Hot. If it raises, or is called off, it is
        as if it had not been called; in the second case ``inputs`` are there again, and the result
        is None."""
        node, generation = self.node, self.generation
        if node is None:
            self.step += 1
        self.node = child
        self.state = _EXECUTION
        self.generation = self._mark.mark_step_counter or self._tracker.generation
        child.replays += 1
        try:
            outputs = child.run(inputs)
        except BaseException as e:
            if node is None:
                self.step -= 1
            self.node = node
            self.state = _NONE if node is None else _EXECUTION
            child.replays -= 1
            if not isinstance(e, CalledOff):
                self.generation = generation
                raise
            inputs[:] = e.inputs
            return None
        REPLAYS.tick()
        mode = child.wrapped_function.mode
        if mode is _FORWARD:
            self.pending_backward = True
        elif mode is _BACKWARD:
            self.pending_backward = False
            self.at_backward = child
        return outputs

    def begin_run(self) -> None:
        """Something is about to be warmed up or recorded: at a root, a step begins."""
        if self.node is None:
            self.step += 1

    def ran(self, node: Node) -> None:
        self.node = node
        recorded = isinstance(node, CUDAGraphNode)
        self.state = ExecutionState.RECORDING if recorded else ExecutionState.WARMUP
        self.generation = self._now()

    def books_restored(self) -> None:
        """The allocator's books were restored after a replay: they are right again."""
        self.state = ExecutionState.RECORDING

    def end(self) -> None:
        """End the path: nothing of it is held, or a step begins, so no backward can need it."""
        self.pending_backward = False
        self.leave_pool()

    def leave_pool(self) -> None:
        """Go on outside of the pool, in the same step."""
        self.node = self.at_backward = None
        self.state = _NONE
