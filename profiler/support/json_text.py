"""JSON of the data model, and its schemas."""

from __future__ import annotations

from typing import Any

import msgspec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: Any, title: str) -> dict[str, Any]:
    """JSON Schema of what ``to_json`` writes of values of a type, whose every field is there.

    Raises:
        TypeError: something in the type has no JSON form.
    """
    schema = msgspec.json.schema(kind)
    for definition in schema.get("$defs", {}).values():
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
    return {"$schema": DIALECT, "title": title, **schema}


def to_json(value: Any) -> bytes:
    """``value`` (dataclasses, containers, scalars) as JSON without whitespace, UTF-8.

    Raises:
        TypeError, ValueError, RecursionError: something in it has no JSON form.
    """
    try:
        return msgspec.json.encode(value, enc_hook=_plain_scalar)
    except UnicodeEncodeError:
        # A path that is not UTF-8 reaches Python as lone surrogates.
        return msgspec.json.encode(
            _escape_surrogates(msgspec.to_builtins(value, enc_hook=_plain_scalar))
        )


def _plain_scalar(value: Any) -> Any:
    """For msgspec, which takes no subclasses of str and int (torch.__version__ is one)."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} has no JSON form")


def _escape_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escape_surrogates(k): _escape_surrogates(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escape_surrogates(v) for v in value]
    return value
