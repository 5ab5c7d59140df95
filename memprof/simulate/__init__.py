"""``memprof simulate``: how much device memory a CUDA script takes, without a GPU.

The order of reading: ``memprof/commands/simulate.py`` is where it starts. ``command_line`` and
``job`` say what is to be run, ``parent`` starts it on the simulated device (``simulated_cuda/``),
twice where it does not fit. ``launch`` is the other side, in the script's process: it watches the
devices (``profiler/device/``, by ``main_thread`` where nobody else comes by), turns process groups
into fake ones (``ranks``), counts looks at values (``host_reads``), invents some of them where that
is asked for (``pretend``, ``experts``), and ends the run (``ending``).
What goes from one side to the other is in ``request``; ``outside`` has what no allocator knows,
``result`` and ``text`` what comes out.
"""
