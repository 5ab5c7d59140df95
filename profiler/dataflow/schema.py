"""Which arguments of a recorded operator call may have been written to.

The profiler records an operator's name and arguments but not its overload, so the
call is held against every overload's schema; in practice one remains. Which overloads
match depends only on the name and the arguments' types: that is the cache's key, and
a run of a million calls needs a few hundred matches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _torch_compat as compat

READ, WRITTEN, AMBIGUOUS = 1, 2, 4
"""What a call does to one argument. AMBIGUOUS: no schema matched, it may be either."""

STATE = 32
"""Added where the argument is a running statistic. The operators of batch normalisation
write to it although their schemas do not say so."""
_STATE_ARGUMENTS = frozenset({"running_mean", "running_var"})

Signature = tuple[object, ...]
"""One entry an argument: ``TensorMetadata``, ``list``, a scalar type, or None."""


class Match(NamedTuple):
    """Overloads that a call can have been.

    ``is_operator``: at least one matches. ``mutability``: READ, WRITTEN or AMBIGUOUS an
    argument, WRITTEN where any matching overload writes, with STATE added where it applies.
    """

    is_operator: bool
    mutability: tuple[int, ...]


class SchemaCache:
    """Matches, by operator name and signature."""

    def __init__(self) -> None:
        self._schemas: dict[str, tuple[Any, ...]] = {}
        self._matches: dict[tuple[str, Signature], Match] = {}

    def schemas(self, name: str) -> tuple[Any, ...]:
        """Every registered overload of ``name``."""
        found = self._schemas.get(name)
        if found is None:
            found = self._schemas[name] = compat.registered_schemas(name)
        return found

    def matching(self, name: str, signature: Signature) -> tuple[Any, ...]:
        """The overloads whose arguments can have been recorded as ``signature``."""
        return tuple(
            s
            for s in self.schemas(name)
            if len(s.arguments) == len(signature)
            and all(compat.accepts(a.type, o) for a, o in zip(s.arguments, signature, strict=True))
        )

    def match(self, name: str, signature: Signature) -> Match:
        """What a call named ``name`` with these arguments does to them."""
        found = self._matches.get((name, signature))
        if found is None:
            found = self._matches[name, signature] = self._match(name, signature)
        return found

    def _match(self, name: str, signature: Signature) -> Match:
        schemas = self.matching(name, signature)
        if not schemas:
            return Match(False, (AMBIGUOUS,) * len(signature))
        written = [
            any(
                s.arguments[i].alias_info is not None and s.arguments[i].alias_info.is_write
                for s in schemas
            )
            for i in range(len(signature))
        ]
        state = [
            any(s.arguments[i].name in _STATE_ARGUMENTS for s in schemas)
            for i in range(len(written))
        ]
        return Match(
            True,
            tuple(
                (WRITTEN if w else READ) | (STATE if s else 0)
                for w, s in zip(written, state, strict=True)
            ),
        )
