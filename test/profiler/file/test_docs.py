"""docs/profile-format.md says what the code does, field by field."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from memprof.profiler.model import SCHEMA_VERSION, Profile
from memprof.profiler.support import errors

DOC = Path(__file__).parents[3] / "docs" / "profile-format.md"


def reachable(kind: Any, seen: dict[type, None]) -> Iterator[type]:
    """Dataclasses and enums that a type is made of."""
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum)):
        if kind not in seen:
            seen[kind] = None
            yield kind
            if dataclasses.is_dataclass(kind):
                for hint in get_type_hints(kind).values():
                    yield from reachable(hint, seen)
        return
    for argument in get_args(kind):
        yield from reachable(argument, seen)


TYPES = list(reachable(Profile, {}))
CLASSES = [t for t in TYPES if dataclasses.is_dataclass(t)]
ENUMS = [t for t in TYPES if issubclass(t, enum.Enum)]


def section(name: str) -> str:
    """The text under the heading that begins with ``name``, or the paragraph ``name: ...``."""
    text = DOC.read_text()
    found = re.search(rf"^#+ {name}\b.*?(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    found = found or re.search(rf"^{name}: .*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{DOC.name} has nothing on {name}"
    return found[0]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda k: k.__name__)
def test_every_field_is_documented(kind: type) -> None:
    text = section(kind.__name__)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        assert f"`{field.name}`" in text, f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda k: k.__name__)
def test_no_field_is_invented(kind: type) -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", section(kind.__name__), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named <= {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ENUMS, ids=lambda k: k.__name__)
def test_every_value_is_documented(kind: type[enum.Enum]) -> None:
    text = DOC.read_text()
    for member in kind:
        assert f"`{member.value}`" in text, member


def test_errors_and_version_are_documented() -> None:
    text = DOC.read_text()
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.ProfileError):
            assert f"`{kind.__name__}`" in text, kind
    assert f"the current one is **{SCHEMA_VERSION}**" in text


def test_every_type_was_found() -> None:
    assert {t.__name__ for t in CLASSES} >= {"Profile", "Event", "SourceFrame", "Machine"}
