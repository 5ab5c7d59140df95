"""AOTAutograd's metadata as immutable data of our own: what somebody reads of it, and no more.

* ``view_and_mutation.py``: which inputs a compiled forward writes to, what its outputs alias, where
  the values lie that it saves for its backward, and which of them the backward may overwrite;
* ``descriptor.py``: what AOTAutograd says that one input or output of a graph is.

``roles/`` and ``straight_calls/`` read it for every compiled graph.
"""
