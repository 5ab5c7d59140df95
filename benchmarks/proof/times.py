"""Time: a step under memprof, Inductor and reduce-overhead, blocks of steps taken by turns.

Each way has a model of its own, all in one process. Of a block of steps there are two times: until
the host has asked for everything, and until the device has done it. Inductor a second time is the
control for the noise.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import memory_models
import torch
from shared import own_code

import memprof
from memprof.cudagraph_trees.replay import native
from proof import subjects
from proof.common import Part, Rows, ledger, spread
from proof.subjects import CONTENDERS, Compiler

PROFILED = "memprof, profile() open"


def one_token(compiler: Compiler, layers: int) -> Callable[[], None]:
    """Layers of Llama 3.2 1B in bfloat16, asked for one token, with a static cache for 2048."""
    with torch.device("cuda"):
        model = memory_models.Llama(layers).to(torch.bfloat16).eval()
        for block in model.blocks:
            block.attention.add_cache(1, 2048)
        token, position = torch.zeros(1, 1, dtype=torch.long), torch.full((1,), 512)
    forward = compiler(own_code(lambda: model(token, position)))
    return torch.no_grad()(forward)


def measure(rows: Rows, build: Callable[..., Callable[[], None]], layers: int) -> None:
    """Milliseconds a step of each way, and its ratio to Inductor's of the same round."""
    native.build()  # what users have from their second process on
    layers, rounds = (1, 2) if rows.simulated else (layers, 15)
    steps = {
        name: build(partial(torch.compile, **how), layers=layers)
        for name, how in CONTENDERS.items()
    }
    steps[PROFILED] = steps["memprof"]
    for step in steps.values():
        block(step, 8)
    # A tenth of a second each.
    count = 2 if rows.simulated else max(1, int(100 / block(steps["inductor"], 10)[1]))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for i in range(rounds):
        # In turn each would always follow the same one, and find the clock that it left.
        for name in random.Random(i).sample([*steps], len(steps)):
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                if name == PROFILED:
                    stack.enter_context(memprof.profile(f"{folder}/run.memprof"))
                block(steps[name], 1)
                times[name].append(block(steps[name], count))
    for name, samples in times.items():
        host, whole = zip(*samples, strict=True)
        ratios = [m[1] / i[1] for m, i in zip(samples, times["inductor"], strict=True)]
        rows.add(
            kind="step",
            contender=name,
            block=count,
            step_ms=spread(whole),
            host_ms=spread(host),
            ratio=statistics.median(ratios),
        )
    rows.add(kind="graphs", **ledger())


def block(step: Callable[[], object], count: int) -> tuple[float, float]:
    """Milliseconds a step of so many: until the host is through, and until the device is."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        torch.compiler.cudagraph_mark_step_begin()
        step()
    on_host = time.perf_counter() - began
    torch.cuda.synchronize()
    return on_host / count * 1e3, (time.perf_counter() - began) / count * 1e3


PART = Part(
    name="times",
    module="proof.times",
    about="Milliseconds a step: host_ms until everything is asked for, step_ms until it is done; "
    "ratio is the median over rounds of a block to Inductor's block of the same round.",
    cases={
        "GPT-2 124M training": partial(
            measure, build=partial(subjects.gpt_step, name="124M", batch=8, tokens=1024), layers=12
        ),
        "Llama, 4 layers, one token": partial(measure, build=one_token, layers=4),
        "tiny training": partial(
            measure, build=partial(subjects.gpt_step, name="tiny", batch=2, tokens=64), layers=1
        ),
    },
    alone=lambda case: True,
)
