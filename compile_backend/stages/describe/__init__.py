"""Roles of the inputs and outputs of a compiled graph, and categories of their memory.

* ``dynamo_input.py``: what Dynamo knows of the values that it hands to a graph;
* ``aot_metadata.py``: copies of AOTAutograd's metadata and descriptors;
* ``graph_io.py``: from these the description of a graph, with the role of each input and output;
* ``comparison.py``: that beside Inductor's lists;
* ``graph_value.py``: how one is written down, and the category of each storage from these.
"""
