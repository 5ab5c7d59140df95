"""What commands print for programs: by their schemas, and which fields programs may rely on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fuzz.documents import everything
from jsonschema import ValidationError
from outputs import checked, invoke
from profile_builder import training

from memprof.commands.outputs import OUTPUTS, PROFILE, minor_version, schema_of
from memprof.profiler.file.profile_file import write_profile, write_profiles
from memprof.simulated_cuda.gpus import known_gpus

RECORDED = Path(__file__).parent / "outputs.txt"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Of a file that has all that a profile can have."""
    write_profile(everything(), tmp_path / "run.memprof")
    return str(tmp_path / "run.memprof")


class TestWhatIsPrinted:
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("report", ["report", "FILE", "--json"]),
            ("leaks", ["report", "FILE", "--section", "leaks", "--json"]),
            ("ledger", ["report", "FILE", "--section", "ledger", "--json"]),
            ("diff", ["diff", "FILE", "FILE", "--json"]),
            ("top", ["top", "FILE", "--once", "--json"]),
        ],
    )
    def test_of_a_profile(self, path: str, name: str, arguments: list[str]) -> None:
        done = invoke(*(path if a == "FILE" else a for a in arguments))
        assert checked(name, done.stdout)

    def test_of_a_training(self, tmp_path: Path) -> None:
        path = str(tmp_path / "run.memprof")
        write_profile(training(), path)
        found = checked("report", invoke("report", path, "--json").stdout)
        assert found["peak"]["nbytes"] == found["device_peaks"]["cpu"] > 0
        assert found["ledger"]["counts"]["compiled"] == 2

    def test_of_ranks(self, tmp_path: Path) -> None:
        path = str(tmp_path / "all.memprof")
        write_profiles([everything(rank, 2) for rank in range(2)], path)
        found = checked("ranks", invoke("report", path, "--json").stdout)
        assert [row["rank"] for row in found["rows"]] == [0, 1]

    def test_of_a_job_that_is_followed(self, path: str) -> None:
        # GIVEN a job that has ended WHEN it is followed THEN each look is a line
        done = invoke("top", path, "--json")
        (line,) = done.stdout.splitlines()
        (process,) = checked("top", line)
        assert process["writer"] == "ended"

    @pytest.mark.parametrize("command", ["simulate", "fit"])
    def test_of_gpus(self, command: str) -> None:
        found = checked("gpus", invoke(command, "--list-gpus", "--json").stdout)
        assert [gpu["key"] for gpu in found] == [gpu.key for gpu in known_gpus()]
        # AND in words there is a line for each
        assert len(invoke(command, "--list-gpus").stdout.splitlines()) == len(found)

    def test_what_lacks_a_field_is_refused(self, path: str) -> None:
        found = json.loads(invoke("report", path, "--json").stdout)
        del found["peak"]
        with pytest.raises(ValidationError, match="'peak' is a required property"):
            checked("report", json.dumps(found))


class TestSchemas:
    @pytest.mark.parametrize("name", [PROFILE, *OUTPUTS])
    def test_printed_by_name(self, name: str) -> None:
        done = invoke("export", "--schema", name)
        assert json.loads(done.stdout) == json.loads(json.dumps(schema_of(name)))

    def test_without_a_name_it_is_that_of_profiles(self) -> None:
        assert json.loads(invoke("export", "--schema").stdout)["title"] == "memprof-profile 4"

    def test_a_name_that_there_is_not(self) -> None:
        done = invoke("export", "--schema", "reports", status=2)
        assert "'reports' is no output of memprof: profile, report, " in done.stderr


def type_of(schema: dict[str, Any]) -> str:
    """A type in a line, without limits and words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(map(type_of, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(repr, schema.get("enum", [schema.get("const")])))
    if "prefixItems" in schema:
        return f"({', '.join(map(type_of, schema['prefixItems']))})"
    if schema.get("type") == "array":
        return f"[{type_of(schema['items'])}]"
    if isinstance(more := schema.get("additionalProperties"), dict):
        return f"{{{type_of(more)}}}"
    return str(schema.get("type", "anything"))


def fields_of(name: str) -> set[str]:
    """The type of an output and of every field in it, a line each; words of an enumeration, which
    may get more, as well."""
    schema = schema_of(name)
    found = {f"{name}: {type_of(schema)}"}
    for of, definition in schema["$defs"].items():
        for field, its in definition.get("properties", {}).items():
            found.add(f"{of}.{field}: {type_of(its)}")
        found |= {f"{of} may be {word!r}" for word in definition.get("enum", ())}
    return found


def test_no_field_goes_within_a_minor_version() -> None:
    """``EXPECTTEST_ACCEPT=1`` writes what there is now, where nothing went or the version is
    another."""
    version, *before = RECORDED.read_text().splitlines()
    now = set().union(*map(fields_of, [PROFILE, *OUTPUTS]))
    if version == minor_version():
        gone = sorted(set(before) - now)
        assert not gone, "programs may rely on it until the next minor version"
    if "EXPECTTEST_ACCEPT" in os.environ:
        RECORDED.write_text("\n".join([minor_version(), *sorted(now)]) + "\n")
    assert RECORDED.read_text().splitlines() == [minor_version(), *sorted(now)]


def test_the_page_has_every_output() -> None:
    page = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()
    for name, (_, by) in OUTPUTS.items():
        assert f"| `{name}` | `{by.partition(':')[0].partition(', ')[0]}`" in page
