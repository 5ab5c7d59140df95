"""Timeline of live memory, for any instant of any call: calls + programs → live sets.

Note [What is live between calls]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A program says what is live inside a call. Between calls, three kinds of memory are known to be
live, the *carried*:

* **persistent**: parameters, buffers, optimizer state and constants, from the first call that has
  them among its inputs until ``Profile.released`` says that they are gone;
* **saved**: what a forward returns for its backward, from the forward's return until its backward
  (or the first part of it that runs) begins, whose own program then has it as an input: Note
  [Forwards and their backwards] in pairing.py;
* **handed on**: an output that another graph's program has as an input (the same
  ``Storage.identity``), between graph breaks or a compiled backward and optimizer. It is live from
  its producer's return to the return of the last of its consumers that is called before the
  producer is called again. A parameter's gradient stays until its consumers are called at all: what
  its producer makes when it is called again, autograd adds to it.

Programs are observed once and stand for many calls. Memory that two waiting forwards of *one*
program hold is different memory; memory with one identity that *different* programs hold is the
same. So of an identity, carried memory holds as many copies as the program that has the most of
them waiting, and a persistent identity exists once.

Everything carried is a lower bound. **Not seen** are tensors that eager code makes or keeps outside
of compiled calls (a loss, gradients on the way to an eager optimizer or summed over several
backwards where the observed one was not the first, outputs the user keeps, data batches); what a
forward without a backward in the log saved, once it has returned; temporaries of a call that runs
at the same time on another thread; parameters other than those of the observed call where one graph
serves several modules.

Note [Linear in calls]
~~~~~~~~~~~~~~~~~~~~~~
A training loop goes through few distinct states. The state between calls (which forwards wait, what
is handed on, which persistent memory exists) is interned, and a *step* (state, program, partner) →
(bytes, next state) is computed once. A call then costs a dictionary lookup.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from memprof.profiler.model import (
    EventKind,
    GraphKind,
    GraphRecord,
    LedgerEntry,
    LedgerKind,
    LiveStorage,
    Profile,
)

from .live_set import Hold, Instant, LiveItem, UnobservedCalls
from .programs import (
    Forwards,
    Key,
    Pairing,
    Persistent,
    PreparedProgram,
    given_by,
    prepare_programs,
)

WARM_UPS = "warm-ups of its CUDA graph, before the observed call"
"""Reason why warm-ups were not observed: the observed call stands for them."""

_NONE = -1
_BYTES = ("entry", "peak", "exit", "between")

_Moving = dict[Key, tuple[LiveItem, int]]
"""Carried memory and its number of copies, by key."""
_Makers = Mapping[int, tuple[Key, LiveItem]]
"""Makers of input storages, by storage id."""


@dataclass(frozen=True, slots=True)
class _State:
    """Memory between calls: (unit, count) of forwards that wait, (producing unit, index of what it
    hands on, consumers still to come), and the epoch of what persists. Both are sorted, so that
    equal states are equal."""

    waiting: tuple[tuple[int, int], ...] = ()
    handed: tuple[tuple[int, int, frozenset[int]], ...] = ()
    epoch: int = 0

    def with_waiting(self, more: Iterable[int] = (), less: Iterable[int] = ()) -> _State:
        """Copies the state, with other forwards waiting."""
        waiting = Counter(dict(self.waiting))
        waiting.update(more)
        waiting.subtract(less)
        return replace(self, waiting=tuple(sorted((u, n) for u, n in waiting.items() if n > 0)))


_NOTHING = _State()


@dataclass(frozen=True, slots=True)
class _Step:
    """One distinct transition between states, and the live bytes in each of its calls."""

    before: _State
    unit: int
    forwards: Forwards
    after: _State
    entry: int
    peak: int
    exit: int
    between: int


class Timeline:
    """The memory of all calls of a valid profile; Note [What is live between calls] says what it
    cannot see.

    Building it takes time linear in the number of calls (about a second a million). It counts
    memory of ``device`` only, e.g. ``cuda:0``; None adds up all devices, which means something only
    if there is one.

    Attributes:
        units: all programs.
        unit_of_call: by call the ``id`` of its unit, -1 where it has no program.
    """

    def __init__(self, profile: Profile, device: str | None = None) -> None:
        self.profile = profile
        self.device = device
        self.units = prepare_programs(profile, device)
        calls = zip(profile.calls.graph, profile.calls.program, strict=True)
        ids = {(u.graph.id, u.index): u.id for u in self.units}
        self.unit_of_call = array("q", [ids.get(call, _NONE) for call in calls])
        self._pairing = Pairing(profile, self.units, self.unit_of_call)
        self._remaining = self._look_ahead()
        self._persistent = Persistent(profile, self.units, self.unit_of_call)
        self._states = {_NOTHING: _NOTHING}
        self._steps: list[_Step] = []
        self._makers: dict[tuple[int, Forwards], _Makers] = {}
        self._step_of_call = self._walk()

    # What is asked of it

    def __len__(self) -> int:
        return len(self._step_of_call)

    def peak(self) -> Instant | None:
        """The first instant with the most known live bytes; None without calls."""
        if not len(self):
            return None
        peaks = [s.peak for s in self._steps]
        best = max(peaks)
        call = next(k for k, s in enumerate(self._step_of_call) if peaks[s] == best)
        unit = self._step_of(call).unit
        return Instant(call, self.units[unit].peak_at if unit != _NONE else 0, best)

    def at_peak(self) -> tuple[LiveItem, ...]:
        """Everything known to be live at the peak; nothing without calls."""
        at = self.peak()
        return self.live_at(at.call, at.instant) if at is not None else ()

    def live_at(self, call: int, instant: int) -> tuple[LiveItem, ...]:
        """Everything known to be live at an instant of a call (by index in the call log) and its
        program.

        Raises:
            IndexError: there is no such call or instant.
        """
        step = self._step_of(call)
        own: list[LiveItem] = []
        if step.unit != _NONE:
            unit = self.units[step.unit]
            makers = self._input_makers(step.unit, step.forwards)
            own = [_item(unit, makers, live) for live in unit.program.live_at(instant)]
        elif instant:
            raise IndexError(f"call {call} was not observed: its only instant is 0")
        moving, taken = self._rest(step.before, step.unit, step.forwards)
        return self._on_device((*self._items(step.before, moving, taken), *own))

    def kind(self, call: int) -> int:
        """Number of a call's kind: calls of one kind have the same live sets at all their instants
        and after them."""
        return self._step_of_call[call]

    def changes(self, call: int) -> list[tuple[LiveItem | None, LiveItem | None]]:
        """Item that each event of a call takes out of the live set, and item that it puts in. Both
        are there where memory changes owner, neither for memory of another device."""
        step = self._step_of(call)
        if step.unit == _NONE:
            return []
        unit = self.units[step.unit]
        makers = self._input_makers(step.unit, step.forwards)
        live = {i.storage.id: _item(unit, makers, i) for i in unit.program.live_at(0)}
        out: list[tuple[LiveItem | None, LiveItem | None]] = []
        for e in unit.program.events:
            before, after = live.pop(e.storage, None), None
            if e.kind is not EventKind.FREE:
                storage = unit.program.storages[e.storage]
                after = _item(unit, makers, LiveStorage(storage, e.owner, e.line))
                live[e.storage] = after
            ours = self._on_device(i for i in (before, after) if i is not None)
            out.append((before if before in ours else None, after if after in ours else None))
        return out

    def live_after(self, call: int) -> tuple[LiveItem, ...]:
        """Items carried when a call is over, its arguments and results dropped; their bytes add up
        to those of ``bytes_over_time`` between calls."""
        step = self._step_of(call)
        return self._on_device(self._items(step.after, self._moving(step.after)))

    def _items(
        self, state: _State, moving: _Moving, without: Collection[Key] = ()
    ) -> Iterator[LiveItem]:
        yield from self._persistent.items(state.epoch, without)
        for item, count in moving.values():
            yield replace(item, count=count)

    def _on_device(self, items: Iterable[LiveItem]) -> tuple[LiveItem, ...]:
        return tuple(i for i in items if self.device is None or i.storage.device == self.device)

    def bytes_over_time(self) -> dict[str, list[int]]:
        """Known live bytes of every call: at its ``entry``, with its inputs; its ``peak``; at its
        ``exit``, with its outputs; and ``between`` it and the next."""
        columns = {n: [getattr(s, n) for s in self._steps] for n in _BYTES}
        return {n: [c[step] for step in self._step_of_call] for n, c in columns.items()}

    def unobserved(self) -> list[UnobservedCalls]:
        """Calls without a program, by graph, with the reason."""
        calls = zip(self.profile.calls.graph, self.unit_of_call, strict=True)
        counts = Counter(g for g, u in calls if u == _NONE)
        entries: dict[int | None, list[LedgerEntry]] = {}
        for e in self.profile.ledger:
            entries.setdefault(e.graph, []).append(e)
        return [
            UnobservedCalls(g, n, _why(self.profile.graph(g), n, entries.get(g, [])))
            for g, n in sorted(counts.items())
        ]

    def _step_of(self, call: int) -> _Step:
        if not 0 <= call < len(self):
            raise IndexError(f"there is no call {call}: the log has calls 0 to {len(self) - 1}")
        return self._steps[self._step_of_call[call]]

    # How it is built

    def _look_ahead(self) -> dict[int, tuple[frozenset[int], ...]]:
        """Units that consume what a call hands on, by call and for each item handed on: those
        called before the call's own unit is called again, or at all if the item accumulates."""
        out: dict[int, tuple[frozenset[int], ...]] = {}
        few: dict[tuple[frozenset[int], ...], tuple[frozenset[int], ...]] = {}
        never = len(self.unit_of_call)
        following = [never] * len(self.units)
        for k in range(never - 1, -1, -1):
            u = self.unit_of_call[k]
            if u == _NONE:
                continue
            if self.units[u].handed_on:
                remaining = tuple(
                    frozenset(
                        c
                        for c in b.consumers
                        if following[c] < (never if b.accumulates else following[u])
                    )
                    for b in self.units[u].handed_on
                )
                out[k] = few.setdefault(remaining, remaining)
            following[u] = k
        return out

    def _walk(self) -> array[int]:
        cache: dict[tuple[int, int, Forwards, bool, tuple[frozenset[int], ...]], int] = {}
        out = array("q", bytes(8 * len(self.unit_of_call)))
        epochs = frozenset(self._persistent.epochs)
        units, partner, remaining = self.unit_of_call, self._pairing.partner, self._remaining
        graphs = self.profile.calls.graph
        backward = {g.id for g in self.profile.graphs if g.kind is GraphKind.BACKWARD}
        state = _NOTHING
        for k, u in enumerate(units):
            if k in epochs:  # What the call before left is counted with its own epoch.
                state = replace(state, epoch=k)
                state = self._states.setdefault(state, state)
            others = partner.get(k, ())
            pops = graphs[k] in backward
            forwards = tuple(units[o] for o in others if units[o] != _NONE) if pops else ()
            waits = bool(others) and not pops
            key = (id(state), u, forwards, waits, remaining.get(k, ()))
            step = cache.get(key)
            if step is None:
                step = cache[key] = len(self._steps)
                self._steps.append(self._step(state, *key[1:]))
            out[k] = step
            state = self._steps[step].after
        return out

    def _step(
        self,
        before: _State,
        unit: int,
        forwards: Forwards,
        waits: bool,
        remaining: tuple[frozenset[int], ...],
    ) -> _Step:
        handed = []
        for producer, b, consumers in before.handed:
            left = consumers - {unit}
            if left and producer != unit:
                handed.append((producer, b, left))
        handed += [(unit, b, consumers) for b, consumers in enumerate(remaining) if consumers]
        handed.sort(key=lambda h: h[:2])
        after = before.with_waiting([unit] if waits and unit != _NONE else (), forwards)
        after = replace(after, handed=tuple(handed))
        after = self._states.setdefault(after, after)
        moving, taken = self._rest(before, unit, forwards)
        rest = self._nbytes(before.epoch, moving, taken)
        between = self._nbytes(after.epoch, self._moving(after))
        entry = peak = exit = rest
        if unit != _NONE:
            u = self.units[unit]
            entry += u.program.entry_bytes
            peak += u.peak_bytes
            exit += sum(live.storage.nbytes for live in u.surviving)
        return _Step(before, unit, forwards, after, entry, peak, exit, between)

    def _nbytes(self, epoch: int, moving: _Moving, without: Collection[Key] = ()) -> int:
        """Bytes of all that is carried, given what ``_moving`` finds."""
        carried = sum(item.storage.nbytes * count for item, count in moving.values())
        return carried + self._persistent.nbytes(epoch, without)

    def _moving(self, state: _State, running: int = _NONE) -> _Moving:
        """Carried memory but for the persistent. A unit that is ``running`` holds copies of its
        inputs beside those that its waiting calls hold."""
        out: _Moving = {}

        def hold(key: Key, item: LiveItem, count: int) -> None:
            known = out.get(key)
            if known is not None:
                # Prefer the holder that made the memory: it knows where it comes from.
                better = known[0].storage.at_entry and not item.storage.at_entry
                out[key] = (item if better else known[0], max(count, known[1]))
            elif not self._persistent.has(key, state.epoch):
                out[key] = (item, count)

        for unit, count in state.waiting:
            u = self.units[unit]
            for key, item in u.saved.items():
                hold(key, item, count + (unit == running and item.storage.at_entry))
        for unit, b, _ in state.handed:
            for key, item in self.units[unit].handed_on[b].items.items():
                hold(key, item, 1)
        return out

    def _rest(self, state: _State, unit: int, forwards: Forwards) -> tuple[_Moving, set[Key]]:
        """Carried memory of others during a call of ``unit``, less what its own program counts: as
        many copies of its inputs as it has, and what ``forwards`` saved for it; and keys to leave
        out of persistent memory."""
        if unit == _NONE:
            # What an unobserved backward does with its memory is not known: it keeps it.
            return self._moving(state), set()
        others = state.with_waiting(less=forwards)
        if not forwards:  # What an unknown forward saved for it is beside what others wait with.
            state = state.with_waiting(self._pairing.usual_forwards(unit))
        rest = self._moving(others)
        copies = self._moving(state, unit)
        makers = self._input_makers(unit, forwards)
        takes = Counter(
            makers[storage][0] if storage in makers else key
            for storage, key in self.units[unit].input_keys.items()
        )
        for key, n in takes.items():
            rest.pop(key, None)
            if key in copies and copies[key][1] > n:
                item, count = copies[key]
                rest[key] = (item, count - n)
        return rest, set(takes)

    def _input_makers(self, unit: int, forwards: Forwards) -> _Makers:
        forwards = forwards or self._pairing.usual_forwards(unit)
        if (unit, forwards) not in self._makers:
            u = self.units[unit]
            found = dict(u.sources)
            for forward in forwards:
                found.update(given_by(u, self.units[forward]))
            self._makers[unit, forwards] = found
        return self._makers[unit, forwards]


def _why(graph: GraphRecord, calls: int, entries: list[LedgerEntry]) -> str:
    """Reason why ``calls`` calls of a graph were not observed, from its ledger entries."""
    known = graph.unobservable or graph.data_dependent
    if known:
        return known
    if calls <= sum(e.count for e in entries if e.kind is LedgerKind.WARM_UP):
        return WARM_UPS
    for entry in reversed(entries):
        if entry.kind in (LedgerKind.NOT_OBSERVED, LedgerKind.FALLBACK):
            return entry.reason
    return "no program was observed for the sizes of these calls"


def _item(unit: PreparedProgram, makers: _Makers, live: LiveStorage) -> LiveItem:
    """Memory that a unit's program has live, as its maker knows it where that is known."""
    s = live.storage
    if live.line or s.id not in makers:
        return LiveItem(s, unit.graph.id, live.owner, live.line, Hold.CALL)
    made = makers[s.id][1]
    # A partner of other sizes explains where memory comes from, not how large it is.
    known = made.storage if made.storage.nbytes == s.nbytes else s
    return replace(made, storage=known, hold=Hold.CALL)
