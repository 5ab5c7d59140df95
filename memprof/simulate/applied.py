"""Applies ``changes.py`` in the script's own process, by torch's own hooks and defaults.

A change that found nothing to change says so: a saving of nothing is not to be taken for a change
that does not help.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakSet

from memprof._torch_compat import allocate_by
from memprof.profiler._text import is_inside, without_numbers
from memprof.profiler.stack_text import innermost_module
from memprof.simulated_cuda.after_import import after_import

from .changes import change_of, environment_again, option_of

_CHUNKS = 8
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

Said = Callable[[str], None]
"""Is told what was changed so far, in words."""

UNCACHED = {"TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
"""The environment in which every graph is partitioned."""


class PartitionFlops:
    """Counts floating-point operations, and graphs, of what AOTAutograd partitions into forward and
    backward in this process, by the formulas of ``torch.utils.flop_counter``; and those
    (``drawn_anew``) whose backward draws random numbers of the forward once more.

    What ``activation_memory_budget`` recomputes stands in the backward a second time, so two runs
    of one script differ by the operations that are recomputed. What comes from AOTAutograd's cache
    is not partitioned: that cache has to be off, as in ``UNCACHED``.
    """

    def __init__(self) -> None:
        self.total = 0
        self.graphs = 0
        self.drawn_anew = 0

    def install(self) -> None:
        """Count from now on; before torch is imported."""
        after_import("torch._functorch.partitioners", self._wrap)

    def _wrap(self, partitioners: ModuleType) -> None:
        partition = partitioners.min_cut_rematerialization_partition

        def counted(*args: Any, **kwargs: Any) -> Any:
            halves = partition(*args, **kwargs)
            self.graphs += 1
            self.total += sum(_flops(half.graph) for half in halves)
            self.drawn_anew += _draws_anew(*halves)
            return halves

        partitioners.min_cut_rematerialization_partition = counted  # type: ignore[attr-defined]


DRAWN_ANEW = (
    "gradients are wrong: a backward draws new random numbers where its forward drew some for "
    "dropout. activation_memory_budget does that (pytorch/pytorch#190758), and "
    "torch.utils.checkpoint does not"
)
"""A note of what ``activation_memory_budget`` below 1 does to dropout in torch 2.11 to 2.15."""


def _draws_anew(*halves: Any) -> bool:
    """Whether a forward and its backward draw random numbers of the same node of the joint graph,
    whose name it keeps in both."""
    from memprof.compile_backend._torch_compat import draws_random_numbers

    forward, backward = (
        {n.name for n in half.graph.nodes if draws_random_numbers(n)} for half in halves
    )
    return not forward.isdisjoint(backward)


def _flops(graph: Any) -> int:
    from torch.fx.node import map_arg
    from torch.utils.flop_counter import flop_registry

    total = 0
    for node in graph.nodes:
        formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if node.op != "call_function" or formula is None:
            continue
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        total += int(formula(*args, **kwargs, out_val=node.meta.get("val")))
    return total


def step_by_parameter(step: Callable[..., Any], said: Callable[[int], None]) -> Callable[..., Any]:
    """An optimizer's ``step`` that updates one parameter after the other, in float32, and keeps its
    state in bfloat16; ``said`` is told how many tensors of state a step made narrower."""

    @functools.wraps(step)
    def one_by_one(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
        import torch

        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups, narrowed = optimizer.param_groups, 0
        try:
            for group in groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    # The state of a narrow parameter is as narrow by itself.
                    wide = parameter.dtype is torch.float32
                    if wide:
                        _convert(optimizer.state.get(parameter, {}), torch.bfloat16, torch.float32)
                    optimizer.param_groups = [{**group, "params": [parameter]}]
                    step(optimizer)
                    state = optimizer.state.get(parameter, {})
                    if wide:
                        narrowed += _convert(state, torch.float32, torch.bfloat16)
        finally:
            optimizer.param_groups = groups
        if narrowed:
            said(narrowed)
        return loss

    return one_by_one


def _convert(state: Any, old: Any, new: Any) -> int:
    """How many tensors of a state were of type ``old``, and are ``new`` now; numbers stay."""
    is_old = [k for k, v in state.items() if getattr(v, "dtype", None) is old and v.numel() > 1]
    for key in is_old:  # One after the other: two of one tensor are memory as well.
        state[key] = state[key].to(new)
    return len(is_old)


def _narrow(_: str, said: Said, module: Any) -> None:
    def changed(optimizer: Any, defaults: dict[str, Any]) -> dict[str, Any]:
        kind = type(optimizer)
        # Inside of what torch wraps around a step: that is still one step to whoever counts them.
        if not getattr(kind.step, "hooked", False):
            kind.step = step_by_parameter(
                kind.step, lambda n: said(f"{kind.__name__}, {n:,} tensors")
            )
        return defaults

    _around_init(module, changed)


def _around_init(module: Any, changed: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
    """Let ``changed`` have a look at each optimizer that is made, and at its defaults."""
    init = module.Optimizer.__init__

    def made(optimizer: Any, params: Any, defaults: dict[str, Any]) -> None:
        init(optimizer, params, changed(optimizer, defaults))

    module.Optimizer.__init__ = made


def _defaults(values: dict[str, Any], always: bool, _: str, said: Said, module: Any) -> None:
    def changed(optimizer: Any, defaults: dict[str, Any]) -> dict[str, Any]:
        if always or all(defaults.get(k) in (None, False) for k in values):
            mine = {k: v for k, v in values.items() if k in defaults}
            if any(defaults[k] != v for k, v in mine.items()):
                chosen = next(iter(values))
                said(f"{type(optimizer).__name__} has {chosen}={values[chosen]}")
                return {**defaults, **mine}
        return defaults

    _around_init(module, changed)


def _drop(_: str, said: Said, module: Any) -> None:
    def drop(optimizer: Any, args: Any, kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(p.grad is not None for p in parameters):
            said(f"after each step of {type(optimizer).__name__}")
        for p in parameters:
            p.grad = None

    module.register_optimizer_step_post_hook(drop)


def _chunk(_: str, said: Said, functional: Any) -> None:
    """``cross_entropy`` in eight chunks of rows, each checkpointed; torch's own gets what is no
    mean over rows of logits."""
    whole = functional.cross_entropy

    def cross_entropy(
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        from torch.utils.checkpoint import checkpoint

        other = size_average is not None or reduce is not None or weight is not None
        rows = input.shape[0] if input.dim() == 2 and target.dim() == 1 else 0
        if other or reduction != "mean" or rows < 2 * _CHUNKS:
            return whole(
                *(input, target, weight, size_average, ignore_index, reduce),
                reduction=reduction,
                label_smoothing=label_smoothing,
            )
        part = partial(
            whole, ignore_index=ignore_index, reduction="sum", label_smoothing=label_smoothing
        )
        said(f"cross_entropy of {rows:,} rows")
        chunks = zip(input.chunk(_CHUNKS), target.chunk(_CHUNKS), strict=True)
        total = sum(checkpoint(part, a, b, use_reentrant=False) for a, b in chunks)
        return total / (target != ignore_index).sum()

    functional.cross_entropy = cross_entropy


class Checkpointed:
    """Has blocks of each model recomputed, before its first call: modules of names like
    ``pattern``, with ``*`` for their numbers, or ``repeated_blocks``.

    What is moved to a device or called is a model, with all that is inside of it: a program may
    have several. What later becomes a part of something larger is looked at again as a part of it.
    """

    def __init__(self, pattern: str, said: Callable[[str], None]) -> None:
        self._pattern = pattern
        self._said = said
        self._seen: WeakSet[Any] = WeakSet()
        self._counts: Counter[str] = Counter()

    def install(self, module: ModuleType) -> None:
        """See each module when it moves to a device, and before its first call; ``module`` is
        ``torch.nn.modules.module``."""
        for name in ("to", "to_empty", "cuda"):
            _after(module.Module, name, self._look)
        module.register_module_forward_pre_hook(lambda root, args: self._look(root))

    def _look(self, root: Any) -> None:
        import torch

        if torch.compiler.is_compiling():  # Which can follow no weak references.
            if not self._counts:
                self._recompute(self._blocks(root))
            return
        if root in self._seen:
            return
        inside = list(root.modules())
        self._seen.update(inside)
        blocks = self._blocks(root)
        if not blocks:
            return
        for module in inside:
            before = getattr(module.__dict__.get("forward"), "recomputes", None)
            if before is not None:
                module.forward = before
                self._counts[type(module).__name__] -= 1
        self._recompute(blocks)

    def _blocks(self, root: Any) -> list[Any]:
        if not self._pattern:
            return repeated_blocks(root)
        named = ((name.replace("_orig_mod.", ""), m) for name, m in root.named_modules() if name)
        return [module for name, module in named if without_numbers(name) == self._pattern]

    def _recompute(self, blocks: list[Any]) -> None:
        for block in blocks:
            block.forward = _recomputed(block.forward)
            self._counts[type(block).__name__] += 1
        if blocks:
            self._said(", ".join(f"{n} {name}" for name, n in self._counts.items() if n))


def _after(owner: Any, name: str, look: Callable[[Any], None]) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(module, *args, **kwargs)
        look(module)
        return result

    setattr(owner, name, moved)


def repeated_blocks(root: Any) -> list[Any]:
    """The siblings of one class, in a list or a sequence of modules, with most parameters."""
    from torch.nn import ModuleList

    best: list[Any] = []
    most = 0
    for parent in root.modules():
        groups: dict[Any, list[Any]] = {}
        for child in parent.children():
            groups.setdefault(type(child), []).append(child)
        for kind, group in groups.items():
            size = sum(p.numel() for block in group for p in block.parameters())
            # A leaf has nothing inside that could be recomputed, a list is not called.
            inside = next(group[0].children(), None) is not None
            worth = inside and kind.forward is not ModuleList.forward
            if len(group) > 1 and size > most and worth:
                best, most = group, size
    return best


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    checkpointed.recomputes = forward  # type: ignore[attr-defined]
    return checkpointed


def _expect(names: str, said: Said, output_graph: Any) -> None:
    """Do to graphs of Dynamo what ``torch._dynamo.mark_static_address(guard=False)`` would.

    AOTAutograd reads it off their placeholders. An input that moves after all is seen by graph
    trees. ``NAME+NAME`` are each ``GraphValue.fqn`` of an input, else Dynamo's source, such as
    ``L['cache']``; every graph that has one is meant.
    """
    compile_ = output_graph.OutputGraph.call_user_compiler
    wanted = frozenset(names.split("+"))
    marked = 0

    def compiled(graph: Any, gm: Any, example_inputs: Any) -> Any:
        from memprof.compile_backend.roles.dynamo_input import dynamo_inputs

        nonlocal marked
        inputs = dynamo_inputs(gm, example_inputs)
        meant = {v.name for v in inputs if (v.fqn or v.source) in wanted}
        for node in gm.graph.find_nodes(op="placeholder"):
            facts = node.meta.setdefault("tensor_dict", {})
            if node.name in meant and not facts.get("_dynamo_static_input_type"):
                facts["_dynamo_static_input_type"] = "unguarded"
                marked += 1
                said(f"inputs of compiled graphs: {marked:,}")
        return compile_(graph, gm, example_inputs)

    output_graph.OutputGraph.call_user_compiler = compiled


def _recompute(where: str, said: Said, partitioners: Any) -> None:
    """Mark nodes of joint graphs as torch's checkpointing does, before they are partitioned: those
    of ``OPERATOR+OPERATOR@FILE:LINE`` or ``…@MODULE``, as ``profiler/advice/recompute.py`` writes
    it, or of several such places with ``;`` between them."""
    partition = partitioners.min_cut_rematerialization_partition
    marked = 0

    def is_meant(node: Any) -> bool:
        # Seeds must be those of the forward: other random numbers would be another function.
        if node.meta.get("partitioner_tag") == "is_backward" or "seed" in str(node.target):
            return False
        operator = str(node.meta.get("original_aten") or node.target)
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        lines = {f"{os.path.basename(file)}:{line}" for file, line in frames}
        path, _ = innermost_module(node.meta.get("nn_module_stack")) or ("", "")
        return any(
            # Of a node without frames, as in an nn.Sequential, the line is that of the call.
            (not lines or line in lines)
            and operator in operators.split("+")
            and is_inside(path, "".join(modules))
            for operators, line, *modules in (place.split("@") for place in where.split(";"))
        )

    def partitioned(joint: Any, *args: Any, **kwargs: Any) -> Any:
        from torch.utils.checkpoint import CheckpointPolicy

        nonlocal marked
        for node in joint.graph.nodes:
            if node.op == "call_function" and is_meant(node):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                marked += 1
        if marked:
            said(f"{marked:,} nodes")
        return partition(joint, *args, **kwargs)

    partitioners.min_cut_rematerialization_partition = partitioned


def _option(argument: str, said: Said, backend: Any) -> None:
    compile_, split, option = backend._compile, backend.split_options, option_of(argument)
    changed = 0

    def overridden(
        gm: Any, inputs: Any, options: Any, mode: str | None, captured: Any = None
    ) -> Any:
        nonlocal changed
        # A captured backward is compiled with the options of its forward.
        if captured is None:
            before, options = options, {**(options or {}), **option}
            if split(options, mode) != split(before, mode):
                changed += 1
                said(f"graphs compiled with it: {changed:,}")
        return compile_(gm, inputs, options, mode, captured)

    backend._compile = overridden


_HOOKS: dict[str, tuple[str, Callable[[str, Said, Any], None]]] = {
    "fused-optimizer": (
        "torch.optim.optimizer",
        partial(_defaults, {"fused": True, "foreach": None}, False),
    ),
    "optimizer-one-by-one": (
        "torch.optim.optimizer",
        partial(_defaults, {"foreach": False, "fused": None}, True),
    ),
    "bf16-state": ("torch.optim.optimizer", _narrow),
    "drop-gradients": ("torch.optim.optimizer", _drop),
    "chunked-loss": ("torch.nn.functional", _chunk),
    "checkpoint": (
        "torch.nn.modules.module",
        lambda pattern, said, module: Checkpointed(pattern, said).install(module),
    ),
    "recompute": ("torch._functorch.partitioners", _recompute),
    "static-inputs": ("torch._dynamo.output_graph", _expect),
    "option": ("memprof.compile_backend.backend", _option),
}
"""By key of a change the module that it is about, and what is done to it once it was imported,
given the change's argument and whom to tell what was changed."""


class Applied:
    """Changes in this process, as ``change_of`` reads them."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._changes = [(text, *change_of(text)) for text in texts]
        self._done: dict[str, str] = {}

    def install(self) -> None:
        """Apply them as soon as what they are about is there; before torch is imported."""
        for text, change, argument in self._changes:
            if change.allocator:
                self._allocate(text)
            elif change.key in _HOOKS:
                module, hook = _HOOKS[change.key]
                after_import(module, partial(hook, argument, partial(self._note, text)))

    def sentences(self) -> list[str]:
        return list(self._done.values())

    def idle(self, partitions: int) -> list[str]:
        """Changes that found nothing to change: without a graph that was partitioned into forward
        and backward a setting of the partitioner has changed nothing."""
        return [
            text
            for text, change, _ in self._changes
            if not change.allocator
            and (partitions == 0 if change.setting else text not in self._done)
        ]

    def _note(self, text: str, said: str) -> None:
        self._done[text] = f"{text}: {said}"

    def _allocate(self, text: str) -> None:
        """See to settings of the allocator where the script sets some itself before CUDA starts."""
        given = dict(os.environ)

        def settings() -> str:
            name, variables = environment_again((text,), given, os.environ)
            os.environ.update(variables)
            if name:
                self._note(text, f"in {name}, which the program sets itself")
            return variables.get(name, "")

        after_import("torch", lambda torch: allocate_by(settings))
