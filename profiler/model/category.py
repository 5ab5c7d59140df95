"""Categories of memory: what a byte is for.

Seven of the names are the vocabulary of ``torch.profiler``'s data-flow memory profile. ``UNKNOWN``
is the honest remainder.

Note [How a category is decided]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Of compiled code from what AOTAutograd and Dynamo know of a value, never from its name; of blocks of
a device's allocator by Note [How a block gets its category] in
``profiler/sources/allocator/account.py``.

* PERSISTENT_STATE: a buffer of a module that the graph writes to (running statistics, a cache of
  keys and values), or such an input that the program has marked as staying where it is
  (``torch._dynamo.mark_static_address``), as caches of transformers are;
* PARAMETER: an input that is another module parameter or buffer, also one that no graph writes to
  (``GraphValue.role`` keeps the two apart); OPTIMIZER_STATE: one that lives in an optimizer's
  state; GRADIENT: a parameter's ``.grad`` handed to a compiled optimizer step; any other user input
  is INPUT;
* ACTIVATION: memory that a forward returns for its backward, also where the user holds it too; of
  it, what a region under ``torch.utils.checkpoint`` begins with is CHECKPOINTED_INPUT: made outside
  of the region and used in it, by the numbers that Dynamo and AOTAutograd give regions
  (``ac_graph_id``);
* OUTPUT: memory returned to the user, except a parameter's gradient: GRADIENT;
* AUTOGRAD_DETAIL: what exists only so that autograd can go from one graph to the next (incoming
  tangents, gradients of values that are not parameters, random-number state, effect tokens);
* CONSTANT: tensors baked into the graph;
* TEMPORARY: allocated and released within one call, scratch memory inside a library kernel
  included.
"""

from __future__ import annotations

from enum import Enum


class Category(str, Enum):
    """Purpose of a storage, or of a block of an allocator.

    ``AUTOGRAD_DETAIL`` and ``CONSTANT`` are of compiled code alone, those from
    ``COMMUNICATION_BUFFER`` on of blocks of an allocator alone.
    """

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    INPUT = "input"
    TEMPORARY = "temporary"
    OPTIMIZER_STATE = "optimizer_state"
    AUTOGRAD_DETAIL = "autograd_detail"
    OUTPUT = "output"
    CONSTANT = "constant"
    PERSISTENT_STATE = "persistent_state"
    CHECKPOINTED_INPUT = "checkpointed_input"
    COMMUNICATION_BUFFER = "communication_buffer"
    """A buffer that DDP or FSDP sends from or receives into."""
    TENSOR = "tensor"
    """A tensor that the program holds, of unknown purpose: nobody watched when it was made."""
    ALLOCATED = "allocated"
    """A block whose allocation site is known but not its purpose."""
    WORKSPACE = "workspace"
    """cuBLAS's workspace, which torch allocates once for each handle and stream."""
    UNKNOWN = "unknown"

    @property
    def label(self) -> str:
        return self.value.replace("_", " ")
