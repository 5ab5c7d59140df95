"""Variables of ``memprof fit``: ranges and lists of values, and the places where they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from memprof.what_if.simulate.command_line import BadInput

MOST_VALUES = 1_000_000
"""Most values of one range."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_RANGE = re.compile(r"(?P<low>[-+]?[0-9][^:,]*?)\.\.(?P<high>[^:,]+)(?::(?P<by>[^:,]+))?")
"""Pattern of a range, which begins with a digit: a list may have ``../data``."""
_MEANT_RANGE = re.compile(r"(?=.*[0-9])[-+.:0-9]*\.\.[-+.:0-9]*")
"""Pattern of anything meant as a range, malformed too: ``1..``, ``..8``, ``1..8:2:3``."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A name, which stands in braces where a value goes, and its values as they are put there: of a
    range from low to high, and the largest that fits is looked for; else each is tried."""

    name: str
    values: Sequence[str]
    is_range: bool


def parse_variable(text: str) -> Variable:
    """Read ``NAME=LOW..HIGH``, ``NAME=LOW..HIGH:STEP`` or ``NAME=A,B,C``.

    A range is of numbers; where no step is given, that is one of the last digit that an end has: 1
    of ``1..256``, 0.01 of ``0.5..0.98``. HIGH is its last value if a step
    ends there. A list is of any texts without a comma.

    Raises:
        BadInput: it is none of these, is empty, or has over a million values.
    """
    name, equals, what = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise BadInput(f"{text!r} is no variable: write BATCH=1..256, BATCH=8..256:8 or LR=a,b")
    found = _RANGE.fullmatch(what)
    if found is None:
        if _MEANT_RANGE.fullmatch(what):
            raise BadInput(f"{text!r} is no range: write {name}=1..256 or {name}=8..256:8")
        values = tuple(what.split(","))
        if not all(values):
            raise BadInput(f"{text!r} has an empty value: write {name}=1..256 or {name}=1,2,4")
        if len(set(values)) < len(values):
            raise BadInput(f"{text!r} has a value twice")
        return Variable(name, values, False)
    low, high = (_number(found[part], text) for part in ("low", "high"))
    digits = min(int(end.as_tuple().exponent) for end in (Decimal(0), low, high))
    by = _number(found["by"], text) if found["by"] is not None else Decimal(1).scaleb(digits)
    if by <= 0 or high < low:
        raise BadInput(f"{text!r} is no range: it goes from a smaller number to a larger one")
    count = int((high - low) / by) + 1
    if count > MOST_VALUES:
        raise BadInput(f"{text!r} has {count:,} values; the most is {MOST_VALUES:,}")
    return Variable(name, [format(low + i * by, "f") for i in range(count)], True)


def _number(text: str, whole: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise BadInput(f"{text!r} in {whole!r} is no number") from None
    if not number.is_finite() or abs(number) > 10**15:
        raise BadInput(f"{text!r} in {whole!r} is no number that a range can have")
    return number


def fill(text: str, values: Mapping[str, str]) -> str:
    """``text`` with ``{NAME}`` replaced for each name; other braces stay as they are."""
    return _PLACE.sub(lambda m: values.get(m[1], m[0]), text)


def check_places(variables: Sequence[Variable], texts: Sequence[str]) -> None:
    """See that each variable stands somewhere, and that there is at most one range.

    Raises:
        BadInput: it is not so; two variables have one name.
    """
    names = [v.name for v in variables]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{name} is given twice")
    used = {m[1] for text in texts for m in _PLACE.finditer(text)}
    for name in names:
        if name not in used:
            raise BadInput(
                f"{name} stands nowhere: write {{{name}}} where its value goes, in the command, "
                "--env, --torch-config, --world-size or --devices"
            )
    ranges = [v.name for v in variables if v.is_range]
    if len(ranges) > 1:
        raise BadInput(
            f"{' and '.join(ranges)} are ranges: the largest value that fits is found for one; "
            "give the others as lists, such as SEQ=512,1024,2048"
        )
