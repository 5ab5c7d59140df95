"""Values to pretend, and experts that get the same number of tokens."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from memprof.what_if.simulate import pretend
from memprof.what_if.simulate.command_line import BadInput
from memprof.what_if.simulate.pretend import HostReads, Pretence, parse_pretence

from .test_simulate import simulate


def test_a_line_and_its_values() -> None:
    parsed = parse_pretence("./src/train.py:42=7, -0.5,1e3,true,FALSE")
    assert parsed == Pretence("src/train.py", 42, (7, -0.5, 1000.0, True, False))
    assert [type(v) for v in parsed.values] == [int, float, float, bool, bool]
    assert math.isnan(parse_pretence("C:/a b.py:1=nan").values[0])


@pytest.mark.parametrize(
    "text", ["train.py:42", "train.py=3", ":3=1", "train.py:x=1", "train.py:4=", "train.py:4=1,,2"]
)
def test_what_is_no_line_or_no_value(text: str) -> None:
    with pytest.raises(BadInput, match=r"FILE:LINE=VALUE|is no value"):
        parse_pretence(text)


def test_a_file_is_named_by_the_end_of_its_path() -> None:
    pretence = Pretence("src/train.py", 3, (1,))
    assert pretence.means("/home/me/src/train.py", 3)
    assert pretence.means("src/train.py", 3)
    assert not pretence.means("/home/me/mysrc/train.py", 3)
    assert not pretence.means("/home/me/src/train.py", 4)
    assert Pretence("/home/me/train.py", 3, (1,)).means("/home/me/train.py", 3)


@pytest.mark.parametrize(
    ("value", "dtype", "nbytes", "expected"),
    [
        (1.5, "torch.float32", 4, struct.pack("<f", 1.5)),
        (1, "torch.float32", 4, struct.pack("<f", 1.0)),
        (-3, "torch.int64", 8, struct.pack("<q", -3)),
        (True, "torch.bool", 1, b"\1"),
        (2.0, "torch.bool", 1, b"\1"),
        (1.0, "torch.bfloat16", 2, b"\x80\x3f"),
        (-2.5, "torch.bfloat16", 2, b"\x20\xc0"),
        (0.5, "torch.float16", 2, struct.pack("<e", 0.5)),
        (7, None, 4, struct.pack("<i", 7)),
        (7, None, 8, struct.pack("<q", 7)),
    ],
)
def test_bytes_of_a_value(value: float, dtype: str | None, nbytes: int, expected: bytes) -> None:
    assert pretend._encode(value, dtype, nbytes) == expected


def test_what_does_not_fit_is_said() -> None:
    import ctypes

    buffer = ctypes.create_string_buffer(b"abcd", 4)
    pretences = HostReads([Pretence("a.py", 1, (0.5,)), Pretence("a.py", 2, (1,))])
    pretences.apply("a.py", 1, 4, ctypes.addressof(buffer))
    assert buffer.raw == b"abcd"
    assert list(pretences.misfits) == [
        "--pretend a.py:1: 0.5 cannot be a number of 4 bytes that torch itself reads "
        "(it is no integer)"
    ]
    assert pretences.unused() == [
        "--pretend a.py:2: that line never looked at a value of the device"
    ]


LOOKS = """
import torch
x = torch.randn(8, device="cuda")
steps = 0
while x.sum().item() > 0.5:  # 4
    steps += 1
assert steps == 2, steps
assert x.half().tolist() == [0.25] * 8  # 7
assert torch.isfinite(x).all()  # 8
found = x.nonzero()  # 9
assert found.shape == (5, 1), found.shape
assert x.cpu().tolist() == [0.0] * 8
x.int().cpu()  # 12
assert x.sum().item() != x.sum().item()  # 13
assert [(x > 0).sum().item() for _ in range(3)] == [1, 2, 2]  # 14
"""


@pytest.mark.simgpu
def test_lines_find_what_was_given(tmp_path: Path) -> None:
    # GIVEN a script that looks at values in every way
    lines = {text.rpartition("# ")[2]: i for i, text in enumerate(LOOKS.splitlines(), 1)}
    given = {"4": "2,1.5,0", "7": "0.25", "8": "true", "9": "5", "12": "0.5"}
    given |= {"13": "nan", "14": "1,2"}
    options = [f"--pretend=script.py:{lines[key]}={value}" for key, value in given.items()]
    # WHEN it is simulated with values for its lines, for one that never looks, and one that is torn
    result, _ = simulate(tmp_path, LOOKS, *options, "--pretend=other.py:1=1")
    # THEN it finds them
    # AND is told what did not come to pass
    assert result["ranks"][0]["notes"] == [
        f"--pretend script.py:{lines['12']}: 0.5 cannot be torch.int32 (it is no integer)",
        "--pretend other.py:1: that line never looked at a value of the device",
    ]


EXPERTS = """
import torch
E, K, T, D = 8, 2, 64, 32
experts = torch.nn.ModuleList(torch.nn.Linear(D, D, device="cuda") for _ in range(E))
x = torch.randn(T, D, device="cuda")
weights, chosen = torch.randn(T, E, device="cuda").softmax(-1).topk(K)
# as transformers does it
mask = torch.nn.functional.one_hot(chosen, E).permute(2, 1, 0)
rows = []
for e in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
    k, t = torch.where(mask[e].squeeze(0))
    (experts[e](x[t]) * weights[t, k, None]).sum().backward()
    rows.append(len(t))
assert rows == [T * K // E] * E, rows
# as torchtitan does it
flat = chosen.view(-1)
assert torch.histc(flat, bins=E, min=0, max=E).tolist() == rows
order = torch.argsort(flat, stable=True)
assert flat[order].tolist() == sorted(flat.tolist())
# and others
assert torch.bincount(flat).tolist() == rows
assert flat.unique().tolist() == list(range(E))
assert all(len(set(row)) == K for row in chosen.tolist())
counts, names = torch.bincount(flat), torch.arange(E, device="cuda")
assert names.repeat_interleave(counts).tolist() == sorted(flat.tolist())
assert torch.randn(5, 3, 4, device="cuda").topk(2, dim=1).indices.amax() == 2
# random numbers are not computed
assert torch.rand(4, device="cuda").sum().item() == 0
"""


@pytest.mark.simgpu
def test_experts_get_their_share(tmp_path: Path) -> None:
    simulate(tmp_path, EXPERTS, "--balanced-experts")


NOT_ONLY_ROUTERS = """
import torch
torch.use_deterministic_algorithms(True)
zero = (torch.rand(8, device="cuda") >= 0).sum()  # of floating point numbers: 0 here, 8 there
x = torch.arange(8, device="cuda")
assert (x // zero).numel() == 8 and x.gather(0, (zero - 1).expand(8)).numel() == 8
twice = torch.zeros(8, dtype=torch.int64, device="cuda")
twice.index_add_(0, torch.tensor([0, 1] * 8).cuda(), torch.ones_like(twice).repeat(2))
assert twice.tolist() == [8, 8, 0, 0, 0, 0, 0, 0], twice
assert torch.equal(x, x) and not torch.equal(x, x + 1)
torch._foreach_add_([x, twice], 1)
assert x.tolist() == list(range(1, 9)) and twice[2] == 1
assert x.flip(0).cummin(0).values.tolist() == list(range(8, 0, -1))
assert torch.tensor([5, 1, 9]).cuda().topk(1).indices.item() == 2
scores = torch.rand(4, 3, device="cuda")
out = torch.empty(4, 1, device="cuda"), torch.empty(4, 1, dtype=torch.int64, device="cuda")
torch.topk(scores, 1, out=out)
assert out[1].flatten().tolist() == [0, 1, 2, 0]
assert not torch.rand(2, 50_000, device="cuda").topk(3).indices.any()  # a vocabulary
assert x[x > 2].numel() == 2  # pretended

@torch.compile(backend="eager")
def route(scores):
    chosen = scores.sigmoid().topk(1).indices.flatten()
    return [len((chosen == e).nonzero()) for e in range(3)]

assert route(scores) == [2, 1, 1]
"""


@pytest.mark.simgpu
def test_integers_of_all_kinds_with_a_value_pretended(tmp_path: Path) -> None:
    line = 1 + NOT_ONLY_ROUTERS.splitlines().index("assert x[x > 2].numel() == 2  # pretended")
    both = ("--balanced-experts", f"--pretend=script.py:{line}=2")
    result, error = simulate(tmp_path, NOT_ONLY_ROUTERS, *both)
    assert result["ranks"][0]["notes"] == []
    assert error.count("is not computed") == 2, error


@pytest.mark.simgpu
def test_ranks_get_their_share(tmp_path: Path) -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
counts = torch.arange(8, device="cuda")  # tokens for each of 8 experts, two a rank
got = torch.empty_like(counts)
dist.all_to_all_single(got, counts)
assert got.tolist() == [2, 3] * 4, got  # what each rank sends to the experts of rank 1
dist.all_to_all_single(got.zero_(), counts, [2] * 4, [2] * 4)
assert got.tolist() == [2, 3] * 4, got
import torch.distributed._functional_collectives as functional
got = functional.all_to_all_single(counts, None, None, dist.group.WORLD)
assert got.tolist() == [2, 3] * 4, got
parts = [torch.empty(2, dtype=torch.int64, device="cuda") for _ in range(4)]
dist.all_to_all(parts, list(counts.split(2)))
assert [p.tolist() for p in parts] == [[2, 3]] * 4, parts
"""
    options = ("--world-size=4", "--rank=1")
    simulate(tmp_path, source, *options, "--balanced-experts")


LAST_LAYER = """
import torch

class Loss(torch.autograd.Function):  # as kernels of Liger are: its gradient comes with the forward
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.empty_like(x))
        return torch.zeros((), device=x.device)
    @staticmethod
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        if torch.equal(g, torch.tensor(1.0, device=g.device)):  # the line
            return d
        return g * d

x = torch.empty(1 << 20, device="cuda", requires_grad=True)
Loss.apply(x).backward()
assert torch.cuda.max_memory_allocated() >> 20 == 2 * 4  # x and its gradient
x.grad = None
scale = torch.rand((), device="cuda")
(Loss.apply(x) * scale).backward()
"""


@pytest.mark.simgpu
def test_a_figure_that_hangs_on_a_value(tmp_path: Path) -> None:
    # GIVEN a backward that has one tensor less where it begins with 1, and one that does not
    lines = enumerate(LAST_LAYER.splitlines(), 1)
    where = next(f"script.py:{i}" for i, line in lines if line.endswith("# the line"))
    # WHEN they are simulated
    result, _ = simulate(tmp_path, LAST_LAYER)
    # THEN the first found the 1
    # AND the second could not know it, which the verdict says
    (said,) = result["ranks"][0]["notes"]
    assert said.startswith(f"the result may depend on {where}, which looked at a value")
    assert f"found false: --pretend {where}=true" in said
    assert result["ranks"][0]["allocated_bytes"] // (4 << 20) == 3
    # AND the other way can be asked for
    result, _ = simulate(tmp_path, LAST_LAYER, f"--pretend={where}=true")
    assert result["ranks"][0]["notes"] == []
    assert result["ranks"][0]["allocated_bytes"] // (4 << 20) == 2


@pytest.mark.simgpu
def test_a_loss_that_is_looked_at_decides_nothing_nor_does_what_is_saved(tmp_path: Path) -> None:
    source = """
import os, torch

for dtype in (torch.float32, torch.bfloat16):
    print(torch.rand(4, device="cuda", dtype=dtype).sum().item())
torch.save([torch.rand(4, device="cuda"), torch.rand((), device="cuda")], os.devnull)
"""
    result, _ = simulate(tmp_path, source)
    assert result["ranks"][0]["notes"] == []
