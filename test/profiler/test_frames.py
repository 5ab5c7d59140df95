"""Frames: the profile that was written, whatever the pieces and whatever is lost."""

from __future__ import annotations

import copy
import dataclasses
import random
from itertools import zip_longest
from pathlib import Path

import pytest
from counting import lines_run
from framing import Record, broken, findings, header, packed, records_of, split
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_builder import MIB, ProgramBuilder, calls, forward, training

from memprof.profiler import decoding
from memprof.profiler.encoding import ProfileEncoder
from memprof.profiler.errors import (
    ProfileError,
    ProfileInvalidError,
    ProfileMergedError,
    ProfileTruncatedError,
    ProfileVersionError,
)
from memprof.profiler.file import (
    decode_profile,
    decode_profiles,
    encode_profile,
    read_profile,
    read_profiles,
    write_profile,
    write_profiles,
)
from memprof.profiler.frames import Frame, Kind
from memprof.profiler.model import (
    CallColumns,
    Category,
    DataFlowColumns,
    DataFlowDevice,
    DataFlowStorage,
    LedgerEntry,
    LedgerKind,
    Process,
    Profile,
)


def full() -> Profile:
    """A profile with every optional part."""
    profile = training()
    profile.options = {"trees": "off"}
    profile.released = {1: 4}
    profile.process = Process(2, 0, 4, "host", 77)
    profile.perf_origin_ns = 5
    profile.dataflow = DataFlowColumns(
        [
            DataFlowDevice(
                "cpu",
                [10, 20],
                {Category.PARAMETER: [4, 4], Category.ACTIVATION: [0, 8]},
                1,
                [DataFlowStorage(8, Category.ACTIVATION, "aten::mm"),
                 DataFlowStorage(4, Category.PARAMETER)],
            )
        ]
    )  # fmt: skip
    return profile


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    write_profile(full(), tmp_path / "p.memprof")
    assert read_profile(tmp_path / "p.memprof") == full()
    assert encode_profile(read_profile(tmp_path / "p.memprof")) == encode_profile(full())


def test_frames_begin_with_a_header_and_end_with_an_end() -> None:
    records = records_of(encode_profile(full()))
    assert records[0][0] == Kind.HEADER
    assert records[0][1].startswith(b'{"format":"memprof-profile","schema_version":2,')
    assert records[-1] == (Kind.END, b"{}")


class History:
    """A process that compiles, observes, calls and counts at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.profile = Profile(memprof="0.1.0")
        self.now = 1_000

    def graph(self) -> None:
        id = len(self.profile.graphs)
        record = copy.deepcopy(forward())
        record.id, record.compile_id, record.calls = id, f"{id}/0", 0
        if self.random.random() < 0.5:
            record.programs.clear()
        self.profile.graphs.append(record)

    def observe(self) -> None:
        if self.profile.graphs:
            record = self.random.choice(self.profile.graphs)
            size = len(record.programs) + 1
            record.programs.append(
                ProgramBuilder(size).alloc("buf0", size * MIB, 10, Category.OUTPUT).build()
            )

    def learn(self) -> None:
        if self.profile.graphs:
            record = self.random.choice(self.profile.graphs)
            what = self.random.choice(["unobservable", "compile_ns", "devices", "nodes"])
            if what == "unobservable":
                record.unobservable = self.random.choice([None, "a reason"])
            elif what == "compile_ns":
                record.compile_ns = self.random.randrange(1 << 40)
            elif what == "devices":
                record.devices = (*record.devices, f"cuda:{self.random.randrange(9)}")
            else:
                record.nodes = dict(list(record.nodes.items())[: self.random.randrange(4)])

    def count(self) -> None:
        entries = self.profile.ledger
        self.now += 1
        if entries and self.random.random() < 0.6:
            i = self.random.randrange(len(entries))
            entries[i] = dataclasses.replace(entries[i], count=entries[i].count + 1)
        elif entries and self.random.random() < 0.1:
            entries.pop(self.random.randrange(len(entries)))
        else:
            at = self.random.randrange(len(entries) + 1)
            entries.insert(at, LedgerEntry(self.now, LedgerKind.OBSERVED, None, f"at {self.now}"))

    def top(self) -> None:
        self.profile.created_ns += self.random.randrange(3)
        self.profile.options[str(self.random.randrange(3))] = "x"

    def call(self) -> None:
        columns = self.profile.calls
        if not self.profile.graphs:
            return
        record = self.random.choice(self.profile.graphs)
        self.now += self.random.randrange(-50, 1_000_000)
        columns.graph.append(record.id)
        columns.program.append(self.random.randrange(-1, len(record.programs)))
        columns.start_ns.append(self.now)
        columns.end_ns.append(self.now + self.random.randrange(10**7))
        columns.thread.append(self.random.randrange(3))
        record.calls += 1
        if self.random.random() < 0.05:
            self.profile.calls = dataclasses.replace(columns, dropped=columns.dropped + 1)
            record.calls += 1

    def release(self) -> None:
        logged = len(self.profile.calls) + self.profile.calls.dropped
        self.profile.released[self.random.randrange(100)] = self.random.randrange(logged + 1)


STEPS = ["graph", "observe", "learn", "count", "top", "call", "call", "call", "release", "chunk"]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(STEPS), max_size=60))
def test_random_histories_come_back(seed: int, steps: list[str]) -> None:
    # GIVEN a history that is written whenever it says so
    history, encoder, written = History(seed), ProfileEncoder(), 0
    chunks: list[bytes] = []

    def chunk(end: bool = False) -> None:
        nonlocal written
        c = history.profile.calls
        part = slice(written, None)
        new = CallColumns(
            *(list(x[part]) for x in (c.graph, c.program, c.start_ns, c.end_ns, c.thread)),
            dropped=c.dropped,
        )
        chunks.append(encoder.chunk(history.profile, new, end=end))
        written = len(c)

    for step in steps:
        chunk() if step == "chunk" else getattr(history, step)()
    before_the_end = copy.deepcopy(history.profile)
    chunk(end=True)
    # THEN the file holds the profile that was there at the end
    assert decode_profile(b"".join(chunks)) == decode_profile(encode_profile(history.profile))
    # AND so does one that is written at once
    assert decode_profile(encode_profile(before_the_end)) == before_the_end
    # AND what is left after a kill in any chunk is a valid, incomplete profile
    for n in range(1, len(chunks)):
        cut = b"".join(chunks[:n]) + chunks[n][: len(chunks[n]) // 2]
        assert decode_profile(cut).left_out == []
        assert not decode_profile(cut).complete


def test_a_file_cut_anywhere_is_what_its_whole_frames_say() -> None:
    # GIVEN a file that was written in three chunks
    profile, encoder = training(), ProfileEncoder()
    empty = dataclasses.replace(profile, graphs=[], ledger=[])
    chunks = [
        encoder.chunk(empty, CallColumns()),
        encoder.chunk(profile, calls((0, 0), (1, 0))),
        encoder.chunk(profile, calls((2, 0)), end=True),
    ]
    data = b"".join(chunks)
    first = len(split(data)[0])
    ends = [len(b"".join(chunks[:n])) for n in (1, 2, 3)]
    # WHEN it ends at any byte THEN it is truncated, or the profile up to the last whole frame
    for n in range(len(data)):
        if n < first:
            with pytest.raises(ProfileTruncatedError):
                decode_profile(data[:n])
            continue
        found = decode_profile(data[:n])
        assert len(found.calls) <= (0 if n < ends[0] else 2 if n < ends[1] else 3)
        assert len(found.calls) >= (0 if n < ends[1] else 2)
        assert not found.complete
        assert found.left_out == []
    assert decode_profile(data).complete
    # Zeros are what some file systems leave where a write did not arrive.
    assert decode_profile(data[: ends[1]] + bytes(4096)) == decode_profile(data[: ends[1]])


def test_calls_of_an_unfinished_stream_are_counted() -> None:
    profile, encoder = training(), ProfileEncoder()
    profile.graphs[0].calls = 999  # what the counter says by now
    profile.released = {1: 1_000}
    found = decode_profile(encoder.chunk(profile, calls((0, 0), (0, 0), (1, 0))))
    assert [g.calls for g in found.graphs] == [2, 1, 0]
    assert found.released == {1: 3}


def test_an_idle_process_writes_nothing() -> None:
    profile, encoder = training(), ProfileEncoder()
    assert encoder.chunk(profile, CallColumns())
    profile.created_ns += 5
    assert encoder.chunk(profile, CallColumns()) == b""
    end = encoder.chunk(profile, CallColumns(), end=True)
    assert (Kind.FIELDS, b'{"created_ns":1700000000000000005}') in records_of(end)


def test_a_chunk_that_could_not_be_made_is_said_by_the_next() -> None:
    # GIVEN a graph whose last fields cannot be encoded while its first ones could
    encoder, profile = ProfileEncoder(), full()
    columns = dataclasses.replace(profile.calls)
    begin = encoder.chunk(Profile(memprof="0.1.0"), CallColumns())
    broken = copy.deepcopy(profile)
    broken.graphs[-1].code_path = object()  # type: ignore[assignment]
    with pytest.raises(TypeError):
        encoder.chunk(broken, columns)
    # WHEN it is tried again THEN nothing of it is missing
    rest = encoder.chunk(profile, columns, end=True)
    assert decode_profile(begin + rest) == decode_profile(encode_profile(profile))


def chunks_of_training() -> list[bytes]:
    """Four: what was compiled; calls; a second program and calls of it; the end with more calls."""
    profile, encoder = training(), ProfileEncoder()
    chunks = [encoder.chunk(profile, CallColumns()), encoder.chunk(profile, calls((0, 0), (1, 0)))]
    profile.graphs[0].programs.append(
        ProgramBuilder(7).alloc("buf0", MIB, 10, Category.OUTPUT).build()
    )
    profile.ledger.append(LedgerEntry(9, LedgerKind.OBSERVED, 0, "sizes (7,)"))
    chunks.append(encoder.chunk(profile, calls((0, 1), (2, 0))))
    profile.graphs[0].programs.append(
        ProgramBuilder(8).alloc("buf0", MIB, 10, Category.OUTPUT).build()
    )
    profile.ledger.append(LedgerEntry(10, LedgerKind.OBSERVED, 0, "sizes (8,)"))
    chunks.append(encoder.chunk(profile, calls((0, 2), (0, 1), (1, 0)), end=True))
    return chunks


def test_a_damaged_chunk_costs_what_is_in_it() -> None:
    first, second, third, last = chunks_of_training()
    found = decode_profile(first + second + broken(third) + last)
    # THEN calls before and after are there, and know their programs: that of sizes (7,) is lost
    assert found.complete
    assert found.calls.graph == [0, 1, 0, 0, 1]
    assert found.calls.program == [0, 0, 1, -1, 0]
    assert [p.key for p in found.graphs[0].programs] == [(), (8,)]
    assert [e.reason for e in found.ledger][-1:] == ["sizes (8,)"]
    # AND what was lost is said
    at = len(first + second)
    lost = len(split(third))
    assert found.left_out[0] == f"{lost} frames, after {at:,} bytes: its checksum is another"
    assert len(found.left_out) == 3
    assert findings(found) == []


@pytest.mark.parametrize("what", ["gone", "zeros", "other bytes"])
def test_a_missing_chunk_is_noticed(what: str) -> None:
    first, second, third, last = chunks_of_training()
    hole = {"gone": b"", "zeros": bytes(len(third)), "other bytes": b"x" * len(third)}[what]
    found = decode_profile(first + second + hole + last)
    assert len(found.calls) == 5
    assert found.left_out[0].startswith(f"{len(split(third))} frames, after ")


def test_a_damaged_first_chunk_leaves_what_came_later() -> None:
    first, second, third, last = chunks_of_training()
    found = decode_profile(broken(first) + second + third + last)
    # THEN graphs of which only changes are known are left out with their calls
    assert (found.graphs, len(found.calls)) == ([], 0)
    assert [e.reason for e in found.ledger] == ["sizes (7,)", "sizes (8,)"]
    assert found.left_out[0].startswith(f"{len(split(first))} frames, after 0 bytes: ")
    assert findings(found) == []
    # AND alone it is an error
    with pytest.raises(ProfileInvalidError, match="damaged after 0 bytes"):
        decode_profile(broken(first))


def test_damage_costs_other_processes_nothing() -> None:
    # GIVEN a file of three processes
    profiles = [dataclasses.replace(training(n), process=Process(n, n, 3)) for n in range(3)]
    one, two, three = (encode_profile(p) for p in profiles)
    # WHEN all of the second is damaged
    found = decode_profiles(one + broken(two) + three)
    assert [found[0].calls, found[-1]] == [profiles[0].calls, profiles[2]]
    assert len(found) == 2
    assert len(found[0].left_out) == 1
    # or its end and the beginning of the third
    second, third = split(two), split(three)
    kept = [one, *second[:-2], broken(b"".join(second[-2:] + third[:3])), *third[3:]]
    first, incomplete, rest = decode_profiles(b"".join(kept))
    # THEN each has what is whole of its own
    assert first == profiles[0]
    assert (incomplete.process, incomplete.complete) == (profiles[1].process, False)
    assert (incomplete.graphs, incomplete.calls) == (profiles[1].graphs, profiles[1].calls)
    assert len(rest.calls) == sum(g != 0 for g in profiles[2].calls.graph)
    assert [g.id for g in rest.graphs] == [1, 2]
    assert rest.left_out[0].startswith("3 frames, after ")


def test_frames_of_several_processes_may_alternate() -> None:
    profiles = [dataclasses.replace(training(n), process=Process(n - 1, 0, 2)) for n in (1, 2)]
    pairs = zip_longest(*(split(encode_profile(p)) for p in profiles), fillvalue=b"")
    assert decode_profiles(b"".join(a + b for a, b in pairs)) == profiles


def test_a_frame_that_comes_again_is_left_out() -> None:
    data = encode_profile(training())
    found = decode_profile(data + split(data)[-2])
    assert found.left_out == [f"a frame, after {len(data):,} bytes: its number was there before"]
    found.left_out.clear()
    assert found == training()


def test_a_bit_anywhere_costs_no_more_than_its_chunk() -> None:
    chunks = chunks_of_training()
    data, rng = b"".join(chunks), random.Random(0)
    for _ in range(300):
        at = rng.randrange(len(data))
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        try:
            found = decode_profile(bytes(changed))
        except ProfileError:
            raise AssertionError(f"byte {at} costs everything") from None
        assert findings(found) == []
        assert len(found.graphs) >= 2
        assert len(found.calls) + len(found.left_out) >= 4


def more(kind: int, *payloads: bytes) -> bytes:
    """The training step's file with further frames."""
    records = records_of(encode_profile(training()))
    return packed([*records, *((kind, payload) for payload in payloads)])


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        *((kind, payload) for kind in (Kind.FIELDS, Kind.GRAPH, Kind.LEDGER, Kind.CALLS)
          for payload in (b"", b"[]", b"{", b"3", b"null", b"[" * 100_000, b"\xff")),
        (Kind.GRAPH, b"{}"), (Kind.GRAPH, b'{"id":"x"}'),
        (Kind.GRAPH, b'{"id":0,"programs":{"from":1000000000000,"items":[]}}'),
        (Kind.GRAPH, b'{"id":0,"programs":{"from":-1,"items":[]}}'),
        (Kind.LEDGER, b'{"length":9,"entries":3}'),
        (Kind.LEDGER, b'{"length":1000000000000,"entries":[]}'),
        (Kind.LEDGER, b'{"length":-1,"entries":[]}'),
        (Kind.LEDGER, b'{"length":1,"entries":[[1,{}]]}'),
        (Kind.CALLS, b'{"graph":[1]}'), (Kind.CALLS, b'{"start_ns":["x"]}'),
        (Kind.CALLS,
         b'{"graph":["a"],"program":[0],"start_ns":[0],"duration_ns":[0],"thread":[0]}'),
        (Kind.CALLS, b'{"graph":[0],"program":[],"start_ns":[],"duration_ns":[],"thread":[]}'),
        (Kind.CALLS,
         b'{"graph":[],"program":[],"start_ns":[],"duration_ns":[],"thread":[],"dropped":"x"}'),
    ],
)  # fmt: skip
def test_a_strange_frame_is_left_out(kind: Kind, payload: bytes) -> None:
    found = decode_profile(more(kind, payload), "p")
    (line,) = found.left_out
    assert line.startswith(f"a frame, after {len(more(kind)):,} bytes: not what it should be")
    found.left_out.clear()
    assert found == training()


def test_after_very_many_strange_frames_nobody_looks_for_more() -> None:
    def strange(n: int) -> bytes:
        records: list[Record] = [(Kind.FIELDS, b"[")] * n
        return packed(
            [*records_of(encode_profile(training())), *records, (Kind.FIELDS, b'{"torch":"later"}')]
        )

    enough, much_more = strange(999), strange(20_000)
    kept, given_up = decode_profile(enough), decode_profile(much_more)
    assert (kept.torch, given_up.torch) == ("later", training().torch)
    assert len(kept.left_out) == len(given_up.left_out) == 51
    given_up.left_out.clear()
    assert given_up == training()
    # AND another process has a thousand of its own
    assert decode_profiles(much_more + encode_profile(training()))[1] == training()


def test_damage_everywhere_is_looked_at_once() -> None:
    # GIVEN beginnings of frames that all say to reach to the end
    def beginnings(n: int) -> bytes:
        begin = bytearray(split(encode_profile(training()))[0][:24])
        begin[16:20] = (24 * n).to_bytes(4, "little")
        return encode_profile(training()) + bytes(begin) * n + bytes(24 * n)

    few, many = (beginnings(n) for n in (4_000, 8_000))
    assert decode_profile(many).graphs == training().graphs
    assert lines_run(lambda: decode_profile(many)) < 2.2 * lines_run(lambda: decode_profile(few))


def test_changes_of_a_graph_are_made_in_place() -> None:
    # Copies of it would take time with the square of what nobody knows in it.
    maker = decoding.Document(None)
    maker.add(Frame(0, 9, Kind.GRAPH, 1, 0, b'{"id":0,"a":1}'), None)
    first = maker._graphs[0]
    maker.add(
        Frame(0, 9, Kind.GRAPH, 1, 1, b'{"id":0,"b":2,"programs":{"from":0,"items":[{}]}}'), None
    )
    assert maker._graphs[0] is first
    assert set(first) == {"id", "a", "b"}
    assert [bytes(p) for p in maker._programs[0]] == [b"{}"]


@pytest.mark.parametrize("version", [3, "one", None, [[]]])
def test_a_profile_of_another_version_costs_the_others_nothing(version: object) -> None:
    ours = encode_profile(training())
    theirs = packed([header(version), (Kind.FIELDS, b'{"torch":"theirs"}')])
    for data in (ours + theirs + ours, theirs + ours + ours):
        one, two = decode_profiles(data)
        (line,) = one.left_out
        assert line.startswith("the profile of another process: ")
        assert "schema" in line
        one.left_out.clear()
        assert one == two == training()


def test_fields_of_another_type_are_left_out() -> None:
    for kind, payload, says in (
        (Kind.FIELDS, b'{"released":[1]}', "released: Expected `object`, got `array`"),
        (Kind.FIELDS, b'{"torch":3}', "torch: Expected `str`, got `int`"),
        (Kind.GRAPH, b'{"id":1,"inputs":3}', "inputs: Expected `array`, got `int`"),
        (
            Kind.GRAPH,
            b'{"id":1,"programs":{"from":0,"items":[3]}}',
            "an allocation program: Expected `object`",
        ),
        (Kind.GRAPH, b'{"id":7}', "a graph record: Object missing required field `kind`"),
    ):
        found = decode_profile(more(kind, payload))
        assert found.left_out[0].startswith(says)
        assert findings(found) == []
        assert len(found.graphs) == 3


def test_what_is_not_known_is_passed_over() -> None:
    assert decode_profile(more(99, b'{"from_the_future":[1]}')) == training()
    assert decode_profile(more(Kind.FIELDS, b'{"from_the_future":[1]}')) == training()
    assert decode_profile(more(Kind.GRAPH, b'{"id":0,"from_the_future":[1]}')) == training()


def test_another_version_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ProfileVersionError, match=r"schema version 3, written by memprof 9\.9"):
        decode_profile(packed([header(3), (Kind.FIELDS, b"[]")]))


def test_wrong_content_is_named(tmp_path: Path) -> None:
    profile = training()
    profile.graphs[0].kind = "sideways"  # type: ignore[assignment]
    found = decode_profile(encode_profile(profile), "p")
    assert found.left_out[0] == (
        "a graph record: Invalid enum value 'sideways' - at `$.graphs[0].kind`"
    )
    assert [g.id for g in found.graphs] == [1, 2]
    assert len(found.calls) == 6


# Several processes in a file


def test_profiles_with_the_same_content_keep_their_places(tmp_path: Path) -> None:
    # GIVEN profiles of which some are alike, so that their frames have the same process
    profiles = [Profile(torch=version) for version in ("a", "b", "b", "a", "c")]
    write_profiles(profiles, tmp_path / "all.memprof")
    # THEN they are read in the order in which they were written
    assert [p.torch for p in read_profiles(tmp_path / "all.memprof")] == [*"abbac"]


def test_concatenated_files_are_a_merged_file(tmp_path: Path) -> None:
    profiles = [dataclasses.replace(training(n), process=Process(n, n, 3)) for n in range(3)]
    write_profiles(profiles, tmp_path / "all.memprof")
    assert read_profiles(tmp_path / "all.memprof") == profiles
    # AND `cat` merges as well
    for n, profile in enumerate(profiles):
        write_profile(profile, tmp_path / f"{n}.memprof")
    joined = b"".join((tmp_path / f"{n}.memprof").read_bytes() for n in range(3))
    assert decode_profiles(joined) == profiles
    with pytest.raises(ProfileMergedError, match="holds 3 profiles, of ranks 0, 1, 2: say whose"):
        read_profile(tmp_path / "all.memprof")
    # AND one process that was killed takes nothing from the others
    cut = (tmp_path / "0.memprof").read_bytes() + (tmp_path / "1.memprof").read_bytes()[:-9]
    assert decode_profiles(cut)[0] == profiles[0]


# Size and time


def steady(n: int) -> Profile:
    """A training loop of n calls with jitter."""
    rng = random.Random(0)
    profile, t = training(1), 10**14
    columns = CallColumns()
    for k in range(n):
        took = 400_000 + int(rng.gauss(0, 20_000))
        columns.graph.append(k % 3)
        columns.program.append(0)
        columns.start_ns.append(t)
        columns.end_ns.append(t + took)
        columns.thread.append(0)
        t += took + 30_000 + int(rng.expovariate(1 / 5_000))
    profile.calls = columns
    for g in profile.graphs:
        g.calls = columns.graph.count(g.id)
    return profile


def test_a_call_costs_a_few_bytes() -> None:
    # Regardless of how often a chunk is written: here every 100 calls.
    profile, encoder = steady(10_000), ProfileEncoder()
    c = profile.calls
    size = 0
    start = len(encoder.chunk(profile, CallColumns()))
    for k in range(0, len(c), 100):
        part = slice(k, k + 100)
        columns = CallColumns(
            *(x[part] for x in (c.graph, c.program, c.start_ns, c.end_ns, c.thread))
        )
        size += len(encoder.chunk(profile, columns, end=k + 100 == len(c)))
    print(f"{size / len(c):.1f} bytes a call in chunks of 100 calls, {start} for the rest")
    assert size / len(c) < 20
