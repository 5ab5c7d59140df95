"""``memprof.estimate`` beside arithmetic, on the simulated device."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

import memprof
from memprof.simulated_cuda.errors import UnknownGpuError

pytestmark = pytest.mark.simgpu

WIDTH = 1024
WEIGHT = 4 * WIDTH * WIDTH


def model(layers: int) -> torch.nn.Module:
    with torch.device("meta"):
        return torch.nn.Sequential(
            *(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))
        )


def test_training_takes_weights_gradients_and_state() -> None:
    batch = torch.empty(8, WIDTH, device="meta")
    adam = functools.partial(torch.optim.AdamW, fused=True)
    found = memprof.estimate(model(4), batch, optimizer=adam, device="a100-40gb")
    assert found.fits
    by_category = {p.label: n for p, n in found.profile().accounts[0].by_category().items()}
    assert by_category["parameter"] == 4 * WEIGHT
    assert by_category["optimizer state"] == 2 * 4 * WEIGHT + 4 * 4
    assert found.allocated >= 4 * 4 * WEIGHT
    assert ", fits NVIDIA A100" in repr(found)
    # The second step is the first that has the optimizer's state from its start.
    found = memprof.estimate(model(4), batch, optimizer=adam, device="a100-40gb", steps=1)
    assert found.fits is None
    assert "one optimizer step was seen" in found.undecided
    assert "undecided whether it fits" in repr(found)


def test_inference_keeps_no_activations_and_a_small_gpu_is_too_small() -> None:
    batch = torch.empty(1 << 20, WIDTH, device="meta")  # 4 GiB
    found = memprof.estimate(model(2), batch, device="h100-80gb")
    assert 3 * batch.nbytes <= found.allocated < 4 * batch.nbytes
    found = memprof.estimate(model(2), batch, device="t4", steps=1)
    assert found.fits is (found.needed <= found.total)


def test_what_fails_says_where() -> None:
    batch = torch.empty(8, WIDTH + 1, device="meta")
    with pytest.raises(memprof.EstimateFailed, match="RuntimeError") as failed:
        memprof.estimate(model(1), batch)
    assert "Linear" in failed.value.trace or "linear" in failed.value.trace
    with pytest.raises(UnknownGpuError):
        memprof.estimate(model(1), batch, device="abacus")
    with pytest.raises(ValueError, match="steps is 0"):
        memprof.estimate(model(1), batch, steps=0)


@pytest.mark.parametrize("status", [0, 3])
def test_a_model_that_ends_its_process_is_no_estimate(status: int) -> None:
    def leaves(x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(status)

    with pytest.raises(memprof.EstimateFailed, match=rf"SystemExit\({status}\)"):
        memprof.estimate(leaves, torch.empty(8, device="meta"))


def test_compiled_code_takes_as_much_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    net = torch.nn.Sequential(model(1), torch.nn.ReLU(), model(1))
    batch = torch.empty(WIDTH, WIDTH, device="meta")

    def needed() -> int:
        return memprof.estimate(net, batch, optimizer=torch.optim.AdamW, compile=True).needed

    assert needed() == needed()
