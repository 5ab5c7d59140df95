"""Torch's own options of CUDA graphs: each is decided about, and does what was decided."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
from torch._inductor import config

from memprof.cudagraph_trees import torch_options
from memprof.cudagraph_trees.call.container import reset_cudagraph_trees
from memprof.cudagraph_trees.torch_options import AT_COMPILATION, TreeOptions
from memprof.profiler.model import LedgerKind

from .support import graphed, in_steps, manager, next_step, no_manager, pool_segments, same

MIB = 1 << 20

# ---- decisions


def _torchs_options() -> set[str]:
    modules = (config, torch._dynamo.config, torch._functorch.config)
    names = {name for m in modules for name in m.get_config_copy()}  # type: ignore[attr-defined]
    return {n for n in names if "cudagraph" in n.lower() or "cuda_graph" in n.lower()}


def _decisions() -> dict[str, str]:
    """What docs/options.md says becomes of each option."""
    page = (Path(__file__).parents[2] / "docs" / "options.md").read_text()
    verdicts = "honoured|always so|left to the compiler|concerns something else"
    return dict(
        re.findall(rf"^\| `([\w.]+)` \| 2\.1[1-5] \| ({verdicts}) \| .+ \|$", page, re.MULTILINE)
    )


def test_every_option_of_this_torch_is_decided_about() -> None:
    # A name that is missing: look what torch does with it, do that or refuse it, and say so in
    # docs/options.md.
    assert _torchs_options() - _decisions().keys() == set()
    assert len(_torchs_options()) >= 20


def test_what_is_honoured_is_read() -> None:
    read = {"cudagraph_trees"}  # where nothing is compiled for a tree yet
    for path in Path(torch_options.__file__).parent.rglob("*.py"):
        read |= set(re.findall(r'(?:options|self)\["(\w*cudagraph\w*)"\]', path.read_text()))
    honoured = {name for name, verdict in _decisions().items() if verdict == "honoured"}
    assert {f"triton.{n}" for n in read} == honoured


def test_what_was_given_to_a_compilation_holds_for_good() -> None:
    given = TreeOptions.of_this_compilation({"triton.force_cudagraph_sync": True, "x": 1})
    assert given["force_cudagraph_sync"]
    # What was not given is read when it matters,
    assert given["cudagraph_unexpected_rerecord_limit"] == 128
    with config.patch({"triton.cudagraph_unexpected_rerecord_limit": 3}):
        assert given["cudagraph_unexpected_rerecord_limit"] == 3
        later = TreeOptions.of_this_compilation({"triton.cudagraph_unexpected_rerecord_limit": 7})
    assert later["cudagraph_unexpected_rerecord_limit"] == 7


def test_what_torch_takes_when_it_compiles() -> None:
    for name in AT_COMPILATION:
        if hasattr(config.triton, name):
            with config.patch({f"triton.{name}": "copy" if "action" in name else None}):
                then = TreeOptions.of_this_compilation()
            with config.patch({f"triton.{name}": 1}):
                assert then.given[name] != 1
                assert then[name] == then.given[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cudagraph_trees_generation_cloning", "all"),
        ("cudagraph_managed_input_rerecord_action", "copi"),
    ],
)
def test_values_that_mean_nothing(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"triton.{name} is '{value}'; it must be one of"):
        TreeOptions.of_this_compilation({f"triton.{name}": value})


# ---- what they do

ones = torch.ones


def given(**options: Any) -> TreeOptions:
    return TreeOptions.of_this_compilation({f"triton.{n}": v for n, v in options.items()})


def plus_one(x: torch.Tensor) -> list[torch.Tensor]:
    return [x + 1]


@pytest.mark.simgpu
def test_a_replay_waits_for_the_device() -> None:
    from memprof.simulated_cuda import control as simgpu

    def waits(**options: Any) -> int:
        x = ones(4, device="cuda")
        f = graphed(plus_one, [x], torch_options=given(**options))
        for _ in in_steps(range(3)):
            f([x])
        before = simgpu.calls("cudaDeviceSynchronize")
        for _ in in_steps(range(5)):
            f([x])
        return simgpu.calls("cudaDeviceSynchronize") - before  # type: ignore[no-any-return]

    assert waits() == 0
    assert waits(force_cudagraph_sync=True) == 5


@pytest.mark.simgpu
def test_warm_ups_alone_or_none() -> None:
    def kinds(**options: Any) -> list[LedgerKind]:
        reset_cudagraph_trees()
        x = ones(4, device="cuda")
        f = graphed(plus_one, [x], torch_options=given(**options))
        for _ in in_steps(range(3)):
            f([x])
        return [e.kind for e in manager().entries()]

    assert set(kinds(force_cudagraphs_warmup=True)) == {LedgerKind.WARM_UP}
    assert LedgerKind.WARM_UP not in kinds(skip_cudagraph_warmup=True)


@pytest.mark.simgpu
def test_sizes() -> None:
    def graphs(**options: Any) -> int:
        reset_cudagraph_trees()
        f = graphed(
            lambda n, x: [x * n], [2, ones(2, device="cuda")], torch_options=given(**options)
        )
        for n in (2, 3, 4):
            for _ in in_steps(range(2)):
                (y,) = f([n, ones(n, device="cuda")])
                same(y, torch.full((n,), float(n)))
                del y
        return len(list(manager().nodes()))

    assert graphs() == 3
    assert graphs(cudagraph_capture_sizes=(3,)) == 1
    if hasattr(config.triton, "cudagraph_dynamic_shape_rerecord_limit"):
        assert graphs(cudagraph_dynamic_shape_rerecord_limit=2) == 2


@pytest.mark.simgpu
def test_the_backward_of_a_size_that_gets_no_graph_is_not_recorded() -> None:
    # GIVEN a forward one size of which gets no graph, and its backward, whose sizes all may
    x = ones(4, device="cuda")
    options = given(cudagraph_capture_sizes=(5,))
    f = graphed(
        lambda x, n: [x * 2],
        [x, 5],
        is_inference=False,
        compile_id="7/0",
        torch_options=options,
    )
    g = graphed(lambda y, n: [y + 1], [x, 5], (0,), is_backward=True, compile_id="7/0")
    kept = []
    for n in in_steps((5, 5, 5, 3, 3, 3, 3, 5)):
        (saved,) = f([x, n])
        same(g([saved, n])[0], torch.full((4,), 3.0))
        if n == 3:
            kept.append(saved)  # so that the next one is elsewhere
        del saved
    # THEN that backward is recorded for the other size alone
    keys = [(n.wrapped_function.mode.name, n.wrapped_function.key) for n in manager().nodes()]
    assert sorted(keys) == [("BACKWARD", (5,)), ("FORWARD", (5,))]


@pytest.mark.simgpu
def test_the_warning_about_many_sizes(caplog: pytest.LogCaptureFixture) -> None:
    torchs = logging.getLogger("torch._inductor.cudagraph_utils.__cudagraphs")
    torchs.addHandler(caplog.handler)
    try:
        for limit, said in ((None, False), (1, True)):
            caplog.clear()
            f = graphed(
                lambda n, x: [x * n],
                [2, ones(2, device="cuda")],
                torch_options=given(cudagraph_dynamic_shape_warn_limit=limit),
            )
            for n in (2, 3):
                f([n, ones(n, device="cuda")])
            assert ("distinct sizes" in caplog.text) is said
    finally:
        torchs.removeHandler(caplog.handler)


@pytest.mark.simgpu
def test_moves_of_static_inputs_count_as_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until 2.11 they count among re-recordings, from 2.13 on they do not."""
    from memprof.cudagraph_trees.steps import moves

    monkeypatch.setattr(moves, "LIMIT", 1000)  # ours comes earlier
    w = ones(4, device="cuda")
    f = graphed(
        lambda w, x: [w + x],
        [w, w],
        (0,),
        torch_options=given(cudagraph_unexpected_rerecord_limit=2),
    )
    kept = []
    for _ in in_steps(range(8)):
        kept.append(ones(4, device="cuda"))
        f([kept[-1], w])
    recorded = sum(
        e.count for e in manager().entries() if e.kind in (LedgerKind.RECORD, LedgerKind.RERECORD)
    )
    exempt = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    assert recorded == (7 if exempt else 3)


@pytest.mark.simgpu
def test_a_pool_begins_with_what_torchs_option_says() -> None:
    options = TreeOptions({"cudagraph_initial_mempool_allocation_gb": 1 / 32})
    x = ones(2 * MIB, device="cuda")
    f = graphed(plus_one, [x], torch_options=options)
    for _ in in_steps(range(3)):
        f([x])
    assert [s["total_size"] for s in pool_segments()] == [32 * MIB]


@pytest.mark.simgpu
def test_outputs_are_cloned_where_the_compilation_said_so() -> None:
    x = ones(4, device="cuda")
    f = graphed(
        plus_one, [x], torch_options=given(cudagraph_trees_generation_cloning="user_visible")
    )
    g = graphed(plus_one, [x])
    for _ in in_steps(range(4)):
        (a,) = f([x])
        next_step()
        (b,) = g([x])
    next_step()
    f([x])
    same(a, torch.full((4,), 2.0))
    with pytest.raises(RuntimeError, match="overwritten"):
        b + 1


# ---- memory that nobody knows

_kept: list[torch.Tensor] = []


@pytest.fixture
def _nothing_kept() -> Iterator[None]:
    yield
    _kept.clear()


def leaky(x: torch.Tensor) -> list[torch.Tensor]:
    if len(_kept) < 2:
        _kept.append(torch.empty(1000, device="cuda"))
    return [x + 1]


@pytest.mark.simgpu
@pytest.mark.usefixtures("_nothing_kept")
def test_the_line_that_allocated_what_nobody_knows(caplog: pytest.LogCaptureFixture) -> None:
    from memprof.cudagraph_trees.replay.errors import UntrackedMemory

    at = leaky.__code__.co_firstlineno + 2
    error = error_of(cudagraph_trees_history_recording=True)
    assert isinstance(error, UntrackedMemory)
    assert "4000 bytes at 0x" in str(error)
    assert f"allocated by {__file__}:{at} (leaky)" in str(error)
    # Without it, the error says how to get it.
    assert "cudagraph_trees_history_recording = True" in str(error_of())


def error_of(**options: Any) -> BaseException:
    """The error itself: it reaches the program if it has asked for graphs or errors."""
    _kept.clear()
    reset_cudagraph_trees()
    f = graphed(
        leaky, [ones(1, device="cuda")], torch_options=given(cudagraph_or_error=True, **options)
    )
    with pytest.raises(RuntimeError) as raised:
        calls(f, 3)
    return raised.value


# ---- graphs or errors


def calls(f: Callable[[list[Any]], Any], n: int) -> None:
    for _ in in_steps(range(n)):
        f([ones(4, device="cuda")])


def strict(fn: Callable[..., Any], **more: Any) -> Callable[[list[Any]], Any]:
    return graphed(
        fn, [ones(4, device="cuda")], torch_options=given(cudagraph_or_error=True), **more
    )


@pytest.mark.simgpu
def test_an_error_where_a_capture_fails() -> None:
    def syncs(x: torch.Tensor) -> list[torch.Tensor]:
        torch.cuda.synchronize()
        return [x + 1]

    f = strict(syncs)
    calls(f, 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="captur"):
            calls(f, 1)
    # Others are not affected.
    calls(strict(plus_one), 3)
    assert [n.replays for n in manager().nodes()] == [1]


@pytest.mark.simgpu
def test_an_error_where_a_warm_up_fails() -> None:
    def fails(x: torch.Tensor) -> list[torch.Tensor]:
        raise RuntimeError("not today")

    ran = []
    f = strict(lambda x: ran.append(1) or fails(x))
    with pytest.raises(RuntimeError, match="not today"):
        calls(f, 1)
    assert ran == [1]  # and it is not called again


@pytest.mark.simgpu
def test_an_error_where_there_is_no_pool() -> None:
    from memprof.simulated_cuda import control as simgpu

    f = strict(plus_one)
    simgpu.fail("cudaStreamBeginCapture", 0, 901)
    with pytest.raises(RuntimeError):
        calls(f, 1)
    assert no_manager()
    calls(f, 3)


@pytest.mark.simgpu
def test_an_error_where_an_input_is_elsewhere_or_written_to() -> None:
    f = graphed(
        lambda x, lr: [x * lr],
        [ones(4, device="cuda"), torch.tensor(2.0)],
        torch_options=given(cudagraph_or_error=True),
    )
    for again in range(3):
        with pytest.raises(RuntimeError, match="input 1 is on cpu") if again else _fine():
            next_step()
            f([ones(4, device="cuda"), torch.tensor(2.0)])
    g = strict(lambda x: [x.add_(1)], mutated_input_idxs=(0,))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mutated inputs"):
            calls(g, 1)


class _fine:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def made_elsewhere(steps: int, **options: Any) -> list[LedgerKind]:
    """A function whose input is another piece of what a graph made in each step."""
    reset_cudagraph_trees()
    x = ones(4, device="cuda")
    f = graphed(lambda x: [x.repeat(100)], [x])
    g = graphed(
        lambda y: [y * 2],
        [x],
        torch_options=given(cudagraph_managed_input_rerecord_limit=2, **options),
    )
    for k in in_steps(range(steps)):
        (y,) = f([x])
        (z,) = g([y[4 * k : 4 * k + 4]])
        same(z, torch.full((4,), 2.0))
        del y, z
    return [e.kind for e in manager().entries() for _ in range(e.count)]


@pytest.mark.simgpu
def test_an_input_that_a_graph_made_keeps_moving() -> None:
    kinds = made_elsewhere(9)
    assert kinds.count(LedgerKind.DEMOTION) == 1
    assert kinds.count(LedgerKind.RERECORD) == 2  # the second one copies it
    skip = {"cudagraph_managed_input_rerecord_action": "skip"}
    kinds = made_elsewhere(9, **skip)
    assert LedgerKind.DEMOTION not in kinds
    assert kinds.count(LedgerKind.RERECORD) == 1
    assert kinds.count(LedgerKind.SKIP) == 6
    with pytest.raises(RuntimeError, match="made by a graph, keeps moving"):
        made_elsewhere(9, cudagraph_or_error=True, **skip)
