"""Compiled CPU code out of memory that is planned once, kept, and used again at every call.

The way of a graph into the arena, in order:

* ``steady_state``: the hook that the observe stage asks what observed calls run from then on, and
  whether an arena pays; ``page_faults``: what it saves;
* ``plan``: what of a program's memory comes out of the arena; ``planner``: at which offset;
* ``wrapper_code``: which allocations of the generated code can be served otherwise, and a copy of
  the code that does;
* ``replay``: that copy with memory from the pool of the process; ``tensors``: leased outputs, and
  temporaries in a scratch; ``memory``: segments from the system, cut into blocks.
"""
