"""Compiled code in a trace: categories of its memory, by the phase that it was made in.

Note [Compiled code has no data flow]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A fused kernel is not an operator, so the profiler sees what a compiled graph allocates but not what
reads or writes it; torch's rules then mistake saved activations for inputs or parameters. What the
phase tells is right for nearly all bytes: memory released within the call is temporary; what
outlives a forward is an activation; what outlives a backward and is not a gradient is autograd's
detail. Which tensors go in is known, too: AOTAutograd's autograd function is an operator event and
lists them.
"""

from __future__ import annotations

import numpy as np

from .categories import (
    ACTIVATION,
    AUTOGRAD_DETAIL,
    GRADIENT,
    INPUT,
    OPTIMIZER_STATE,
    TEMPORARY,
)
from .columns import FORWARD, Bytes, EventColumns
from .context import Context
from .storages import Storages


def of_compiled_code(columns: EventColumns, context: Context, storages: Storages) -> Bytes:
    """The category of each storage (keys, then blocks) that was made in compiled code or handed to
    it; 0 elsewhere."""
    out = _made_inside(columns, context, storages)
    members = {*columns.parameters.tolist(), *columns.optimizer_states.tolist()}
    for key in columns.function_inputs.tolist():
        before = storages.created[key] < 0
        known = key in members or out[key]
        # Else an earlier part of the model made it.
        if not known and (before or _made_as_input(context, storages, key)):
            out[key] = INPUT
    return out


def _made_inside(columns: EventColumns, context: Context, storages: Storages) -> Bytes:
    made = np.flatnonzero(storages.created >= 0)
    made = made[context.compiled[storages.created[made]] >= 0]
    row = storages.created[made]
    call = context.compiled[row]
    inside = storages.died[made] <= columns.scopes.end[call]
    backward = columns.scopes.backward[call] != FORWARD
    optimizer = context.optimizer[row] >= 0
    outside = np.where(backward, np.uint8(AUTOGRAD_DETAIL), np.uint8(ACTIVATION))
    outside[optimizer] = OPTIMIZER_STATE
    # What ``.grad`` was seen to name; a block has no tensor.
    index = columns.keys.tensor_index
    named = np.zeros(len(storages), np.bool_)
    named[: storages.keys] = np.isin(index, index[columns.gradients])
    outside[backward & named[made]] = GRADIENT
    out = np.zeros(len(storages), np.uint8)
    out[made] = np.where(inside, np.uint8(TEMPORARY), outside)
    return out


def _made_as_input(context: Context, storages: Storages, key: int) -> bool:
    """Tells whether a storage was made outside of modules, compiled code and the backward."""
    row = int(storages.created[key])
    return bool(context.module[row] < 0 and context.compiled[row] < 0 and context.phase[row] == 0)
