"""What a serving engine took, in words of its own: weights, cache, graphs by size."""

from __future__ import annotations

from pathlib import Path

import pytest

from .engine import SCRIPT, write_engine
from .test_simulate import MIB, adds_up, memprof, rows, simulate

READY = ("--until", "Application startup complete")
GIB = 1 << 30
WEIGHTS = 4 * 4 * MIB


@pytest.mark.simgpu
def test_an_engine_has_rows_for_weights_cache_and_graphs(tmp_path: Path) -> None:
    write_engine(tmp_path)
    device = ("--gpu", "h100-80gb", "--memory", "8GiB")
    status, result, errors = simulate(tmp_path, SCRIPT, *READY, *device, arguments=("0.5", "2048"))
    assert status == 0, errors
    (rank,) = result["ranks"]
    (engine,) = rank["serving"]
    # THEN the engine's own figures are there, and add up to what it was given
    assert engine["weights"] == WEIGHTS
    cache = engine["kv_cache"]
    assert 0 <= 4 * GIB - WEIGHTS - 64 * MIB - cache < 32 * MIB
    assert engine["tokens"] == engine["blocks"] * 16 == cache // 4 // 4096 * 16
    # AND graphs by the size for which they were captured: of the largest, which comes first, two
    # layers' results are there at once, and the other one takes their place
    first, second = engine["graph_sizes"]
    assert (first["size"], first["graphs"], second["size"], second["graphs"]) == (32, 1, 8, 1)
    assert first["grew"] >= 2 * 32 * 4 * MIB
    assert second["grew"] == 0
    # AND the account knows weights by module, and the cache by the attribute that modules have it
    # as, though the engine has frozen Python's collector
    (account,) = rank["accounts"]
    assert adds_up(account)
    found = rows(result)
    assert (found["parameter"], found["persistent_state"]) == (WEIGHTS, cache)
    modules = {row["modules"]: row["nbytes"] for row in account["rows"]}
    assert modules["Model > Layer.kv_cache"] == cache
    # AND a table says so
    script = str(tmp_path / "script.py")
    done = memprof("simulate", *READY, *device, "--", "python", script, "0.5", "2048")
    assert "captured for batches of" in done.stdout
    assert "1  32 tokens" in done.stdout
