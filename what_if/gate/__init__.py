"""Limits of device memory for tests: what ``memprof/pytest_plugin.py`` loads when a test has one.

``item`` runs a test in a process of its own on the simulated device, and compares what it took with
its limit and its baseline. The project's own options go to that process by ``leave`` and ``take``.
"""

import pickle

import pytest

CHILD = "MEMPROF_GATED_TEST"
"""Environment variable of the process of a gated test: where its reports go."""

OPTIONS = ".options"
"""Behind that: the project's own options for it."""


def leave(config: pytest.Config, path: str) -> None:
    """Write what the project's own options are: ``--runslow`` decides there too what is skipped.

    Options of plugins have groups of their own, and those of pytest: they stay here, since workers
    and reports are not wanted there.

    Raises:
        OSError, pickle.PicklingError, TypeError, AttributeError: one cannot be written.
    """
    names = [option.dest for option in config._parser._anonymous.options]
    with open(path, "wb") as f:
        pickle.dump({n: getattr(config.option, n) for n in names if hasattr(config.option, n)}, f)


def take(config: pytest.Config, path: str) -> None:
    """Set the options that ``leave`` has written, as far as there are such options here."""
    with open(path, "rb") as f:
        found = pickle.load(f)
    for name, value in found.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
