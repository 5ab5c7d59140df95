"""Observing what one call of a compiled graph does to memory.

* ``recorder``: a copy of the generated wrapper that reports line by line, and what collects the
  reports and the allocator's own events during one call
* ``program_builder``: raw reports → ``AllocationProgram`` (pure data, no torch)
* ``stage``: observes the first calls of a callable, then takes itself out
"""
