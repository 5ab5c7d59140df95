"""Outputs of commands as programs read them: by their schemas."""

from __future__ import annotations

import functools
import json
from typing import Any

from jsonschema import Draft202012Validator

from memprof.commands.outputs import schema_of


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def checked(name: str, text: str | bytes) -> Any:
    """The JSON ``text`` of the output ``name``; raises ``ValidationError`` if its schema forbids
    it."""
    found = json.loads(text)
    _validator(name).validate(found)
    return found
