"""Estimate of the time that a device takes for a step, from what the simulated one was given.

Read in this order: ``recording.py`` (a step is followed: the device's log, and the profiler's
operations), ``modules.py`` and ``compiled_lines.py`` (whose they are), ``micro_batches.py`` (what
need not be followed), ``communication.py`` (collectives of a rank), ``work.py`` (FLOPs and bytes of
a launch), ``speed.py`` (the least time that a GPU takes for them, from its data sheet),
``kernel_table.py`` (the time, where the proof kit has measured that GPU), ``timeline.py`` (what
waits for what), ``estimating.py`` (all of these). The result is ``profiler/model/step_time.py``.
``docs/simulated-time.md`` says what is not in it.
"""
