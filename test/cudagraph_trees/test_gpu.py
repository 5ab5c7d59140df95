"""The tests of values and of safety once more, on a real device: ``make test-gpu``.

``make prove-gpu-rehearsal`` runs them on the simulated one, and measures beside Inductor.
"""

from __future__ import annotations

import pytest

from .test_attribution import test_between_calls
from .test_compiled import (
    test_buffers_that_are_written_to,
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
