"""What may be varied, and what is said of what may not."""

from __future__ import annotations

import pytest

from memprof.what_if.fit.variables import check_places, fill, parse_variable
from memprof.what_if.simulate.command_line import BadInput


@pytest.mark.parametrize(
    ("text", "values", "is_range"),
    [
        ("N=1..4", ["1", "2", "3", "4"], True),
        ("N=8..32:8", ["8", "16", "24", "32"], True),
        ("N=8..31:8", ["8", "16", "24"], True),
        ("N=0..0.3:0.1", ["0.0", "0.1", "0.2", "0.3"], True),
        ("N=5..5", ["5"], True),
        ("N=0.5..0.52", ["0.50", "0.51", "0.52"], True),
        ("N=-1..1", ["-1", "0", "1"], True),
        ("N=a,b", ["a", "b"], False),
        ("N=16", ["16"], False),
        ("N=../data,/x", ["../data", "/x"], False),
        ("N=expandable_segments:True", ["expandable_segments:True"], False),
    ],
)
def test_read(text: str, values: list[str], is_range: bool) -> None:
    variable = parse_variable(text)
    assert [float(v) if is_range else v for v in variable.values] == [
        float(v) if is_range else v for v in values
    ]
    assert variable.is_range is is_range


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("BATCH", "is no variable"),
        ("1=2", "is no variable"),
        ("N=", "empty value"),
        ("N=a,,b", "empty value"),
        ("N=a,a", "twice"),
        ("N=4..1", "smaller number to a larger"),
        ("N=1..9:0", "smaller number to a larger"),
        ("N=1..", "no range"),
        ("N=..8", "no range"),
        ("N=1..8:2:3", "no range"),
        ("N=1..x", "no number"),
        ("N=1..nan", "no number that a range can have"),
        ("N=1..1e99", "no number that a range can have"),
        ("N=1..1e5000", "no number that a range can have"),
        ("N=1..1e9", "the most is"),
        ("N=1..9:1e-9", "the most is"),
    ],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_variable(text)


def test_only_names_of_variables_are_filled_in() -> None:
    assert fill('{A}{B}{"a": 1}{A.x}', {"A": "1"}) == '1{B}{"a": 1}{A.x}'


def test_places() -> None:
    a, b, listed = map(parse_variable, ("A=1..2", "B=1..2", "L=x,y"))
    check_places([a, listed], ["--a={A}", "{L}"])
    with pytest.raises(BadInput, match="A stands nowhere"):
        check_places([a], ["A", "{ A }"])
    with pytest.raises(BadInput, match="A and B are ranges"):
        check_places([a, b], ["{A}{B}"])
    with pytest.raises(BadInput, match="given twice"):
        check_places([a, a], ["{A}"])
