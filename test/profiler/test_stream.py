"""Streamed files: the same profile as a plain file, whatever the chunks and whatever is lost."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import random
import zlib
from pathlib import Path

import pytest
from counting import lines_run
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_builder import MIB, ProgramBuilder, calls, forward, training

from memprof.profiler import stream_reader
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
from memprof.profiler.stream import StreamEncoder, encode_stream
from memprof.profiler.validate import findings


def members(data: bytes) -> list[bytes]:
    """The chunks of a stream, compressed."""
    found = []
    while data:
        member = zlib.decompressobj(wbits=31)
        member.decompress(data)
        found.append(data[: len(data) - len(member.unused_data)])
        data = member.unused_data
    return found


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


def test_a_stream_says_what_a_plain_file_says(tmp_path: Path) -> None:
    write_profile(full(), tmp_path / "p.memprof")
    write_profile(full(), tmp_path / "p.json")
    assert read_profile(tmp_path / "p.memprof") == full() == read_profile(tmp_path / "p.json")
    assert encode_profile(read_profile(tmp_path / "p.memprof")) == encode_profile(full())


def test_any_gzip_tool_shows_a_stream() -> None:
    lines = gzip.decompress(encode_stream(full())).splitlines()
    assert lines[0].startswith(b'{"format":"memprof-stream","schema_version":1,')
    assert lines[-1] == b'{"end":true}'


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
            what = self.random.choice(["unobservable", "metadata", "devices", "nodes"])
            if what == "unobservable":
                record.unobservable = self.random.choice([None, "a reason"])
            elif what == "metadata":
                record.metadata = {"n": self.random.random()}
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
    history, encoder, written = History(seed), StreamEncoder(), 0
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
    # THEN the stream holds the profile that a plain file would
    assert decode_profile(b"".join(chunks)) == decode_profile(encode_profile(history.profile))
    # AND so does one that is written at once
    assert decode_profile(encode_stream(before_the_end)) == before_the_end
    # AND what is left after a kill in any chunk is a valid, incomplete profile
    for n in range(1, len(chunks)):
        cut = b"".join(chunks[:n]) + chunks[n][: len(chunks[n]) // 2]
        assert decode_profile(cut) == decode_profile(b"".join(chunks[:n]))
        assert not decode_profile(cut).complete


def test_a_stream_cut_anywhere_is_what_its_whole_chunks_say() -> None:
    # GIVEN a stream of three chunks
    profile, encoder = training(), StreamEncoder()
    empty = dataclasses.replace(profile, graphs=[], ledger=[])
    chunks = [
        encoder.chunk(empty, CallColumns()),
        encoder.chunk(profile, calls((0, 0), (1, 0))),
        encoder.chunk(profile, calls((2, 0)), end=True),
    ]
    data = b"".join(chunks)
    ends = [len(b"".join(chunks[:n])) for n in (1, 2, 3)]
    # WHEN it ends at any byte THEN it is truncated, or the profile up to the last whole chunk
    for n in range(len(data)):
        if n < ends[0]:
            with pytest.raises(ProfileTruncatedError):
                decode_profile(data[:n])
            continue
        found = decode_profile(data[:n])
        assert len(found.calls) == (0 if n < ends[1] else 2)
        assert not found.complete
    assert decode_profile(data).complete
    # Zeros are what some file systems leave where a write did not arrive.
    assert decode_profile(data[: ends[1]] + bytes(4096)) == decode_profile(data[: ends[1]])


def test_calls_of_an_unfinished_stream_are_counted() -> None:
    profile, encoder = training(), StreamEncoder()
    profile.graphs[0].calls = 999  # what the counter says by now
    profile.released = {1: 1_000}
    found = decode_profile(encoder.chunk(profile, calls((0, 0), (0, 0), (1, 0))))
    assert [g.calls for g in found.graphs] == [2, 1, 0]
    assert found.released == {1: 3}


def test_an_idle_process_writes_nothing() -> None:
    profile, encoder = training(), StreamEncoder()
    assert encoder.chunk(profile, CallColumns())
    profile.created_ns += 5
    assert encoder.chunk(profile, CallColumns()) == b""
    end = encoder.chunk(profile, CallColumns(), end=True)
    assert b'"created_ns":1700000000000000005' in gzip.decompress(end)


def test_a_chunk_that_could_not_be_made_is_said_by_the_next() -> None:
    # GIVEN a graph whose last fields cannot be encoded while its first ones could
    encoder, profile = StreamEncoder(), full()
    columns = dataclasses.replace(profile.calls)
    begin = encoder.chunk(Profile(memprof="0.1.0"), CallColumns())
    broken = copy.deepcopy(profile)
    broken.graphs[-1].metadata = {"a": object()}
    with pytest.raises(TypeError):
        encoder.chunk(broken, columns)
    # WHEN it is tried again THEN nothing of it is missing
    rest = encoder.chunk(profile, columns, end=True)
    assert decode_profile(begin + rest) == decode_profile(encode_stream(profile))


def chunks_of_training() -> list[bytes]:
    """Four: what was compiled; calls; a second program and calls of it; the end with more calls."""
    profile, encoder = training(), StreamEncoder()
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


def broken(chunk: bytes) -> bytes:
    """A chunk with one bit turned over."""
    out = bytearray(chunk)
    out[len(out) // 2] ^= 0x10
    return bytes(out)


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
    assert found.left_out[0].startswith(
        f"a chunk, after {at:,} bytes: Error -3 while decompressing"
    )
    assert len(found.left_out) == 3
    assert list(findings(found)) == []


@pytest.mark.parametrize("what", ["gone", "zeros", "other bytes"])
def test_a_missing_chunk_is_noticed(what: str) -> None:
    first, second, third, last = chunks_of_training()
    hole = {"gone": b"", "zeros": bytes(len(third)), "other bytes": b"x" * len(third)}[what]
    found = decode_profile(first + second + hole + last)
    assert len(found.calls) == 5
    assert found.left_out[0].startswith("a chunk, after ")


def test_a_damaged_first_chunk_leaves_what_came_later() -> None:
    first, second, third, last = chunks_of_training()
    found = decode_profile(broken(first) + second + third + last)
    # THEN graphs of which only changes are known are left out with their calls
    assert (found.graphs, len(found.calls)) == ([], 0)
    assert [e.reason for e in found.ledger] == ["sizes (7,)", "sizes (8,)"]
    assert found.left_out[0].startswith("a chunk, after 0 bytes: ")
    assert list(findings(found)) == []
    # AND alone it is an error
    with pytest.raises(ProfileInvalidError, match="damaged after 0 bytes"):
        decode_profile(broken(first))


def test_a_damaged_chunk_costs_other_processes_nothing() -> None:
    # GIVEN a file of three processes
    profiles = [dataclasses.replace(training(n), process=Process(n, n, 3)) for n in range(3)]
    streams = [encode_stream(p) for p in profiles]
    # WHEN all of the second is damaged, or its end and the beginning of the third
    middle = broken(streams[1])
    found = decode_profiles(streams[0] + middle + streams[2])
    assert [found[0].calls, found[-1]] == [profiles[0].calls, profiles[2]]
    assert len(found[0].left_out) == 1
    parts = [members(encode_stream(p)) for p in map(long_profile, range(3))]
    assert [len(p) for p in parts] == [3, 3, 3]
    kept = [*parts[0], *parts[1][:2], broken(parts[1][2]), broken(parts[2][0]), *parts[2][1:]]
    one, two, *more = decode_profiles(b"".join(kept))
    # THEN no process gets calls of another
    assert len(one.calls) == 140_000
    assert len(two.calls) == 2 * 65_536
    assert not more  # what is left of the third belongs to no graph
    assert one.left_out[0].startswith("the profile of another process: not a valid profile")
    assert set(two.calls.thread) == {1}


def long_profile(n: int) -> Profile:
    """One of three chunks, whose calls are on thread ``n``."""
    profile = dataclasses.replace(training(), process=Process(n, n, 3))
    count = 140_000
    columns = calls(*[(0, 0)] * count)
    profile.calls = dataclasses.replace(columns, thread=[n] * count)
    return profile


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
            assert at < len(chunks[0])  # nothing is known without the first one
            continue
        assert list(findings(found)) == []
        if at >= len(chunks[0]):
            # Every graph is known, and the calls of all other chunks are there.
            assert len(found.graphs) == 3
            assert len(found.calls) >= 4 or not found.complete


@pytest.mark.parametrize(
    "record",
    [b"[]", b"{", b"3", b'{"graph":{}}', b'{"graph":[]}', b'{"ledger":{"length":9,"entries":3}}',
     b'{"calls":{"graph":[1]}}', b'{"calls":null}', b'{"set":3}', b'{"calls":{"start_ns":["x"]}}',
     b'{"graph":{"id":"x"}}', b'{"set":[["torch",3]]}', b"[" * 100_000,
     b'{"ledger":{"length":1000000000000,"entries":[]}}', b'{"ledger":{"length":-1,"entries":[]}}',
     b'{"graph":{"id":0,"programs":{"from":1000000000000,"items":[]}}}',
     b'{"graph":{"id":0,"programs":{"from":-1,"items":[]}}}',
     b'{"calls":{"graph":["a"],"program":[0],"start_ns":[0],"duration_ns":[0],"thread":[0]}}',
     b'{"calls":{"graph":[],"program":[],"start_ns":[],"duration_ns":[],"thread":[],"dropped":"x"}}'],
)  # fmt: skip
def test_a_strange_record_is_left_out(record: bytes) -> None:
    whole = encode_stream(training())
    found = decode_profile(whole + gzip.compress(record + b"\n"), "p")
    (line,) = found.left_out
    assert line.startswith(
        f"a record of the chunk after {len(whole):,} bytes: not what it should be"
    )
    found.left_out.clear()
    assert found == training()


def test_lines_of_nothing_cost_nothing() -> None:
    whole = encode_stream(training())
    found = []

    def read() -> None:
        found.append(decode_profile(whole + gzip.compress(b"\n" * 20_000)))

    assert lines_run(read) - lines_run(lambda: decode_profile(whole)) < 1_000
    assert found == [training()]


def test_after_very_many_strange_records_nobody_looks_for_more() -> None:
    whole = encode_stream(training())
    enough, much_more = (
        whole + gzip.compress(b"[\n" * n + b'{"set":{"torch":"later"}}\n') for n in (999, 20_000)
    )
    kept, given_up = decode_profile(enough), decode_profile(much_more)
    assert (kept.torch, given_up.torch) == ("later", training().torch)
    assert len(kept.left_out) == len(given_up.left_out) == 51
    assert lines_run(lambda: decode_profile(much_more)) < 2 * lines_run(
        lambda: decode_profile(enough)
    )
    given_up.left_out.clear()
    assert given_up == training()
    # AND another process has a thousand of its own
    assert decode_profiles(much_more + whole)[1] == training()


def test_changes_of_a_graph_are_made_in_place() -> None:
    # Copies of it would take time with the square of what nobody knows in it.
    maker = stream_reader._Document({"schema_version": 1}, None)
    maker._graph({"id": 0, "a": 1})
    first = maker.graphs[0]
    maker._graph({"id": 0, "b": 2, "programs": {"from": 0, "items": [{}]}})
    assert maker.graphs[0] is first
    assert first == {"id": 0, "a": 1, "b": 2, "programs": [{}]}


@pytest.mark.parametrize("version", [b"2", b'"one"', b"null"])
def test_a_profile_of_another_version_costs_the_others_nothing(version: bytes) -> None:
    ours = encode_stream(training())
    header = b'{"format":"memprof-stream","schema_version":%s,"memprof":"9.9"}\n' % version
    theirs = gzip.compress(header + b"[]\n") + gzip.compress(b'{"set":{"torch":"theirs"}}\n')
    for data in (ours + theirs + ours, theirs + ours + ours):
        one, two = decode_profiles(data)
        (line,) = one.left_out
        assert line.startswith("the profile of another process: ")
        assert "schema" in line
        one.left_out.clear()
        assert one == two == training()


def test_a_strange_first_record_is_an_error_of_its_own() -> None:
    with pytest.raises(ProfileInvalidError, match="damaged: its first record"):
        decode_profile(gzip.compress(b'{"format":"memprof-stream",x\n{}'), "p")


def test_fields_of_another_type_are_left_out() -> None:
    data = encode_stream(training())
    for record, says in (
        (b'{"set":{"released":[1]}}', "released: Expected `object`, got `array`"),
        (b'{"set":{"torch":3}}', "torch: Expected `str`, got `int`"),
        (b'{"graph":{"id":1,"inputs":3}}', "inputs: Expected `array`, got `int`"),
        (b'{"graph":{"id":1,"programs":{"from":0,"items":[3]}}}', "a program: Expected `object`"),
        (b'{"graph":{"id":7}}', "a graph: Object missing required field `kind`"),
    ):
        found = decode_profile(data + gzip.compress(record))
        assert found.left_out[0].startswith(says)
        assert list(findings(found)) == []
        assert len(found.graphs) == 3


def test_chunks_of_older_memprof_have_no_numbers() -> None:
    chunks = [
        gzip.compress(b"\n".join(x for x in gzip.decompress(c).split(b"\n") if b'"chunk"' not in x))
        for c in chunks_of_training()
    ]
    assert decode_profile(b"".join(chunks)) == decode_profile(b"".join(chunks_of_training()))
    chunks[2] = broken(chunks[2])
    found = decode_profile(b"".join(chunks))
    assert found.calls.graph == [0, 1, 0, 0, 1]
    assert found.left_out[0].startswith("a chunk, after ")


def test_records_of_a_kind_that_is_not_known_are_ignored() -> None:
    data = encode_stream(training())
    more = gzip.compress(b'{"from_the_future":[1]}\n')
    assert decode_profile(data + more) == training()


def test_another_version_is_refused_before_anything_is_read() -> None:
    line = b'{"format":"memprof-stream","schema_version":2,"memprof":"9.9"}\n[]\n'
    with pytest.raises(ProfileVersionError, match=r"schema version 2, written by memprof 9\.9"):
        decode_profile(gzip.compress(line))


def test_wrong_content_is_named(tmp_path: Path) -> None:
    profile = training()
    profile.graphs[0].kind = "sideways"  # type: ignore[assignment]
    found = decode_profile(encode_stream(profile), "p")
    assert found.left_out[0] == ("a graph: Invalid enum value 'sideways' - at `$.graphs[0].kind`")
    assert [g.id for g in found.graphs] == [1, 2]
    assert len(found.calls) == 6


# Several processes in a file


def test_concatenated_streams_are_a_merged_file(tmp_path: Path) -> None:
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
    profile, encoder = steady(10_000), StreamEncoder()
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
