"""Snapshots of compiled graphs and of their memory, as text, for the tests of who uses memprof.

    from memprof.testing import assert_graph_snapshot

    def test_step():
        assert_graph_snapshot(step, \"""...\""")  # EXPECTTEST_ACCEPT=1 writes the text

docs/testing.md has an example.

Note [The same text everywhere]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A snapshot may be compared on another machine, so it has nothing of the one that it was taken on: no
addresses, times, files and lines, names of devices, numbers that a process counts through, and no
word on whether a cache was hit. Bytes are rounded up to 512, as CUDA's allocator does.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from textwrap import indent
from typing import Any

import torch
from torch import fx

from memprof.compile_backend.inner_compile import GRAPH_LISTENERS
from memprof.compile_backend.pools import explain_pools
from memprof.compile_backend.session.profiling import ProfilingSession
from memprof.compiled_autograd import AutogradCompilerInstance, CapturedBackward, Listener
from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.devices import main_device, timelines
from memprof.profiler.model import AllocationProgram, EventKind, GraphRecord, LedgerKind, Profile

__all__ = ["PARTS", "assert_graph_snapshot", "fx_text", "graph_text"]

PARTS = ("graphs", "programs", "live", "ledger", "pools")
"""Parts of a snapshot: FX graphs with their inputs and outputs, what each call allocates and frees,
what is live at the peak, what memprof did and declined to do, and pools of CUDA graphs."""

_ROUNDING = 512
_OF_A_DEVICE = {"device", "layout", "pin_memory"}
_OF_THE_ENGINE = {"validate_outputs", "_exec_final_callbacks_stub"}
_BY_CACHES = {LedgerKind.CACHE_HIT, LedgerKind.RECOMPILED, LedgerKind.NOT_STORED}
_SCRUBBED = (
    (re.compile(r"\btorch\.(?=\w+\b)"), ""),
    (re.compile(r"\b0x[0-9a-f]+"), "0x"),
    (re.compile(r"\b(cuda|xpu|hip)(:\d+)?\b"), "device"),
    (re.compile(r", [^\s,]+\.py:\d+"), ""),
    (re.compile(r"[;,] cache(:| miss:).*"), ""),
    (re.compile(r"captured backward \d+"), "captured backward"),
    (re.compile(r"!\d+/"), "captured "),
    (re.compile(" · "), ", "),
)


def assert_graph_snapshot(
    run: Callable[[], object],
    expected: str,
    *,
    parts: Sequence[str] = PARTS[:3],
    skip: int = 0,
) -> None:
    """Compare ``graph_text(run)`` with a string literal of the test, which a run of the tests with
    ``EXPECTTEST_ACCEPT=1`` in the environment rewrites. It needs ``expecttest``, which
    ``memprof[testing]`` has.

    Args:
        run, parts: as for ``graph_text``.
        expected: a literal in triple quotes, in the statement that makes this call.
        skip: calls between that statement and this function, for a helper of your own.

    Raises:
        AssertionError: they differ; the message has the lines that do.
    """
    import expecttest

    expecttest.assert_expected_inline(graph_text(run, parts=parts), expected, skip=skip + 1)


def graph_text(run: Callable[[], object], *, parts: Sequence[str] = PARTS[:3]) -> str:
    """Graphs that ``run`` compiles with memprof's backend, and their memory, as a text that is the
    same on every machine on which the code is: Note [The same text everywhere].

    Everything that was compiled in this process is forgotten before (``torch._dynamo.reset()``), so
    that all of it is compiled inside.

    Args:
        run: calls compiled functions: as often as their calls are to be seen. CUDA graphs are
            recorded in the third call of a function and replayed from then on.
        parts: some of ``PARTS``, in the order of the text. Those that are not there by default,
            ``ledger`` and ``pools``, differ between a CPU and a GPU.

    Raises:
        ValueError: there is no such part.
    """
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"no such part of a snapshot: {sorted(unknown)}; there are {PARTS}")
    graphs: dict[int, str] = {}
    captured: list[CapturedBackward] = []
    torch._dynamo.reset()

    def compiles(record: GraphRecord, graph: fx.GraphModule) -> None:
        graphs[record.id] = fx_text(graph)

    listener = Listener(captured=captured.append, ran=lambda capture, hit: None)
    listeners = AutogradCompilerInstance.listeners
    GRAPH_LISTENERS.append(compiles)
    listeners.append(listener)
    try:
        with ProfilingSession() as session:
            run()
    finally:
        GRAPH_LISTENERS.remove(compiles)
        listeners.remove(listener)
    profile = session.profile()
    for record in profile.graphs:
        record.programs = [_rounded(program) for program in record.programs]
    found = {
        "graphs": lambda: _graphs(profile, graphs, captured),
        "programs": lambda: _programs(profile),
        "live": lambda: _live(profile),
        "ledger": lambda: _ledger(profile),
        "pools": _pools,
    }
    return _scrubbed("\n".join(line for part in parts for line in found[part]()))


def fx_text(graph: fx.GraphModule | fx.Graph, *, engine: bool = False) -> str:
    """The nodes of an FX graph, a line each under their own names, with what is known of their
    shapes; placeholders and items stand where they are used (``relu[0]``). The same on every
    supported torch.

    Args:
        engine: of a captured backward, also what autograd's engine does around its nodes: gradients
            that are validated, the gradient until now of an accumulation, final callbacks.
    """
    text: dict[fx.Node, str] = {}

    def show(value: Any) -> str:
        if isinstance(value, fx.Node):
            return text[value]
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(show, value)) + "]"
        return "device" if isinstance(value, torch.device) else str(value)

    lines = []
    for node in graph.graph.nodes if isinstance(graph, fx.GraphModule) else graph.nodes:
        target = getattr(node.target, "__name__", str(node.target))
        args: Sequence[Any] = node.args
        if node.op == "placeholder":
            text[node] = str(node.target)
        elif node.op == "output":
            if engine or node.args[0]:
                lines.append(f"return {show(node.args[0])}")
        elif node.target is operator.getitem:
            whole, part = args
            if not engine and getattr(whole.target, "__name__", "") == "validate_outputs":
                text[node] = show(whole.args[0][part])
            else:
                text[node] = f"{show(whole)}[{part}]"
        else:
            text[node] = node.name
            if target == "validate_outputs":
                args = args[:1]
            elif target == "call_accumulate_grad" and not engine:
                args = (args[0], *args[-2:])
            if engine or target not in _OF_THE_ENGINE:
                named = [f"{k}={show(v)}" for k, v in node.kwargs.items() if k not in _OF_A_DEVICE]
                value = node.meta.get("val")
                shape = (
                    f": {value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else ""
                )
                call = f"{target}({', '.join([*map(show, args), *named])})"
                lines.append(f"{node.name} = {call}{shape}")
    return _scrubbed("\n".join(lines))


def _scrubbed(text: str) -> str:
    # AOTAutograd counts its graphs through the process; here from 0 in order of appearance.
    numbers = list(dict.fromkeys(re.findall(r"\baot(\d+)_", text)))
    text = re.sub(r"\baot(\d+)_", lambda match: f"aot{numbers.index(match[1])}_", text)
    for pattern, replacement in _SCRUBBED:
        text = pattern.sub(replacement, text)
    return text


def _rounded(program: AllocationProgram) -> AllocationProgram:
    rounded = (replace(s, nbytes=-(-s.nbytes // _ROUNDING) * _ROUNDING) for s in program.storages)
    return replace(program, storages=tuple(rounded))


def _graphs(
    profile: Profile, graphs: dict[int, str], captured: Sequence[CapturedBackward]
) -> Iterator[str]:
    for capture in captured:
        yield "captured backward"
        yield indent(fx_text(capture.graph), "  ")
    for graph in profile.graphs:
        yield graph.label
        yield indent(str(graph.description), "  ")
        yield f"  nodes of {', '.join(v.name for v in graph.inputs)}"
        yield indent(graphs.get(graph.id, "not traced here"), "    ")


def _programs(profile: Profile) -> Iterator[str]:
    for graph in profile.graphs:
        if not graph.programs:
            yield f"program of {graph.label}: {graph.unobservable or 'not observed'}"
        for program in graph.programs:
            sizes = f", sizes {', '.join(map(str, program.key))}" if program.key else ""
            peak = f"{program.entry_bytes} B at entry, {program.peak()[1]} B at most"
            yield f"program of {graph.label}{sizes}: {peak}"
            for event in program.events:
                storage = program.storages[event.storage]
                what = storage.name or "scratch memory"
                if event.kind is EventKind.REUSE:
                    what += f" as {event.owner}"
                yield f"  {event.kind.value} {storage.nbytes} B {storage.category.value} {what}"


def _live(profile: Profile) -> Iterator[str]:
    found = timelines(profile)
    live = found[main_device(found)].at_peak()
    attribution = Attribution(profile)
    for view in (View.CATEGORY, View.NODE):
        shares = attribution.breakdown(live, view)
        yield f"live at the peak, by {view.value}: {shares.total} B"
        yield from (f"  {s.nbytes} B {s.key} {s.note}".rstrip() for s in shares.parts)


def _ledger(profile: Profile) -> Iterator[str]:
    labels = {g.id: f" {g.label}" for g in profile.graphs}
    lines: Counter[str] = Counter()
    for entry in profile.ledger:
        if entry.kind in _BY_CACHES and not entry.reason.startswith("captured backward"):
            continue
        graph = "" if entry.graph is None else labels.get(entry.graph, "")
        lines[_scrubbed(f"  {entry.kind.value}{graph}: {entry.reason}")] += entry.count
    yield "ledger"
    yield from (f"{line} ({count} times)" if count > 1 else line for line, count in lines.items())


def _pools() -> Iterator[str]:
    for parts in explain_pools().values():
        yield f"pool of CUDA graphs: {parts.reserved} B"
        for what, nbytes in sorted(parts.nodes.items(), key=lambda item: (-item[1], item[0])):
            yield f"  {nbytes} B {what}"
        yield f"  {parts.rounding} B rounding"
        yield f"  {parts.unattributed} B unattributed"
        yield f"  {parts.free} B free"
