"""Which arguments of a recorded operator call may have been written to.

The profiler records an operator's name and arguments but not its overload, so the
call is held against every overload's schema; in practice one remains. Which overloads
match depends only on the name and the arguments' types: that is the cache's key, and
a run of a million calls needs a few hundred matches.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

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
    """What calls of one name and signature can be; the registry is asked once for each.

    Attributes:
        schemas: from a name to every registered overload of it.
        match: from a name and a signature to what such a call does to its arguments.
    """

    def __init__(self) -> None:
        self.schemas = cache(compat.registered_schemas)
        self.match = cache(self._match)

    def _match(self, name: str, signature: Signature) -> Match:
        schemas = [
            s
            for s in self.schemas(name)
            if len(s.arguments) == len(signature)
            and all(compat.accepts(a.type, o) for a, o in zip(s.arguments, signature, strict=True))
        ]
        if not schemas:
            return Match(False, (AMBIGUOUS,) * len(signature))
        effects = []
        for overloads in zip(*(s.arguments for s in schemas), strict=True):
            written = any(a.alias_info is not None and a.alias_info.is_write for a in overloads)
            state = any(a.name in _STATE_ARGUMENTS for a in overloads)
            effects.append((WRITTEN if written else READ) | (STATE if state else 0))
        return Match(True, tuple(effects))
