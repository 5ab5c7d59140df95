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
    for e in tree.dfs():
        assert ours.get_scopes(e) == theirs.get_scopes(e)
        assert [plain(p) for p in ours.extract_parameters(e)] == [
            plain(p) for p in theirs.extract_parameters(e)
        ]
        assert [(p and plain(p), plain(g)) for p, g in ours.extract_gradients(e)] == [
            (p and plain(p), plain(g)) for p, g in theirs.extract_gradients(e)
        ]
        if type(e.extra_fields).__name__ == "_ExtraFields_TorchOp":
            x = e.extra_fields
            assert ours.SchemaMatcher.inputs_are_mutable(x) == (
                theirs.SchemaMatcher.inputs_are_mutable(x)
            )
            assert [str(s) for s in ours.SchemaMatcher.match_schemas(x)] == [
                str(s) for s in theirs.SchemaMatcher.match_schemas(x)
            ]


def test_category_dict_has_torchs_precedence() -> None:
    a, b = ours.CategoryDict(), theirs.CategoryDict()
    for module, categories_ in ((ours, a), (theirs, b)):
        storage = module._Storage(64, 2) if hasattr(module, "_Storage") else ours_storage(64, 2)
        key = module.TensorKey(torch.device("cpu"), 1, storage)
        c = module.Category
        got = [categories_.get(key, 0)]
        categories_.setdefault_by_version(key, 0, c.INPUT)
        got.append(categories_.get(key, 0))
        categories_.setdefault_by_version(key, 0, c.ACTIVATION)
        got.append(categories_.get(key, 0))
        categories_.set_by_version(key, 1, c.ACTIVATION)
        got.append(categories_.get(key, 1))
        categories_.set_by_key(key, c.TEMPORARY)
        got.append(categories_.get(key, 1))
        categories_.set_by_id(key, c.GRADIENT)
        got.append(categories_.get(key, 7))
        got.append(categories_.get(module.Key(torch.device("cpu")), 0))
        assert [g and g.name for g in got] == [
            None, "INPUT", "INPUT", "ACTIVATION", "TEMPORARY", "GRADIENT", None,
        ]  # fmt: skip


def ours_storage(ptr: int, allocation: int) -> Any:
    from memprof.profiler.dataflow.vocabulary import Storage

    return Storage(ptr, allocation)


def test_the_names_that_are_offered_are_torchs_and_are_there() -> None:
    from memprof.profiler import dataflow
    from memprof.profiler.dataflow import vocabulary

    # GIVEN the list that `import memprof.profiler` has, without torch, and the modules' own
    homes: dict[str, set[str]] = {}
    for name, home in ours._HOME.items():
        homes.setdefault(home, set()).add(name)
    assert homes["dataflow.vocabulary"] == set(vocabulary.__all__) - {"export_timeline"}
    assert homes["dataflow"] <= set(dataflow.__all__)
    assert set(ours._HOME) == set(ours.__all__)
    assert set(ours.__all__) <= set(dir(ours))
    # THEN each is the object of its home, and torch has one of the name
    for name, home in ours._HOME.items():
        assert getattr(ours, name) is getattr(
            vocabulary if home == "dataflow.vocabulary" else dataflow, name
        )
        assert home == "dataflow" or hasattr(theirs, name), name
    # and torch has no public class that is not among them.
    classes = {
        name
        for name, value in vars(theirs).items()
        if isinstance(value, type) and value.__module__ == theirs.__name__ and name[0] != "_"
    }
    assert classes <= homes["dataflow.vocabulary"]


def test_importing_the_profiler_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, memprof.profiler; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
