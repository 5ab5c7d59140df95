"""``memprof simulate``: how much device memory a CUDA script takes, without a GPU.

The order of reading: ``memprof/commands/simulate.py`` is where it starts. ``command_line`` says
what is to be run, ``parent`` starts it on the simulated device (``simulated_cuda/``), twice where
it does not fit, for each rank that is asked for (``many_ranks``). ``launch`` is the other side, in
the script's process: it watches the devices (``profiler/sources/allocator/``), turns process groups
into fake ones (``ranks``), follows other processes (``processes``; ``followed`` is what both have),
counts looks at values and invents some of them where that is asked for (``pretend``, ``experts``),
makes changes that are tried (``changes``, ``checkpointed``), counts operations (``partitions``),
and ends the run.
What goes from one side to the other is in ``request``; ``result`` has what comes out.
"""
