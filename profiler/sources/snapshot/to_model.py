"""From a snapshot to a profile: the account of each device, then and at the peak of its history.

Note [What a snapshot is not asked]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Frames name files, and a snapshot may be anybody's: its files are not looked at, not for the text of
a line nor for the class that it stands in. They may be on another machine, a pipe, or a secret.

Note [A history that begins late]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``device_traces`` has the last so many events (``max_entries``), or those since somebody began to
record. But the segments of the snapshot are the state after the last one: going back from it, what
an event made goes, and what it let go of comes again. From what is there in the end
``AllocatorHistory`` follows the history as any other. Of blocks that went within the history their
size is not known, but what was asked for, so it is rounded up, as far as there is room.
"""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import msgspec

from memprof.profiler.model import Category, DeviceAccount, Held, Profile, SourceFrame
from memprof.profiler.model.limits import LARGEST
from memprof.profiler.model.provenance import line_and_library
from memprof.profiler.sources.allocator.account import add_up, failed_requests
from memprof.profiler.sources.allocator.history import (
    AllocatorBlock,
    AllocatorHistory,
    AllocatorInstant,
    frames_of,
)
from memprof.profiler.sources.allocator.segments import Ascending, Segments
from memprof.profiler.sources.allocator.where import is_generated, user_lines
from memprof.profiler.support.errors import SnapshotInvalidError

from .shape import MODULE, ROLE, Json, Snapshot, is_workspace

NO_STACK = "(no stack was recorded)"
"""Holder of blocks that were there before the history began, or where none was on."""

_CATEGORIES = {p.value: p for p in Category}

_FREED = {"free_requested", "free_completed"}
"""Events of a block that is freed: torch writes both."""

EMPTY = (
    "nothing was recorded: when this was taken torch's allocator had no memory of any device, "
    "and no history",
    "call torch.cuda.memory._dump_snapshot(path) in the process that has the tensors, while it has "
    'them; for lines and a history, torch.cuda.memory._record_memory_history(stacks="python") '
    "before they are made",
    "the allocator cudaMallocAsync keeps neither",
)
"""Notes on a snapshot without a device: why that may be, and what to do."""


def profile_of(snapshot: Snapshot, path: str | None = None) -> Profile:
    """The accounts of a snapshot's devices, the one with most reserved first.

    Args:
        snapshot: a checked one; where it was enriched, its frames say what blocks are for.
        path: of the file, for messages.

    Raises:
        SnapshotInvalidError: its numbers add up to more than 64 bits.
    """
    nothing = DeviceAccount("cuda:0", snapshot=True, notes=[*EMPTY])
    accounts = [_account(snapshot, device) for device in snapshot.devices] or [nothing]
    for account in accounts:
        try:  # Its sums can be beyond what the types of the model hold.
            msgspec.convert(msgspec.to_builtins(account), DeviceAccount)
        except msgspec.ValidationError as e:
            where = f"the account of {account.device}"
            raise SnapshotInvalidError(path, f"no valid snapshot: {where}: {e}", where) from e
    return Profile(
        accounts=sorted(accounts, key=lambda a: -a.reserved), created_ns=_taken_at(snapshot)
    )


def _taken_at(snapshot: Snapshot) -> int:
    """Time of the last event, ns since 1970; 0 where there is none."""
    last = [t[-1].get("time_us") for t in snapshot.traces if t]
    return max((n * 1000 for n in last if type(n) is int and 0 < n < 1 << 52), default=0)


def _account(snapshot: Snapshot, device: int) -> DeviceAccount:
    segments, trace = snapshot.of_device(device), snapshot.trace_of(device)
    history = AllocatorHistory(snapshot.settings)
    history.take_over(segments)
    requests = [e for e in trace if e["action"] == "alloc"]
    stacks = any(e.get("frames") for e in requests)
    account = _of_peak(f"cuda:{device}", history.now(), stacks, asked={e["addr"] for e in requests})
    account.snapshot = True
    account.notes += _notes(account, bool(trace))
    if trace:
        _add_history(account, snapshot, segments, trace, stacks)
    return account


def _of_peak(
    device: str, peak: AllocatorInstant, stacks: bool, asked: Container[int] = ()
) -> DeviceAccount:
    """The account of an instant of a history that has ``stacks``; of the blocks that were there
    before, as far as that was followed, those at addresses in ``asked`` are of the history too."""
    account = DeviceAccount(device, reserved=peak.reserved)
    rows: dict[int, Held] = {}  # by stack, which many blocks have together

    def row(block: AllocatorBlock) -> Held:
        frames = block.raw_frames
        if not frames:
            no_python = stacks and (block.event > 0 or block.address in asked)
            return _NO_PYTHON if no_python else _NO_STACK
        if id(frames) not in rows:
            rows[id(frames)] = _row(frames)
        return rows[id(frames)]

    add_up(account, peak, row)
    account.most_allocated = account.allocated
    return account


def _add_history(
    account: DeviceAccount,
    snapshot: Snapshot,
    segments: Sequence[Json],
    trace: Sequence[Json],
    stacks: bool,
) -> None:
    begin = _beginning(segments, trace, AllocatorHistory(snapshot.settings))
    kinds = {e["action"] for e in trace}
    completes = "free_completed" not in kinds
    # In two passes: what is there at a peak that a later one surpasses is of no use.
    whole = _followed(snapshot, begin, trace, completes)
    until = _followed(snapshot, begin, trace[: whole.peak.event], completes)
    until.assign_pools(segments)
    peak = _of_peak(account.device, until.now(), stacks)
    peak.notes.append(f"after event {until.events:,} of {whole.events:,} of the history")
    if (account.reserved, account.allocated) > (peak.reserved, peak.allocated):
        peak = replace(account, snapshot=False, notes=["the snapshot itself"])
    followed = 0 if whole.inconsistent_events else whole.most_allocated
    most = max(followed, peak.allocated, account.allocated)
    account.most_allocated = peak.most_allocated = most
    account.failed = failed_requests(whole, lambda raw: ("", _lines(raw)[0]))
    peak.notes += _doubts(account, whole, kinds)
    account.peak = peak


def _doubts(account: DeviceAccount, whole: AllocatorHistory, kinds: Set[str]) -> Iterator[str]:
    """Yields what a history of such events lacks, that ends as a snapshot's ``account`` says."""
    freed = kinds & _FREED
    if len(freed) == 1:
        yield (
            f"the history has {min(freed)} events and no {min(_FREED - freed)}: what was let go "
            "of counts as free at once"
        )
    if whole.inconsistent_events or (whole.reserved, whole.allocated_bytes) != (
        account.reserved,
        account.allocated,
    ):
        lacks = " or ".join(sorted({"alloc", *_FREED} - kinds or {"segment_free"} - kinds))
        yield (
            f"{whole.inconsistent_events:,} events contradict the others or the snapshot "
            f"({account.reserved:,} B reserved, {account.allocated:,} B allocated), as they do "
            "where the history was off for a while, or a kind of event was left out"
            f"{f' (it has no {lacks})' if lacks else ''}: sizes may be off"
        )


def _followed(
    snapshot: Snapshot, begin: Sequence[Json], trace: Sequence[Json], completes: bool
) -> AllocatorHistory:
    history = AllocatorHistory(snapshot.settings, keep_blocks=False, completes=completes)
    history.take_over(begin)
    history.feed(trace)
    return history


def _beginning(
    segments: Sequence[Json], trace: Sequence[Json], rules: AllocatorHistory
) -> list[Json]:
    """The segments before the first event, in the snapshot's own form."""
    before = Segments()
    blocks: dict[int, Json] = {}
    for s in segments:
        before.grow(s["address"], s["total_size"], s["is_expandable"], s["segment_pool_id"])
        blocks |= {b["address"]: b for b in s["blocks"] if b["state"] != "inactive"}
    for e in reversed(trace):
        action = e["action"]
        if action == "alloc":
            blocks.pop(e["addr"], None)
        elif action in ("free_completed", "free_requested"):
            state = "active_allocated" if action == "free_requested" else "active_awaiting_free"
            blocks[e["addr"]] = {
                "address": e["addr"],
                "size": rules.rounded(e["size"]),
                "requested_size": e["size"],
                "state": state,
            }
        elif action in ("segment_free", "segment_unmap"):
            before.grow(e["addr"], e["size"], action == "segment_unmap", e.get("pool_id"))
        elif action in ("segment_alloc", "segment_map"):
            before.shrink(e["addr"], e["size"])
    return _filled(before, blocks, _next_asked(trace, blocks), rules)


def _next_asked(trace: Sequence[Json], blocks: Container[int]) -> dict[int, int]:
    """For blocks freed within a history, the first address above at which something was requested
    while they were live: they do not reach beyond it."""
    asked, found = Ascending(), dict[int, int]()
    seen: set[int] = set()
    for e in trace:
        address = e.get("addr", 0)
        if e["action"] == "alloc" and address not in seen:
            seen.add(address)
            asked.add(-address)
        elif e["action"].startswith("free_") and address in blocks and address not in found:
            above = asked.last_up_to(-address - 1)
            found[address] = LARGEST if above is None else -above
    return found


def _filled(
    segments: Segments, blocks: dict[int, Json], above: Mapping[int, int], rules: AllocatorHistory
) -> list[Json]:
    addresses = sorted(blocks)
    found: list[Json] = []
    for s in segments:
        at, end = s.address, s.address + s.size
        own: list[Json] = []
        for i in range(bisect.bisect_left(addresses, at), bisect.bisect_left(addresses, end)):
            block = blocks[addresses[i]]
            after = addresses[i + 1] if i + 1 < len(addresses) else end
            room = min(end, after, above.get(addresses[i], end)) - addresses[i]
            if at < addresses[i]:
                own.append({"address": at, "size": addresses[i] - at, "state": "inactive"})
            rest = room - block["size"]
            if rest < 0 or (rest and not rules.cuts(rest, block["size"], s.expandable)):
                asked = min(block["requested_size"], room)
                block = {**block, "size": room, "requested_size": asked}
            own.append(block)
            at = addresses[i] + block["size"]
        if at < end:
            own.append({"address": at, "size": end - at, "state": "inactive"})
        found.append(
            {
                "address": s.address,
                "total_size": s.size,
                "blocks": own,
                "segment_pool_id": s.pool,
                "is_expandable": s.expandable,
            }
        )
    return found


def _notes(account: DeviceAccount, has_history: bool) -> list[str]:
    notes = []
    without = sum(r.nbytes for r in account.rows if r.holder == NO_STACK)
    if without and without == account.live:
        notes.append(
            "no block has a stack: the history of the allocator was off when they were asked for "
            "(torch.cuda.memory._record_memory_history)"
        )
    elif without:
        notes.append(f"{without:,} B have no stack: from before the history began")
    if not has_history:
        notes.append("it has no history: what was live before is not known")
    compiled = sum(r.nbytes for r in account.rows if r.compiled and not r.nodes)
    if compiled:
        notes.append(
            f"{compiled:,} B were asked for by generated code: the profile of a run of it names "
            "their FX nodes (memprof report SNAPSHOT --profile PROFILE)"
        )
    return notes


def _lines(raw: Iterable[Mapping[str, Any]]) -> tuple[SourceFrame | None, SourceFrame | None]:
    return line_and_library(user_lines(one for f in raw for one in frames_of((_with_line(f),))))


def _with_line(frame: Mapping[str, Any]) -> Mapping[str, Any]:
    """``frame``, with line 0 in place of the 2**64 - 1 that C++'s unwinder has for unknown."""
    return frame if frame["line"] <= LARGEST else {**frame, "line": 0}


_NO_STACK = Held(Category.ALLOCATED, 0, 0, holder=NO_STACK)
_NO_PYTHON = Held(Category.ALLOCATED, 0, 0)
"""Row of requests whose stack was recorded and is empty: those of autograd's threads."""


def _row(raw: Sequence[Mapping[str, Any]]) -> Held:
    named = next((f for f in raw if f.get("fx_node_name")), None)
    category, detail, nodes, modules = Category.ALLOCATED, "", "", ""
    with_role = next((f for f in raw if f.get(ROLE)), None)
    if with_role is not None:
        category = _CATEGORIES.get(with_role[ROLE], Category.ALLOCATED)
        modules = with_role.get(MODULE, "")
    if is_workspace(raw):
        category, detail = Category.WORKSPACE, "cuBLAS"
    if named is not None:
        target = named.get("fx_node_target")
        nodes = f"{named['fx_node_name']} ({target})" if target else named["fx_node_name"]
    compiled = any(is_generated(f["filename"]) for f in raw) or with_role is not None
    line, library = _lines(raw)
    return Held(category, 0, 0, modules, line, nodes, compiled, detail, library=library)
