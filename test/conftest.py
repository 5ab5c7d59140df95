"""What every test stands on: tiers, one private compiler cache, a clean slate before each test.

Note [Parallel tests]
~~~~~~~~~~~~~~~~~~~~~
Nearly all of a test's time is Dynamo, Inductor and the C++ compiler, each of which uses one core,
so tests run in as many pytest workers as there are cores, each with one OpenMP thread and Inductor
compiling in its own process. The other way round (one worker, OpenMP and Inductor's compile workers
on all cores) leaves cores idle through all of Dynamo, and both at once is slower than either:
OpenMP threads that wait for a core spin on the others. A file's tests stay in one worker
(``--dist loadfile`` in the Makefile): they share fixtures, and expecttest rewrites one file at a
time. Files that take long come first (``LONG``): the last one to begin would otherwise be waited
for by all other workers. By itself xdist begins with the files that have the most tests, and those
have the shortest.

Note [The compiler cache in tests]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inductor's caches would let what an earlier run left behind decide a test, so a session begins with
an empty cache, which its workers share. MEMPROF_TEST_CACHE=DIR keeps one between runs, to develop
faster.

Note [What every process would do again]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inductor compiles, and loads in another process, a probe for each of the processor's instruction
sets before its first kernel: ten seconds of CPU time in an empty cache and one in a full one, for
every worker and for every script that a test runs. (Up to torch 2.11 each probe imports torch: ten
seconds in every process. A probe that takes a minute on a busy machine counts as failed, and then
two processes compile different kernels.) ``TORCHINDUCTOR_VEC_ISA_OK=1`` says that the C++
compiler knows the sets of this processor, as every one does that has C++20; set it to the empty
string to have them probed.

Python's collector walks 400,000 objects of torch, of its compiler and of the test modules whenever
a test asks for a collection, a quarter of a second each time, and they never die: they are taken
out of its sight once everything is imported.

Note [Tests and the clock]
~~~~~~~~~~~~~~~~~~~~~~~~~~
A test judges the code, never the machine: a slow runner with other work on every core gives the
same verdict as an idle one. So nothing here asserts a duration, sleeps for effect or gives up
after some seconds; work is counted (``counting.py``) and time is measured in benchmarks/, which
print it. Hypothesis has one profile, below, without a deadline and without the health checks
that measure speed. Against a test that hangs there is pytest-timeout alone (pyproject.toml), far
beyond what any test takes. ``test_suite.py`` looks for what would undo this.

Where ``CI`` is set, Hypothesis draws the same examples in every run, so that a red run there can
be repeated anywhere with ``CI=1``; everywhere else each run looks at new ones, and prints how to
repeat a failure.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kernels
import pytest
import repetition
from hypothesis import HealthCheck, settings

pytest_plugins = ("browser.fixtures",)

# Before torch is imported anywhere, and inherited by the workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# Model libraries must not try to reach a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile(
    "memprof",
    deadline=None,
    # Drawing is slow on a busy machine, and whether one draw of many is too large is chance.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("memprof")

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can say `from models import zoo`

_temporary_cache: str | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _temporary_cache
    if hasattr(config, "workerinput"):
        return  # the controller's choice is in the environment
    cache = os.environ.get("MEMPROF_TEST_CACHE")
    if not cache:
        # In a folder of its own: the simulated device has others beside it, for its values.
        _temporary_cache = tempfile.mkdtemp(prefix="memprof-test-")
        cache = os.path.join(_temporary_cache, "cache")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(cache)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _temporary_cache is not None:
        shutil.rmtree(_temporary_cache, ignore_errors=True)


LONG = (
    "acceptance/test_models.py",
    "compile_backend/ranks/test_torchrun.py",
    "docs/test_examples.py",
    "compile_backend/test_warm_start.py",
    "compiled_autograd/test_attribution.py",
    "compile_backend/test_features.py",
    "profiler/sources/process/test_ends.py",
    "compile_backend/test_session.py",
    "compile_backend/test_failures.py",
    "compile_backend/test_straight_calls_random.py",
    "acceptance/test_newcomer.py",
    "compiled_autograd/test_ddp.py",
    "compiled_autograd/test_cpp.py",
    "compiled_autograd/test_fsdp.py",
    "profiler/sources/trace/test_categories.py",
    "compile_backend/test_streaming.py",
    # On the simulated device:
    "what_if/simulate/test_serving.py",
    "profiler/sources/allocator/test_out_of_memory.py",
    "what_if/simulate/test_processes.py",
    "profiler/sources/allocator/test_categories.py",
    "profiler/sources/allocator/test_growth.py",
    "profiler/sources/allocator/test_graphs.py",
    "what_if/gate/test_plugin.py",
    "what_if/simulate/test_many_ranks.py",
    "what_if/fit/test_on_device.py",
    "acceptance/test_device_memory.py",
)
"""Files that take long, the longest first; first those of the CPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from memprof.simulated_cuda import control

    order = {Path(__file__).parent / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(order)))

    simulated = control.simulated()
    for item in items:
        if item.get_closest_marker("simgpu") and not simulated:
            item.add_marker(pytest.mark.skip(reason="no simulated CUDA device: make test-simgpu"))
        elif item.get_closest_marker("gpu") and not _real_or_rehearsed(simulated):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    # Before its fixtures, those of its module among them.
    kernels.write_zeros(item.get_closest_marker("zero_kernels") is not None)
    kernels.compile_together()
    return (yield)


def pytest_collection_finish() -> None:
    repetition.freeze()


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
    repetition.freeze()
    repetition.spare_torch()
    kernels.compile_together()
    if "torch._dynamo" in sys.modules:
        # torch's own backend imports it when it is reset, and what that defines is a backend, too:
        # the first reset in a process would change what it walks.
        importlib.import_module("torch._inductor.cudagraph_trees")
        sys.modules["torch._dynamo"].reset()


@pytest.fixture
def one_of_two_ranks() -> Iterator[None]:
    """This process is the first of two, of which the other is not there."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()
