"""The report page's payload: what it says is what the timeline and the report say."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from profile_builder import MIB, ProgramBuilder, calls, training

from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.live_set import Hold, LiveItem
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.live.trees import RecordedNode, recorded_nodes
from memprof.profiler.model import (
    GraphKind,
    GraphRecord,
    LedgerEntry,
    LedgerKind,
    MemorySnapshot,
    Process,
    Profile,
    TrackedDevice,
    TrackerMetadata,
    TrackerRecord,
    TreeDetail,
)
from memprof.profiler.views.report import summarize
from memprof.profiler.views.report.html.payload import (
    MAX_LEDGER,
    MAX_POINTS,
    MAX_RANKS,
    ranks_payload,
    report_payload,
)
from memprof.profiler.views.report.html.payload_live import HOLDS
from profiler.live.test_timeline import profiles

Row = tuple[Any, ...]


def rebuild(payload: dict[str, Any], device: dict[str, Any], call: int, instant: int) -> list[Row]:
    """The live set at an instant as the page puts it together; ``instant`` -1 is after the
    call. One row an item: category, place in each view, bytes of all copies, owner, hold."""
    step, lists = device["steps"][device["calls"]["step"][call]], device["lists"]
    counts: Counter[int] = Counter()
    for item, n in _pairs(lists[step["between" if instant < 0 else "rest"]]):
        counts[item] += n
    if instant >= 0:
        own = lists[step["own"]]
        counts.update(own)
    if instant >= 0 and step["unit"] >= 0:
        unit = device["units"][step["unit"]]
        for i in range(instant):
            for item, n in ((unit["before"][i], -1), (unit["after"][i], 1)):
                if item != -1:
                    counts[item if item >= 0 else own[-2 - item]] += n
    assert all(n >= 0 for n in counts.values())
    return [_row(payload, device["items"], item, n) for item, n in counts.items() if n]


def _pairs(numbers: list[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def value(columns: dict[str, Any], name: str, i: int) -> Any:
    return columns[name]["of"][columns[name]["at"][i]]


def _row(payload: dict[str, Any], items: dict[str, Any], item: int, n: int) -> Row:
    site = value(items, "site", item)
    category = value(payload["sites"], "category", site)
    places = places_of(payload, site)
    nbytes = value(items, "nbytes", item) * n
    return category, *places, nbytes, value(items, "owner", item), value(items, "hold", item)


def places_of(payload: dict[str, Any], site: int) -> list[Any]:
    out = []
    for view in payload["views"]:
        places = payload["places"][view]
        place = value(payload["sites"], f"in_{view}", site)
        key, below = value(places, "key", place), value(places, "below", place)
        # Of two nodes of one name, the label of the graph says which.
        label = below[0] if view == View.NODE.value and below else None
        out.append((key, label) if value(places, "known", place) else ("unattributed", key))
    return out


def expected(attribution: Attribution, x: LiveItem) -> Row:
    site = attribution.site(x.graph, x.storage, x.owner, x.line)
    places: list[tuple[Any, Any]] = []
    for view in View:
        named = attribution.named(site, view)
        if named is None:
            places.append(("unattributed", site.why.get(view, "unknown")))
        else:
            places.append((named[0], label(attribution, view, named[1])))
    return site.category.value, *places, x.nbytes, x.owner, HOLDS[x.hold]


def label(attribution: Attribution, view: View, graph: int | None) -> str | None:
    """What tells two FX nodes of one name apart."""
    return attribution.label(graph) if view is View.NODE and graph is not None else None


def merged(rows: list[Row]) -> Counter[Row]:
    """Bytes by everything else: two alike items may be one or two."""
    out: Counter[Row] = Counter()
    for row in rows:
        out[(*row[:6], *row[7:])] += row[6]
    return +out


def check_everywhere(profile: Profile, payload: dict[str, Any], most: int = 10_000) -> None:
    attribution = Attribution(profile)
    for device in payload["devices"]:
        timeline = Timeline(profile, device["device"])
        assert len(device["calls"]["step"]) == len(timeline)
        for call in range(min(len(timeline), most)):
            unit = device["steps"][device["calls"]["step"][call]]["unit"]
            last = len(device["units"][unit]["line"]) if unit >= 0 else 0
            for instant in range(last + 1):
                live = timeline.live_at(call, instant)
                found = rebuild(payload, device, call, instant)
                assert sum(row[6] for row in found) == live.nbytes
                want = merged([expected(attribution, x) for x in live.items])
                assert merged(found) == want, (call, instant)
            want = merged([expected(attribution, x) for x in timeline.live_after(call)])
            assert merged(rebuild(payload, device, call, -1)) == want, call


def test_every_live_set_of_a_training_loop() -> None:
    profile = training()
    payload = report_payload(profile)
    check_everywhere(profile, payload)
    # AND nine calls are three kinds, of which the first round differs from later ones
    (device,) = payload["devices"]
    assert device["calls"]["step"] == [0, 1, 2, 3, 4, 2, 3, 4, 2]
    assert device["peak"] == [4, 1, 26 * MIB]


@settings(max_examples=60)
@given(profiles())
def test_every_live_set_of_random_profiles(profile: Profile) -> None:
    check_everywhere(profile, json.loads(json.dumps(report_payload(profile))))


def test_sums_of_all_views_are_the_peak_of_the_report() -> None:
    profile = training()
    summary = summarize(profile)
    assert summary.peak is not None
    payload = report_payload(profile)
    (device,) = payload["devices"]
    call, instant, nbytes = device["peak"]
    rows = rebuild(payload, device, call, instant)
    assert sum(r[6] for r in rows) == nbytes == summary.peak.nbytes == 26 * MIB
    attribution = Attribution(profile)
    for i, view in enumerate(View):
        sums: Counter[tuple[Any, Any]] = Counter()
        for row in rows:
            sums[row[1 + i]] += row[6]
        breakdown = summary.views[view]
        assert (
            +Counter(
                {
                    **{
                        (p.key, label(attribution, view, p.graph)): p.nbytes
                        for p in breakdown.parts
                    },
                    **{("unattributed", p.key): p.nbytes for p in breakdown.remainder},
                }
            )
            == +sums
        )


def test_devices_are_apart_and_the_one_that_is_asked_for_is_first() -> None:
    profile = training()
    extra = GraphRecord(3, GraphKind.INFERENCE, "2/0", None, ("cuda:0",))
    builder = ProgramBuilder(device="cuda:0").alloc("buf0", 5 * MIB, 3).free("buf0", 4)
    extra.programs = [builder.build()]
    profile.graphs.append(extra)
    profile.calls = calls((0, 0), (3, 0), (1, 0), (2, 0))
    payload = report_payload(profile)
    check_everywhere(profile, payload)
    assert [d["device"] for d in payload["devices"]] == ["cuda:0", "cpu"]
    assert payload["devices"][0]["peak"] == [1, 1, 5 * MIB]
    assert [d["device"] for d in report_payload(profile, "cpu")["devices"]] == ["cpu", "cuda:0"]
    with pytest.raises(ValueError, match="devices in it: cpu, cuda:0"):
        report_payload(profile, "cuda:1")


def test_calls_without_a_program_have_what_others_left_behind() -> None:
    profile = training()
    profile.calls = calls((0, 0), (1, -1), (2, 0))
    payload = report_payload(profile)
    check_everywhere(profile, payload)
    (missing,) = payload["devices"][0]["sections"]["graphs"]["tables"][1]["rows"]
    assert missing == [1, "0/0 backward", "no program was observed for the sizes of these calls"]


def test_an_empty_profile() -> None:
    payload = report_payload(Profile())
    (device,) = payload["devices"]
    assert device["peak"] is None
    assert device["calls"]["step"] == device["units"] == []
    assert device["sections"]["graphs"]["tables"][0]["rows"] == []
    assert payload["header"]["notes"][1][1] == "0 graphs, 0 calls in 0 ns"


def test_of_many_ranks_the_page_has_the_highest() -> None:
    profiles = []
    for rank in range(MAX_RANKS + 4):
        profile = training(2 if rank % 2 else 1)  # one step has a lower peak
        profile.process = Process(rank, rank, MAX_RANKS + 4, "node", rank)
        profiles.append(profile)
    payload = ranks_payload(profiles[::-1])
    assert payload["ranks"] is not None
    (table,) = payload["ranks"]["section"]["parts"][0]["tables"]
    assert [row[0] for row in table["rows"]] == list(range(MAX_RANKS + 4))
    shown = payload["ranks"]["shown"]
    odd = [r for r in range(MAX_RANKS + 4) if r % 2]
    assert shown == sorted([*odd, *range(0, 2 * (MAX_RANKS - len(odd)), 2)])
    of = [
        next(text for _, text in p["header"]["notes"] if "rank " in text)
        for p in payload["profiles"]
    ]
    assert [int(text.split()[1]) for text in of] == shown
    alone = ranks_payload(profiles[:1])
    assert alone["ranks"] is None
    assert len(alone["profiles"]) == 1


def test_a_long_record_of_the_tracker_keeps_the_highest_of_every_device() -> None:
    # GIVEN more snapshots than the page has points, and a device whose memory is highest in one
    # that is nothing special to the process
    snapshots = [
        MemorySnapshot(
            k, resident_bytes=1000 + k, devices={"cuda:0": TrackedDevice(allocated_bytes=7)}
        )
        for k in range(3 * MAX_POINTS)
    ]
    snapshots[1234] = MemorySnapshot(
        1234, resident_bytes=2234, devices={"cuda:0": TrackedDevice(allocated_bytes=99)}
    )
    profile = Profile(tracker=TrackerRecord(snapshots=snapshots))
    tracker = report_payload(profile)["curves"]["tracker"]
    assert len(tracker["time_ns"]) <= MAX_POINTS
    (allocated,) = (c["values"] for c in tracker["lines"] if c["name"] == "cuda:0 allocated")
    assert (max(allocated), allocated.index(99)) == (99, tracker["time_ns"].index(1234))
    (resident,) = (c["values"] for c in tracker["lines"] if c["name"] == "resident")
    assert (resident[0], resident[-1]) == (1000, 1000 + 3 * MAX_POINTS - 1)


def test_snapshots_that_say_nothing_of_bytes_have_no_curve() -> None:
    profile = Profile(tracker=TrackerRecord(snapshots=[MemorySnapshot(0), MemorySnapshot(1)]))
    payload = report_payload(profile)
    (tracker,) = (s for s in payload["sections"] if s["id"] == "tracker")
    assert (payload["curves"], tracker["view"]) == ({}, "")


def test_the_ledger_keeps_the_latest_entries() -> None:
    profile = training()
    profile.ledger = [
        LedgerEntry(k * 1_000_000, LedgerKind.COMPILED, 0, f"number {k}")
        for k in range(MAX_LEDGER + 3)
    ]
    payload = report_payload(profile)
    (ledger,) = (s for s in payload["sections"] if s["id"] == "ledger")
    assert any(n.startswith("3 earlier entries are left out here") for _, n in ledger["notes"])
    rows = ledger["tables"][0]["rows"]
    assert (rows[0][0], rows[-1][-1]) == (3_000_000, f"number {MAX_LEDGER + 2}")


def test_nothing_is_before_the_pages_clock() -> None:
    # GIVEN a tracker that began before the first call, and ended after the last
    profile = training()
    first = min(profile.calls.start_ns)
    times = (first - 17 * 10**9, first + 10**9)
    profile.tracker = TrackerRecord(
        TrackerMetadata(start_ns=times[0]),
        [MemorySnapshot(t, resident_bytes=MIB) for t in times],
    )
    payload = report_payload(profile)
    # THEN both are on one clock, which begins with the tracker
    assert payload["curves"]["tracker"]["time_ns"] == [0, 18 * 10**9]
    assert payload["devices"][0]["calls"]["start_ns"][0] == 17 * 10**9


def test_recorded_nodes() -> None:
    def entry(kind: LedgerKind, function: str, count: int = 1, **detail: Any) -> LedgerEntry:
        tree = TreeDetail("cuda:0", function, **detail)
        return LedgerEntry(0, kind, 7, f"why {kind.value}", count, tree)

    found = recorded_nodes(
        [
            entry(LedgerKind.WARM_UP, "0/0 forward", node=-1),
            entry(LedgerKind.RECORD, "0/0 forward", node=0, step=3, duration_ns=5, marginal=100),
            entry(LedgerKind.RECORD, "0/0 backward", node=1, parent=0, step=3, marginal=50),
            entry(LedgerKind.RERECORD, "0/0 forward", node=2, step=4, key=(8,)),
            entry(LedgerKind.SKIP, "0/0 forward"),
            entry(LedgerKind.REPLAY, "0/0 forward", 40, node=0, marginal=100),
            entry(LedgerKind.REPLAY, "0/0 backward", 38, node=1, parent=0, marginal=50),
            entry(LedgerKind.EVICTION, "0/0 forward", node=2, key=(8,)),
            # Another thread's manager on the same device numbers from 0 too.
            entry(LedgerKind.RECORD, "1/0 inference", node=0, step=9),
        ]
    )
    rows = [(n.node, n.parent, n.function, n.key, n.replays, n.marginal_bytes) for n in found]
    assert rows == [
        (0, None, "0/0 forward", (), 40, 100),
        (1, 0, "0/0 backward", (), 38, 50),
        (2, None, "0/0 forward", (8,), 0, 0),
        (0, None, "1/0 inference", (), 0, 0),
    ]
    assert found[2] == RecordedNode(
        *("cuda:0", 2, None, "0/0 forward", (8,), 7),
        rerecorded=True,
        reason="why rerecord",
        evicted="why eviction",
        step=4,
    )
    assert (found[0].record_ns, found[0].step, found[0].reason) == (5, 3, "why record")


def test_holds_are_named_as_the_page_expects() -> None:
    # liveset.js names them; categories are those of page.js and base.css: test_report_page.py.
    assert [h.value for h in Hold] == ["call", "persistent", "saved", "handed_on"]
