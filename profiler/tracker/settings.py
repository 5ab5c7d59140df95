"""The tracker's settings: defaults, a TOML file, environment variables, arguments; no torch.

Later wins: defaults < file < environment < arguments of a call or flags of the command line.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "ENVIRONMENT_PREFIX",
    "FILE_NAME",
    "Configured",
    "SettingsError",
    "TrackerSettings",
    "configured",
    "find_file",
    "parse",
]

ENVIRONMENT_PREFIX = "MEMPROF_"
FILE_NAME = "memprof.toml"
_CONFIG_VARIABLE = "MEMPROF_CONFIG"


class SettingsError(ValueError):
    """A setting that does not exist or a value that it cannot have; says where it stands,
    what is allowed, and the nearest name."""


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """Settings of a tracker.

    Attributes:
        enabled: whether to track at all.
        output_dir: folder of the file; must exist.
        interval: seconds between periodic snapshots, 0.01 or more.
        largest: how many of the largest tensors a snapshot describes.
        max_snapshots: how many are kept, older ones merged; 10 or more.
        max_operations: how many invocations of operations are kept one by one.
        scan_at_start: find the tensors that exist already by one walk over all Python objects
            (40 ms a million, once). Without it, only what is made from then on is known.
        cpu_allocator: count all of torch's CPU allocations, those held by autograd alone
            included, for 1.6 µs each.
    """

    enabled: bool = True
    output_dir: str = "."
    interval: float = 5.0
    largest: int = 10
    max_snapshots: int = 1_000
    max_operations: int = 20_000
    scan_at_start: bool = True
    cpu_allocator: bool = False

    def as_text(self) -> dict[str, str]:
        """Every setting as TOML writes it."""
        return {f.name: toml_value(getattr(self, f.name)) for f in dataclasses.fields(self)}


_FIELDS = {f.name: f for f in dataclasses.fields(TrackerSettings)}
_LEAST: dict[str, float] = {
    "interval": 0.01,
    "largest": 0,
    "max_snapshots": 10,
    "max_operations": 0,
}


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings in force.

    Attributes:
        settings: their values.
        origin: where each that is not a default comes from, in words.
        file: the TOML file that was read, None if there is none.
    """

    settings: TrackerSettings
    origin: dict[str, str]
    file: Path | None


def toml_value(value: object) -> str:
    """``value`` (bool, int, float or str) as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        escaped = "".join(
            c if c.isprintable() else f"\\u{ord(c):04X}" if ord(c) < 0x10000 else f"\\U{ord(c):08X}"
            for c in escaped
        )
        return f'"{escaped}"'
    return repr(value)


def find_file(start: Path | None = None) -> Path | None:
    """The TOML file that counts in folder ``start`` (default: the working folder).

    ``MEMPROF_CONFIG`` if set; else the nearest of ``memprof.toml``, or ``pyproject.toml`` with
    a table ``[tool.memprof]``, in the folder or one above it.

    Raises:
        SettingsError: ``MEMPROF_CONFIG`` names no file, or a ``pyproject.toml`` is no TOML.
    """
    named = os.environ.get(_CONFIG_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise SettingsError(f"{_CONFIG_VARIABLE} is {named!r}, which is no file")
        return path
    folder = (start or Path.cwd()).absolute()
    for parent in (folder, *folder.parents):
        if (parent / FILE_NAME).is_file():
            return parent / FILE_NAME
        project = parent / "pyproject.toml"
        if project.is_file() and table_of(project, read_toml(project)) is not None:
            return project
    return None


def read_toml(path: Path) -> dict[str, Any]:
    """The document at ``path``.

    Raises:
        SettingsError: it cannot be read, or is no TOML; says the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise SettingsError(f"{path}: cannot read it: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise SettingsError(f"{path}: not TOML: {e}") from e
    return toml_document(text, path)


def toml_document(text: str, path: Path) -> dict[str, Any]:
    """The document that ``text``, of the file ``path``, holds.

    Raises:
        SettingsError: it is no TOML; says the line.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise SettingsError(f"{path}: not TOML: {e}") from e


def table_name(path: Path) -> str:
    """The table of ``path`` that has our settings."""
    return "tool.memprof" if path.name == "pyproject.toml" else "memprof"


def table_of(path: Path, document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Our table in a document, None if it has none.

    Raises:
        SettingsError: it is no table.
    """
    found: Any = document
    for part in table_name(path).split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    if not isinstance(found, dict):
        raise SettingsError(f"{path}: `{table_name(path)}` is {found!r:.60}, it must be a table")
    return found


def parse(name: str, text: str, where: str) -> Any:
    """The value of setting ``name`` that ``text`` stands for, as in an environment variable.

    Raises:
        SettingsError: it stands for none.
    """
    kind = _kind(name, where)
    word = text.strip()
    if kind is bool:
        if word.lower() in ("1", "true", "yes", "on"):
            return True
        if word.lower() in ("0", "false", "no", "off"):
            return False
        raise SettingsError(f"{where}: {name} is {text!r}, it must be true or false")
    if kind is str:
        return check(name, text, where)
    try:
        return check(name, kind(word.replace("_", "")), where)
    except ValueError as e:
        if isinstance(e, SettingsError):
            raise
        what = "a whole number" if kind is int else "a number"
        raise SettingsError(f"{where}: {name} is {text!r}, it must be {what}") from e


def check(name: str, value: Any, where: str) -> Any:
    """``value`` if setting ``name`` can have it.

    Raises:
        SettingsError: it cannot.
    """
    kind = _kind(name, where)
    if kind is float and type(value) is int:
        value = float(value)
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if type(value) is not kind:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise SettingsError(f"{where}: {name} is {value!r}, it must be {words[kind]}")
    least = _LEAST.get(name)
    if (
        least is not None
        and isinstance(value, (int, float))
        and not (value >= least and math.isfinite(value))
    ):
        raise SettingsError(f"{where}: {name} is {value!r}, it must be {least:g} or more")
    if kind is str and not value:
        raise SettingsError(f"{where}: {name} is empty")
    return value


def _kind(name: str, where: str) -> type:
    field = _FIELDS.get(name)
    if field is None:
        near = difflib.get_close_matches(name, _FIELDS, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise SettingsError(
            f"{where}: there is no setting {name!r}{hint} There are: {', '.join(_FIELDS)}"
        )
    return type(field.default)


def configured(
    arguments: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    file: bool = True,
) -> Configured:
    """Settings from all places.

    Args:
        arguments: values given in a call or by flags; None stands for not given.
        environment: default: the process's.
        folder: where to look for a file; default: the working folder.
        file: False looks for none.

    Raises:
        SettingsError: something in one of the places is wrong.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    path = find_file(folder) if file else None
    if path is not None:
        table = table_of(path, read_toml(path)) or {}
        for name, value in table.items():
            values[name] = check(name, value, f"{path}: [{table_name(path)}]")
            origin[name] = str(path)
    for name in _FIELDS:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environment:
            values[name] = parse(name, environment[variable], variable)
            origin[name] = variable
    for name, value in (arguments or {}).items():
        if value is not None:
            values[name] = check(name, value, "argument")
            origin[name] = "argument"
    return Configured(TrackerSettings(**values), origin, path)
