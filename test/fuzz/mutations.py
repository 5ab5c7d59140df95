"""Changes to documents and files that keep most of what makes them be read."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from typing import Any

from framing import Record, encoded, packed

from memprof.profiler.frames import Kind

from .hostile import NUMBERS, TEXTS

Json = Any


def mutated(rng: random.Random, document: Json, most: int = 6) -> Json:
    """A document with some values changed, taken out, put elsewhere or repeated."""
    document = copy.deepcopy(document)
    for _ in range(rng.randint(1, most)):
        places = _places(document)
        if places:
            _change(rng, document, *rng.choice(places), places)
    return document


def _places(value: Json) -> list[tuple[Any, Any]]:
    """(container, key) of every value in a document."""
    out: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        here = stack.pop()
        if isinstance(here, dict):
            keys: list[Any] = list(here)
        elif isinstance(here, list):
            keys = list(range(len(here)))
        else:
            continue
        for key in keys:
            out.append((here, key))
            stack.append(here[key])
    return out


def _change(
    rng: random.Random, root: Json, at: Any, key: Any, places: list[tuple[Any, Any]]
) -> None:
    value = at[key]
    how = rng.randrange(12)
    if how < 4:
        at[key] = _like(rng, value)
    elif how == 4:
        at[key] = rng.choice([None, True, [], {}, "", 0, *NUMBERS[:8], *TEXTS])
    elif how == 5:
        del at[key]
    elif how == 6 and isinstance(at, list):
        with contextlib.suppress(RecursionError):  # It is as deep as documents can be.
            at[key:key] = [copy.deepcopy(value)] * rng.choice([1, 1, 2, 30])
    elif how == 7:
        other, k = rng.choice(places)
        try:
            at[key] = copy.deepcopy(other[k])
        except (LookupError, TypeError, RecursionError):  # It was taken out meanwhile, or is deep.
            return
    elif how == 8 and isinstance(value, list):
        rng.shuffle(value)
    elif how == 9 and isinstance(value, list):
        del value[rng.randrange(len(value) + 1) :]
    elif how == 10 and isinstance(value, dict):
        value[rng.choice([*value, "x", "1", "999", ""])] = rng.choice([[], {}, 1, "x", None])
    elif how == 11:
        for _ in range(rng.choice([3, 300])):
            value = [value]
        at[key] = value


def _like(rng: random.Random, value: Json) -> Json:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, -value, value * 1_000, rng.choice(NUMBERS)])
    if isinstance(value, str):
        return rng.choice([value + "x", value[: len(value) // 2], rng.choice(TEXTS)])
    if isinstance(value, list) and value:
        return [_like(rng, rng.choice(value))] * len(value)
    if isinstance(value, dict) and value:
        return {rng.choice([k, f"{k}x"]): v for k, v in value.items()}
    return rng.choice([1, "x", [], {}])


def corrupted(rng: random.Random, data: bytes) -> bytes:
    """Bytes with some turned over, taken out, put in, repeated or cut off."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        if not out:
            break
        at = rng.randrange(len(out))
        length = rng.choice([1, 2, 16, 400])
        how = rng.randrange(7)
        if how < 2:
            out[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            del out[at : at + length]
        elif how == 3:
            out[at:at] = rng.randbytes(length)
        elif how == 4:
            out[at:at] = out[at : at + length] * rng.choice([1, 20])
        elif how == 5:
            out[at : at + length] = bytes(length)
        else:
            del out[at:]
    return bytes(out)


# Frames


def mutated_file(rng: random.Random, records: list[Record]) -> bytes:
    """A file whose payloads, frames or bytes are changed."""
    records = list(records)
    for _ in range(rng.choice([1, 1, 2, 4])):
        how = rng.randrange(8)
        i = rng.randrange(len(records))
        kind, payload = records[i]
        if how < 4:
            with contextlib.suppress(ValueError, RecursionError):  # It was corrupted before.
                records[i] = kind, encoded(mutated(rng, json.loads(payload), 3))
        elif how == 4:
            records[i] = kind, corrupted(rng, payload)
        elif how == 5:
            records.insert(rng.randrange(len(records) + 1), rng.choice(records))
        elif how == 6:
            records[i] = rng.choice([*Kind, 99]), payload
        elif len(records) > 1:
            records.pop(i)
    # Most are whole and in order; some have other numbers, or are of other processes.
    frames, number = [], 0
    for kind, payload in records:
        if rng.random() < 0.02:
            number = max(0, number + rng.choice([-3, -1, 1, 50, (1 << 32) - 1 - number]))
        process = 2 if rng.random() < 0.02 else 1
        frames.append(packed([(kind, payload)], process, min(number, (1 << 32) - 1)))
        number += 1
    if rng.random() < 0.1:
        rng.shuffle(frames)
    if rng.random() < 0.4:
        i = rng.randrange(len(frames))
        frames[i] = corrupted(rng, frames[i])
    if rng.random() < 0.1:
        frames.insert(rng.randrange(len(frames) + 1), rng.choice([b"", bytes(50), b"x" * 50]))
    return b"".join(frames)
