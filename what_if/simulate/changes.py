"""Settings of torch that a run is given from outside, ``torch._functorch.config.name=value``, and
the changes that ``memprof fit --try`` measures: such settings, and blocks that are checkpointed.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

from memprof.profiler.support.run_main import CannotRun
from memprof.simulated_cuda.after_import import after_import

from .command_line import BadInput

WITHOUT_TIMING = {"torch._inductor.config.triton.autotune_pointwise": "False"}
"""Inductor tries configurations of a kernel on copies of what the kernel updates, once a cache: the
first of two runs would need more than the second."""

BUDGET_SETTING = "torch._functorch.config.activation_memory_budget"

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
    owner: object = module
    try:
        for name in inner:
            owner = getattr(owner, name)
        before = getattr(owner, last)
    except AttributeError:
        raise CannotRun(f"this torch has no {where}") from None
    value = setting.value
    if isinstance(before, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if before is not None and value is not None and not isinstance(value, type(before)):
        raise CannotRun(f"{where} is {type(before).__name__}, and {value!r} is not")
    setattr(owner, last, value)


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
    """A change that can be tried, as it was written.

    Attributes:
        how: what to write to have it for good.
        costs: what it costs, in words; empty if nobody can say.
        setting: of torch, ``torch.module.config.name=value``; empty if it is none.
        allocator: an option of torch's allocator, ``name:value``; empty if it is none.
        blocks: the class of modules to checkpoint, empty for a model's repeated blocks; None if it
            checkpoints none.
    """

    text: str
    how: str
    costs: str = ""
    setting: str = ""
    allocator: str = ""
    blocks: str | None = None


CHANGES: Mapping[str, Change] = {
    change.text: change
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
            blocks="",
        ),
        Change(
            "memory-budget",
            f"{BUDGET_SETTING} = 0.5",
            "operations that are recomputed",
            setting=f"{BUDGET_SETTING}=0.5",
        ),
    )
}
"""Changes that are tried where nobody names any, by name."""


def change_of(text: str) -> Change:
    """The change of that name, of ``checkpoint=CLASS``, or that a setting of torch is.

    Raises:
        BadInput: it is none of these.
    """
    name, _, argument = text.partition("=")
    if text.startswith("torch."):
        parse_setting(text)
        return Change(text, f"{name} = {argument}", setting=text)
    if name == "checkpoint" and argument.isidentifier():
        costs = f"the forward of each {argument} once more"
        return replace(CHANGES[name], text=text, costs=costs, blocks=argument)
    if text not in CHANGES:
        raise BadInput(
            f"{text!r} is nothing to try: give {', '.join(CHANGES)}, checkpoint=CLASS with the "
            "name of a class of modules, or torch.….config.NAME=VALUE"
        )
    return CHANGES[text]


def is_idle(text: str, changed: Collection[str], partitions: int) -> bool:
    """Tells whether a change found nothing to change in this process, which ``changed`` these:
    without a graph that was partitioned into forward and backward a budget has changed nothing, and
    neither has an option of the allocator whose variable the program has set anew."""
    change = change_of(text)
    if change.allocator:
        return any(change.allocator not in os.environ.get(name, "") for name in _CONFS)
    if not change.setting:
        return text not in changed
    if change.setting.startswith(f"{BUDGET_SETTING}="):
        return partitions == 0
    return parse_setting(change.setting).module not in sys.modules


def environment_of(changes: tuple[str, ...], base: Mapping[str, str]) -> dict[str, str]:
    """Variables of the environment that changes are made of, beside options in ``base``."""
    options = [c.allocator for c in map(change_of, changes) if c.allocator]
    if not options:
        return {}
    names = {option.partition(":")[0] for option in options}
    before = (base.get(_CONF) or base.get(_OLD_CONF) or "").split(",")
    kept = [o for o in before if o and o.partition(":")[0].strip() not in names]
    return dict.fromkeys(_CONFS, ",".join([*kept, *options]))


def settings_of(changes: tuple[str, ...]) -> tuple[str, ...]:
    """Settings of torch that changes are made of."""
    return tuple(c.setting for c in map(change_of, changes) if c.setting)
