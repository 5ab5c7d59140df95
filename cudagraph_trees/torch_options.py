"""Torch's own options of CUDA graphs: what each means to these trees.

Note [Whose value holds]
~~~~~~~~~~~~~~~~~~~~~~~~
Torch reads most of ``torch._inductor.config.triton`` when a graph is called, where
``torch.compile(options=...)`` does nothing. Here what was given to one compilation holds for its
graphs, for good (``TreeOptions.given``). What was not given is read when it matters, as by torch.
The exceptions are what torch takes when it compiles (``AT_COMPILATION``), and what a recording has
built in (``force_cudagraph_sync``, ``slow_path_cudagraph_asserts``): its value when recorded holds.
What becomes of every option of torch 2.11 to 2.15 says ``docs/options.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _torch_compat as compat

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
        given |= {name.removeprefix("triton."): value for name, value in (options or {}).items()}
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
