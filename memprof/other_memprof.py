"""Tells whether PyPI's ``memprof`` of 2013 to 2019 lies in the same folder as this one."""

from __future__ import annotations

import os

REPAIR = "pip uninstall memprof, then pip install --force-reinstall --no-deps torch-memprof"


def other_memprof() -> str | None:
    """The sentence that two programs share this folder; None where they do not.

    Both install into ``site-packages/memprof``, where ``__init__.py`` and ``__main__.py`` are then
    of the one that was installed last. ``mp_utils.py`` is a file of the other alone.
    """
    if not os.path.exists(os.path.join(os.path.dirname(__file__), "mp_utils.py")):
        return None
    return "another program, PyPI's memprof, is installed in the same folder as torch-memprof"
