"""Compiled CPU code out of memory that is planned once, kept, and used again at every call.

The way of a graph into the arena, in order:

* ``steady_state``: the hook that the observe stage asks what observed calls run from then on, and
  whether an arena pays;
* ``plan``: what of a program's memory comes out of the arena, and at which offset;
* ``wrapper_code``: which allocations of the generated code can be served otherwise, and a copy of
  the code that does;
* ``tensors``: leased outputs, and temporaries in a scratch; ``memory``: the pool of the process,
  segments from the system, cut into blocks.
"""
