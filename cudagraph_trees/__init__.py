"""Graph trees: compiled graphs replayed out of one pool of memory, safely.

Reading order, one idea a file:

=====================  ==================================================================
``device/protocol``    what the manager asks of a device; Note [Who does what: manager and
                       device]
``device/cuda``        CUDA graphs over the caching allocator's private pools
``device/cpu``         compiled code replayed into an arena (``arena``: the allocator,
                       ``planner``: offsets from lifetimes)
``function``           a function to be wrapped: model, static inputs, provenance; its modes
``storage_ref``        weak references to storages: is this output still held?
``liveness``           which outputs of a path are live, and what a node expects of that
``generations``        when a new step begins and old outputs may be overwritten
``inputs``             static, managed and copied inputs; copying; why a node does not fit
``outputs``            what an output is an alias of; handing it out again after a replay
``node_warmup``        one warm-up run
``node_recorded``      one recording and its replays (the hot path)
``manager``            the tree: which function runs how, and when paths end
``path_end``           what becomes of live outputs when their step is over
``errors``             what a user is told who touches memory that was reused
``recovery``           what happens when a warm-up or a capture fails
``ledger``             everything the manager did, with reasons
``budget``             a limit on the pool: eviction, least recently used first
``attribution``        every byte of the pool explained
``container``          one manager per device and autograd-thread family
``entry``              ``cudagraphify``: the function that a compiler calls
``inductor``           ``use_in_inductor()``: plain ``mode="reduce-overhead"`` on these trees
``_torch_compat``      every private or version-dependent name of torch that is used here
=====================  ==================================================================

Nothing below ``manager`` knows the device, and no device knows a node.
"""
