"""Follows the memory of a process that a simulated script has started, as Python starts it; then
runs the ``sitecustomize`` that would have been found without this one. Any Python may come by here,
also one that has no memprof: its memory is in the device's total alone."""

import contextlib
import os
import sys


def _follow() -> None:
    folder = os.environ.get("MEMPROF_SIMULATE_FOLDER")
    if folder and "MEMPROF_SIMULATE" not in os.environ:  # The script's own process has a Request.
        from memprof.simulated_cuda.after_import import after_import

        def torch_is_there(_: object) -> None:
            # Not sooner: most processes of a job are shells and helpers without torch.
            from memprof.what_if.simulate.processes import follow

            follow(folder)

        after_import("torch", torch_is_there)


def _run_the_next() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


with contextlib.suppress(Exception):
    _follow()
_run_the_next()
