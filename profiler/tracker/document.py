"""The tracker's file, ``memory_profile_YYYYMMDD_HHMMSS.json``: one JSON document; no torch.

Note [The tracker's file and the profile]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A ``TrackerRecord`` is either the ``tracker`` of a ``Profile``, in a profile file, or the content
of a tracker's own file. There its five parts stand at the top level, where people and their
``jq`` look for them, and what memprof compiled meanwhile is the sixth, ``profile``: an ordinary
profile whose ``tracker`` is null. A profile file with the same five parts repeated at its top
level would hold everything twice; one without them would not be the file that a tracker is
expected to write. ``format`` is ``memprof-tracker`` and comes first; the schema version is that
of profiles.

Readers give the same for both: a ``Profile`` whose ``tracker`` is set.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .._header import check_version
from .._json import to_json
from ..errors import ProfileInvalidError, ProfileTruncatedError
from ..model import (
    SCHEMA_VERSION,
    MemorySnapshot,
    OperationColumns,
    OperationSummary,
    OperatorRecord,
    Profile,
    RunState,
    TrackerMetadata,
    TrackerRecord,
)
from ..repair import Notes
from ..salvage import UNREADABLE, salvage_tracked

__all__ = [
    "TRACKER_FORMAT",
    "TrackerDocument",
    "decode_document",
    "encode_document",
    "is_document",
    "tracker_schema",
]

TRACKER_FORMAT = "memprof-tracker"
_HEAD = f'"format":"{TRACKER_FORMAT}"'.encode()


@dataclass(slots=True)
class TrackerDocument:
    """The content of a tracker's file.

    Attributes:
        format, schema_version: identify the file.
        created_ns: ``time.time_ns()`` when it was written.
        memprof: version that wrote it.
        metadata, snapshots, operation_allocations, operation_summary, pytorch_operations: the
            ``TrackerRecord``.
        profile: what was compiled and called meanwhile.
    """

    format: str = TRACKER_FORMAT
    schema_version: int = SCHEMA_VERSION
    created_ns: int = 0
    memprof: str = ""
    metadata: TrackerMetadata = field(default_factory=TrackerMetadata)
    snapshots: list[MemorySnapshot] = field(default_factory=list)
    operation_allocations: OperationColumns = field(default_factory=OperationColumns)
    operation_summary: list[OperationSummary] = field(default_factory=list)
    pytorch_operations: OperatorRecord = field(default_factory=OperatorRecord)
    profile: Profile = field(default_factory=Profile)


_PARTS = tuple(f.name for f in dataclasses.fields(TrackerRecord))
_NEEDED = ("format", "schema_version", *_PARTS)


def encode_document(profile: Profile) -> bytes:
    """The file of a profile with a tracker's record.

    Raises:
        ValueError: it has none.
    """
    record = profile.tracker
    if record is None:
        raise ValueError("this profile has no tracker's record")
    document = TrackerDocument(
        created_ns=profile.created_ns,
        memprof=profile.memprof,
        **{name: getattr(record, name) for name in _PARTS},
        profile=dataclasses.replace(profile, tracker=None),
    )
    return to_json(document)


def is_document(data: bytes) -> bool:
    """Whether ``data`` begins like a tracker's file, with whitespace or without."""
    head = b"".join(data[:120].split())
    return _HEAD + b"," in head


def decode_document(data: bytes, path: str | None = None, notes: Notes | None = None) -> Profile:
    """The profile, with ``tracker`` set, that the bytes of a tracker's file hold.

    It has not been validated: ``profiler.file`` does that.

    Args:
        data: the bytes.
        path: to name in errors.
        notes: get what is of another type than it should be, and is left out.

    Raises:
        ProfileTruncatedError, ProfileVersionError, ProfileInvalidError: they hold none.
    """
    try:
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        if not data.rstrip().endswith(b"}") or "truncated" in str(e):
            raise ProfileTruncatedError(
                path,
                "truncated: it ends in the middle of the document, after "
                f"{len(data):,} bytes; copy it again (memprof itself writes files whole or not "
                "at all)",
            ) from e
        raise ProfileInvalidError(path, f"damaged: {e}; copy it again") from e

    def plain(name: str) -> Any:
        try:
            return msgspec.json.decode(found[name]) if name in found else None
        except UNREADABLE:
            return "something that cannot be read"

    check_version(plain("schema_version"), plain("memprof"), path)
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise ProfileInvalidError(
            path,
            f"not a valid tracker's file: {', '.join(missing)} missing - at `$`; "
            "see docs/profile-format.md",
        )
    try:
        document = msgspec.json.decode(data, type=TrackerDocument)
    except UNREADABLE:
        record, profile = salvage_tracked(found, Notes() if notes is None else notes)
        return with_tracker(profile, record)
    record = TrackerRecord(**{name: getattr(document, name) for name in _PARTS})
    return with_tracker(document.profile, record)


def with_tracker(profile: Profile, record: TrackerRecord) -> Profile:
    """``profile`` with the record; what an empty profile does not say is taken from it."""
    m = record.metadata
    return dataclasses.replace(
        profile,
        created_ns=profile.created_ns or m.perf_origin_ns + m.end_ns,
        memprof=profile.memprof or m.memprof,
        torch=profile.torch or m.torch,
        python=profile.python or m.python,
        perf_origin_ns=profile.perf_origin_ns or m.perf_origin_ns,
        tracker=record,
        complete=m.state is not RunState.RUNNING,
    )


def tracker_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a tracker's file."""
    schema = msgspec.json.schema(TrackerDocument)
    definition = schema["$defs"]["TrackerDocument"]
    definition["properties"]["format"] = {"const": TRACKER_FORMAT}
    definition["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    definition["required"] = list(_NEEDED)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{TRACKER_FORMAT} {SCHEMA_VERSION}",
        **schema,
    }
