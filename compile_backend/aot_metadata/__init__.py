"""AOTAutograd's metadata as immutable data of our own: what somebody reads of it, and no more.

* ``view_and_mutation.py``: which inputs a compiled forward writes to, what its outputs alias, where
  the values lie that it saves for its backward, and which of them the backward may overwrite;
* ``subclass.py``: how a tensor subclass is put together from the dense tensors of a graph;
* ``descriptor.py``: what AOTAutograd says that one input or output of a graph is;
* ``from_aot.py``: copies all that from torch's objects.

``roles/`` reads it for every compiled graph, ``compiled_autograd`` for a backward that it inlines.
It stands below both and imports neither.
"""
