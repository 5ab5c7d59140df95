"""Private parts of torch that simulated runs use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from memprof.simulated_cuda.after_import import after_import


def on_cuda_start(do: Callable[[], object]) -> None:
    """Call ``do`` as CUDA starts in a process, or now if it has; a forked process does so too."""
    import torch

    torch.cuda._lazy_call(do)  # type: ignore[no-untyped-call]


def cuda_may_start_after_fork() -> bool:
    """Tells, in a forked process, whether CUDA can start there: it had not before the fork."""
    import torch

    # Another thread may have held the lock as it started CUDA: nobody would ever release it here.
    torch.cuda._initialization_lock = threading.Lock()
    return not (torch.cuda._is_in_bad_fork() or torch.cuda._initialized)


def on_partition(do: Callable[[Sequence[Any]], None]) -> None:
    """Call ``do`` with the forward and the backward that AOTAutograd makes of each graph from here
    on; torch may be imported later."""

    def wrap(partitioners: Any) -> None:
        partition = partitioners.min_cut_rematerialization_partition

        def told(*args: Any, **kwargs: Any) -> Any:
            halves = partition(*args, **kwargs)
            do(halves)
            return halves

        partitioners.min_cut_rematerialization_partition = told

    after_import("torch._functorch.partitioners", wrap)


def keep_lines_of_partitions(wrapper: Any) -> None:
    """Let Inductor know the FX nodes of lines of code that it cuts into partitions, as for CUDA
    graphs, in ``torch._inductor.codegen.wrapper``, which was just imported: torch 2.11 to 2.15 keep
    the text of a partition only, so that neither its memory nor its kernels have a line of the
    program."""
    from torch._inductor.utils import LineContext

    generator = wrapper.PythonWrapperCodegen
    define = generator.define_subgraph_launcher_fn

    def define_subgraph_launcher_fn(self: Any, name: str, subgraph_code: Any) -> None:
        lines = self.subgraph_definitions._lines
        begin = len(lines)
        define(self, name, subgraph_code)
        # What calls the partitions comes after them, and is of no node.
        lines.append(LineContext(SimpleNamespace(stack_trace=None)))
        # From the last on, which moves none before it.
        for line, node in reversed(subgraph_code.line_map):
            lines.insert(begin + line - 1, LineContext(node))

    generator.define_subgraph_launcher_fn = define_subgraph_launcher_fn


def fake_votes(stages: Any) -> None:
    """Let a rank's stages decide whether shapes are given to all of them, in
    ``torch.distributed.pipelining.stage``, which was just imported: in torch 2.12 to 2.14 a vote
    goes from the first stage to the last and back."""

    def vote(stage: Any, has_backward: bool, received_acc: Any = None) -> Any:
        import torch

        asks = stages.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
        mine = torch.tensor([not asks], dtype=torch.int32)
        return mine if received_acc is None else mine * received_acc

    if hasattr(stages.PipelineStage, "_warmup_forward_vote"):
        stages.PipelineStage._warmup_forward_vote = vote
        stages.PipelineStage._warmup_backward_result = lambda _, received_result: received_result
