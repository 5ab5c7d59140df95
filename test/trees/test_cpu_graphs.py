"""Compiled CPU graphs that run out of the arena, against plain inductor, bit by bit.

``graphs=True`` moves every graph into the arena, so that small ones show what large ones do.
"""

from __future__ import annotations

import copy
import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from framing import findings
from torch import nn
from torch.utils.checkpoint import checkpoint

import memprof
from memprof.compile_backend.cpu_arena import steady_state
from memprof.compile_backend.cpu_arena.tensors import POOL, SCRATCHES
from memprof.compile_backend.cpu_arena.wrapper_code import read_wrapper
from memprof.compile_backend.pools import explain_pools
from memprof.compile_backend.runtime import RUNTIME
from memprof.cudagraph_trees.settings import configure, restore_settings
from memprof.profiler.model import LedgerEntry, LedgerKind
from memprof.profiler.trees import graphed_functions

ALWAYS = {"graphs": True}
CALLS = 6
"""Two are observed."""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Each test begins with an empty arena and leaves none."""
    torch._dynamo.reset()
    gc.collect()
    POOL.trim()
    abandoned = SCRATCHES.abandoned
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    gc.collect()
    # Dynamo keeps what it compiled after a graph break for as long as the user's module, and
    # tells a backend of a reset only once for each torch.compile.
    POOL.trim()
    assert POOL.leased() == {}
    assert POOL.reserved_bytes == 0
    assert SCRATCHES.abandoned == abandoned, "a temporary escaped"


def entries(kind: LedgerKind) -> list[LedgerEntry]:
    return [e for e in RUNTIME.ledger.entries_since(_before) if e.kind is kind]


_before: dict[Any, int] = {}


@pytest.fixture(autouse=True)
def fresh_ledger() -> None:
    _before.clear()
    _before.update(RUNTIME.ledger.counts())


def planned() -> int:
    """How many graphs were moved into the arena; none may have failed to."""
    assert entries(LedgerKind.FALLBACK) == []
    assert entries(LedgerKind.TREE_FAILURE) == []
    return len(entries(LedgerKind.RECORD))


def both(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], ...]:
    """``function`` compiled by memprof into the arena, and by inductor.

    Two wrappers of the same code would share Dynamo's cache, so each backend gets a copy.
    """
    import types

    def own(f: Any) -> Any:
        if isinstance(f, nn.Module):
            return copy.deepcopy(f)
        return types.FunctionType(f.__code__.replace(), f.__globals__, None, None, f.__closure__)

    ours = torch.compile(own(function), backend="memprof", options=ALWAYS, **options)
    return ours, torch.compile(own(function), backend="inductor", **options)


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.softmax(x, -1) * 2 + x.sum(0)
    return x


def mlp(width: int = 16, dropout: float = 0.0) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.GELU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    else:
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)


def gradients(model: Any) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_a_chain_is_planned_exactly_and_keeps_its_values() -> None:
    ours, theirs = both(chain)
    held = []
    for i in range(50):
        x = torch.randn(64, 256) + i
        held.append((ours(x), theirs(x)))
    # THEN every output, however long ago, is right
    for a, b in held:
        assert_same(a, b)
    assert len({a.data_ptr() for a, _ in held}) == 50
    # AND temporaries are planned as tightly as can be
    assert planned() == 1
    reason = entries(LedgerKind.RECORD)[0].reason
    assert "0 bytes a call are allocated outside of it" in reason
    # AND a step in the steady state takes nothing from the system
    held.clear()
    ours(x)
    reserved, blocks = POOL.reserved_bytes, POOL.segments()
    for _ in range(5):
        ours(x)
    assert POOL.reserved_bytes == reserved
    assert POOL.segments() == blocks


def test_every_byte_of_the_arena_is_explained() -> None:
    model = mlp()
    compiled = torch.compile(model, backend="memprof", options=ALWAYS)
    x = torch.randn(1000, 16)
    for _ in range(CALLS):
        compiled(x).sum().backward()
    loss = compiled(x).sum()
    parts = explain_pools()["cpu arena"]
    assert parts.reserved == POOL.reserved_bytes
    assert (parts.workspace, parts.unattributed) == (0, 0)
    # Six results of layers: five are saved, and GELU's last leaves with the user.
    saved = {str(k): n for k, n in parts.nodes.items() if "forward: " in str(k)}
    assert sorted(saved.values()) == [64000] * 5
    # BY FX node, not by the compiler's names of buffers
    assert all(re.search(r" forward: (addmm|mul|gelu|relu|tanh)(_\d+)?, ", k + ", ") for k in saved)
    assert f"{POOL.reserved_bytes:,} B" in str(explain_pools())
    assert parts.nodes["scratch"] >= 64000
    assert parts.free > 0
    loss.backward()
    parts = explain_pools()["cpu arena"]
    assert parts.reserved == POOL.reserved_bytes
    assert not [k for k in parts.nodes if "forward: " in str(k)]
    for p in model.parameters():
        p.grad = None


def test_calls_in_the_arena_are_counted_as_replays() -> None:
    compiled = torch.compile(chain, backend="memprof", options=ALWAYS)
    x = torch.randn(64, 256)
    with memprof.profile() as whole:
        for _ in range(CALLS):
            compiled(x)
    # THEN there is one entry, whose count goes on with the calls
    [entry] = entries(LedgerKind.REPLAY)
    assert entry.count == CALLS - 2
    compiled(x)
    [entry] = entries(LedgerKind.REPLAY)
    assert entry.count == CALLS - 1
    [function] = graphed_functions(whole.profile().ledger)
    assert (function.device, function.recordings, function.replays) == ("cpu", 1, CALLS - 2)
    # and a session has its own calls only.
    with memprof.profile() as session:
        compiled(x)
        compiled(x)
    [entry] = [e for e in session.profile().ledger if e.kind is LedgerKind.REPLAY]
    assert entry.count == 2
    assert entry.tree is not None
    assert entry.tree.device == "cpu"


def test_training_is_bitwise_equal() -> None:
    model = mlp()
    ours, theirs = both(model)
    for i in range(CALLS):
        x = torch.randn(64, 16) + i
        for m in (ours, theirs):
            m.zero_grad()
            m(x).square().sum().backward()
        assert_same(gradients(ours), gradients(theirs))
    assert planned() == 2
    # Forward and backward; the last forward's activations are back.
    assert all("forward" not in label for label in POOL.leased().values())


@pytest.mark.parametrize("pending", [3, 9])
def test_several_forwards_with_pending_backwards(pending: int) -> None:
    ours, theirs = both(mlp())
    batches = [torch.randn(64, 16) + i for i in range(pending)]
    for _ in range(4):
        for m in (ours, theirs):
            # WHEN all forwards run first, more of them than there are blocks for
            losses = [m(x).square().sum() for x in batches]
            # THEN each backward finds its own activations, in any order
            for loss in losses[1:] + losses[:1]:
                loss.backward()
        assert_same(gradients(ours), gradients(theirs))
    assert planned() == 2


def test_gradients_accumulate() -> None:
    ours, theirs = both(mlp())
    for i in range(CALLS * 2):
        x = torch.randn(64, 16) + i
        for m in (ours, theirs):
            (m(x).square().mean() / 4).backward()
        if i % 4 == 3:
            assert_same(gradients(ours), gradients(theirs))
            for m in (ours, theirs):
                m.zero_grad(set_to_none=i % 8 == 3)
    assert planned() == 2


def test_gradients_of_inputs_that_reuse_saved_memory() -> None:
    # GIVEN a backward that computes its result in the memory of a saved activation
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x.exp()).tanh()

    ours, theirs = both(f)
    kept = []
    for i in range(10):
        out = []
        for g in (ours, theirs):
            x = (torch.arange(4096.0) / 999 + i).requires_grad_()
            g(x).sum().backward()
            out.append(x.grad)
        kept.append(out)
    for a, b in kept:
        assert_same(a, b)
        assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes()


def test_a_graph_kept_for_a_second_backward() -> None:
    # Inductor's cache does not know of this setting, and has code for the same graph from others.
    uncached = torch._inductor.config.patch(fx_graph_cache=False)
    with torch._functorch.config.patch(donated_buffer=False), uncached:
        ours, theirs = both(mlp())
        for i in range(CALLS):
            x = torch.randn(64, 16) + i
            for m in (ours, theirs):
                m.zero_grad()
                loss = m(x).square().sum()
                loss.backward(retain_graph=True)
                m(x + 1).sum().backward()
                loss.backward()
            assert_same(gradients(ours), gradients(theirs))


def test_dropout_draws_the_same_numbers() -> None:
    ours, theirs = both(mlp(dropout=0.3))
    seen = set()
    for i in range(CALLS):
        x = torch.randn(64, 16)
        out = []
        for m in (ours, theirs):
            m.zero_grad()
            torch.manual_seed(i)
            y = m(x)
            y.sum().backward()
            out.append(y.detach())
        assert_same(*out)
        assert_same(gradients(ours), gradients(theirs))
        seen.add(round(float(out[0].sum()), 3))
    assert len(seen) == CALLS


def test_dynamic_batch_sizes_have_a_plan_each() -> None:
    ours, theirs = both(chain, dynamic=True)
    sizes = [16, 48, 33]
    for i in range(CALLS):
        for n in sizes:
            x = torch.randn(n, 256) + i
            assert_same(ours(x), theirs(x))
    assert planned() == len(sizes)
    # One scratch, as large as the largest needs.
    scratch = [a for a, label in POOL.leased().items() if label == "scratch"]
    assert len(scratch) == 1


def test_sizes_that_depend_on_data_run_without() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):

        def f(x: torch.Tensor) -> torch.Tensor:
            y = x[x > 0]
            return (y * 2 + 1).sin()

        ours, theirs = both(f)
        for i in range(CALLS):
            x = torch.randn(100 + i) if i > 3 else torch.randn(100)
            assert_same(ours(x), theirs(x))


def test_graph_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = chain(x)
        torch._dynamo.graph_break()
        z = chain(y * 3)
        torch._dynamo.graph_break()
        return z + y

    ours, theirs = both(f)
    for i in range(CALLS):
        x = torch.randn(64, 256) + i
        assert_same(ours(x), theirs(x))
    assert planned() == 3


def test_mutated_inputs_and_buffers() -> None:
    def f(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1) + state.sum(0)
        state.mul_(0.5).add_(y)
        x.add_(1)
        return y * state

    ours, theirs = both(f)
    a, b = torch.zeros(64, 256), torch.zeros(64, 256)
    for i in range(CALLS):
        x = torch.randn(64, 256) + i
        p, q = x.clone(), x.clone()
        assert_same(ours(p, a), theirs(q, b))
        assert_same((p, a), (q, b))


def test_outputs_that_alias() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x, -1)
        return y, y.t(), y[1:], x.view(-1), y.sum(0)

    ours, theirs = both(f)
    for _ in range(CALLS):
        x = torch.randn(64, 256)
        a, b = ours(x), theirs(x)
        assert_same(a, b)
        a[0].add_(1)
        assert torch.equal(a[1].t(), a[0])
        assert torch.equal(a[3], x.view(-1))


def test_activation_checkpointing() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(mlp() for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    ours, theirs = both(Checkpointed())
    for i in range(CALLS):
        x = (torch.randn(64, 16) + i).requires_grad_()
        for m in (ours, theirs):
            m.zero_grad()
            m(x).sum().backward()
        assert_same(gradients(ours), gradients(theirs))


def test_inference_mode_and_back() -> None:
    ours, theirs = both(mlp())
    for i in range(CALLS):
        x = torch.randn(64, 16) + i
        with torch.inference_mode():
            a, b = ours(x), theirs(x)
            assert a.is_inference()
        assert_same(a, b)
        with torch.no_grad():
            assert_same(ours(x), theirs(x))
        with torch.device("meta"):
            y, z = ours(x), theirs(x)
        assert_same(y, z)
        y.sum().backward()


def test_an_exception_leaves_no_trace() -> None:
    broken, abandoned = [False], SCRATCHES.abandoned

    @torch.library.custom_op("memprof_test::may_raise", mutates_args=())
    def may_raise(x: torch.Tensor) -> torch.Tensor:
        if broken[0]:
            raise RuntimeError("as asked")
        return x * 2

    may_raise.register_fake(torch.empty_like)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1) + x.sum(0)
        return torch.softmax(may_raise(y + 1) + y.cumsum(0), -1)

    ours, theirs = both(f)
    for i in range(CALLS):
        x = torch.randn(64, 256) + i
        broken[0] = False
        assert_same(ours(x), theirs(x))
        broken[0] = True
        with pytest.raises(RuntimeError, match="as asked"):
            ours(x)
    broken[0] = False
    assert_same(ours(x), theirs(x))
    # A traceback may hold temporaries, so each scratch was left to it: all came back.
    assert SCRATCHES.abandoned == abandoned + CALLS - 1
    SCRATCHES.abandoned = abandoned


def test_what_a_custom_operator_keeps_stays() -> None:
    kept: list[torch.Tensor] = []

    @torch.library.custom_op("memprof_test::keep", mutates_args=())
    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x.clone()

    keep.register_fake(torch.empty_like)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1) + x.sum(0)
        return torch.softmax(keep(y) + 1, -1) + x.sum(0)

    ours, theirs = both(f)
    found = []
    for g in (ours, theirs):
        for i in range(CALLS):
            g((torch.arange(64.0 * 256).view(64, 256) + i).sin())
        found.append(kept.copy())
        kept.clear()
    # THEN they are what they are with inductor: it overwrites some itself, in the same call
    assert planned() == 1
    assert len({t.data_ptr() for t in found[0]}) == CALLS
    assert_same(*found)


def test_two_threads_share_no_temporaries() -> None:
    ours, theirs = both(chain)
    x = torch.randn(64, 256)
    for _ in range(CALLS):
        ours(x)
    wrong, start = [], threading.Barrier(6)

    def work(number: int) -> None:
        mine = torch.randn(64, 256) + number
        expected = theirs(mine)
        start.wait()
        for _ in range(30):
            if not torch.equal(ours(mine), expected):
                wrong.append(number)

    theirs(x)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert planned() == 1


def test_a_call_within_a_call() -> None:
    inner_calls: list[Callable[..., Any]] = []

    @torch.library.custom_op("memprof_test::nested", mutates_args=())
    def nested(x: torch.Tensor) -> torch.Tensor:
        return inner_calls[0](x)

    nested.register_fake(torch.empty_like)

    def outer(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1) + x.sum(0)
        z = nested(x + 1)
        return torch.softmax(z + y, -1) + y.sum(0)

    ours, theirs = both(outer)
    inner_ours, inner_theirs = both(chain)
    for i in range(CALLS):
        x = torch.randn(64, 256) + i
        inner_calls[:] = [inner_ours]
        a = ours(x)
        inner_calls[:] = [inner_theirs]
        assert_same(a, theirs(x))
    assert planned() == 2
    inner_calls.clear()


def test_reset_in_the_middle_of_a_step() -> None:
    model = mlp()
    ours, theirs = both(model)
    x = torch.randn(64, 16)
    for _ in range(CALLS):
        for m in (ours, theirs):
            m.zero_grad()
            m(x).sum().backward()
    for m in (ours, theirs):
        m.zero_grad()
        loss = m(x).square().sum()
        # WHEN everything compiled is dropped between a forward and its backward
        torch._dynamo.reset()
        gc.collect()
        torch.randn(1 << 16)
        # THEN the backward still finds what was saved
        loss.backward()
    assert_same(gradients(ours), gradients(theirs))
    # AND what is compiled anew works
    for _ in range(CALLS):
        for m in (ours, theirs):
            m.zero_grad()
            m(x).sum().backward()
        assert_same(gradients(ours), gradients(theirs))


def test_a_function_that_dies_while_its_outputs_live() -> None:
    ours, theirs = both(chain)
    x = torch.randn(64, 256)
    for _ in range(CALLS):
        a = ours(x)
    expected = theirs(x)
    users = len(POOL._users)
    del ours, theirs
    torch._dynamo.reset()
    gc.collect()
    assert len(POOL._users) == users - 1
    # THEN the output keeps its memory, and the rest is gone
    assert [label.split(": ")[1][:3] for label in POOL.leased().values()] == ["buf"]
    assert torch.equal(a, expected)
    del a
    assert POOL.leased() == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch calls CUDA, which bears no fork")
def test_a_forked_child() -> None:
    ours, theirs = both(chain)
    x = torch.randn(64, 256)
    for _ in range(CALLS):
        held = ours(x)
    expected = theirs(x)
    child = os.fork()
    if child == 0:
        ok = all(torch.equal(ours(x), expected) for _ in range(4)) and torch.equal(held, expected)
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(ours(x), expected)


def test_small_graphs_skip_by_themselves() -> None:
    compiled = torch.compile(chain, backend="memprof")
    x = torch.randn(16, 64)
    for _ in range(CALLS):
        compiled(x)
    assert planned() == 0
    [entry] = entries(LedgerKind.NOT_GRAPHED)
    assert "too few for an arena to save anything" in entry.reason


def test_large_graphs_join_by_themselves() -> None:
    compiled = torch.compile(chain, backend="memprof", dynamic=False)
    x = torch.randn(16384, 1024)
    for _ in range(2 + steady_state.TRIAL_CALLS + 2):
        y = compiled(x)
        del y
    assert planned() == 1
    faults = steady_state.minor_page_faults
    before = faults()
    compiled(x)
    assert faults() - before < 64 << 20 >> 12 >> 3


def test_the_budget_is_kept() -> None:
    ours, theirs = both(mlp())
    before = configure(pool_budget=3 << 20)
    try:
        for i in range(CALLS):
            # WHEN a step needs more than the budget: 1.3 MB for each of five activations
            x = torch.randn(20000, 16) + i
            for m in (ours, theirs):
                m.zero_grad()
                m(x).square().sum().backward()
            # THEN the rest is ordinary memory, and values are right
            assert_same(gradients(ours), gradients(theirs))
            assert POOL.reserved_bytes <= 3 << 20
        assert planned() == 2
        assert POOL.reserved_bytes > 0
    finally:
        restore_settings(before)


def test_a_profile_tells_of_the_arena() -> None:
    compiled = torch.compile(mlp(), backend="memprof", options=ALWAYS)
    with memprof.profile() as session:
        for _ in range(CALLS):
            compiled(torch.randn(1000, 16)).sum().backward()
    found = session.profile()
    assert findings(found) == []
    records = [e for e in found.ledger if e.kind is LedgerKind.RECORD]
    assert [(e.tree.device, e.graph) for e in records if e.tree is not None] == [
        ("cpu", g.id) for g in found.graphs
    ]


def test_graphs_can_be_turned_off() -> None:
    compiled = torch.compile(chain, backend="memprof", options={"graphs": False})
    x = torch.randn(64, 256)
    for _ in range(CALLS):
        compiled(x)
    assert planned() == 0
    assert POOL.reserved_bytes == 0


WRAPPER = """
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        s0 = arg0_1
        buf0 = empty_strided_cpu((s0, 4), (4, 1), torch.float32)
        cpp_fused_add_0(arg1_1, buf0, s0)
        buf1 = reinterpret_tensor(buf0, (4, s0), (1, 4), 0)
        buf2 = empty_strided_cpu((s0, 4), (4, 1), torch.float32)
        extern_kernels.mm(buf0, buf1, out=buf2)
        buf3 = torch.ops.mylib.keep.default(buf1)
        buf4 = torch.ops.aten.cumsum.default(buf2, 0)
        buf5 = empty_strided_cpu((4, ), (1, ), torch.float32)
        if buf5.item():
            buf6 = empty_strided_cpu((4, ), (1, ), torch.float32)
            true_graph_0([buf5])
        u0 = buf4.item()
        buf7 = empty_strided_cpu((u0, ), (1, ), torch.float32)
        return (buf2, buf3)
"""


def test_reading_a_wrapper() -> None:
    code = read_wrapper(WRAPPER)
    assert code is not None
    assert list(code.allocations.values()) == ["buf0", "buf2", "buf5", "buf7"]
    assert code.inputs == ("arg0_1", "arg1_1")
    # A custom operator got a view of buf0; a branch got buf5.
    unsafe = {n for n in code.unsafe if n.startswith("buf")}
    assert unsafe == {"buf0", "buf1", "buf3", "buf5"}
    from memprof.compile_backend.cpu_arena.wrapper_code import evaluate

    sizes = evaluate(code, {"torch": torch}, [0], [7])
    assert [sizes[line][0] for line in sorted(sizes)] == [(7, 4), (7, 4), (4,)]
    assert read_wrapper("#include <torch/torch.h>") is None
    assert read_wrapper("x = 1") is None
