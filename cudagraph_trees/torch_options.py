"""Torch's own options of CUDA graphs: what each means to these trees.

Note [Whose value holds]
~~~~~~~~~~~~~~~~~~~~~~~~
Torch reads most of ``torch._inductor.config.triton`` when a graph is called, so that there
``torch.compile(options=...)``, which holds while it compiles, does nothing for these. Here what
was given to one compilation holds for its graphs, for good (``TreeOptions.given``). What was not
given is read when it matters, as by torch, so that ``config.patch`` around a call works too. The
exceptions are what torch takes when it compiles (``AT_COMPILATION``), and what a recording has
built in (``force_cudagraph_sync``, ``slow_path_cudagraph_asserts``): its value when recorded holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from . import _torch_compat as compat


class Verdict(Enum):
    """What becomes of an option of torch."""

    HONOURED = "these trees do what it says"
    ALWAYS = "these trees do that in any case; there is nothing to switch"
    COMPILER = "it tells Inductor, Dynamo or AOTAutograd how to compile, and is left to them"
    OTHERS = "it concerns something else than what runs in these trees"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one option.

    Attributes:
        verdict: see there.
        where: file and function that reads it, or what it concerns.
    """

    verdict: Verdict
    where: str


def _ours(where: str) -> Decision:
    return Decision(Verdict.HONOURED, where)


def _compiler(what: str) -> Decision:
    return Decision(Verdict.COMPILER, what)


DECISIONS: Mapping[str, Decision] = {
    "triton.cudagraphs": _compiler("whether graphs are captured; Options.graphs comes first"),
    "triton.cudagraph_trees": _ours("inductor._in_use_here: off, Inductor captures without trees"),
    "triton.cudagraph_skip_dynamic_graphs": _compiler("which graphs and partitions are captured"),
    "triton.cudagraph_min_partition_size": _compiler("which partitions are captured"),
    "triton.cudagraph_partition_memory_budget": _compiler("the order of partitions"),
    "triton.cudagraph_capture_sizes": _ours("entry.ShapeDispatcher"),
    "triton.cudagraph_dynamic_shape_warn_limit": _ours("entry.ShapeDispatcher"),
    "triton.cudagraph_dynamic_shape_rerecord_limit": _ours("entry.ShapeDispatcher"),
    "triton.cudagraph_initial_mempool_allocation_gb": _ours("container.get_tree_manager"),
    "triton.slow_path_cudagraph_asserts": _ours("capture.run.capture_node"),
    "triton.fast_path_cudagraph_asserts": Decision(
        Verdict.ALWAYS, "each replay looks whether what must be dead is (replay.replay)"
    ),
    "triton.cudagraph_trees_history_recording": _ours("recorder, pool_check"),
    "triton.cudagraph_trees_objgraph": _ours("pool_check"),
    "triton.cudagraph_trees_generation_cloning": _ours("spec.GraphSpec.of"),
    "triton.cudagraph_support_input_mutation": _ours("record_policy; and Inductor"),
    "triton.cudagraph_unexpected_rerecord_limit": _ours("record_policy"),
    "triton.cudagraph_managed_input_rerecord_limit": _ours("record_policy"),
    "triton.cudagraph_managed_input_rerecord_action": _ours("record_policy"),
    "triton.force_cudagraph_sync": _ours("recorder.record"),
    "triton.force_cudagraphs_warmup": _ours("manager._call_slowly"),
    "triton.skip_cudagraph_warmup": _ours("manager._call_slowly; the observation of calls"),
    "triton.cudagraph_or_error": _ours("recorder, entry; Inductor"),
    "cudagraph_policy": _compiler("what is wrapped; what it wraps whole is one function here"),
    "cudagraph_unsafe_unbacked_ops": _compiler("where graphs are cut into partitions"),
    "force_disable_cudagraph_TESTING_ONLY": _compiler("which graphs are captured: none"),
    "autotune_cudagraph_benchmarking": Decision(Verdict.OTHERS, "how autotuning takes times"),
    "autotune_cudagraph_benchmarking_iters": Decision(Verdict.OTHERS, "how autotuning takes times"),
    "cudagraph_backend_keep_input_mutation": Decision(Verdict.OTHERS, 'backend="cudagraphs"'),
    "cudagraph_backend_support_input_mutation": Decision(Verdict.OTHERS, 'backend="cudagraphs"'),
}
"""Every option of torch 2.11, 2.13 and 2.15 that has to do with CUDA graphs, by its name in
``torch._inductor.config`` or ``torch._dynamo.config``. A test asks torch for its options, so that a
new one fails until somebody has decided about it here."""

AT_COMPILATION = (
    "cudagraph_managed_input_rerecord_limit",
    "cudagraph_managed_input_rerecord_action",
    "cudagraph_initial_mempool_allocation_gb",
    "cudagraph_trees_generation_cloning",
)
"""Options of ``triton`` whose value at compilation holds."""


_T = TypeVar("_T")


class _Option(Generic[_T]):
    """An attribute that is one of the options, as ``read`` makes it of torch's value."""

    def __init__(self, name: str, read: Callable[[Any], _T]) -> None:
        self._name = name
        self._read = read

    def __get__(self, options: TreeOptions, kind: object = None) -> _T:
        return self._read(options._get(self._name))


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """Torch's options for the graphs of one compilation, see Note [Whose value holds].

    Attributes:
        given: values that were given to the compilation, by name in ``config.triton``.
    """

    given: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            if self._get(name) not in allowed:
                raise ValueError(
                    f"torch._inductor.config.triton.{name} is {self._get(name)!r}; it must be "
                    f"one of {', '.join(map(repr, allowed))}"
                )

    @staticmethod
    def of_this_compilation(options: Mapping[str, Any] | None = None) -> TreeOptions:
        """What holds for the graphs that are compiled now.

        Args:
            options: as given to ``torch.compile``, with Inductor's names.

        Raises:
            ValueError: one of them has a value that it cannot have.
        """
        given = {name: compat.triton_option(name) for name in AT_COMPILATION}
        for name, value in (options or {}).items():
            if DECISIONS.get(name, _NOT_OURS).verdict is Verdict.HONOURED:
                given[name.removeprefix("triton.")] = value
        return TreeOptions(given)

    def _get(self, name: str) -> Any:
        return self.given[name] if name in self.given else compat.triton_option(name)

    capture_sizes = _Option[Sequence[int | tuple[int, ...]] | None](
        "cudagraph_capture_sizes", _as_it_is
    )
    """Combinations of sizes that are recorded; None is all."""
    dynamic_shape_warn_limit = _Option[int | None]("cudagraph_dynamic_shape_warn_limit", _as_it_is)
    """A graph with more combinations of sizes is warned about."""
    dynamic_shape_rerecord_limit = _Option[int | None](
        "cudagraph_dynamic_shape_rerecord_limit", _as_it_is
    )
    """So many combinations of sizes are recorded a graph."""
    pool_initial = _Option(
        "cudagraph_initial_mempool_allocation_gb", lambda gib: int((gib or 0) * (1 << 30))
    )
    """Bytes that a pool starts with."""
    checks_pool = _Option("slow_path_cudagraph_asserts", bool)
    """Whether a recording looks for memory of the pool that nobody knows."""
    records_history = _Option("cudagraph_trees_history_recording", bool)
    """Whether the error about such memory names the lines that allocated it."""
    draws_references = _Option("cudagraph_trees_objgraph", bool)
    """Whether pictures of what holds such memory are to be drawn, with ``objgraph``."""
    clones_outputs = _Option(
        "cudagraph_trees_generation_cloning", lambda what: bool(what == "user_visible")
    )
    """Whether outputs that are held beyond their step get memory of their own."""
    supports_mutation = _Option("cudagraph_support_input_mutation", bool)
    """Whether a function may write to inputs that an earlier graph made."""
    rerecord_limit = _Option("cudagraph_unexpected_rerecord_limit", int)
    """A function is recorded again so often at a place of the tree."""
    managed_input_rerecord_limit = _Option("cudagraph_managed_input_rerecord_limit", int)
    """After so many moves of an input that a graph made, something is done about it."""
    managed_input_rerecord_action = _Option("cudagraph_managed_input_rerecord_action", str)
    """What: ``"copy"`` the input, or ``"skip"`` the function at that place."""
    synchronizes = _Option("force_cudagraph_sync", bool)
    """Whether a replay waits for the device."""
    only_warms_up = _Option("force_cudagraphs_warmup", bool)
    """Whether every call is a warm-up."""
    skips_warm_up = _Option("skip_cudagraph_warmup", bool)
    """Whether functions are recorded without a warm-up before."""
    or_error = _Option("cudagraph_or_error", bool)
    """Whether a call that would run without a graph raises instead."""


_NOT_OURS = Decision(Verdict.OTHERS, "")
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "cudagraph_trees_generation_cloning": (None, "user_visible"),
    "cudagraph_managed_input_rerecord_action": ("copy", "skip"),
}
