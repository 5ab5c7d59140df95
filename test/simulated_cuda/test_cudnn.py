"""Torch's own cuDNN code on the simulated device: shapes, strides, saved tensors, workspaces.

Kernels compute nothing here, so the CPU says what the results must look like, and the device's
counters of kernels that cuDNN's code was really taken. Values mode switches cuDNN off: a process
that has it on runs this module once more in one that has not.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

VALUES = os.environ.get("SIMGPU_VALUES", "0") not in ("", "0")

pytestmark = pytest.mark.simgpu
without_values = pytest.mark.skipif(VALUES, reason="test_this_module_without_values runs it")


def kernels(name: str = "cudnn", which: str = "launched") -> int:
    from memprof.simulated_cuda import control as simgpu

    return int(simgpu.kernels(name, which))


@pytest.mark.skipif(not VALUES, reason="the others run in this process")
def test_this_module_without_values() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "SIMGPU_VALUES": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.fixture(autouse=True)
def _all_of_cudnn_is_simulated(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert "not simulated: cudnn" not in capfd.readouterr().err


def like_on_cpu(module: nn.Module, *inputs: Tensor) -> tuple[Any, Any]:
    """Runs forward and backward on both devices: shapes and types of all results must agree.

    Returns the module's two results, the device's first.
    """
    results = []
    for device in ("cuda", "cpu"):
        on = copy.deepcopy(module).to(device)
        there = [x.detach().to(device).requires_grad_() for x in inputs]
        out = on(*there)
        first = out[0] if isinstance(out, tuple) else out
        first.float().sum().backward()
        seen = [first, *(x.grad for x in there), *(p.grad for p in on.parameters())]
        results.append((out, [(t.shape, t.dtype) for t in seen if t is not None]))
    assert results[0][1] == results[1][1]
    return results[0][0], results[1][0]


# ---- convolutions

FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}


@without_values
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions(dims: int, transposed: bool, channels_last: bool, dtype: torch.dtype) -> None:
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    layout = FORMATS[dims] if channels_last else torch.contiguous_format
    conv = kind(8, 16, 3, stride=2, padding=1).to(dtype=dtype, memory_format=layout)
    x = torch.zeros(2, 8, *[9] * dims, dtype=dtype).to(memory_format=layout)
    before = kernels("cudnn_convolution")
    y, _ = like_on_cpu(conv, x)
    assert kernels("cudnn_convolution") - before == 3
    assert type(y.grad_fn).__name__ == "ConvolutionBackward0"
    # torch asks cuDNN for no channels-last convolution in float64, and has no such format in 1d
    kept = layout if dtype != torch.float64 else torch.contiguous_format
    assert y.is_contiguous(memory_format=kept)


@without_values
@pytest.mark.parametrize("groups", [2, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_grouped_and_dilated_convolutions(groups: int, dtype: torch.dtype) -> None:
    conv = nn.Conv2d(16, 32, 3, groups=groups, dilation=2, bias=False, dtype=dtype)
    like_on_cpu(conv, torch.zeros(2, 16, 12, 12, dtype=dtype))


# ---- the workspace of a convolution


def workspace(run: Callable[[], Tensor]) -> int:
    """Device memory, in bytes, that `run` needs for a time beside its result."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    kept = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak - kept


def forward_workspace(
    batch: int, channels: int, dtype: torch.dtype, layout: torch.memory_format, groups: int = 1
) -> int:
    x = torch.zeros(batch, channels, 16, 16, dtype=dtype, device="cuda").to(memory_format=layout)
    w = torch.zeros(64, channels // groups, 3, 3, dtype=dtype, device="cuda")
    w = w.to(memory_format=layout)
    return workspace(lambda: F.conv2d(x, w, padding=1, groups=groups))


NCHW, NHWC = torch.contiguous_format, torch.channels_last
BESIDE = 512  # bytes that a real device asks for beside copies


@without_values
def test_operands_that_are_not_channels_last_are_copied_into_the_workspace() -> None:
    elements = 4 * 64 * 256 + 64 * 64 * 9 + 4 * 64 * 256  # input, filter, output
    assert forward_workspace(4, 64, torch.float16, NCHW) == 2 * elements + BESIDE
    assert forward_workspace(4, 64, torch.float32, NCHW) == 4 * elements + BESIDE  # tf32
    assert forward_workspace(4, 64, torch.float16, NHWC) == 0
    assert forward_workspace(4, 64, torch.float64, NCHW) == 0  # no tensor cores
    assert forward_workspace(4, 64, torch.float16, NCHW, groups=64) == 0
    padded = 4 * 8 * 256 + 64 * 8 * 9  # input and filter, 3 channels as 8
    assert forward_workspace(4, 3, torch.float16, NHWC) == 2 * padded + BESIDE
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert forward_workspace(5, 64, torch.float32, NCHW) == 0


# Type, batch, channels and size of a convolution, and the workspaces that FakeGPU's authors
# measured with cuDNN 9.10 on Blackwell and with 9.20 on Ampere.
MEASURED = (
    ("float32", 2, 64, 128, 16_925_184, 8_536_576),
    ("bfloat16", 2, 64, 128, 8_462_848, 8_462_848),
    ("float32", 4, 128, 64, 17_367_552, 8_978_944),
)


@without_values
@pytest.mark.parametrize(("capability", "column"), [(120, 4), (86, 5)])
def test_workspaces_are_those_of_real_devices(capability: int, column: int) -> None:
    program = f"""
import torch
for dtype, batch, channels, size, *_ in {MEASURED}:
    kind = dict(dtype=getattr(torch, dtype), device="cuda")
    x = torch.zeros(batch, channels, size, size, **kind)
    w = torch.zeros(channels, channels, 3, 3, **kind)
    torch.cuda.reset_peak_memory_stats()
    y = torch.nn.functional.conv2d(x, w, padding=1)
    print(torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())
    del x, w, y
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SIMGPU_CC": str(capability)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [int(line) for line in done.stdout.split()] == [row[column] for row in MEASURED]


@without_values
def test_the_gradient_of_a_half_precision_filter_is_summed_in_float32() -> None:
    x = torch.zeros(4, 64, 16, 16, dtype=torch.half, device="cuda").to(memory_format=NHWC)
    w = torch.zeros(64, 64, 3, 3, dtype=torch.half, device="cuda").to(memory_format=NHWC)
    gradient = lambda *wanted: workspace(  # noqa: E731
        lambda: torch.ops.aten.convolution_backward(
            x, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [*wanted, False]
        )
    )
    assert gradient(False, True) == 64 * 64 * 9 * 4 + BESIDE
    assert gradient(True, False) == 0


@without_values
def test_benchmark_mode_takes_the_fastest_and_deterministic_mode_finds_one() -> None:
    elements = 6 * 64 * 256 * 2 + 64 * 64 * 9
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        forward_workspace(6, 64, torch.float16, NCHW)  # tries all
        assert forward_workspace(6, 64, torch.float16, NCHW) == 2 * elements + BESIDE
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        like_on_cpu(nn.Conv2d(8, 8, 3), torch.zeros(2, 8, 8, 8))


@without_values
@pytest.mark.parametrize(("mode", "batch", "size"), [("none", 7, 0), (str(1 << 20), 8, 1 << 20)])
def test_the_workspace_can_be_set(
    mode: str, batch: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMGPU_CUDNN_WORKSPACE", mode)  # torch keeps plans: a batch for each mode
    assert forward_workspace(batch, 64, torch.float16, NCHW) == size


# ---- recurrent networks

RNNS: list[tuple[type[nn.RNNBase], dict[str, Any]]] = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True, "dropout": 0.5}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 5}),
    (nn.GRU, {"num_layers": 3, "bias": False}),
    (nn.GRU, {"bidirectional": True, "batch_first": True}),
    (nn.RNN, {"num_layers": 2, "nonlinearity": "relu"}),
]


@without_values
@pytest.mark.parametrize(("kind", "options"), RNNS)
def test_recurrent_networks(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    rnn = kind(12, 20, **options)
    there = copy.deepcopy(rnn).cuda()
    # Its weights lie in one buffer and keep what they hold.
    assert len({p.untyped_storage().data_ptr() for p in there.parameters()}) == 1
    for p, q in zip(rnn.parameters(), there.parameters(), strict=True):
        assert torch.equal(p.detach(), q.detach().cpu())
    before = kernels("RNN")
    (y, state), (_, expected) = like_on_cpu(rnn, torch.zeros(7, 3, 12))
    assert kernels("RNN") - before == 3  # forward, data, weights
    assert type(y.grad_fn).__name__ == "CudnnRnnBackward0"
    if not isinstance(state, tuple):
        state, expected = (state,), (expected,)
    assert [s.shape for s in state] == [s.shape for s in expected]


@without_values
def test_packed_sequences_and_inference() -> None:
    rnn = nn.LSTM(12, 20).cuda()
    x = torch.zeros(7, 3, 12, device="cuda", requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(x, [7, 5, 2])
    y, _ = rnn(packed)
    assert y.data.shape == (14, 20)
    y.data.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    with torch.no_grad():
        assert rnn.eval()(x)[0].shape == (7, 3, 20)


# ---- normalisation, attention and others


@without_values
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("layout", [NCHW, NHWC])
def test_batch_norm(layout: torch.memory_format, dtype: torch.dtype) -> None:
    norm = nn.BatchNorm2d(16).cuda()
    x = torch.zeros(4, 16, 8, 8, device="cuda", dtype=dtype).to(memory_format=layout)
    y = norm(x.requires_grad_())
    assert type(y.grad_fn).__name__ == "CudnnBatchNormBackward0"
    assert y.grad_fn._saved_result1.shape == (16,)
    y.sum().backward()
    assert x.grad is not None
    assert (y.dtype, y.stride(), x.grad.stride()) == (dtype, x.stride(), x.stride())
    before = kernels("cudnnBatchNormalizationForwardInference")
    norm.eval()(x)
    assert kernels("cudnnBatchNormalizationForwardInference") == before + 1


@without_values
@pytest.mark.parametrize(
    ("options", "kv_heads", "width"),
    [
        ({}, 8, 64),
        ({"is_causal": True}, 8, 128),
        ({"dropout_p": 0.125}, 8, 64),
        ({"is_causal": True, "enable_gqa": True}, 2, 128),
        ({"attn_mask": (2, 8, 96, 96)}, 8, 64),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention(options: dict[str, Any], kv_heads: int, width: int, dtype: torch.dtype) -> None:
    q, k, v = (
        torch.zeros(2, heads, 96, width, device="cuda", dtype=dtype, requires_grad=True)
        for heads in (8, kv_heads, kv_heads)
    )
    if shape := options.get("attn_mask"):
        options = {**options, "attn_mask": torch.zeros(shape, device="cuda", dtype=dtype)}
    before = kernels("cudnn_graph")
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        y = F.scaled_dot_product_attention(q, k, v, **options)
    assert type(y.grad_fn).__name__ == "ScaledDotProductCudnnAttentionBackward0"
    assert y.shape == q.shape
    assert y.grad_fn._saved_logsumexp.shape[:3] == (2, 8, 96)
    y.sum().backward()
    assert kernels("cudnn_graph") - before == 2
    assert all(t.grad is not None and t.grad.shape == t.shape for t in (q, k, v))


@without_values
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ctc_loss(device: str) -> None:
    scores = torch.zeros(20, 3, 10, device="cuda", requires_grad=True).log_softmax(2)
    labels = torch.ones(12, dtype=torch.int32).to(device)  # a copy is real, a fill is not
    lengths: list[Any] = [(20,) * 3, (4,) * 3]  # the CPU's are numbers
    if device == "cuda":
        lengths = [torch.tensor(n, dtype=torch.int32).cuda() for n in lengths]
    before = kernels("cudnnCTCLoss")
    F.ctc_loss(scores, labels, *lengths).backward()
    assert kernels("cudnnCTCLoss") == before + 1


@without_values
def test_grid_sampler() -> None:
    x = torch.zeros(2, 4, 8, 8, device="cuda", requires_grad=True)
    grid = torch.zeros(2, 5, 6, 2, device="cuda", requires_grad=True)
    y = F.grid_sample(x, grid, align_corners=True)
    assert type(y.grad_fn).__name__ == "CudnnGridSamplerBackward0"
    assert y.shape == (2, 4, 5, 6)
    y.sum().backward()
    assert x.grad is not None
    assert grid.grad is not None


# ---- whole programs


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, groups=4),
        nn.ConvTranspose2d(16, 8, 2, stride=2),
    ).cuda()


def train_convolutional() -> Callable[[], object]:
    model, x = convolutional(), torch.zeros(2, 3, 12, 12, device="cuda")
    model.zero_grad(set_to_none=False)
    return lambda: model(x).sum().backward()


def train_lstm() -> Callable[[], object]:
    model = nn.LSTM(8, 16, 2, dropout=0.5).cuda()
    x = torch.zeros(5, 3, 8, device="cuda")
    return lambda: model(x)[0].sum().backward()


@without_values
@pytest.mark.parametrize(("program", "count"), [(train_convolutional, 10), (train_lstm, 3)])
def test_capture(program: Callable[[], Callable[[], object]], count: int) -> None:
    """A call of cuDNN is one node, launched at every replay."""
    step = program()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    captured, replayed = kernels(which="captured"), kernels(which="replayed")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    assert kernels(which="captured") - captured == count
    graph.replay()
    graph.replay()
    assert kernels(which="replayed") - replayed == 2 * count


@without_values
def test_compiled_convolutions_call_cudnn() -> None:
    model, x = convolutional(), torch.zeros(2, 3, 12, 12, device="cuda")
    expected = model(x)
    before = kernels("cudnn_convolution")
    y = torch.compile(model, fullgraph=True)(x)
    y.sum().backward()
    assert kernels("cudnn_convolution") - before == 8  # the input needs no gradient
    assert (y.shape, y.stride()) == (expected.shape, expected.stride())
