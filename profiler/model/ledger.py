"""The ledger: everything memprof did or declined to do, with the reason in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .limits import Int, Positive


class LedgerKind(str, Enum):
    COMPILED = "compiled"
    CACHE_HIT = "cache_hit"
    RECOMPILED = "recompiled"
    """Compiled again, past a cache, because the cached artifact had no provenance."""
    OBSERVED = "observed"
    NOT_OBSERVED = "not_observed"
    NOT_GRAPHED = "not_graphed"
    """Compiled code that no CUDA graph holds."""
    NOT_STORED = "not_stored"
    """Provenance that could not be written beside Inductor's cache: a process that finds the graph
    there will compile it again. This one's profile is whole."""
    FALLBACK = "fallback"
    """memprof failed inside and the plain Inductor callable runs in its place, or a fact is
    missing in the profile."""
    OUT_OF_MEMORY = "out_of_memory"
    """An allocation failed, caught or not; not where graph trees make the call again."""
    RESET = "reset"
    WARM_UP = "warm_up"
    """A function ran in a tree's pool without being recorded."""
    RECORD = "record"
    RERECORD = "rerecord"
    """Recorded although recordings of the function exist at that place: none fits."""
    REPLAY = "replay"
    SKIP = "skip"
    """A function ran without a graph."""
    DEMOTION = "demotion"
    """An input that kept moving is copied from now on."""
    EVICTION = "eviction"
    """A recording was dropped: with the pool, with its function, or as what it reads has gone."""
    CHECKPOINT = "checkpoint"
    """The allocator's books were restored, so that something could run after a replay."""
    INVALIDATED = "invalidated"
    """An output that was held beyond its step; using it raises an error from here on."""
    MOVED_OUT = "moved_out"
    """An output that was held beyond its step was given memory outside the pool."""
    TREE_FAILURE = "tree_failure"
    """A warm-up or recording failed. It was made again where the reason says so; else the plain
    function ran, or the error was the program's."""


class TreeCause(str, Enum):
    """Cause of an action of graph trees that the ledger lists, where readers want to tell causes
    apart."""

    MOVED = "moved"
    """Inputs whose address a recording relies on are somewhere else."""
    KEEPS_MOVING = "keeps_moving"
    """Such inputs are somewhere else again and again: they are copied from now on, or nothing is
    recorded any more."""
    WRITES_TO_COPIED = "writes_to_copied"
    """Code writes to inputs that its graph would copy."""
    HELD = "held"
    """Outputs are held beyond their step."""
    HELD_GRADIENT = "held_gradient"
    """Outputs that are gradients of parameters are held beyond their step."""


@dataclass(frozen=True, slots=True)
class TreeDetail:
    """Details of a ledger entry that graph trees made.

    Attributes:
        function: e.g. ``0/0 forward``.
        key: values of the function's integer inputs.
        node: number of the recording, negative for a warm-up, None if there is none.
        parent: number of the node before it on the path, None at a root.
        step: number of the step, from 1.
        duration_ns: how long it took on the host, all repeats together; 0 if not measured.
        pool_before, pool_after: bytes that the pool had from the system, -1 if not measured.
        marginal: bytes by which recording this node made the pool grow, 0 for other kinds.
        cause: None where the reason alone says it.
        inputs, nbytes: indices of the graph inputs that are the cause, and their bytes.
        outputs: indices of the graph outputs that the entry is about.
    """

    device: str
    function: str
    key: tuple[Int, ...] = ()
    node: Int | None = None
    parent: Int | None = None
    step: Int = 0
    duration_ns: Int = 0
    pool_before: Int = -1
    pool_after: Int = -1
    marginal: Int = 0
    cause: TreeCause | None = None
    inputs: tuple[Int, ...] = ()
    nbytes: Int = 0
    outputs: tuple[Int, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of the ledger.

    Attributes:
        time_ns: ``time.time_ns()`` when it happened.
        graph: ``GraphRecord.id`` it concerns, None if none.
        reason: why, in words.
        count: how often the same thing happened; repeats are counted, not repeated.
        tree: of an entry of the graph trees, None for others.
    """

    time_ns: Int
    kind: LedgerKind
    graph: Int | None
    reason: str
    count: Positive = 1
    tree: TreeDetail | None = None
