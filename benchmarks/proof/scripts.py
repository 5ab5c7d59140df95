"""Simulated against real: eight scripts whose peaks ``memprof simulate`` said before.

``simulated.json`` beside the kit's folders has what was said, by card. Nothing is left out.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from functools import partial

import torch

from memprof.simulated_cuda.gpus import known_gpus
from proof.common import Part, Rows
from proof.subjects import ROOT

SCRIPT = ROOT / "benchmarks" / "train_models.py"
SIMULATED = ROOT / "simulated.json"
SCRIPTS = {
    "eager": "gpt2 --batch 4 --dtype float32",
    "compiled": "gpt2 --batch 4 --backend inductor",
    "checkpointed": "gpt2 --batch 4 --checkpoint",
    "AMP": "gpt2 --batch 4 --dtype float16",
    "bf16": "gpt2 --batch 4",
    "LoRA": "llama-lora --batch 1",
    "fused AdamW": "gpt2 --batch 4 --fused",
    "growing sizes": "gpt2 --batch 4 --grow",
}
"""Of so few sequences that several may run on a card at once."""
STEPS = ("--steps", "8")


def measure(rows: Rows, name: str) -> None:
    """Run one script in this process, read the allocator's counters, and say by how many per cent
    of the measured the simulated ones are off."""
    sys.argv = [str(SCRIPT), *SCRIPTS[name].split(), *STEPS]
    # As it was simulated: what Inductor benchmarks to choose kernels takes memory.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=os.environ["TRITON_CACHE_DIR"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = {
        "reserved": torch.cuda.max_memory_reserved(),
        "allocated": torch.cuda.max_memory_allocated(),
    }
    device = torch.cuda.get_device_properties(0)
    # Of several cards of one name the sizes differ, and the driver takes some of it.
    named = {
        abs(g.memory - device.total_memory): g.key for g in known_gpus() if g.name == device.name
    }
    card = named[min(named)] if named else ""
    cards = json.loads(SIMULATED.read_text(encoding="utf-8"))["cards"] if SIMULATED.exists() else {}
    said = cards.get(card, {}).get(name) or dict.fromkeys(found)
    off = {f"{k}_off": 100 * (n / found[k] - 1) if n else None for k, n in said.items()}
    rows.add(kind="peaks", **found, **{f"simulated_{k}": n for k, n in said.items()}, **off)


PART = Part(
    name="scripts",
    module="proof.scripts",
    about="Peaks of eight training scripts in bytes, by torch's allocator, beside what memprof "
    "simulate said of them beforehand for a card of this name; off in per cent of the measured.",
    cases={name: partial(measure, name=name) for name in SCRIPTS},
)
