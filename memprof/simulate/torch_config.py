"""Settings of torch that a run is given from outside: ``torch._functorch.config.name=value``."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from functools import partial
from types import ModuleType

from memprof.profiler.run_main import CannotRun
from memprof.simulated_cuda.after_import import after_import

WITHOUT_TIMING = {"torch._inductor.config.triton.autotune_pointwise": "False"}
"""Inductor tries configurations of a kernel on copies of what the kernel updates, once a cache: the
first of two runs would need more than the second."""

_SETTING = re.compile(r"(torch(?:\.\w+)*\.\w*config)\.(\w+(?:\.\w+)*)=(.*)", re.DOTALL)


class BadSetting(ValueError):
    """A setting that cannot be read; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value (a Python literal, or the text itself) of one of torch's configuration modules, e.g.
    of ``triton.cudagraphs`` in ``torch._inductor.config``."""

    module: str
    name: str
    value: object


def parse_setting(text: str) -> Setting:
    """Read ``torch.MODULE.config.NAME=VALUE``.

    Raises:
        BadSetting: it is something else.
    """
    found = _SETTING.fullmatch(text)
    if found is None:
        raise BadSetting(
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
    """Set each as soon as its module has been imported, before anybody reads it.

    Raises:
        CannotRun: at that time, there is no such setting, or its values are of another type.
    """
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
