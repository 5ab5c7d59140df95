"""What `memprof fit`, its budgets and the gates promise, run as a user runs them.

    make bench-what-if                      # everything: half an hour on two idle cores
    make bench-what-if ARGS=--quick         # one model on one GPU, three runs of a gate
    make bench-what-if ARGS='--only fit,gate --save'

Each part runs `memprof` or `pytest` in processes of their own and prints a figure beside its bound:

* *fit*: the largest batch of three models on three GPUs, in at most ten tries and three minutes;
  the next larger one was seen to run out of memory;
* *budget*: a compiled Llama 3.2 1B with LoRA on devices between what it needs with all recomputed
  and with nothing: how far below the device's memory the chosen setting stays;
* *gate*: GPT-2 124M under `limit_device_memory`: seconds with a warm cache, equal figures in a
  hundred runs, and whether some 3 % more in one module fails with that module's name.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from lines import Lines, results, write_json

HERE = Path(__file__).parent
RESULTS = results("what_if.json")
MODELS = ("gpt2", "llama-lora", "resnet50")
GPUS = ("t4", "a100-40gb", "h100-80gb")
TRIES, SECONDS = 10, 180.0

GATE = """
import sys

import pytest

sys.path.insert(0, {here!r})
import torch
import train_models

LAST = {wider}


@pytest.mark.limit_device_memory("40 GiB", gpu="a100-40gb", growth="0 %")
def test_gpt2():
    model = train_models.MODELS["gpt2"][0](12)
    if LAST:
        block = model.blocks[5]
        block.up = torch.nn.Linear(block.up.in_features, LAST)
        block.down = torch.nn.Linear(LAST, block.down.out_features)
    model = train_models.WithLoss(model).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.zeros(8, 1024, dtype=torch.long, device="cuda")
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def memprof(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program `memprof`."""
    command = [sys.executable, "-m", "memprof", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def cpu_seconds() -> float:
    """Processor time of all that was run so far: what a busy machine does not stretch."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fit(models: tuple[str, ...], gpus: tuple[str, ...]) -> list[dict[str, Any]]:
    """The largest batch of each model on each GPU."""
    table = Lines(
        *(("model", -10), ("GPU", -9), ("batch", 6), ("needs GiB", 9), ("next", -7)),
        *(("tries", 6), ("seconds", 8), ("of CPU", 7), ("bounds", -6)),
    )
    table.header()
    rows = []
    for model in models:
        for gpu in gpus:
            begin, used = time.monotonic(), cpu_seconds()
            ran = memprof(
                *("fit", "-q", "--json", "--gpu", gpu, "--vary", "BATCH=1..4096", "--"),
                *("python", str(HERE / "train_models.py"), model, "--batch", "{BATCH}"),
            )
            took, used = time.monotonic() - begin, cpu_seconds() - used
            if ran.returncode > 1:  # 1: not even one fits, which is an answer.
                print(f"  {model} on {gpu} ended with {ran.returncode}: {ran.stderr[-500:]}")
                rows.append({"model": model, "gpu": gpu, "met": False})
                continue
            document = json.loads(ran.stdout)
            row = document["rows"][0]
            best = row["best"]
            batch = int(best["values"]["BATCH"]) if best else 0
            after = row["failed"] and int(row["failed"]["values"]["BATCH"])
            tries = len(row["tries"])
            met = after == batch + 1 and tries <= TRIES and took <= SECONDS
            needs = best["needed"] if best else None
            made = {"model": model, "gpu": gpu, "batch": batch, "needs": needs, "next": after}
            rows.append({**made, "tries": tries, "seconds": took, "cpu_seconds": used, "met": met})
            table.row(
                [
                    *(model, gpu, str(batch), f"{needs / 2**30:.2f}" if needs else "-"),
                    *("fails" if after == batch + 1 else str(after), str(tries)),
                    *(f"{took:.0f}", f"{used:.0f}", "met" if met else "NOT MET"),
                ]
            )
    return rows


ALLOCATOR = ("--env", "PYTORCH_ALLOC_CONF=expandable_segments:True")
"""Who wants the last percent of a device has no use for free memory in pieces."""


def budget(layers: int) -> list[dict[str, Any]]:
    """Settings for devices of several sizes, and how near to the size they come."""
    script = str(HERE / "train_models.py")
    how = ("llama-lora", "--layers", str(layers), "--backend", "inductor")
    command = ("python", script, *how)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tries = str(Path(folder, "tries.json"))

        def at(memory: int) -> dict[str, Any]:
            where = ("--memory", f"{memory}B", "-o", tries, "--budget", "-q", "--json", *ALLOCATOR)
            ran = memprof("fit", *where, "--", *command)
            if ran.returncode > 1:
                raise SystemExit(f"memprof fit --budget ended with {ran.returncode}: {ran.stderr}")
            row: dict[str, Any] = json.loads(ran.stdout)["rows"][0]
            return row

        begin = time.monotonic()
        curve = at(80 << 30)["tries"]
        needs = [int(t["needed"]) for t in curve]
        print(f"  needs {min(needs) / 2**30:.2f} to {max(needs) / 2**30:.2f} GiB", flush=True)
        for share in (0.25, 0.5, 0.75):
            asked = int(min(needs) + share * (max(needs) - min(needs)))
            best = at(asked)["best"]
            left = (asked - best["needed"]) / asked
            row = {"asked": asked, "budget": best["values"], "needs": best["needed"], "left": left}
            rows.append({**row, "met": 0 <= left <= 0.01, "seconds": time.monotonic() - begin})
            print(
                f"  asked {asked / 2**30:6.2f} GiB: {best['values']} needs "
                f"{best['needed'] / 2**30:6.2f} GiB, {100 * left:.2f} % below it, "
                f"{'met' if rows[-1]['met'] else 'NOT MET'}",
                flush=True,
            )
    return rows


def gate(runs: int) -> list[dict[str, Any]]:
    """A gate's seconds, whether its figure is the same each time, and what its failure names."""
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_gate.py")

        def run(wider: int = 0, *arguments: str) -> tuple[int, str, float]:
            test.write_text(GATE.format(here=str(HERE), wider=wider))
            begin = time.monotonic()
            ran = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)),
                    *("--memprof-table", str(Path(folder, "table.json")), *arguments),
                ],
                capture_output=True,
                text=True,
                cwd=folder,
                check=False,
                env={k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"},
            )
            return ran.returncode, ran.stdout + ran.stderr, time.monotonic() - begin

        status, said, _ = run(0, "--memprof-update")
        if status:
            raise SystemExit(f"the gate did not run: {said}")
        seen: set[str] = set()
        seconds = []
        for _ in range(runs):
            status, said, took = run()
            seconds.append(took)
            seen.add(f"{status} {Path(folder, 'table.json').read_text()}")
        # About 3 % of all that is allocated, in one module: its width goes into weights, gradients,
        # moments and activations alike.
        status, said, _ = run(3072 + 4096)
        grown = re.search(r"([\d.]+) % more than its baseline", said)
        named = "blocks" in said or "Block" in said
    rows: list[dict[str, Any]] = [
        {"what": "seconds with a warm cache", "figure": max(seconds), "met": max(seconds) < 30},
        {"what": f"figures of {runs} runs", "figure": len(seen), "met": len(seen) == 1},
        {
            "what": "growth of one module in percent, failed by name",
            "figure": float(grown.group(1)) if grown else None,
            "met": status == 1 and named and grown is not None,
        },
    ]
    for row in rows:
        print(f"  {row['what']}: {row['figure']}, {'met' if row['met'] else 'NOT MET'}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="fit,budget,gate", help="some of these parts")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument("--layers", type=int, default=16, help="of the Llama whose budget varies")
    parser.add_argument("--runs", type=int, default=100, help="of the gate")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--save", action="store_true", help=f"write out/results/{RESULTS.name}")
    args = parser.parse_args()
    if args.quick:
        args.only, args.models, args.gpus, args.runs = "fit,gate", "resnet50", "t4", 3
    models, gpus = tuple(args.models.split(",")), tuple(args.gpus.split(","))
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "fit": lambda: fit(models, gpus),
        "budget": lambda: budget(args.layers),
        "gate": lambda: gate(args.runs),
    }
    found = {}
    for name in args.only.split(","):
        print(f"{name}:", flush=True)
        found[name] = parts[name]()
    if args.save:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        known.update(found)
        known["machine"] = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
        write_json(known, RESULTS)
    if not all(row["met"] for rows in found.values() for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
