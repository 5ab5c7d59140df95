"""Limits of device memory for tests: what ``memprof/pytest_plugin.py`` loads when a test has one.

``item`` runs a test in a process of its own on the simulated device, ``judge`` compares what it
took with its limit and its baseline, ``device_memory`` is the fixture inside of the test.
"""

CHILD = "MEMPROF_GATED_TEST"
"""Environment variable of the process of a gated test: where its reports go."""

OPTIONS = ".options"
"""Behind that: the project's own options for it."""
