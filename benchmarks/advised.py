"""Findings and changes that `memprof advise` tries, at real size: what was estimated beside what
was saved. A part of `what_if.py`, `--only advise`.

Compiled by `backend="memprof"` each model is profiled, and what its report finds is tried; as plain
eager code the changes of which an account tells what to expect. An estimate is of bytes that are
allocated; that of expandable segments is of bytes that are reserved. A bound is met where no more
was saved.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lines import Lines

MODELS = ("gpt2", "llama-lora", "resnet50", "bert-large")
GPU = "h100-80gb"
EXPECTED = ("expandable-segments", "checkpoint", "fused-optimizer", "bf16-state")
OFF = 0.10

Run = Callable[..., Any]


def rows_of(model: str, how: str, document: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each change of `advise --json` that was estimated and had something to change."""
    rows = []
    for r in document["results"]:
        if r["estimate"] is None or r["idle"] or len(r["changes"]) > 1:
            continue
        (change,) = r["changes"]
        row = {"model": model, "how": how, "change": change, "finding": r["finding"]}
        if r["problem"]:
            rows.append({**row, "problem": r["problem"], "met": False})
            continue
        estimate = r["estimate"]
        saved = r["saved" if change == "expandable-segments" else "saved_allocated"]
        off = (estimate - saved) / saved if saved > 0 else None
        slack = OFF * max(saved, 0) + 0.01 * document["before"]["allocated"] * (not estimate)
        least = 0 if r["at_most"] else estimate - slack
        rows.append(
            {
                **row,
                "estimate": estimate,
                "at_most": r["at_most"],
                "saved": saved,
                "off": off,
                "needs_less": r["saved"],
                "recomputed": r["recomputed"],
                "met": least <= saved <= estimate + slack,
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table of MiB."""
    table = Lines(
        *(("model", -10), ("how", -8), ("change", -44), ("estimated", 12), ("saved", 9)),
        *(("off", 7), ("bounds", -7)),
    )
    table.header()
    for r in rows:
        if "problem" in r:
            print(f"  {r['model']} {r['how']}, {r['change']}: failed: {r['problem']}")
            continue
        most = "≤ " * bool(r["at_most"] and r["estimate"])
        table.row(
            [
                *(r["model"], r["how"], r["change"][:44]),
                *(f"{most}{r['estimate'] / 2**20:,.1f}", f"{r['saved'] / 2**20:,.1f}"),
                "" if r["off"] is None or r["at_most"] else f"{100 * r['off']:+.1f} %",
                "met" if r["met"] else "NOT MET",
            ]
        )


def advised(models: tuple[str, ...], memprof: Run) -> list[dict[str, Any]]:
    """Profile, try and compare each of these models.

    Args:
        models: of `train_models.py`.
        memprof: runs the program, as in `what_if.py`.
    """
    script = str(Path(__file__).with_name("train_models.py"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            path = str(Path(folder, f"{model}.memprof"))
            compiled = ("--", "python", script, model, "--backend", "memprof")
            memprof("simulate", "-q", "--gpu", GPU, "-o", path, *compiled)
            eager = ("--try", ",".join(EXPECTED), "--", "python", script, model)
            for how, words in (("compiled", (path, "--try", *compiled)), ("eager", eager)):
                ran = memprof("advise", "-q", "--json", "--gpu", GPU, *words)
                if ran.returncode:
                    print(f"  {model}, {how}: {ran.returncode}: {ran.stderr[-500:]}", flush=True)
                    rows.append({"model": model, "how": how, "problem": "", "change": "", "met": 0})
                    continue
                rows += rows_of(model, how, json.loads(ran.stdout))
    show(rows)
    return rows
