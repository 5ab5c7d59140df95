"""Frames: the profile that was written, whatever the pieces and whatever is lost."""

from __future__ import annotations

import copy
import dataclasses
import random
from itertools import zip_longest
from pathlib import Path

import pytest
from framing import broken, decode_profile, header, packed, records_of, split
from hypothesis import given, settings, strategies as st
from profile_builder import MIB, ProgramBuilder, calls, forward, training

from memprof.profiler.file.decoding import Document
from memprof.profiler.file.encoding import ProfileEncoder
from memprof.profiler.file.frames import Frame, Kind, frames
from memprof.profiler.file.profile_file import (
    decode_profiles,
    encode_profile,
    read_profile,
    read_profiles,
    write_profile,
    write_profiles,
)
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
from memprof.profiler.support.errors import (
    ProfileError,
    ProfileInvalidError,
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
        ],
        notes=["1 of 2 compiled calls is known"],
    )  # fmt: skip
    return profile


def test_frames_begin_with_a_header_and_end_with_an_end() -> None:
    records = records_of(encode_profile(full()))
    assert records[0][0] == Kind.HEADER
    assert records[0][1].startswith(b'{"format":"memprof-profile","schema_version":4,')
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
            with pytest.raises(ProfileInvalidError):
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


@pytest.mark.parametrize("what", ["gone", "zeros", "other bytes"])
def test_a_missing_chunk_is_noticed(what: str) -> None:
    first, second, third, last = chunks_of_training()
    hole = {"gone": b"", "zeros": bytes(len(third)), "other bytes": b"x" * len(third)}[what]
    found = decode_profile(first + second + hole + last)
    assert len(found.calls) == 2
    assert len(found.left_out) == 1
    assert found.left_out[0].startswith(f"what comes after {len(first + second):,} bytes: ")


def test_a_damaged_first_chunk_is_an_error() -> None:
    first, second, third, last = chunks_of_training()
    for data in (broken(first) + second + third + last, broken(first)):
        with pytest.raises(ProfileInvalidError, match="damaged after 0 bytes: its checksum"):
            decode_profile(data)
    # AND so are frames of a profile that began elsewhere
    with pytest.raises(ProfileInvalidError, match="whose beginning is missing"):
        decode_profile(second + third)


def test_damage_costs_processes_before_it_nothing() -> None:
    # GIVEN a file of three processes
    profiles = [dataclasses.replace(training(n), process=Process(n, n, 3)) for n in range(3)]
    one, two, three = (encode_profile(p) for p in profiles)
    # WHEN the second is damaged, from its first frame on or at its end
    (found,) = decode_profiles(one + broken(two) + three)
    assert found.left_out == [f"what comes after {len(one):,} bytes: its checksum is another"]
    found.left_out.clear()
    assert found == profiles[0]
    frames = split(two)
    first, incomplete = decode_profiles(b"".join([one, *frames[:-1], broken(frames[-1]), three]))
    # THEN what came before is there
    assert first == profiles[0]
    assert (incomplete.process, incomplete.complete) == (profiles[1].process, False)
    assert (incomplete.graphs, incomplete.calls) == (profiles[1].graphs, profiles[1].calls)
    assert len(incomplete.left_out) == 1


def test_frames_of_several_processes_may_alternate() -> None:
    profiles = [dataclasses.replace(training(n), process=Process(n - 1, 0, 2)) for n in (1, 2)]
    pairs = zip_longest(*(split(encode_profile(p)) for p in profiles), fillvalue=b"")
    assert decode_profiles(b"".join(a + b for a, b in pairs)) == profiles


def test_a_bit_anywhere_costs_what_comes_after_it() -> None:
    chunks = chunks_of_training()
    data, rng = b"".join(chunks), random.Random(0)
    frames = split(data)
    ends = [len(b"".join(frames[:n])) for n in range(1, len(frames) + 1)]
    for _ in range(300):
        at = rng.randrange(len(data))
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        before = max((end for end in ends if end <= at), default=0)
        if at - before in (5, 6, 7):
            continue  # padding behind the kind of a frame, which nobody reads
        kept = decode_profile(data[:before]) if before else Profile()
        if not kept.graphs:
            with pytest.raises(ProfileError):
                decode_profile(bytes(changed))
            continue
        found = decode_profile(bytes(changed))
        # A last frame that ends behind the file's end is what a killed process leaves.
        length = int.from_bytes(changed[before + 16 : before + 20], "little")
        cut = before == ends[-2] and length > len(frames[-1]) - 24
        assert len(found.left_out) == (0 if cut else 1)
        found.left_out.clear()
        assert found == kept


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
def test_a_strange_frame_ends_what_is_read(kind: Kind, payload: bytes) -> None:
    found = decode_profile(more(kind, payload, b"{}"), "p")
    (line,) = found.left_out
    assert line.startswith(f"what comes after {len(more(kind)):,} bytes: not what it should be")
    found.left_out.clear()
    assert found == training()
    # AND where it is all of a process, those before it lose nothing
    before = encode_profile(steady(9))
    (found,) = decode_profiles(before + packed([header(), (kind, payload)]))
    assert len(found.left_out) == 1
    found.left_out.clear()
    assert found == steady(9)


def test_what_is_of_another_type_is_named_by_its_path() -> None:
    for kind, payload, says in (
        (Kind.FIELDS, b'{"released":[1]}', "Expected `object`, got `array` - at `$.released`"),
        (Kind.FIELDS, b'{"torch":3}', "Expected `str`, got `int` - at `$.torch`"),
        (
            Kind.GRAPH,
            b'{"id":1,"description":3}',
            "Expected `object`, got `int` - at `$.description`",
        ),
        (
            Kind.GRAPH,
            b'{"id":1,"programs":{"from":0,"items":[3]}}',
            "Expected `object`, got `int` - at `$.programs.items[0]`",
        ),
        (Kind.GRAPH, b'{"id":7}', "a new one without its kind"),
    ):
        found = decode_profile(more(kind, payload))
        assert says in found.left_out[0]
        found.left_out.clear()
        assert found == training()


def test_what_is_not_known_is_passed_over() -> None:
    assert decode_profile(more(99, b'{"from_the_future":[1]}')) == training()
    assert decode_profile(more(Kind.FIELDS, b'{"from_the_future":[1]}')) == training()
    assert decode_profile(more(Kind.GRAPH, b'{"id":0,"from_the_future":[1]}')) == training()


def test_a_profile_does_not_change_with_what_is_added_later() -> None:
    data = b"".join(chunks_of_training())
    document = Document(None)
    profiles = []
    for frame in frames(data, None):
        assert isinstance(frame, Frame)
        document.add(frame)
        profiles.append((document.profile(), decode_profile(data[: frame.end])))
    for found, wanted in profiles:
        assert found == wanted


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
    with pytest.raises(ProfileError, match="holds 3 profiles, of ranks 0, 1, 2: say whose"):
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
