"""Snapshots as users of memprof take them: ``memprof.testing``."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from memprof.testing import PARTS, assert_graph_snapshot, graph_text

DEVICES = (
    "cpu",
    pytest.param("cuda", marks=pytest.mark.simgpu, id="simulated"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
)
OTHER_INPUTS_STAY = pytest.mark.skipif(
    torch.__version__ >= "2.15", reason="torch 2.15 says of other inputs that they stay in place"
)
pytestmark = pytest.mark.zero_kernels


def inference(device: str, calls: int = 3) -> Callable[[], object]:
    """One kernel, whose code allocates and frees the same everywhere."""
    weight = torch.ones(8, device=device)
    x = torch.ones(32, 8, device=device)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x * weight).relu() + 1

    held = []

    def run() -> None:
        compiled = torch.compile(scaled, backend="memprof")
        held.clear()
        for _ in range(calls):
            held[:] = [compiled(x)]

    return run


def training(device: str, **options: object) -> Callable[[], object]:
    """Forwards and backwards of two layers, with new gradients each time."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    x = torch.ones(32, 8, device=device)
    gradient = torch.ones(32, 4, device=device)

    def run() -> None:
        compiled = torch.compile(model, backend="memprof", options=options)
        for _ in range(3):
            model.zero_grad()
            compiled(x).backward(gradient)

    return run


@pytest.mark.parametrize("device", DEVICES)
def test_one_snapshot_for_every_device(device: str) -> None:
    assert_graph_snapshot(
        inference(device),
        """\
0/0 inference
  inputs: 2
     0 user input L['x'] float32[32, 8]
     1 user input L['weight'] float32[8]
  outputs: 1
     0 user output add float32[32, 8]
  nodes of arg0_1, arg1_1
    mul = mul.Tensor(arg0_1, arg1_1): float32[32, 8]
    relu = relu.default(mul): float32[32, 8]
    add = add.Tensor(relu, 1): float32[32, 8]
    return [add]
program of 0/0 inference: 1536 B at entry, 2560 B at most
  alloc 1024 B output buf0
live at the peak, by category: 2560 B
  1536 B input
  1024 B output
live at the peak, by node: 2560 B
  1024 B add aten.add.Tensor
  1024 B arg0_1 L['x']
  512 B arg1_1 L['weight']""",
    )


@OTHER_INPUTS_STAY
@pytest.mark.parametrize("device", DEVICES)
def test_forward_and_backward(device: str) -> None:
    assert_graph_snapshot(
        training(device),
        """\
0/0 forward
  inputs: 5
     0 parameter 0.weight float32[16, 8], static
     1 parameter 0.bias float32[16], static
     2 user input L['args'][0] float32[32, 8]
     3 parameter 2.weight float32[4, 16], static
     4 parameter 2.bias float32[4], static
  outputs: 4
     0 user output addmm_1 float32[32, 4], requires grad
     1 saved for backward L['args'][0] float32[32, 8], memory of input 2
     2 saved for backward 2.weight float32[4, 16], memory of input 3
     3 saved for backward relu float32[32, 16]
  nodes of primals_1, primals_2, primals_3, primals_4, primals_5
    permute = permute.default(primals_1, [1, 0]): float32[8, 16]
    addmm = addmm.default(primals_2, primals_3, permute): float32[32, 16]
    relu = relu.default(addmm): float32[32, 16]
    permute_1 = permute.default(primals_4, [1, 0]): float32[16, 4]
    addmm_1 = addmm.default(primals_5, relu, permute_1): float32[32, 4]
    return [addmm_1, primals_3, primals_4, relu]
0/0 backward
  inputs: 4
     0 user input L['args'][0] float32[32, 8], static, output 1 of the forward
     1 parameter 2.weight float32[4, 16], static, output 2 of the forward
     2 saved for backward relu float32[32, 16], static, donated, output 3 of the forward
     3 tangent tangents_1 float32[32, 4], gradient of output 0
  outputs: 5
     0 parameter gradient 0.weight float32[16, 8], gradient of input 0
     1 parameter gradient 0.bias float32[16], gradient of input 1
     2 None
     3 parameter gradient 2.weight float32[4, 16], gradient of input 3
     4 parameter gradient 2.bias float32[4], gradient of input 4
  nodes of primals_3, primals_4, relu, tangents_1
    permute_1 = permute.default(primals_4, [1, 0]): float32[16, 4]
    permute_2 = permute.default(permute_1, [1, 0]): float32[4, 16]
    mm = mm.default(tangents_1, permute_2): float32[32, 16]
    permute_3 = permute.default(tangents_1, [1, 0]): float32[4, 32]
    mm_1 = mm.default(permute_3, relu): float32[4, 16]
    sum_1 = sum.dim_IntList(tangents_1, [0], True): float32[1, 4]
    view = view.default(sum_1, [4]): float32[4]
    le = le.Scalar(relu, 0): bool[32, 16]
    full_default = full.default([], 0.0, dtype=float32): float32[]
    where = where.self(le, full_default, mm): float32[32, 16]
    permute_6 = permute.default(where, [1, 0]): float32[16, 32]
    mm_2 = mm.default(permute_6, primals_3): float32[16, 8]
    sum_2 = sum.dim_IntList(where, [0], True): float32[1, 16]
    view_1 = view.default(sum_2, [16]): float32[16]
    return [mm_2, view_1, None, mm_1, view]""",
        parts=("graphs",),
    )


@OTHER_INPUTS_STAY
@pytest.mark.parametrize("device", DEVICES)
def test_a_captured_backward(device: str) -> None:
    run = training(device, compiled_autograd=True)
    assert_graph_snapshot(
        run,
        """\
captured backward
  aot_tangents = aot_tangents([inputs[0]])
  aot0_permute_1 = permute.default(inputs[2], [1, 0])
  aot0_permute_2 = permute.default(aot0_permute_1, [1, 0])
  aot0_mm = mm.default(aot_tangents[0], aot0_permute_2)
  aot0_permute_3 = permute.default(aot_tangents[0], [1, 0])
  aot0_mm_1 = mm.default(aot0_permute_3, inputs[3])
  call_accumulate_grad_1 = take_gradient(inputs[2], aot0_mm_1, False)
  aot0_sum_1 = sum.dim_IntList(aot_tangents[0], [0], True)
  aot0_view = reshape.default(aot0_sum_1, [4])
  call_accumulate_grad = take_gradient(inputs[4], aot0_view, False)
  aot0_le = le.Scalar(inputs[3], 0)
  aot0_full_default = full.default([], 0.0, dtype=float32)
  aot0_where = where.self(aot0_le, aot0_full_default, aot0_mm)
  aot0_permute_6 = permute.default(aot0_where, [1, 0])
  aot0_mm_2 = mm.default(aot0_permute_6, inputs[1])
  call_accumulate_grad_3 = take_gradient(inputs[6], aot0_mm_2, False)
  aot0_sum_2 = sum.dim_IntList(aot0_where, [0], True)
  aot0_view_1 = reshape.default(aot0_sum_2, [16])
  call_accumulate_grad_2 = take_gradient(inputs[5], aot0_view_1, False)
0/0 forward
  inputs: 5
     0 parameter 0.weight float32[16, 8], static
     1 parameter 0.bias float32[16], static
     2 user input L['args'][0] float32[32, 8]
     3 parameter 2.weight float32[4, 16], static
     4 parameter 2.bias float32[4], static
  outputs: 4
     0 user output addmm_1 float32[32, 4], requires grad
     1 saved for backward L['args'][0] float32[32, 8], memory of input 2
     2 saved for backward 2.weight float32[4, 16], memory of input 3
     3 saved for backward relu float32[32, 16]
  nodes of primals_1, primals_2, primals_3, primals_4, primals_5
    permute = permute.default(primals_1, [1, 0]): float32[8, 16]
    addmm = addmm.default(primals_2, primals_3, permute): float32[32, 16]
    relu = relu.default(addmm): float32[32, 16]
    permute_1 = permute.default(primals_4, [1, 0]): float32[16, 4]
    addmm_1 = addmm.default(primals_5, relu, permute_1): float32[32, 4]
    return [addmm_1, primals_3, primals_4, relu]
captured 1/0 backward
  inputs: 7
     0 tangent L['inputs'][0] float32[32, 4]
     1 user input L['args'][0] float32[32, 8], output 1 of the forward
     2 parameter 2.weight float32[4, 16], static, output 2 of the forward
     3 saved for backward L['inputs'][3] float32[32, 16], output 3 of the forward
     4 parameter 2.bias float32[4], static
     5 parameter 0.bias float32[16], static
     6 parameter 0.weight float32[16, 8], static
  outputs: 4
     0 parameter gradient 2.weight float32[4, 16]
     1 parameter gradient 2.bias float32[4]
     2 parameter gradient 0.bias float32[16]
     3 parameter gradient 0.weight float32[16, 8]
  nodes of arg0_1, arg1_1, arg2_1, arg3_1, arg4_1, arg5_1, arg6_1
    mm = mm.default(arg0_1, arg2_1): float32[32, 16]
    permute_2 = permute.default(arg0_1, [1, 0]): float32[4, 32]
    mm_1 = mm.default(permute_2, arg3_1): float32[4, 16]
    sum_1 = sum.dim_IntList(arg0_1, [0], True): float32[1, 4]
    view = view.default(sum_1, [4]): float32[4]
    le = le.Scalar(arg3_1, 0): bool[32, 16]
    full_default = full.default([], 0.0, dtype=float32): float32[]
    where = where.self(le, full_default, mm): float32[32, 16]
    permute_3 = permute.default(where, [1, 0]): float32[16, 32]
    mm_2 = mm.default(permute_3, arg1_1): float32[16, 8]
    sum_2 = sum.dim_IntList(where, [0], True): float32[1, 16]
    view_1 = view.default(sum_2, [16]): float32[16]
    return [mm_1, view, view_1, mm_2]""",
        parts=("graphs",),
    )


@pytest.mark.simgpu
def test_ledger_and_pool_of_graphs_that_replay() -> None:
    assert_graph_snapshot(
        inference("cuda", calls=6),
        """\
ledger
  compiled 0/0 inference: inference graph
  warm_up 0/0 inference: first run
  invalidated 0/0 inference: output 0 is held beyond its step; its use raises (5 times)
  warm_up 0/0 inference: the one before was not to be the last
  observed 0/0 inference: its first calls
  record 0/0 inference: first recording
  replay 0/0 inference: replayed (3 times)
pool of CUDA graphs: 2097152 B
  1024 B 0/0 inference #0: FX node add, module (root)
  0 B rounding
  0 B unattributed
  2096128 B free""",
        parts=("ledger", "pools"),
    )


def test_the_text_does_not_depend_on_what_ran_before() -> None:
    run = training("cpu", compiled_autograd=True)
    first = graph_text(run, parts=PARTS)
    graph_text(inference("cpu"))
    assert graph_text(run, parts=PARTS) == first


def test_a_change_is_told_by_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPECTTEST_ACCEPT", raising=False)
    x = torch.ones(4)
    expected = graph_text(lambda: torch.compile(torch.sin, backend="memprof")(x))
    assert "sin = sin.default(arg0_1): float32[4]" in expected
    with pytest.raises(AssertionError, match=r"\+    cos = cos.default\(arg0_1\): float32\[4\]"):
        assert_graph_snapshot(lambda: torch.compile(torch.cos, backend="memprof")(x), expected)


def test_a_program_that_compiles_nothing_has_a_text() -> None:
    expected = "live at the peak, by category: 0 B\nlive at the peak, by node: 0 B"
    assert graph_text(lambda: None) == expected


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no such part of a snapshot: \['pool'\]"):
        graph_text(lambda: None, parts=("pool",))


def test_a_snapshot_is_written_where_the_user_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXPECTTEST_ACCEPT", raising=False)
    test = tmp_path / "test_of_a_user.py"
    test.write_text(
        "from memprof.testing import assert_graph_snapshot\n"
        'assert_graph_snapshot(lambda: None, """""", parts=("ledger",))\n'
    )
    with pytest.raises(AssertionError, match="EXPECTTEST_ACCEPT=1"):
        runpy.run_path(str(test))
    monkeypatch.setenv("EXPECTTEST_ACCEPT", "1")
    runpy.run_path(str(test))
    monkeypatch.delenv("EXPECTTEST_ACCEPT")
    assert '"""ledger"""' in test.read_text()
    runpy.run_path(str(test))
