"""What would be done over and over in a process of tests, and says nothing about the code.

Note [Torch's repetitions]
~~~~~~~~~~~~~~~~~~~~~~~~~~
Two things take an eighth of the time that Dynamo and Inductor need for the small models of tests:

* After each compilation Dynamo measures how long its guards take, for a debug log, and empties the
  processor's caches first. The guards have been built and checked by then.
* The table of Inductor's dtype rules is one object that every operation of every kernel fills
  again (``DtypePropagationOpsHandler()``), with the same rules.

Tests do the first not at all and the second when rules have been added. A torch that has neither
under these names is left alone.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

_thawed = True


def freeze() -> None:
    """Take what there is out of the collector's sight, unless that was done since ``thaw``."""
    global _thawed
    # gc.get_freeze_count() would tell as well, by walking all that is frozen.
    if _thawed:
        gc.collect()
        gc.freeze()
        _thawed = False


def thaw() -> None:
    """Give the collector back what was frozen; ``freeze`` freezes again."""
    global _thawed
    gc.unfreeze()
    _thawed = True


def spare_torch() -> None:
    """See Note [Torch's repetitions]. Does nothing about modules that are not imported yet."""
    guards: Any = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0
    rules: Any = sys.modules.get("torch._inductor.dtype_propagation")
    handler = getattr(rules, "DtypePropagationOpsHandler", None)
    if handler is not None and "sizes" not in vars(handler):
        handler.sizes = None
        handler.__init__ = _filled_when_there_are_new_rules(handler.__init__)


def _filled_when_there_are_new_rules(fill: Any) -> Any:
    from torch._inductor.codegen.common import pointwise_overrides_data
    from torch._inductor.utils import op_dtype_propagation_rules

    def __init__(self: Any) -> None:
        sizes = (len(op_dtype_propagation_rules), len(pointwise_overrides_data))
        if type(self).sizes != sizes:
            fill(self)
            type(self).sizes = sizes

    return __init__
