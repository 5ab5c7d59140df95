"""Changes of a program that can be tried without touching it (``memprof advise``), and settings of
torch that a run is given from outside: ``torch._functorch.config.name=value``.

A change is written as its key, or as ``key=argument`` where it is about some modules or operators:
that is what a finding of a report names as its remedy. ``applied.py`` makes them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import ModuleType
from typing import Any

from memprof.compile_backend.options import OptionError, Options
from memprof.profiler.run_main import CannotRun
from memprof.simulated_cuda.after_import import after_import

from .command_line import BadInput

WITHOUT_TIMING = {"torch._inductor.config.triton.autotune_pointwise": "False"}
"""Inductor tries configurations of a kernel on copies of what the kernel updates, once a cache: the
first of two runs would need more than the second."""

_SETTING = re.compile(r"(torch(?:\.\w+)*\.\w*config)\.(\w+(?:\.\w+)*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of one of torch's configuration modules, e.g. of ``triton.cudagraphs`` in
    ``torch._inductor.config``."""

    module: str
    name: str
    value: object


def parse_setting(text: str) -> Setting:
    """Read ``torch.MODULE.config.NAME=VALUE``.

    Raises:
        BadInput: it is something else.
    """
    found = _SETTING.fullmatch(text)
    if found is None:
        raise BadInput(
            f"{text!r} is no setting of torch: write "
            "torch._functorch.config.activation_memory_budget=0.5"
        )
    module, name, value = found.groups()
    return Setting(module, name, literal(value))


def literal(text: str) -> object:
    """A Python literal, or the text itself where it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def put_settings(settings: list[Setting]) -> None:
    """Set each as soon as its module has been imported, which raises ``CannotRun`` where there is
    no such setting, or its values are of another type."""
    for setting in settings:
        after_import(setting.module, partial(_put, setting))


def _put(setting: Setting, module: ModuleType) -> None:
    *inner, last = setting.name.split(".")
    where = f"{setting.module}.{setting.name}"
    place: object = module
    try:
        for name in inner:
            place = getattr(place, name)
        before = getattr(place, last)
    except AttributeError:
        raise CannotRun(f"this torch has no {where}") from None
    value = setting.value
    if isinstance(before, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if before is not None and value is not None and not isinstance(value, type(before)):
        raise CannotRun(f"{where} is {type(before).__name__}, and {value!r} is not")
    setattr(place, last, value)


def unused_settings(settings: list[Setting]) -> list[str]:
    """Sentences about settings whose module nobody imported."""
    return [
        f"{s.module}.{s.name} was not set: nothing imported {s.module}"
        for s in settings
        if s.module not in sys.modules
    ]


_CONF = "PYTORCH_ALLOC_CONF"
_OLD_CONF = "PYTORCH_CUDA_ALLOC_CONF"
_CONFS = (_OLD_CONF, _CONF)
"""torch 2.11 reads the old name where both are there."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that can be tried.

    Attributes:
        how: what to write to have it for good.
        costs: what it costs, in words.
        setting: of torch, ``torch.module.config.name=value``; empty if it is none.
        allocator: an option of torch's allocator, ``name:value``; empty if it is none.
        argument: what stands behind ``=``, in a word; empty if nothing may.
    """

    key: str
    how: str
    costs: str
    setting: str = ""
    allocator: str = ""
    argument: str = ""
    required: bool = False


CHANGES: Mapping[str, Change] = {
    change.key: change
    for change in (
        Change(
            "expandable-segments",
            "PYTORCH_ALLOC_CONF=expandable_segments:True",
            "little",
            allocator="expandable_segments:True",
        ),
        Change(
            "checkpoint",
            "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) around each block",
            "the forward of these blocks once more: about a third of the step's operations",
            argument="MODULES",
        ),
        Change(
            "recompute",
            "torch.utils.checkpoint.checkpoint(use_reentrant=False) around what computes them",
            "these operators once more",
            argument="OPERATOR+OPERATOR@FILE:LINE[@MODULE][;...]",
            required=True,
        ),
        Change(
            "fused-optimizer",
            "fused=True for the optimizer",
            "nothing",
        ),
        Change(
            "optimizer-one-by-one",
            "foreach=False for the optimizer",
            "more kernels in the optimizer's step",
        ),
        Change(
            "memory-budget",
            "torch._functorch.config.activation_memory_budget = 0.5",
            "operations that are recomputed: memprof fit --budget counts them",
            setting="torch._functorch.config.activation_memory_budget=0.5",
        ),
        Change(
            "bf16-state",
            "an optimizer that keeps its state in fewer bits",
            "precision of the moments, and kernels to convert them",
        ),
        Change(
            "drop-gradients",
            "optimizer.zero_grad(set_to_none=True) right after optimizer.step()",
            "nothing",
        ),
        Change(
            "chunked-loss",
            "torch.utils.checkpoint.checkpoint around the loss of each chunk of rows",
            "the loss once more",
        ),
        Change(
            "static-inputs",
            "torch._dynamo.mark_static_address(tensor) before the first call",
            "a recording for each place where they lie",
            argument="NAME+NAME",
            required=True,
        ),
        Change(
            "option",
            'options={NAME: VALUE} of torch.compile(backend="memprof")',
            "what docs/options.md says of it",
            argument="NAME:VALUE",
            required=True,
        ),
    )
}
"""What can be tried, by key."""

GENERAL = tuple(key for key, change in CHANGES.items() if not change.required)
"""What is tried where nobody names changes."""


def change_of(text: str) -> tuple[Change, str]:
    """A change and its argument, empty if it has none, of ``key`` or ``key=argument``.

    Raises:
        BadInput: there is none of that name, or it has another form.
    """
    key, equals, argument = text.partition("=")
    change = CHANGES.get(key)
    if change is None:
        raise BadInput(f"{key!r} is none of {', '.join(CHANGES)}")
    if equals and not (change.argument and argument):
        raise BadInput(f"{text!r}: write {key}" + (f"={change.argument}" * bool(change.argument)))
    if change.required and not argument:
        raise BadInput(f"{key} of what? Write {key}={change.argument}")
    if key == "option":
        option_of(argument)
    return change, argument


def option_of(argument: str) -> dict[str, Any]:
    """``NAME:VALUE`` as an option of ``backend="memprof"``.

    Raises:
        BadInput: it has another form, there is no such option, or it cannot have this value.
    """
    name, _, value = argument.partition(":")
    names = [f.name for f in fields(Options)]
    if name not in names or not value:
        raise BadInput(f"{argument!r}: write option=NAME:VALUE, NAME one of {', '.join(names)}")
    option = {name: literal(value)}
    try:
        Options(**option)  # type: ignore[arg-type]
    except OptionError as error:
        raise BadInput(str(error)) from None
    return option


def environment_of(changes: tuple[str, ...], base: Mapping[str, str]) -> dict[str, str]:
    """Variables of the environment that changes are made of, beside options in ``base``."""
    options = [c.allocator for c, _ in map(change_of, changes) if c.allocator]
    if not options:
        return {}
    names = {option.partition(":")[0] for option in options}
    before = (base.get(_CONF) or base.get(_OLD_CONF) or "").split(",")
    kept = [o for o in before if o and o.partition(":")[0].strip() not in names]
    return dict.fromkeys(_CONFS, ",".join([*kept, *options]))


def environment_again(
    changes: tuple[str, ...], given: Mapping[str, str], now: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """What ``environment_of`` has put into the environment as it was ``given``, where the program
    has since set it otherwise: the variable that it has set, and the variables with the changes
    again; an empty text and no variables where it has set none."""
    name = next((n for n in _CONFS if now.get(n) != given.get(n)), "")
    return (name, environment_of(changes, {_CONF: now.get(name, "")})) if name else ("", {})


def settings_of(changes: tuple[str, ...]) -> tuple[str, ...]:
    """Settings of torch that changes are made of."""
    return tuple(c.setting for c, _ in map(change_of, changes) if c.setting)
