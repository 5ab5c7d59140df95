"""The GPUs of ``gpus.toml``, and names and sizes as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.simulated_cuda import gpus
from memprof.simulated_cuda.errors import UnknownGpuError
from memprof.simulated_cuda.gpus import Gpu, find_gpu, known_gpus, parse_size

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H100 80GB", "h100-80gb"),
        ("h10080gb", "h100-80gb"),
        ("h200", "h200-141gb"),
        ("gh200", "gh200-96gb"),
        ("RTX4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("4090 laptop", "rtx-4090-laptop"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100 80GB", "a100-80gb"),
        ("a10", "a10"),
        ("t4", "t4"),
        ("v100-16gb", "v100-16gb"),
        ("l40", "l40"),
        ("L40_S", "l40s"),
        ("H20", "h20"),
        ("RTX A5000", "a5000"),
        ("3080ti", "rtx-3080-ti"),
        ("RTX 6000", "rtx-6000-ada"),
        ("RTX PRO 6000", "rtx-pro-6000-workstation"),
        ("RTX PRO 5000 Black", "rtx-pro-5000"),
        ("DGX Spark", "gb10"),
    ],
)
def test_a_gpu_is_found_as_people_write_its_name(name: str, key: str) -> None:
    assert find_gpu(name).key == key


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("h100", "may be any of h100-80gb, h100-pcie, h100-nvl: say which"),
        ("NVIDIA GeForce RTX 3080", "rtx-3080-12gb, rtx-3080-10gb: say which"),
        ("l2", "no GPU 'l2' is known; the nearest are l20"),
        ("rtx-4091", "nearest are .*rtx-4090"),
        ("", "there are h100-80gb, .*, t4, "),
        ("abacus", "there are h100-80gb, .*, t4, "),
    ],
)
def test_an_unknown_gpu_lists_what_there_is(name: str, says: str) -> None:
    with pytest.raises(UnknownGpuError, match=says):
        find_gpu(name)


@pytest.mark.parametrize("gpu", known_gpus(), ids=lambda gpu: gpu.key)
def test_every_gpu_is_well_formed_and_has_a_source(gpu: Gpu) -> None:
    assert gpu.key == gpu.key.lower()
    assert gpu.source.startswith("https://")
    assert " " not in gpu.source
    assert 4 * GIB < gpu.memory < 300 * GIB
    assert 1 << 20 <= gpu.l2_cache < 200 << 20
    assert 10 <= gpu.multiprocessors < 200
    assert gpu.limits.shared_per_block <= gpu.limits.shared_per_multiprocessor
    for name in (gpu.key, *gpu.aliases):
        assert find_gpu(name) is gpu


def test_the_gpus_that_people_rent_or_own_are_there() -> None:
    keys = {gpu.key for gpu in known_gpus()}
    assert len(keys) >= 60
    assert keys >= {"rtx-pro-5000", "rtx-pro-6000-workstation", "rtx-3090-ti", "l40s", "a10g"}
    assert keys >= {"h20", "b300", "h100-80gb", "b200", "gb300", "rtx-5090", "rtx-4090", "t4"}


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        ("memory = 1", "memory = 0", "no size"),
        ("memory = 1", 'memory = "1 apple"', "no size"),
        ("memory = 1", "", "memory"),
        ("multiprocessors = 1", "", "multiprocessors"),
        ("multiprocessors = 1", "multiprocessors = 1\nshaders = 128", "shaders"),
        ("capability = [9, 0]", "capability = [1, 3]", "no limits of compute capability 1.3"),
        ("source = ", "source_of_memory = ", "source"),
    ],
)
def test_a_table_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, instead: str, says: str
) -> None:
    lines = ("[abacus]", 'name = "Abacus"', "memory = 1", "capability = [9, 0]")
    table = "\n".join((*lines, "multiprocessors = 1", "l2_cache = 1", 'source = "https://a"'))
    rows = tmp_path / "gpus.toml"
    monkeypatch.setattr(gpus, "_ROWS", rows)
    rows.write_text(table)
    assert [gpu.key for gpu in known_gpus.__wrapped__()] == ["abacus"]
    rows.write_text(table.replace(line, instead))
    with pytest.raises(ValueError, match=rf"^gpus\.toml: \[abacus\]: .*{says}"):
        known_gpus.__wrapped__()


def test_an_installation_has_the_gpus() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"memprof.simulated_cuda" = ["functions.txt", "gpus.toml", ' in text
    assert (ROOT / "memprof" / "simulated_cuda" / "gpus.toml").is_file()


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 << 30), ("24 GB", 24 * 10**9), ("81559MiB", 81559 << 20), ("1.5kib", 1536)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0GB", "-1GiB", "80 apples", "GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)
