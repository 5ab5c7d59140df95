"""Reads the text of a kernel and writes C, one operation after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .emitter import Emitter
from .types import IDENTIFIER, UnsupportedError, split_type
from .view import CValue

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LOCATION = re.compile(
    rf'\s*loc\((?:[^()"]|{_QUOTED}|'
    rf'\((?:[^()"]|{_QUOTED}|\((?:[^()]|\([^()]*\))*\))*\))*\)'
)
"""Source location of an operation, with up to three levels of parentheses within."""
_TERMINATOR = re.compile(r"(scf\.yield|tt\.\w+\.return|tt\.return|scf\.condition)\b")


@dataclass(frozen=True)
class TritonOperation:
    """One operation: its name, operands and what else its line says."""

    name: str
    operands: Sequence[CValue]
    text: str
    """The line behind the name: operands and attributes."""
    type: str
    """The line behind the colon: types of operands, of the result, or both."""
    line: str
    """The whole line."""

    @property
    def dialect(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    @property
    def short_name(self) -> str:
        """The part of the name behind the dot."""
        return self.name.partition(".")[2]


Handler = Callable[["Translator", TritonOperation], "CValue | list[CValue]"]
"""Writes the C for an operation, and gives its results."""
Region = Callable[["Translator", str], "list[CValue]"]
"""Writes the C for an operation with regions, whose lines it reads itself; it is given the first
one, without the name of the result, and gives the results."""


class Translator(Emitter):
    """One kernel: the lines of its text, and the values that they have named so far."""

    def __init__(
        self,
        text: str,
        handler_of: Callable[[TritonOperation], Handler],
        regions: Mapping[str, Region],
    ) -> None:
        super().__init__()
        self._handler_of = handler_of
        self._regions = regions
        self.lines = lines_of(text)
        self.position = 0
        self.closing_line = ""
        """With which the last block ended: ``}``, ``} else {`` or ``} do {``."""
        self.values: dict[str, CValue] = {}

    def next_line(self) -> str:
        """Take a line."""
        line = self.lines[self.position]
        self.position += 1
        return line

    def named(self, text: str) -> list[CValue]:
        """The values whose names stand in a text."""
        return [self.values[name] for name in re.findall(IDENTIFIER, text)]

    def block(self) -> list[CValue]:
        """Translate up to the closing brace; returns the operands of the terminator."""
        results: list[CValue] = []
        while True:
            line = self.next_line()
            if line.startswith("}"):
                self.closing_line = line
                return results
            if _TERMINATOR.match(line):
                results = self.named(split_type(line)[0])
            else:
                self._operation(line)

    def _operation(self, line: str) -> None:
        match = re.match(r"(%[\w$.\-]+)(?::(\d+))? = (.*)$", line)
        result, text = (match.group(1), match.group(3)) if match else (None, line)
        name = matched(r'"?([\w.]+)"?', text).group(1)
        if name in self._regions:
            self._bind(result, self._regions[name](self, text))
            return
        head, kind = split_type(text)
        rest = head[head.index(name) + len(name) :]
        operands = self.named(re.sub(r'"[^"]*"', "", rest))
        operation = TritonOperation(name, operands, rest, kind, line)
        made = self._handler_of(operation)(self, operation)
        self._bind(result, made if isinstance(made, list) else [made])

    def _bind(self, name: str | None, views: Sequence[CValue]) -> None:
        if name is None:
            return
        if len(views) == 1:
            self.values[name] = views[0]
        for i, view in enumerate(views):
            self.values[f"{name}#{i}"] = view


def lines_of(text: str) -> list[str]:
    """The lines of TTIR that do something, without where they are from."""
    lines = (line.strip() for line in _LOCATION.sub("", text).splitlines())
    return [line for line in lines if line and not line.startswith(("#", "module", "//"))]


def matched(pattern: str, text: str) -> re.Match[str]:
    """A match that must be; raises UnsupportedError where the text has another form."""
    match = re.match(pattern, text)
    if match is None:
        raise UnsupportedError(text[:80])
    return match
