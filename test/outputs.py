"""Commands of memprof in this process, and what they print for programs, by their schemas."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from memprof.cli import main
from memprof.commands.outputs import schema_of


def invoke(*words: str | Path, status: int = 0, **environment: str) -> Result:
    """Run ``memprof`` with these words on 100 columns; it must end with this status."""
    done = CliRunner().invoke(main, [*map(str, words)], env={"COLUMNS": "100", **environment})
    assert done.exit_code == status, done.output
    return done


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
