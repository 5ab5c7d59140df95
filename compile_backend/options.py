"""The options of ``torch.compile(backend="memprof", options={...})``.

memprof's own options are the fields of ``Options``; every other key is an option of
Inductor and is passed through. Keys and types are checked before anything compiles.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ._torch_compat import inductor_option_names, inductor_option_type, mode_options


class OptionError(ValueError):
    """An option that does not exist or has a value it cannot have."""


@dataclass(frozen=True, slots=True)
class Options:
    """memprof's own options; ``docs/options.md`` says more of each.

    Attributes:
        observe_runs: how many first calls of each graph, and of each combination of sizes, run
            instrumented to learn its allocation program; the last one counts. Two, because a first
            call can allocate what later ones do not (packed weights); one that allocates only what
            its code names is the last. 0 turns observation off.
        max_programs: how many combinations of sizes are observed per graph.
        graphs: replay compiled code on a GPU in graph trees. None leaves it to mode and Inductor's
            options. On the CPU there are no graphs, whatever it is.
        outputs: what becomes of outputs of graph trees that are still held when the next
            step begins: ``"error"`` makes their use raise an error that says whose they
            were, ``"clone"`` gives them memory of their own.
        compiled_autograd: capture whole backwards as one graph each and compile them with
            these options too, in the whole process (``compile_backend/captured_backward.py``).
        annotate_kernels: have each kernel of a CUDA graph carry the module and line that it comes
            from into traces of ``torch.profiler`` (``compile_backend/stages/kernel_marks.py``).
        straight_calls: where a graph with a backward needs nothing of AOTAutograd's run-time
            wrapper, calls go past it (``compile_backend/straight_calls.py``).
    """

    observe_runs: int = 2
    max_programs: int = 64
    graphs: bool | None = None
    outputs: str = "error"
    compiled_autograd: bool = False
    annotate_kernels: bool = False
    straight_calls: bool = True

    def __post_init__(self) -> None:
        for name, expected in get_type_hints(Options).items():
            _check_type(name, getattr(self, name), expected)
        for name in ("observe_runs", "max_programs"):
            if getattr(self, name) < 0:
                raise OptionError(f"option {name!r} is {getattr(self, name)}; it must be 0 or more")
        if self.outputs not in ("error", "clone"):
            raise OptionError(
                f"option 'outputs' is {self.outputs!r}; it must be 'error' or 'clone'"
            )

    def non_default(self) -> dict[str, str]:
        """Options that differ from their defaults, as text."""
        return {
            f.name: str(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        }


def split_options(
    options: Mapping[str, Any] | None, mode: str | None
) -> tuple[Options, dict[str, Any]]:
    """memprof's options, and the config patches for Inductor.

    Args:
        options: as given to ``torch.compile``; keys may use ``-`` for ``_``, as Inductor's do.
        mode: as given to ``torch.compile``: Inductor's settings for it come first and
            ``options`` override them.

    Raises:
        OptionError: an unknown key (the message names the nearest valid ones) or a value
            of the wrong type.
    """
    own_names = {f.name for f in dataclasses.fields(Options)}
    own: dict[str, Any] = {}
    inductor: dict[str, Any] = {}
    if mode is not None and mode != "default":
        inductor = mode_options(mode)
        if mode.endswith("-no-cudagraphs"):  # to Inductor, what nothing has turned on
            inductor["triton.cudagraphs"] = False
    inductor_names = inductor_option_names()
    for given, value in (options or {}).items():
        name = str(given).replace("-", "_")
        if name in own_names:
            own[name] = value
        elif name in inductor_names:
            _check_type(given, value, inductor_option_type(name))
            inductor[name] = value
        else:
            raise OptionError(_unknown(str(given), own_names, inductor_names))
    return Options(**own), inductor


def _unknown(given: str, own: set[str], inductor_names: frozenset[str]) -> str:
    near = difflib.get_close_matches(
        given, [*sorted(own), *sorted(inductor_names)], n=3, cutoff=0.5
    )
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else "."
    return (
        f"unknown option {given!r}{hint} memprof's own options are "
        f"{', '.join(repr(n) for n in sorted(own))}; every option of torch._inductor.config "
        f"is accepted too."
    )


def _check_type(name: str, value: Any, expected: Any) -> None:
    members = get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,)
    # Of list[str] that it is a list; what is in it Inductor itself has to judge, as it has
    # what is no class at all (Any, Literal).
    allowed = tuple(get_origin(t) or t for t in members)
    if Any in allowed or not all(isinstance(t, type) for t in allowed):
        return
    # True is an int to Python, but nobody means observe_runs=True.
    mismatched_bool = isinstance(value, bool) and bool not in allowed
    if mismatched_bool or not isinstance(value, allowed):
        names = " or ".join(t.__name__ for t in allowed)
        raise OptionError(
            f"option {name!r} must be {names}, but is {value!r} ({type(value).__name__})"
        )
