"""Threads, autograd's threads, devices, forks, and the end of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import pytest
import torch
from in_threads import run_in_threads
from torch._inductor import config

from memprof.cudagraph_trees.call import entry
from memprof.cudagraph_trees.call.container import (
    all_managers,
    family,
    get_container,
    get_manager,
    reset_cudagraph_trees,
)
from memprof.cudagraph_trees.call.inductor import use_in_inductor
from memprof.cudagraph_trees.device.capture_lock import capturing

from .support import (
    VALUES,
    collect,
    descendants,
    graphed,
    in_steps,
    live_blocks,
    manager,
    next_step,
    no_manager,
    pool_segments,
    roots,
    same,
)

pytestmark = pytest.mark.simgpu


def test_each_user_thread_has_its_own_trees() -> None:
    # GIVEN one wrapped function, called by three threads with values of their own
    f = graphed(lambda x: [x * 2 + 1], [torch.ones(4, device="cuda")])
    families, errors = [], []
    barrier = threading.Barrier(3)

    def work(k: int) -> None:
        try:
            for i in range(8):
                barrier.wait()
                (y,) = f([torch.full((4,), float(100 * k + i), device="cuda")])
                same(y, torch.full((4,), 2.0 * (100 * k + i) + 1))
                next_step()
            families.append(family())
            assert manager().path.step >= 8
        except BaseException as e:
            errors.append(e)
            barrier.abort()

    run_in_threads(*(partial(work, k) for k in range(3)))
    assert errors == []
    assert len({id(x) for x in families}) == 3


def test_two_threads_call_for_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function of Inductor's, which learns at its first call what is an integer
    def model(inputs: list[Any]) -> list[torch.Tensor]:
        n, x = inputs
        inputs.clear()
        return [x * n]

    f = entry.ShapeDispatcher(model, (), 0, {"is_backward": False, "is_inference": True})
    x = torch.ones(4, device="cuda")
    first = threading.Thread(target=lambda: f([2, x]))

    def slowly() -> object:
        if first.ident is None:
            first.start()
            first.join()
        return family()

    monkeypatch.setattr(entry, "family", slowly)
    # WHEN a second thread has begun a call before that of the first is over
    with config.patch({"triton.cudagraph_capture_sizes": (2,)}):
        same(f([3, x]), [torch.full((4,), 3.0)])
    # THEN its call is that of its own integers, which get no graph
    assert no_manager()


def test_autograds_threads_find_the_trees_of_their_forward() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).cuda()
    seen = []
    with use_in_inductor():
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(4):
            loss = compiled(torch.randn(2, 8, device="cuda")).square().mean()
            loss.register_hook(lambda g: seen.append((threading.get_ident(), id(family()))))
            loss.backward()
            model.zero_grad()
    assert {ident for ident, _ in seen} != {threading.get_ident()}
    assert {f for _, f in seen} == {id(family())}
    assert len(all_managers()) == 1
    (root,) = roots()
    assert descendants(root) == 1  # the backward is below its forward


def test_a_backward_called_by_a_thread_without_trees() -> None:
    model = torch.nn.Linear(8, 8).cuda()
    seen: list[int] = []

    def loss() -> torch.Tensor:
        y: torch.Tensor = compiled(torch.randn(2, 8, device="cuda")).square().mean()
        y.register_hook(lambda g: seen.append(id(family())))
        return y

    with use_in_inductor():
        compiled = torch.compile(model, mode="reduce-overhead")
        # GIVEN a thread that never called anything calls the backward of another one's forward
        run_in_threads(loss().backward)
        assert seen.pop() != id(family())
        # THEN autograd's thread, which made trees for it, uses those of whom it works for
        for _ in range(4):
            loss().backward()
    assert set(seen) == {id(family())}


def test_a_reset_in_a_hook_of_a_backward() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).cuda()
    with use_in_inductor():
        compiled = torch.compile(model, mode="reduce-overhead")
        for i in range(9):
            model.zero_grad()
            x = torch.randn(2, 8, device="cuda")
            loss = compiled(x).square().mean()
            if i == 4:  # in autograd's thread
                loss.register_hook(lambda g: reset_cudagraph_trees())
            loss.backward()
            got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            same(got, torch.autograd.grad(model(x).square().mean(), list(model.parameters())))
    # THEN the same functions are graphed anew, in one manager
    assert all_managers() == [manager()]
    assert sorted(n.replays for n in manager().nodes()) == [0, 2, 2]


def test_a_function_that_dies_during_a_capture_waits_for_nothing() -> None:
    # GIVEN a thread that captures
    f = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    f([torch.ones(4, device="cuda")])
    trees = manager()
    inside, done = threading.Event(), threading.Event()

    def capture() -> None:
        with capturing():
            inside.set()
            done.wait()

    t = threading.Thread(target=capture)
    t.start()
    inside.wait()
    # WHEN the last function dies in another thread, THEN that one goes on
    del f
    assert not done.is_set()
    assert trees.alive
    # AND the trees go when the capture is over
    done.set()
    t.join()
    assert not trees.alive


def test_a_thread_that_ends_takes_its_trees_along() -> None:
    f = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    kept = []

    def work() -> None:
        for i in in_steps(range(4)):
            (y,) = f([torch.full((4,), float(i), device="cuda")])
        kept.append(y)
        assert len(all_managers()) == 1

    run_in_threads(work)
    collect()
    assert all_managers() == []
    # AND what it handed to another thread owns its memory
    junk = [torch.zeros(4, device="cuda") for _ in range(64)]
    same(kept[0], torch.full((4,), 4.0))
    assert kept[0].data_ptr() not in {j.data_ptr() for j in junk}
    assert live_blocks() == 1
    kept.clear()
    collect()
    assert pool_segments() == []


SCRIPT = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch
from memprof.cudagraph_trees import (cudagraphify_impl, get_manager)
from memprof.cudagraph_trees.call.container import all_managers

def boxed(args):
    x = args[0]
    args.clear()
    return [x + 1]

x = torch.ones(4, device="cuda")
f = cudagraphify_impl(boxed, [x], (), device_index=0, is_backward=False, is_inference=True)
for i in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    (y,) = f([x])
{action}
print("end", flush=True)
"""

FORK = """
from memprof.cudagraph_trees.explain import history
manager = get_manager(0)
pid = os.fork()
if pid == 0:
    # The child has no device: it must be able to let go of everything, and end.
    assert all_managers() == []
    assert get_manager(0, create_if_none_exists=False) is None
    assert history.managers() == []
    del f, y
    assert manager.alive  # to shut it down would call the device
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
torch.compiler.cudagraph_mark_step_begin()
assert f([x])[0].shape == (4,)
"""


@pytest.mark.parametrize(
    "action", ["", FORK, "kept = [f, y]; import builtins; builtins.kept = kept"]
)
def test_fork_and_exit(action: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{action}", action)],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("end")
    assert "Traceback" not in done.stderr


TWO_DEVICES = """
import torch
from memprof.cudagraph_trees import (cudagraphify_impl, get_manager)

def boxed(args):
    x = args[0]
    args.clear()
    return [x * 2]

fs = [
    cudagraphify_impl(
        boxed, [torch.ones(4)], (), device_index=i, is_backward=False, is_inference=True
    )
    for i in range(2)
]
for i in range(5):
    torch.compiler.cudagraph_mark_step_begin()
    for d in range(2):
        (y,) = fs[d]([torch.full((4,), float(i + d), device=f"cuda:{d}")])
        assert y.device.index == d
        if VALUES:
            assert y.tolist() == [2.0 * (i + d)] * 4
assert get_manager(0) is not get_manager(1)
assert [len(list(get_manager(d).nodes())) for d in range(2)] == [1, 1]
assert [r.replays for d in range(2) for r in get_manager(d).nodes()] == [3, 3]
"""


def test_the_current_device_has_a_number() -> None:
    assert get_container(torch.device("cuda")) is get_container(0)
    with pytest.raises(ValueError, match="graph trees run on cuda devices, not on cpu"):
        get_manager(torch.device("cpu"))


def test_a_manager_per_device() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES.replace("VALUES", str(VALUES))],
        capture_output=True,
        text=True,
        env={**os.environ, "SIMGPU_DEVICES": "2"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert get_manager(1, create_if_none_exists=False) is None
