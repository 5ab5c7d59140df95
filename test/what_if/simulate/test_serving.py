"""What a serving engine took, in words of its own: weights, cache, graphs by size."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from memprof.simulated_cuda import control
from memprof.simulated_cuda.gpus import find_gpu
from memprof.what_if.simulate import sglang, vllm
from memprof.what_if.simulate.engine_memory import Serving
from memprof.what_if.simulate.failures import Failure
from memprof.what_if.simulate.parent import Simulation
from memprof.what_if.simulate.processes import ProcessOutcome
from memprof.what_if.simulate.request import Outcome
from memprof.what_if.simulate.result import render
from memprof.what_if.simulate.serving import refusal

from .engine import (
    ALONE,
    BESIDE,
    ENDING,
    ENDING_EARLY,
    ENDING_WITH_RANKS,
    IN_PROCESS,
    ONE_AFTER_THE_OTHER,
    SCRIPT,
    SGLANG,
    write_engine,
    write_sglang,
)
from .test_simulate import MIB, adds_up, memprof, one_rank, rows, simulate

READY = ("--until", "Application startup complete")
GIB = 1 << 30
WEIGHTS = 4 * 4 * MIB


DEVICE = ("--gpu", "h100-80gb", "--memory", "8GiB")


def serve(folder: Path, script: str, *options: str) -> dict[str, Any]:
    """The result of a script with the stand-in engine, which may take half of 8 GiB."""
    write_engine(folder)
    result, _ = simulate(folder, script, *options, *DEVICE, arguments=("0.5", "2048"))
    return result


@pytest.mark.simgpu
def test_an_engine_has_rows_for_weights_cache_and_graphs(tmp_path: Path) -> None:
    result = serve(tmp_path, SCRIPT, *READY)
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
    # AND what a driver would take, which the engine saw in use
    beside = {part["what"]: part["nbytes"] for part in account["outside"]}
    assert beside["executable CUDA graphs"] == 3072 * (first["kernels"] + second["kernels"]) > 0
    assert beside["an engine's kernels, cuBLAS"] == 108 * MIB
    pages = sum(-(-nbytes // (2 * MIB)) * 2 * MIB for nbytes in beside.values())
    assert rank["used_at_once_bytes"][0] >= account["reserved"] + pages
    # AND a table says so
    script = str(tmp_path / "script.py")
    done = memprof("simulate", *READY, *DEVICE, "--", "python", script, "0.5", "2048")
    assert "captured for batches of" in done.stdout
    assert "1  32 tokens" in done.stdout


@pytest.mark.simgpu
@pytest.mark.parametrize("script", [ENDING, ENDING_EARLY, ENDING_WITH_RANKS])
def test_a_script_that_ends_does_not_wait_for_its_engine_that_is_ready(
    tmp_path: Path, script: str
) -> None:
    result = serve(tmp_path, script, "--timeout", "120")
    (rank,) = result["ranks"]
    assert rank["ended"] == "the script ended"
    assert [process["lost"] for process in rank["processes"]] == [False]
    # THEN what the engine took last is there
    (engine,) = rank["serving"]
    assert engine["weights"] == WEIGHTS
    assert len(engine["graph_sizes"]) == 2
    assert rows(result)["input"] >= 16 * MIB


@pytest.mark.simgpu
def test_an_engine_in_the_script_s_process_is_not_left_while_it_starts(tmp_path: Path) -> None:
    (rank,) = serve(tmp_path, IN_PROCESS)["ranks"]
    assert rank["ended"] == "the script ended"
    assert len(rank["serving"][0]["graph_sizes"]) == 2


@pytest.mark.simgpu
def test_an_engine_that_is_gone_leaves_nothing_but_kernels_for_the_next(tmp_path: Path) -> None:
    write_engine(tmp_path)
    result, errors = simulate(tmp_path, ONE_AFTER_THE_OTHER, *DEVICE, arguments=("0.5", "2048"))
    assert re.findall(r"^(\d+) bytes left", errors, re.MULTILINE) == ["0", "0"]
    (rank,) = result["ranks"]
    # THEN both could have the same cache, and figures are there of what is gone
    (engine,) = rank["serving"]
    assert 0 <= 4 * GIB - WEIGHTS - 64 * MIB - engine["kv_cache"] < 32 * MIB
    assert engine["graphs"] > 0
    # AND a process loads its kernels once
    beside = {part["what"]: part["nbytes"] for part in rank["accounts"][0]["outside"]}
    assert beside["an engine's kernels, cuBLAS"] == 108 * MIB


OUT_OF_MEMORY = """
import torch
from vllm.serving import engine_of_ranks, main
from vllm.v1.worker.gpu_worker import Worker

Worker.compile_or_warm_up_model = lambda self: torch.empty(9 << 30, device="cuda")

if __name__ == "__main__":
    main(target=engine_of_ranks)
"""


@pytest.mark.simgpu
def test_a_worker_that_catches_an_out_of_memory_does_not_fit(tmp_path: Path) -> None:
    write_engine(tmp_path)
    arguments = ("0.5", "2048")
    rank = one_rank(
        tmp_path, OUT_OF_MEMORY, *READY, *DEVICE, "--timeout", "120", arguments=arguments, status=1
    )
    assert rank["fits"] is False
    assert [a["failure"]["requested"] for a in rank["failed_at"]] == [36 << 30]


@pytest.mark.simgpu
def test_a_scheduler_that_is_killed_for_its_out_of_memory_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sglang(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    command = ("--json", "--", "-m", "sglang.launch_server", "{GIB}")
    done = memprof("fit", "--memory", "8GiB", "--vary", "GIB=2..16:2", *command)
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["best"]["values"], row["failed"]["values"]) == ({"GIB": "6"}, {"GIB": "8"})
    assert row["failed"]["limit"].startswith("8.00 GiB")


def test_a_draft_model_does_not_stand_for_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    target = SimpleNamespace(max_total_num_tokens=8000, is_draft_worker=False)
    draft = SimpleNamespace(max_total_num_tokens=8000, is_draft_worker=True)
    for runner, weights in ((target, 16.0), (draft, 1.0)):
        runner.weight_load_mem_usage = weights
    monkeypatch.setattr(sglang, "_figures", [])
    for runner in (target, draft):
        sglang._record(runner)
    found = sglang.serving()
    assert found is not None
    assert found.weights == 16 * GIB


@pytest.mark.parametrize("simulated", [True, False])
def test_a_forward_samples_a_token_on_the_simulated_device_alone(
    monkeypatch: pytest.MonkeyPatch, simulated: bool
) -> None:
    class GPUModelRunner:
        def sample(
            self, hidden_states: object, input_batch: Any, grammar: object
        ) -> tuple[object, torch.Tensor, torch.Tensor]:
            zeros = torch.zeros(2, dtype=torch.int32)
            return grammar, zeros, zeros + 7

    monkeypatch.setattr(control, "simulated", lambda: simulated)
    module: Any = ModuleType("model_runner")
    module.GPUModelRunner = GPUModelRunner
    vllm._runner_is_there(module)
    batch = SimpleNamespace(
        num_computed_tokens_np=np.array([0, 4]),
        num_scheduled_tokens=np.array([4, 4]),
        prefill_len_np=np.array([8, 8]),
        num_draft_tokens_per_req=np.array([3, 3]),
    )
    # THEN the request whose prompt was read to its end has one, however arguments are named, and
    # none of its drafts is accepted
    runner = GPUModelRunner()
    grammar, counts, rejected = runner.sample(hidden_states=None, input_batch=batch, grammar="json")
    assert (grammar, counts.tolist()) == ("json", [0, int(simulated)])
    assert rejected.tolist() == ([0, 3] if simulated else [7, 7])


@pytest.mark.simgpu
def test_a_script_that_ends_waits_for_what_runs_beside_its_engine(tmp_path: Path) -> None:
    (rank,) = serve(tmp_path, BESIDE)["ranks"]
    # THEN what the slow process took is counted, though it took it after the script's end
    taken = {p["name"]: p["accounts"][0]["reserved"] for p in rank["processes"]}
    assert taken["slow"] == 512 * MIB
    assert len(taken) == 2


@pytest.mark.simgpu
def test_a_pool_that_no_module_has_and_kernels_that_nobody_compiles(tmp_path: Path) -> None:
    write_sglang(tmp_path)
    result, _ = simulate(tmp_path, SGLANG, "--gpu", "h100-80gb", "--memory", "4GiB")
    (rank,) = result["ranks"]
    (engine,) = rank["serving"]
    cache = engine["kv_cache"]
    assert engine["engine"] == "SGLang 0.5.17"
    assert (engine["weights"], engine["tokens"]) == (4 * MIB, cache // 1024)
    sizes = [(s["size"], s["unit"], s["graphs"]) for s in engine["graph_sizes"]]
    of_decoding = [(2, "requests", 1), (4, "requests", 1)]
    assert sorted(sizes) == [(0, "tokens", 1), *of_decoding, (4, "tokens", 1)]
    found = rows(result)
    assert (found["parameter"], found["persistent_state"]) == (4 * MIB, cache)
    modules = {row["modules"]: row["nbytes"] for row in rank["accounts"][0]["rows"]}
    assert modules["Pool.kv_buffer"] == cache // 4 * 3
    assert modules["Indexer.state"] == cache // 4


def test_workers_that_are_alike_are_counted() -> None:
    workers = [Serving(engine="vLLM 0.26.0", tokens=tokens) for tokens in (5, 5, 7)]
    processes = [ProcessOutcome(process=pid, serving=w) for pid, w in enumerate(workers)]
    outcome = Outcome(serving=None, processes=processes)
    assert outcome.engines == workers
    text = render([Simulation(find_gpu("h100-80gb"), True, None, outcome)])
    assert text.count("vLLM 0.26.0, each of 2 workers") == 1
    assert text.count("vLLM 0.26.0\n") == 1


@pytest.mark.simgpu
def test_a_rank_alone_has_no_queue_to_its_peers(tmp_path: Path) -> None:
    write_engine(tmp_path)
    simulate(tmp_path, ALONE, "--world-size", "2")
    _, errors = simulate(tmp_path, ALONE, status=3)
    assert "the other ranks do not answer" in errors


SYMMETRIC = """
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory

dist.init_process_group("nccl")
torch.ones(1, device="cuda")
buffer = _symmetric_memory.empty(1 << 20, device="cuda")
try:
    _symmetric_memory.rendezvous(buffer, dist.group.WORLD.group_name)
except RuntimeError as e:
    print(e)
"""


@pytest.mark.simgpu
def test_a_rank_alone_has_symmetric_memory_of_its_own_and_waits_for_nobody_s(
    tmp_path: Path,
) -> None:
    options = ("--world-size", "2", "--to-the-end")
    result, errors = simulate(tmp_path, SYMMETRIC, *options)
    assert "one rank alone has no symmetric memory" in errors
    (account,) = result["ranks"][0]["accounts"]
    beside = {part["what"]: part["nbytes"] for part in account["outside"]}
    # Signals lie beside the 4 MiB, and a device hands out 2 MiB.
    assert beside["symmetric memory, buffers"] == 6 * MIB


def test_an_engine_whose_cache_does_not_fit_is_known_by_what_it_says() -> None:
    def failure(message: str) -> Failure:
        return Failure(kind="ValueError", message=message, trace="")

    found = failure("No available memory for the cache blocks. Try increasing this.")
    assert refusal((None, failure("Engine core failed."), found)) == found.message.partition(".")[0]
    assert refusal((failure("Engine core failed. No available memory"),)) == ""


@pytest.mark.parametrize(("counts", "activations"), [(True, 2 * MIB), (False, 5 * MIB)])
def test_a_worker_whose_layers_share_an_allocation(
    monkeypatch: pytest.MonkeyPatch, counts: bool, activations: int
) -> None:
    # GIVEN a worker with the names of vLLM 0.33, which may take its estimate of graphs off or not
    of_layers = [SimpleNamespace(size=10 * MIB, layer_stride=MIB) for _ in range(4)]
    config = SimpleNamespace(kv_cache_tensors=of_layers, num_blocks=10)
    worker = SimpleNamespace(
        model_runner=SimpleNamespace(model_memory_usage=MIB),
        total_consumed=2 * MIB,
        peak_activation_memory=5 * MIB,
        cudagraph_memory_estimate=3 * MIB,
    )
    environment: Any = ModuleType("vllm.envs")
    environment.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS = counts
    monkeypatch.setitem(sys.modules, "vllm.envs", environment)
    monkeypatch.setattr(vllm, "_WORKERS", vllm._Workers())
    vllm._initializes(worker, config)
    found = vllm.serving()
    assert found is not None
    assert (found.kv_cache, found.blocks, found.activations) == (10 * MIB, 10, activations)
    assert (found.weights, found.graphs_estimated, found.outside) == (MIB, 3 * MIB, None)


def test_a_refusal_is_said_in_the_engines_words() -> None:
    failed = Failure(kind="RuntimeError", message="Engine core failed.", trace="")
    outcome = Outcome(refusal="No available memory for the cache blocks", failure=failed, status=1)
    text = render([Simulation(find_gpu("h100-80gb"), False, None, outcome)])
    assert text.startswith("Does not fit NVIDIA H100")
    assert "the engine ended: No available memory for the cache blocks" in text
    assert "1 TiB" not in text


@pytest.mark.simgpu
def test_the_largest_share_of_the_memory_that_an_engine_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_engine(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    command = ("--json", "--", "-m", "vllm.entrypoints.main", "serve")
    # GIVEN too few tokens for the longest request with half of the memory
    device = ("--memory", "2GiB", "--vary", "UTIL=0.1..0.9:0.1")
    done = memprof("fit", *device, *command, "{UTIL}", "2000000", status=1)
    # THEN the first value is refused, in the engine's words, and that is no failure of the script
    (row,) = json.loads(done.stdout)["rows"]
    assert row["failed"]["values"] == {"UTIL": "0.1"}
    assert row["failed"]["limit"].startswith("3.00 GiB is needed, larger than")
    # AND where all fit, the graphs, which come last, decide
    done = memprof("fit", *device, "--at-least-tokens", "10000", *command, "{UTIL}", "2048")
    (row,) = json.loads(done.stdout)["rows"]
    assert row["best"]["tokens"] >= 10000
    assert float(row["best"]["values"]["UTIL"]) < 0.9
    assert row["failed"]["values"]["UTIL"] == f"{float(row['best']['values']['UTIL']) + 0.1:.1f}"
