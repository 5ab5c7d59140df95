"""The tests of values and of safety once more, on a real device: ``make test-gpu``.

``make test-gpu-rehearsal`` runs them on the simulated one. The benchmark that writes values, times
and pool bytes beside ``mode="reduce-overhead"`` is ``benchmarks/trees_gpu.py``, ``make bench-gpu``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_attribution import test_between_calls, test_compiled_training_is_attributed
from .test_compiled import (
    test_buffers_that_are_written_to,
    test_dropout_differs_from_replay_to_replay_and_repeats_with_its_seed,
    test_dynamic_batch_sizes,
    test_outputs_that_are_aliases,
    test_resets_with_torchs_own_trees_in_the_same_process,
    test_training,
    test_unsafe_operators_between_partitions,
    test_views_expanded_and_misaligned_inputs,
    test_writing_to_a_graphs_output_is_graphed,
    trees,
)
from .test_model import test_random_programs
from .test_safety import (
    test_a_gradient_that_is_held_moves_out_of_the_pool,
    test_an_output_of_a_former_step_raises,
    test_an_output_that_is_the_next_steps_argument_is_used_with_its_value,
    test_outputs_clone_keeps_every_value,
    test_reset_in_the_middle_of_a_step,
)
from .test_tree_shapes import (
    test_a_child_is_recorded_after_a_replay_of_its_parent,
    test_outputs_outlive_their_functions,
)

pytestmark = pytest.mark.gpu

__all__ = [
    "test_a_child_is_recorded_after_a_replay_of_its_parent",
    "test_a_gradient_that_is_held_moves_out_of_the_pool",
    "test_an_output_of_a_former_step_raises",
    "test_an_output_that_is_the_next_steps_argument_is_used_with_its_value",
    "test_between_calls",
    "test_buffers_that_are_written_to",
    "test_compiled_training_is_attributed",
    "test_dropout_differs_from_replay_to_replay_and_repeats_with_its_seed",
    "test_dynamic_batch_sizes",
    "test_outputs_clone_keeps_every_value",
    "test_outputs_outlive_their_functions",
    "test_outputs_that_are_aliases",
    "test_random_programs",
    "test_reset_in_the_middle_of_a_step",
    "test_resets_with_torchs_own_trees_in_the_same_process",
    "test_training",
    "test_unsafe_operators_between_partitions",
    "test_views_expanded_and_misaligned_inputs",
    "test_writing_to_a_graphs_output_is_graphed",
    "trees",
]


def test_the_benchmark_beside_reduce_overhead(tmp_path: Path) -> None:
    """Dropout is on: the same numbers must be drawn, in replays too."""
    root = Path(__file__).parents[2]
    out = tmp_path / "gpu.json"
    script = [str(root / "benchmarks" / "trees_gpu.py"), "--models", "mlp", "--rounds", "2"]
    done = subprocess.run(
        [sys.executable, *script, "--block", "3", "--out", str(out)],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    written = json.loads(out.read_text())
    assert written["machine"]["gpu"]
    assert written["machine"]["torch"]
    (result,) = written["results"]
    assert result["difference"] <= max(1e-5, 4 * result["control_difference"])
    assert 0 < result["memprof_pool_bytes"] <= result["torch_pool_bytes"]
    assert result["memprof_ms"] > 0
    assert result["torch_ms"] > 0
