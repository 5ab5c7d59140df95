"""Against torch's own memory profile, element by element."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import _memory_profiler as theirs

import memprof.profiler as ours
from memprof.profiler import Rule

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
        (
            n.start_time,
            {plain(k): (e.input_version, e.mutated) for k, e in n._edges.items()},
            {plain(k): v for k, v in n.inputs.items()},
            {plain(k): v for k, v in n.outputs.items()},
            tuple(plain(k) for k in n.intermediates),
        )
        for n in profile._data_flow_graph.flow_nodes
    ]


def categories(profile: Any) -> dict[Any, Any]:
    return {
        (plain(k), v): c and (c.name, c.value) for (k, v), c in profile._category_snapshot().items()
    }


EXPECTED = {
    # Every kind of difference that the corrections make: rule, torch's, ours.
    (Rule.OPTIMIZER_STEP, None, "TEMPORARY"),
    (Rule.OPTIMIZER_STEP, "ACTIVATION", "TEMPORARY"),
    (Rule.OPTIMIZER_STEP, "INPUT", "TEMPORARY"),
    (Rule.OPTIMIZER_STEP, "PARAMETER", "TEMPORARY"),
    (Rule.OPTIMIZER_STEP, None, "OPTIMIZER_STATE"),
    (Rule.OPTIMIZER_STEP, "ACTIVATION", "OPTIMIZER_STATE"),
    (Rule.OPTIMIZER_STEP, "INPUT", "OPTIMIZER_STATE"),
    (Rule.OPTIMIZER_STEP, "PARAMETER", "OPTIMIZER_STATE"),
    (Rule.MODULE_STATE, "INPUT", "PARAMETER"),
    (Rule.MODULE_STATE, None, "PARAMETER"),
    (Rule.BACKWARD_PASS, None, "AUTOGRAD_DETAIL"),
    (Rule.FORWARD_CALL, None, "TEMPORARY"),
    (Rule.FORWARD_CALL, None, "ACTIVATION"),
}


@pytest.mark.parametrize(("model", "opt", "steps"), CASES)
def test_without_corrections_everything_is_torchs_and_with_them_differences_are_listed(
    model: str, opt: str, steps: int, tmp_path: Path
) -> None:
    # GIVEN a training run, its optimizer warm in every other case
    prof, _, _ = profile_training(model, opt, steps, warmup=steps % 2)

    # WHEN both analyse it
    their = prof._memory_profile()
    our = ours.MemoryProfile(prof.profiler.kineto_results, rules=())

    # THEN versions, edges, categories, sizes and the timeline agree element by element,
    assert nodes(our) == nodes(their)
    assert categories(our) == categories(their)
    assert timeline(our) == timeline(their)
    sizes = {plain(k): n for k, n in our._size_map._values.items()}
    assert {plain(k): n for k, n in their._size_map._values.items()}.items() <= sizes.items()
    our._data_flow_graph.validate()

    # and so do the files.
    a, b = theirs.MemoryProfileTimeline(their), ours.MemoryProfileTimeline(our)
    for write in ("export_memory_timeline", "export_memory_timeline_raw"):
        getattr(a, write)(tmp_path / "a", "cpu")
        getattr(b, write)(tmp_path / "b", "cpu")
        assert json.loads((tmp_path / "b").read_text()) == json.loads((tmp_path / "a").read_text())

    # WHEN the corrections are on, THEN every difference is one of the listed.
    differences = set()
    corrected = ours.MemoryProfile(prof.profiler.kineto_results)
    was_of = categories(their)
    for (key, version), category in corrected._category_snapshot().items():
        was = was_of[plain(key), version]
        rule = corrected.profile.rule(corrected._op_tree.row_of[key], version)
        now = category and category.name
        if (was and was[0]) != now:
            differences.add((rule, was and was[0], now))
        else:
            assert rule is Rule.TORCH
    assert differences <= EXPECTED
    if opt == "adam":
        assert any(rule is Rule.OPTIMIZER_STEP for rule, _, _ in differences)
    if model == "convnet":
        assert any(rule is Rule.MODULE_STATE for rule, _, _ in differences)


def test_sizes_differ_where_torchs_extent_is_wrong() -> None:
    # GIVEN tensors that were there before the trace and are only seen through views
    scalar = torch.ones(1)
    expanded = scalar.expand(5)
    windows = torch.arange(8.0).as_strided((3, 3), (1, 2))  # elements 0 to 6 of 8
    with profiled() as prof:
        expanded + 1
        windows + 1
    their = prof._memory_profile()
    our = ours.MemoryProfile(prof.profiler.kineto_results, rules=())

    # THEN torch counts the expanded scalar as nothing and the windows short
    def size(profile: Any, t: torch.Tensor) -> int:
        ptr = t.untyped_storage().data_ptr()
        return next(n for k, n in profile._size_map._values.items() if k.storage.ptr == ptr)

    assert (size(their, expanded), size(our, expanded)) == (0, 4)
    assert (size(their, windows), size(our, windows)) == (6 * 4, 7 * 4)


def test_drop_in_names_read_events_like_torchs() -> None:
    prof, _, _ = profile_training("mlp", "adam", 2)
    result = prof.profiler.kineto_results
    tree, their_tree = ours.OpTree(result), theirs.OpTree(result)

    assert [e.id for e in tree.dfs()] == [e.id for e in their_tree.dfs()]
    assert [e.id for e in tree.sorted_nodes] == [e.id for e in their_tree.sorted_nodes]
    graph = theirs.DataFlowGraph(their_tree)
    assert [e.id for e in ours.DataFlowGraph(tree).leaf_events] == [e.id for e in graph.leaf_events]
    # THEN names of single things are torch's own
    for name in ("Action", "Category", "TensorKey", "SchemaMatcher", "extract_gradients"):
        assert getattr(ours, name) is getattr(theirs, name)


def test_categories_set_by_hand_come_before_a_profiles_own() -> None:
    with profiled() as prof:
        torch.ones(64) + 1
    found = ours.MemoryProfile(prof.profiler.kineto_results)
    first, *others = found._op_tree.keys
    categories_ = found._categories
    before = {key: categories_.get(key, 0) for key in others}
    categories_.setdefault_by_version(first, 0, ours.Category.INPUT)
    assert categories_.get(first, 0) is ours.Category.INPUT
    categories_.set_by_id(first, ours.Category.GRADIENT)
    assert categories_.get(first, 7) is ours.Category.GRADIENT
    # THEN the others have what they had, and asking has set nothing
    assert {key: categories_.get(key, 0) for key in others} == before
    assert set(categories_._values) == {first.id}
    assert categories_.get(ours.Key(torch.device("cpu")), 0) is None


def test_the_names_that_are_offered_are_torchs_and_are_there() -> None:
    from memprof.profiler import dataflow
    from memprof.profiler.dataflow import vocabulary

    # GIVEN the list that `import memprof.profiler` has, without torch, and the modules' own
    names = set(vocabulary.__all__) - {"export_timeline"}
    assert set(ours.__all__) - names <= set(dataflow.__all__)
    assert names <= set(ours.__all__) <= set(dir(ours))
    # THEN each is the object of its home, and torch has one of the name
    for name in ours.__all__:
        assert getattr(ours, name) is getattr(vocabulary if name in names else dataflow, name)
        assert name not in names or hasattr(theirs, name), name
    # and torch has no public class that is not among them.
    classes = {
        name
        for name, value in vars(theirs).items()
        if isinstance(value, type) and value.__module__ == theirs.__name__ and name[0] != "_"
    }
    assert classes <= names


def test_importing_the_profiler_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, memprof.profiler; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
