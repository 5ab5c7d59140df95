"""Memory of a captured backward is attributed as without compiled autograd."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from models import zoo

import memprof
from memprof import compiled_autograd as ca
from memprof.compiled_autograd.nodes import is_engine_frame
from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import Category, EventKind, GraphKind, GraphRecord, Profile

pytestmark = pytest.mark.zero_kernels


@dataclass
class Trained:
    profile: Profile
    parameters: dict[str, int]
    """Bytes by name."""

    @property
    def backward(self) -> GraphRecord:
        """The last one: of the model itself where each compiled function has its own."""
        return [g for g in self.profile.graphs if g.kind is GraphKind.BACKWARD][-1]


LAYERS = {"gpt2": 2, "resnet": 1}
"""Of GPT-2 two: with one, what Inductor makes too early is a larger part of a peak."""


def train(name: str, compiled_autograd: bool) -> Trained:
    torch._dynamo.reset()
    ca.reset()
    case = zoo.build(name, layers=LAYERS[name])
    options = {"compiled_autograd": compiled_autograd, "graphs": False}
    run = torch.compile(case.model, backend="memprof", options=options)
    with memprof.profile() as session:
        for _ in range(3):
            case.model.zero_grad()
            case.loss(run(**case.inputs)).backward()
    parameters = {n: p.untyped_storage().nbytes() for n, p in case.model.named_parameters()}
    return Trained(session.profile(), parameters)


@pytest.fixture(scope="module", params=["resnet", pytest.param("gpt2", marks=pytest.mark.slow)])
def pair(request: pytest.FixtureRequest) -> tuple[Trained, Trained]:
    """The same steps with the backwards captured, and without."""
    return train(request.param, True), train(request.param, False)


def test_bytes_lead_to_a_node_and_a_source(pair: tuple[Trained, Trained]) -> None:
    captured, _ = pair
    attribution, backward = Attribution(captured.profile), captured.backward
    program = backward.programs[-1]
    to_node = to_source = 0
    for event in program.events:
        if event.kind is EventKind.ALLOC:
            storage = program.storages[event.storage]
            site = attribution.site(backward.id, storage, event.owner, event.line)
            to_node += storage.nbytes * (site.node is not None)
            # A line of the engine is no source: of an eager loss nothing better is known.
            line = site.frame is not None and not is_engine_frame(site.frame)
            to_source += storage.nbytes * (line or site.module is not None)
    assert to_node >= 0.99 * program.allocated_bytes
    assert to_source >= 0.99 * program.allocated_bytes


def test_categories_are_right(pair: tuple[Trained, Trained]) -> None:
    captured, plain = pair
    bytes_of = Counter[Category]()
    for storage in captured.backward.programs[-1].storages:
        bytes_of[storage.category] += storage.nbytes
    assert bytes_of[Category.GRADIENT] == sum(captured.parameters.values())
    assert bytes_of[Category.OUTPUT] == bytes_of[Category.UNKNOWN] == 0
    # What the forward saved, wherever the eager loss did not save something of its own.
    saved = Counter[Category]()
    for graph in plain.profile.graphs:
        if graph.kind is GraphKind.BACKWARD:
            for storage in graph.programs[-1].storages:
                if storage.at_entry:
                    saved[storage.category] += storage.nbytes
    assert bytes_of[Category.ACTIVATION] == pytest.approx(saved[Category.ACTIVATION], abs=1024)


def test_the_timeline_is_the_same(pair: tuple[Trained, Trained]) -> None:
    captured, plain = (Timeline(t.profile) for t in pair)
    # Not the same to the byte: Inductor groups the loops of one large graph in another way than
    # those of several, and makes what a group writes before the group (GPT-2: 8 % more).
    assert captured.peak().nbytes <= 1.1 * plain.peak().nbytes
    # Between calls: right after a backward, and right before one.
    between = captured.bytes_over_time()["between"], plain.bytes_over_time()["between"]
    assert min(between[0]) == min(between[1])
    assert max(between[0]) == max(between[1])
    at = captured.peak()
    live = captured.live_at(at.call, at.instant)
    attribution = Attribution(pair[0].profile)
    for view in View:
        breakdown = attribution.breakdown(live, view)
        assert breakdown.unattributed <= 0.01 * breakdown.total, (view, breakdown.remainder)


def test_modules_of_what_a_backward_begins_with_are_the_same(pair: tuple[Trained, Trained]) -> None:
    found = []
    for trained in pair:
        timeline = Timeline(trained.profile)
        calls = trained.profile.calls
        # The last backward of the model: what lives at its entry does not depend on Inductor.
        last = max(i for i, g in enumerate(calls.graph) if g == trained.backward.id)
        parts = Attribution(trained.profile).breakdown(timeline.live_at(last, 0), View.MODULE)
        found.append({p.key: p.nbytes for p in parts.parts if p.key and p.key[0] != "("})
    captured, plain = found
    assert captured.keys() == plain.keys()
    # The tangent is made by an eager loss before the one, and within the other: where it enters,
    # it belongs to the module of the output whose gradient it is.
    tangents = [v for v in pair[1].backward.inputs if v.gradient_of is not None]
    more = {m: n - captured[m] for m, n in plain.items() if abs(n - captured[m]) > 1024}
    assert len(more) <= len(tangents)
    assert all(n in {v.nbytes for v in tangents} for n in more.values()), more
