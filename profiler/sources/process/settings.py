"""The tracker's settings: defaults, a TOML file, environment variables, arguments; no torch.

Later wins: defaults < file < environment < arguments of a call or flags of the command line.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from memprof.profiler.model.tracker import KEPT_OPERATIONS, KEPT_SNAPSHOTS

ENVIRONMENT_PREFIX = "MEMPROF_"
FILE_NAME = "memprof.toml"
_CONFIG_VARIABLE = "MEMPROF_CONFIG"


class SettingsError(ValueError):
    """A setting that does not exist or a value that it cannot have; says where it stands,
    what is allowed, and the nearest name."""


def _setting(default: Any, help: str) -> Any:
    """``help`` is that of the flag of ``memprof run``."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """Settings of a tracker, with bounds beyond which nothing can wait, count or remember."""

    enabled: bool = True
    output_dir: Annotated[str, Meta(pattern="^[^\0]+$")] = _setting(".", "Folder of the file.")
    interval: Annotated[float, Meta(ge=0.01, le=1_000_000)] = _setting(
        5.0, "Seconds between snapshots, 0.01 to 1,000,000."
    )
    largest: Annotated[int, Meta(ge=0, le=10_000)] = _setting(
        10, "How many of the largest tensors a snapshot describes."
    )
    max_snapshots: Annotated[int, Meta(ge=KEPT_SNAPSHOTS[1], le=KEPT_SNAPSHOTS[2])] = _setting(
        KEPT_SNAPSHOTS[0], "How many snapshots are kept; of older ones every second goes."
    )
    max_operations: Annotated[int, Meta(ge=KEPT_OPERATIONS[1], le=KEPT_OPERATIONS[2])] = _setting(
        KEPT_OPERATIONS[0], "How many operations are kept one by one."
    )


_TYPES = get_type_hints(TrackerSettings, include_extras=True)


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings in force; ``origin`` says in words where each that is not a default comes from, and
    ``file`` is the path of the TOML file that was read, None if there is none."""

    settings: TrackerSettings
    origin: dict[str, str]
    file: str | None


def toml_value(value: object) -> str:
    """``value`` (bool, int, float or str) as TOML, which has JSON's escapes."""
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return text.encode(errors="backslashreplace").decode()


def find_file() -> Path | None:
    """The TOML file that counts in the working folder: ``MEMPROF_CONFIG`` if set; else the nearest
    of ``memprof.toml``, or ``pyproject.toml`` with a table ``[tool.memprof]``, in it or one above.

    Raises:
        SettingsError: ``MEMPROF_CONFIG`` names no file.
    """
    named = os.environ.get(_CONFIG_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise SettingsError(f"{_CONFIG_VARIABLE} is {named!r}, which is no file")
        return path
    try:
        folder = Path.cwd()
    except OSError:  # the working folder was removed
        return None
    for parent in (folder, *folder.parents):
        own, project = parent / FILE_NAME, parent / "pyproject.toml"
        with contextlib.suppress(OSError):  # a folder, or a file, that may not be looked into
            if own.is_file():
                return own
            # Most projects' files are not ours to judge.
            if project.is_file() and b"[tool.memprof]" in project.read_bytes():
                return project
    return None


def table_in(path: Path) -> dict[str, Any]:
    """Our table in the file at ``path``, empty if it has none. Raises ``SettingsError`` if that
    cannot be read or is no TOML (and says the line), ours is no table, or a file of ours has
    anything beside it, as the older ``[[backend]]``."""
    try:
        found: Any = msgspec.toml.decode(path.read_bytes())
    except OSError as e:
        raise SettingsError(f"{path}: cannot read it: {e.strerror or e}") from e
    # Not only msgspec's: text that is not UTF-8, and a number of 5,000 digits, are Python's own.
    except (ValueError, RecursionError, OverflowError) as e:
        raise SettingsError(f"{path}: not TOML: {_short(str(e))}") from e
    if path.name != "pyproject.toml" and (others := found.keys() - {"memprof"}):
        names = ", ".join(f"`{_short(name, 40)}`" for name in sorted(others))
        raise SettingsError(f"{path}: {names} is not read: settings stand in the table `[memprof]`")
    for part in table_name(path).split("."):
        if not isinstance(found, dict) or part not in found:
            return {}
        found = found[part]
    if not isinstance(found, dict):
        given = _short(repr(found), 60)
        raise SettingsError(f"{path}: `{table_name(path)}` is {given}, it must be a table")
    return found


def table_name(path: Path) -> str:
    """The table of ``path`` that has our settings."""
    return "tool.memprof" if path.name == "pyproject.toml" else "memprof"


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def check(name: str, value: Any, where: str, *, strict: bool = True) -> Any:
    """``value`` if setting ``name`` can have it; else raises ``SettingsError``, which begins with
    ``where``. Unless ``strict`` a text may stand for it."""
    if name not in _TYPES:
        near = difflib.get_close_matches(name[:40], _TYPES, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise SettingsError(
            f"{where}there is no setting {_short(repr(name))}{hint} There are: {', '.join(_TYPES)}"
        )
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    try:
        return msgspec.convert(value, _TYPES[name], strict=strict)
    except msgspec.ValidationError as e:
        raise SettingsError(f"{where}{name} is {_short(repr(value))}: {e}") from e


def configured(
    arguments: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: bool = True,
) -> Configured:
    """Settings from all places; with ``file=False`` from no file. Of ``arguments`` None stands for
    not given; ``environment`` is the process's by default.

    Raises:
        SettingsError: something in one of the places is wrong.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    path = find_file() if file else None
    if path is not None:
        for name, value in table_in(path).items():
            values[name] = check(name, value, f"{path}: [{table_name(path)}]: ")
            origin[name] = str(path)
    for name in _TYPES:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environment:
            values[name] = check(name, environment[variable].strip(), f"{variable}: ", strict=False)
            origin[name] = variable
    for name, value in (arguments or {}).items():
        if value is not None:
            values[name] = check(name, value, "argument: ")
            origin[name] = "argument"
    return Configured(TrackerSettings(**values), origin, None if path is None else str(path))
