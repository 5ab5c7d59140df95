"""Every byte that an allocator reserved on a device: what was where, when, and what for.

The order of reading: ``history`` follows the allocator's history event by event and keeps what was
there at the peak; ``where`` says what program text asked for a block; ``account`` gives each block
of the peak a category and adds everything up to what the device says. ``history_follower`` turns
the history on, marks backwards and optimizer steps in it (``marks``), and feeds ``history``;
``allocator_session`` makes the accounts of it. ``known`` looks at modules and optimizers,
``owners`` says which module's their memory is. ``captures`` says what CUDA graphs have, ``growth``
what leaks, ``holders`` and ``variables`` who has what is there; ``present`` and ``out_of_memory``
make the account of an instant from that.
"""
