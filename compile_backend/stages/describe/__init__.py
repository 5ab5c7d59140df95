"""Roles of the inputs and outputs of a compiled graph, and categories of their memory.

* ``dynamo_input.py``: what Dynamo knows of the values that it hands to a graph;
* ``graph_io.py``: from that and AOTAutograd's metadata, the role of each input and output;
* ``graph_value.py``: how one is written down, and the category of each storage from these.
"""
