"""Specifications of compiled functions: built once, in ``entry``, and read by everything else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from typing import Any

import torch

from memprof.profiler.model import (
    Category,
    GraphDescription,
    GraphRecord,
    GraphValue,
    InputAliasInfo,
    Role,
    ViewAndMutationMeta,
)

from .. import _torch_compat as compat
from ..device.protocol import Input, Model
from ..torch_options import TreeOptions

NAMED = 5
"""Most inputs that a sentence names."""

MAX_FAILURES = 2
"""A function whose warm-up or recording failed so often runs without a graph for good."""


class CompilationMode(Enum):
    FORWARD = auto()
    BACKWARD = auto()
    INFERENCE = auto()


@dataclass(eq=False, slots=True, kw_only=True)
class GraphSpec:
    """One compiled graph, or one partition of it, for all sizes.

    Attributes:
        model: the boxed callable, see Note [Who does what: manager and device].
        constants: device tensors baked into the code.
        placeholders: torch's ``PlaceholderInfo`` for each input, for messages.
        description: what it takes and returns. The values of a part are those of the whole graph.
        stack_traces: user code that made each output, or None.
        kernel_free: the code launches nothing, so there is nothing to capture.
        compile_id: Dynamo's.
        record: the graph in the profile, if memprof's backend compiled it.
        partition: number of this partition of the graph, None if it has only one.
        clone_outputs: outputs that are held beyond their step get memory of their own.
        annotate: the model marks its kernels where it is captured.
        mutated: inputs that the code writes to.
    """

    model: Model
    mode: CompilationMode
    description: GraphDescription
    constants: tuple[torch.Tensor, ...] = ()
    placeholders: Sequence[Any] = ()
    stack_traces: Sequence[str | None] | None = None
    kernel_free: bool = False
    compile_id: object = None
    record: GraphRecord | None = None
    partition: int | None = None
    clone_outputs: bool = False
    annotate: bool = False
    options: TreeOptions = field(default_factory=TreeOptions)
    mutated: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.mutated = self.description.mutated

    def graph_input(self, i: int) -> int | None:
        """Index of input ``i`` among the profile's graph inputs; None if none or unknown."""
        found = self.description.inputs[i].index
        return None if self.record is None or found < 0 else found

    def output_value(self, i: int) -> GraphValue | None:
        """Output ``i`` as the profile has it; None if it has none, or that is unknown."""
        values = self.description.outputs
        return values[i] if i < len(values) and values[i].index >= 0 else None

    def graph_outputs_of(self, i: int) -> tuple[int, ...]:
        """Numbers an output as ``TreeDetail.outputs`` does: empty if it is not known."""
        found = self.output_value(i)
        return () if found is None or self.record is None else (found.index,)

    @staticmethod
    def of(
        model: Model, inputs: Sequence[Input], static: Sequence[int], keywords: Mapping[str, Any]
    ) -> GraphSpec:
        """From what Inductor, and memprof's backend, pass to ``cudagraphify``: ``is_backward``,
        ``is_inference``, ``kernel_free_cudagraph`` and ``torch_options``, by default those of now;
        the other fields under their names. Others are not looked at. Where no ``description`` is
        passed, it is what Inductor's lists say: ``of_lists``.

        Args:
            inputs: of any call.
            static: inputs whose address is expected to stay, by Inductor's account.

        Raises:
            ValueError: it cannot be a backward and an inference graph.
        """
        if keywords["is_backward"] and keywords["is_inference"]:
            raise ValueError("a graph is a backward or an inference graph, not both")
        mode = CompilationMode.INFERENCE if keywords["is_inference"] else CompilationMode.FORWARD
        description = keywords.get("description")
        if description is not None:
            description = with_sizes(description, inputs)
        # One of another number of inputs would be that of another function.
        if description is not None and len(description.inputs) != len(inputs):
            compat.log.warning(
                "a graph takes %s inputs and is described with %s: Inductor's lists are taken",
                len(inputs),
                len(description.inputs),
            )
            description = None
        if description is None:
            description = of_lists(inputs, static, keywords)
        options = keywords.get("torch_options") or TreeOptions.of_this_compilation()
        same = {f.name: keywords[f.name] for f in _GIVEN if f.name in keywords}
        spec = GraphSpec(
            **{
                **same,
                "model": model,
                "description": description,
                "mode": CompilationMode.BACKWARD if keywords["is_backward"] else mode,
                "kernel_free": keywords.get("kernel_free_cudagraph", False),
                "options": options,
            }
        )
        spec.constants = tuple(
            t for t in spec.constants if isinstance(t, torch.Tensor) and t.device.type != "cpu"
        )
        spec.clone_outputs |= options["cudagraph_trees_generation_cloning"] == "user_visible"
        return spec

    def function(
        self,
        number: int,
        inputs: Sequence[Input],
        static: Sequence[int],
        alignment_checked: Sequence[int] = (),
    ) -> FunctionSpec:
        """Specialize to the integers among ``inputs``, which are those of the first call."""
        mine = {f.name: getattr(self, f.name) for f in _GIVEN}
        inference = self.mode is CompilationMode.INFERENCE
        makes_state = inference and self.description.updates_leaves
        mine["clone_outputs"] |= makes_state
        loose = [i for i, x in enumerate(inputs) if i not in static and isinstance(x, torch.Tensor)]
        infos = map(self.description.input_info, loose)
        takes_activations = any(info is not None and info.requires_grad for info in infos)
        what = self.mode.name.lower()
        named = f"{what} function {number}" if number >= 0 else f"{what} function"
        label = f"{self.compile_id} {what}" if self.compile_id else named
        return FunctionSpec(
            **mine,
            number=number,
            label=label,
            caller=label,
            key=tuple(x for x in inputs if isinstance(x, int)),
            makes_state=makes_state,
            # What a backward's caller lets go of is elsewhere at the next call, unless a node of
            # the path made it: it is copied, and not read where it lies.
            static=tuple(i for i in static if i not in self.description.donated),
            alignment_checked=tuple(alignment_checked),
            loose=tuple(loose),
            trains=self.mode is CompilationMode.FORWARD or (inference and takes_activations),
        )


_GIVEN = [f for f in fields(GraphSpec) if f.init]


def with_sizes(description: GraphDescription, inputs: Sequence[Input]) -> GraphDescription:
    """The description of a partition with the sizes that its code is handed as well. They come last
    among ``inputs``, and Inductor's map from a partition's inputs to the graph's leaves them out.
    """
    more = inputs[len(description.inputs) :]
    if not all(isinstance(x, (int, float)) for x in more):
        return description
    sizes = [GraphValue(-1, "", Role.SIZE, Category.INPUT)] * len(more)
    return replace(description, inputs=(*description.inputs, *sizes))


def of_lists(
    inputs: Sequence[Input], static: Sequence[int], keywords: Mapping[str, Any]
) -> GraphDescription:
    """A description by what Inductor passes to ``cudagraphify``, of code that memprof's backend has
    not compiled: ``placeholders``, ``mutated_input_idxs``, ``user_visible_output_idxs``."""
    backward = keywords["is_backward"]
    names = [getattr(p, "name", None) for p in keywords.get("placeholders", ())]
    mutated = keywords.get("mutated_input_idxs", ())
    visible = keywords.get("user_visible_output_idxs") or ()
    traces = keywords.get("stack_traces") or ()
    return GraphDescription(
        inputs=tuple(
            GraphValue(
                i,
                str(names[i]) if i < len(names) else f"input {i}",
                Role.UNKNOWN,
                Category.ACTIVATION if backward else Category.INPUT,
                static=i in static,
                mutated=i in mutated,
                info=i,
            )
            for i in range(len(inputs))
        ),
        outputs=tuple(
            GraphValue(i, "", Role.USER_OUTPUT, Category.OUTPUT)
            if i in visible
            else GraphValue(i, "", Role.SAVED_FOR_BACKWARD, Category.ACTIVATION)
            for i in range(len(traces))
            if visible
        ),
        metadata=ViewAndMutationMeta(
            tuple(
                InputAliasInfo(is_leaf=x.is_leaf, requires_grad=x.requires_grad)
                if isinstance(x, torch.Tensor)
                else InputAliasInfo()
                for x in inputs
            )
        ),
    )


@dataclass(frozen=True, slots=True)
class Why:
    """Why a call runs without a graph, or is recorded again: in words, and in fields of
    ``TreeDetail``; ``this_once`` if it will be recorded after all, ``in_ledger`` if the ledger has
    it already."""

    reason: str
    cause: dict[str, Any] = field(default_factory=dict)
    this_once: bool = False
    in_ledger: bool = False


@dataclass(slots=True)
class PlaceState:
    """State of a function after one recording, or at a root, whatever becomes of what was recorded
    there.

    Attributes:
        refusal: why it runs without a graph there, None if nothing speaks against one.
        misfits: how often none of its recordings fitted, as far as that counts.
        moved: how often managed inputs were elsewhere.
        demoted: managed inputs that are copied there, since they kept moving.
    """

    refusal: Why | None = None
    misfits: int = 0
    moved: Counter[int] = field(default_factory=Counter)
    demoted: frozenset[int] = frozenset()


@dataclass(slots=True)
class FunctionState:
    """State of a function in its manager.

    Attributes:
        warmed_up: it may be recorded.
        warm_ups: how often it was warmed up.
        failures: how often its warm-up or recording failed.
        given_up: why it runs without a graph for good, "" if it does not.
        places: by the number of the recording before it, None at a root.
        warned_stuck, warned_inputs: the log has that no step ever ends, and why its inputs cannot
            be recorded.
        host_inputs, host_outputs: random states that were tensors of the host in a call that was
            no replay, see Note [Random state on two devices].
    """

    warmed_up: bool = False
    warm_ups: int = 0
    failures: int = 0
    given_up: str = ""
    places: defaultdict[int | None, PlaceState] = field(
        default_factory=lambda: defaultdict(PlaceState)
    )
    warned_stuck: bool = False
    warned_inputs: bool = False
    host_inputs: set[int] = field(default_factory=set)
    host_outputs: set[int] = field(default_factory=set)

    def count_failure(self) -> None:
        """Count a failed warm-up or recording; after ``MAX_FAILURES`` the function is given up."""
        self.failures += 1
        if self.failures >= MAX_FAILURES and not self.given_up:
            self.given_up = "warm-up or recording failed before"


@dataclass(eq=False, slots=True, kw_only=True)
class FunctionSpec(GraphSpec):
    """One compiled function for one set of integer inputs, in one manager.

    Attributes:
        number: of the function in its manager, for messages; -1 if it is in none.
        label: its name in messages and in the ledger.
        caller: that, and which part of torch ran it first, for messages.
        called_at: ``file:line`` of the program's first call, "" if no line of it was on the stack.
        key: values of the integer inputs.
        makes_state: it updates parameters, so that what it returns is an optimizer's state, which
            lasts: momentum that the first step makes. ``clone_outputs`` is set as well.
        static: inputs whose address is expected to stay.
        loose: tensors among the inputs that are not static, or turned out to keep moving.
        alignment_checked: inputs that the code takes for aligned and that may not be.
        leaves: ``loose`` ones that may be leaves, see ``ParameterRefs``.
        trains: a call may be part of a training step: of a forward, or of an inference function
            that takes activations which require gradients, as in a reentrant checkpoint.
    """

    number: int
    label: str
    caller: str
    called_at: str = ""
    key: tuple[int, ...] = ()
    makes_state: bool = False
    static: tuple[int, ...] = ()
    loose: tuple[int, ...] = ()
    alignment_checked: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    trains: bool = False
    state: FunctionState = field(default_factory=FunctionState)

    def names_of_inputs(self, which: Sequence[int]) -> str:
        """The user's names of some inputs, else the compiler's; of many, those of the first."""
        names = [self.description.inputs[i].label or f"input {i}" for i in which[:NAMED]]
        more = f" and {len(which) - NAMED} more" if len(which) > NAMED else ""
        return ", ".join(names) + more

    def copy_from_now_on(self, which: Sequence[int]) -> None:
        self.static = tuple(i for i in self.static if i not in which)
        self.loose = tuple(sorted({*self.loose, *which}))

    def let_go(self) -> None:
        """Drop the model and constants: nobody can call the function any more."""
        self.model = _gone
        self.constants = ()


def _gone(inputs: list[Input]) -> list[Any]:
    raise RuntimeError("this function was let go of")
