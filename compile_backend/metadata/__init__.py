"""AOTAutograd's metadata as immutable data of our own, and what it says about a graph.

Where to look:

* ``view_and_mutation.py``: everything about one compiled forward, with its derived indices
  and the slices of saved values; its parts are in ``input_alias.py``, ``output_alias.py``,
  ``memory_format.py``, ``sizes.py`` and ``subclass.py``;
* ``from_aot.py``: copies all that from torch's objects, and when;
* ``descriptor.py``, ``dynamo_input.py``: what AOTAutograd and Dynamo say a value is;
* ``graph_io.py``: from these, the role and category of each graph input and output;
  ``graph_value.py`` and ``graph_signature.py`` are its two halves;
* ``signature.py``: signatures, also in the calling convention of export;
* ``compile_config.py``, ``compile_state.py``, ``stage.py``: the settings of a compilation, what
  is passed from stage to stage, and how stages compose;
* ``codec.py``: JSON.
"""
