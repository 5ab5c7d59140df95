"""What every test stands on: tiers, one private compiler cache, a clean slate before each test.

Note [Parallel tests]
~~~~~~~~~~~~~~~~~~~~~
Nearly all of a test's time is Dynamo, Inductor and the C++ compiler, each of which uses one core,
so tests run in as many pytest workers as there are cores, each with one OpenMP thread and Inductor
compiling in its own process. The other way round (one worker, OpenMP and Inductor's compile workers
on all cores) leaves cores idle through all of Dynamo, and both at once is slower than either:
OpenMP threads that wait for a core spin on the others. A file's tests stay in one worker
(``--dist loadfile`` in the Makefile): they share fixtures, and expecttest rewrites one file at a
time.

Note [The compiler cache in tests]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inductor's caches would let what an earlier run left behind decide a test, so a session begins with
an empty cache, which its workers share. MEMPROF_TEST_CACHE=DIR keeps one between runs, to develop
faster.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

pytest_plugins = ("browser.fixtures",)

# Before torch is imported anywhere, and inherited by the workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Model libraries must not try to reach a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can say `from models import zoo`

_temporary_cache: str | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _temporary_cache
    if hasattr(config, "workerinput"):
        return  # the controller's choice is in the environment
    cache = os.environ.get("MEMPROF_TEST_CACHE")
    if not cache:
        cache = _temporary_cache = tempfile.mkdtemp(prefix="memprof-test-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(cache)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _temporary_cache is not None:
        shutil.rmtree(_temporary_cache, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    simulated = importlib.util.find_spec("simgpu") is not None
    for item in items:
        if item.get_closest_marker("simgpu") and not simulated:
            item.add_marker(pytest.mark.skip(reason="no simulated CUDA device: make test-simgpu"))
        elif item.get_closest_marker("gpu") and not _real_or_rehearsed(simulated):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _real_or_rehearsed(simulated: bool) -> bool:
    """MEMPROF_REHEARSE_GPU=1 runs the tests for real devices on a simulated one."""
    if simulated:
        return os.environ.get("MEMPROF_REHEARSE_GPU") == "1"
    import torch

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _clean_slate() -> None:
    """No test sees another's compiled code or settings; those without torch do not import it
    for this."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    if "memprof.cudagraph_trees.settings" in sys.modules:
        trees = sys.modules["memprof.cudagraph_trees.settings"]
        trees.restore_settings(trees.TreeSettings())
