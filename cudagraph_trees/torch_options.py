"""Torch's own options of CUDA graphs: what each means to these trees.

Note [Whose value holds]
~~~~~~~~~~~~~~~~~~~~~~~~
Torch reads most of ``torch._inductor.config.triton`` when a graph is called, where
``torch.compile(options=...)`` does nothing. Here what was given to one compilation holds for its
graphs, for good (``TreeOptions.given``). What was not given is read when it matters, as by torch.
The exceptions are what torch takes when it compiles (``AT_COMPILATION``), and what a recording has
built in (``force_cudagraph_sync``, ``slow_path_cudagraph_asserts``): its value when recorded holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _torch_compat as compat

_OURS = "these trees do what it says"
_ALWAYS = "these trees do that in any case; there is nothing to switch"
_COMPILER = "it tells Inductor, Dynamo or AOTAutograd how to compile, and is left to them"
_OTHERS = "it concerns something else than what runs in these trees"

DECISIONS: Mapping[str, tuple[str, str]] = {
    "triton.cudagraphs": (_COMPILER, "whether graphs are captured; Options.graphs comes first"),
    "triton.cudagraph_trees": (_OURS, "call.inductor._in_use_here; off: no trees at all"),
    "triton.cudagraph_skip_dynamic_graphs": (_COMPILER, "which graphs and partitions are captured"),
    "triton.cudagraph_min_partition_size": (_COMPILER, "which partitions are captured"),
    "triton.cudagraph_partition_memory_budget": (_COMPILER, "the order of partitions"),
    "triton.cudagraph_capture_sizes": (_OURS, "call.entry.ShapeDispatcher"),
    "triton.cudagraph_dynamic_shape_warn_limit": (_OURS, "call.entry.ShapeDispatcher"),
    "triton.cudagraph_dynamic_shape_rerecord_limit": (_OURS, "call.entry.ShapeDispatcher"),
    "triton.cudagraph_initial_mempool_allocation_gb": (_OURS, "call.container.get_tree_manager"),
    "triton.slow_path_cudagraph_asserts": (_OURS, "record.capture.capture_node"),
    "triton.fast_path_cudagraph_asserts": (_ALWAYS, "replay.node: is dead what must be"),
    "triton.cudagraph_trees_history_recording": (_OURS, "record.recorder, record.pool_check"),
    "triton.cudagraph_trees_objgraph": (
        _OTHERS,
        "pictures, which objgraph draws by itself",
    ),
    "triton.cudagraph_trees_generation_cloning": (_OURS, "replay.spec.GraphSpec.of"),
    "triton.cudagraph_support_input_mutation": (_OURS, "record.policy; and Inductor"),
    "triton.cudagraph_unexpected_rerecord_limit": (_OURS, "record.policy"),
    "triton.cudagraph_managed_input_rerecord_limit": (_OURS, "record.policy"),
    "triton.cudagraph_managed_input_rerecord_action": (_OURS, "record.policy"),
    "triton.force_cudagraph_sync": (_OURS, "record.capture.capture_node"),
    "triton.force_cudagraphs_warmup": (_OURS, "call.manager._call_slowly"),
    "triton.skip_cudagraph_warmup": (_OURS, "call.manager._call_slowly; the observation of calls"),
    "triton.cudagraph_or_error": (_OURS, "record.recorder, call.entry; Inductor"),
    "cudagraph_policy": (_COMPILER, "what is wrapped; what it wraps whole is one function here"),
    "cudagraph_unsafe_unbacked_ops": (_COMPILER, "where graphs are cut into partitions"),
    "force_disable_cudagraph_TESTING_ONLY": (_COMPILER, "which graphs are captured: none"),
    "autotune_cudagraph_benchmarking": (_OTHERS, "how autotuning takes times"),
    "autotune_cudagraph_benchmarking_iters": (_OTHERS, "how autotuning takes times"),
    "cudagraph_backend_keep_input_mutation": (_OTHERS, 'backend="cudagraphs"'),
    "cudagraph_backend_support_input_mutation": (_OTHERS, 'backend="cudagraphs"'),
}
"""Every option of torch 2.11 to 2.15 that has to do with CUDA graphs, by its name in
``torch._inductor.config`` or ``torch._dynamo.config``. A test asks torch for its options, so that a
new one fails until somebody has decided about it here: what becomes of it, and which file and
function reads it, or what it concerns."""

HONOURED = frozenset(name for name, (verdict, _) in DECISIONS.items() if verdict == _OURS)

AT_COMPILATION = (
    "cudagraph_managed_input_rerecord_limit",
    "cudagraph_managed_input_rerecord_action",
    "cudagraph_initial_mempool_allocation_gb",
    "cudagraph_trees_generation_cloning",
)
"""Options of ``triton`` whose value at compilation holds."""

_ALLOWED: dict[str, tuple[Any, ...]] = {
    "cudagraph_trees_generation_cloning": (None, "user_visible"),
    "cudagraph_managed_input_rerecord_action": ("copy", "skip"),
}


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """Torch's options for the graphs of one compilation, see Note [Whose value holds]:
    ``options[name]`` is the one of that name in ``config.triton``. ``given`` are by name, too."""

    given: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            if self[name] not in allowed:
                raise ValueError(
                    f"torch._inductor.config.triton.{name} is {self[name]!r}; it must be "
                    f"one of {', '.join(map(repr, allowed))}"
                )

    @staticmethod
    def of_this_compilation(options: Mapping[str, Any] | None = None) -> TreeOptions:
        """Options of the compilation under way; ``options``, as given to ``torch.compile`` with
        Inductor's names, override torch's. A ``ValueError`` if one cannot have its value."""
        given = {name: compat.triton_option(name) for name in AT_COMPILATION}
        for name, value in (options or {}).items():
            if name in HONOURED:
                given[name.removeprefix("triton.")] = value
        return TreeOptions(given)

    def __getitem__(self, name: str) -> Any:
        return self.given[name] if name in self.given else compat.triton_option(name)

    @property
    def or_error(self) -> bool:
        """Tells whether a call that would run without a graph raises instead."""
        return bool(self["cudagraph_or_error"])

    @property
    def pool_initial(self) -> int:
        return int((self["cudagraph_initial_mempool_allocation_gb"] or 0) * (1 << 30))
