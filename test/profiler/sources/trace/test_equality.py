"""Against torch's own memory profile, element by element."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import _memory_profiler as theirs

import memprof.profiler as ours
from memprof.profiler import torch_names
from memprof.profiler.sources.trace.graph import FREED

from .models import MODELS, profile_training, profiled

CASES = [(m, o, s) for m in MODELS for o, s in (("sgd", 1), ("sgd", 2), ("adam", 1), ("adam", 4))]
CASES += [("mlp", "adam", 16)]  # torch's own analysis of sixteen steps of the others takes its time


def plain(key: Any) -> tuple[Any, ...]:
    """A key of either module as plain data."""
    if hasattr(key, "id"):
        return str(key.device), key.id, key.storage.allocation_id, key.storage.ptr
    return (str(key.device),)


def timeline(profile: Any) -> list[Any]:
    return [(t, a.name, plain(k), v, n) for t, a, (k, v), n in profile.timeline]


def nodes(profile: Any) -> list[Any]:
    return [
        (n.start_time, {plain(k): (e.input_version, e.mutated) for k, e in n._edges.items()})
        for n in profile._data_flow_graph.flow_nodes
    ]


def nodes_of_columns(profile: ours.MemoryProfile) -> list[Any]:
    """``nodes`` of memprof's own graph."""
    graph, leaves = profile.profile.graph, profile.profile.columns.leaves
    found = []
    for node in range(len(graph)):
        edges = {}
        for e in range(int(graph.bounds[node]), int(graph.bounds[node + 1])):
            version = int(graph.version[e]) if graph.version[e] >= 0 else None
            mutated = None if graph.flags[e] & FREED else bool(graph.mutated[e])
            edges[plain(profile.keys[int(graph.edge_key[e])])] = version, mutated
        found.append((int(leaves.start[graph.leaf[node]]), edges))
    return found


def sizes(profile: ours.MemoryProfile) -> dict[Any, int]:
    columns = profile.profile.columns
    return dict(zip(map(plain, profile.keys), columns.keys.size.tolist(), strict=True))


def categories(profile: Any) -> dict[Any, Any]:
    return {
        (plain(k), v): c and (c.name, c.value) for (k, v), c in profile._category_snapshot().items()
    }


def names(profile: Any) -> dict[Any, str | None]:
    return {value: known and known[0] for value, known in categories(profile).items()}


EXPECTED = {
    # Every kind of difference that the corrections make, torch's, ours.
    *((was, "TEMPORARY") for was in (None, "ACTIVATION", "INPUT", "PARAMETER")),
    *((was, "OPTIMIZER_STATE") for was in (None, "ACTIVATION", "INPUT", "PARAMETER")),
    (None, "AUTOGRAD_DETAIL"),
    (None, "ACTIVATION"),
}


@pytest.mark.parametrize(("model", "opt", "steps"), CASES)
def test_without_corrections_everything_is_torchs_and_with_them_differences_are_listed(
    model: str, opt: str, steps: int, tmp_path: Path
) -> None:
    # GIVEN a training run, its optimizer warm in every other case
    prof, _, _ = profile_training(model, opt, steps, warmup=steps % 2)

    # WHEN both analyse it
    their = prof._memory_profile()
    our = ours.MemoryProfile(prof.profiler.kineto_results, corrections=False)

    # THEN versions, edges, categories, sizes and the timeline agree element by element,
    assert nodes_of_columns(our) == nodes(their)
    assert categories(our) == categories(their)
    assert timeline(our) == timeline(their)
    theirs_by_key = {plain(k): n for k, n in their._size_map._values.items()}
    assert theirs_by_key.items() <= sizes(our).items()

    # and so do the files.
    a, b = theirs.MemoryProfileTimeline(their), ours.MemoryProfileTimeline(our)
    for write in ("export_memory_timeline", "export_memory_timeline_raw"):
        getattr(a, write)(tmp_path / "a", "cpu")
        getattr(b, write)(tmp_path / "b", "cpu")
        assert json.loads((tmp_path / "b").read_text()) == json.loads((tmp_path / "a").read_text())

    # WHEN the corrections are on, THEN every difference is one of the listed.
    was = names(their)
    now = names(ours.MemoryProfile(prof.profiler.kineto_results))
    differences = {(was[value], now[value]) for value in now if was[value] != now[value]}
    assert differences <= EXPECTED
    if opt == "adam":
        assert (None, "OPTIMIZER_STATE") in differences or (None, "TEMPORARY") in differences


def test_sizes_differ_where_torchs_extent_is_wrong() -> None:
    # GIVEN tensors that were there before the trace and are only seen through views
    scalar = torch.ones(1)
    expanded = scalar.expand(5)
    windows = torch.arange(8.0).as_strided((3, 3), (1, 2))  # elements 0 to 6 of 8
    with profiled() as prof:
        expanded + 1
        windows + 1
    their = prof._memory_profile()
    our = ours.MemoryProfile(prof.profiler.kineto_results, corrections=False)

    # THEN torch counts the expanded scalar as nothing and the windows short
    their_sizes = {k.storage.ptr: n for k, n in their._size_map._values.items()}
    our_sizes = {k.storage.ptr: sizes(our)[plain(k)] for k in our.keys}
    for tensor, by_torch, nbytes in ((expanded, 0, 4), (windows, 6 * 4, 7 * 4)):
        ptr = tensor.untyped_storage().data_ptr()
        assert (their_sizes[ptr], our_sizes[ptr]) == (by_torch, nbytes)


def test_the_names_that_are_offered_are_torchs_and_are_there() -> None:
    # GIVEN the list that `import memprof.profiler` has, without torch
    # THEN each is the object of its home; torch has no public class that is not among them,
    classes = {
        name: value
        for name, value in vars(theirs).items()
        if isinstance(value, type) and value.__module__ == theirs.__name__ and name[0] != "_"
    }
    for name in ours.__all__:
        assert getattr(ours, name) is getattr(torch_names, name)
    assert classes.keys() <= set(ours.__all__)
    # and all but two of these are torch's own.
    own = {name for name, value in classes.items() if getattr(ours, name) is not value}
    assert own == {"MemoryProfile", "MemoryProfileTimeline"}


def test_importing_the_profiler_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, memprof.profiler; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
