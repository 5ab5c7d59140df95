"""Starts serving engines on the simulated device, and says how far off published figures it is.

    serving.py ENGINE

Models have random weights and the shapes of those that were published: folders with a
configuration and a tokenizer, in out/models. Run it with the Python of ``make serving-env``. It
fails where a figure is further off than its tolerance.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import ROOT, Table, options, save

GIB = 2**30
MODELS = ROOT / "out" / "models"
SERVERS, ALONE = (
    Path(__file__).parent / "simulate" / name for name in ("two_servers.py", "one_rank.py")
)

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": {
        **_LLAMA,
        "vocab_size": 2048,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
    },
    "llama-3-8b": {
        **_LLAMA,
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    },
    "llama-3-70b": {
        **_LLAMA,
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    },
    "qwen-half": {
        **_LLAMA,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
}

Figure = Callable[[dict[str, Any]], float]
"""A figure of what ``memprof simulate --json`` says."""


def _of_engine(name: str, unit: int = 1) -> Figure:
    def figure(result: dict[str, Any]) -> float:
        value: float = result["ranks"][0]["serving"][0][name] / unit
        return value

    return figure


WEIGHTS, CACHE, TOKENS = (
    _of_engine("weights", GIB),
    _of_engine("kv_cache", GIB),
    _of_engine("tokens"),
)


def at_once(result: dict[str, Any]) -> float:
    """The most that all processes had of the first device, in GiB."""
    used: float = result["ranks"][0]["used_at_once_bytes"][0] / GIB
    return used


@dataclass(frozen=True)
class Published:
    """A figure that somebody published, None where nobody did, and how far off ours may be."""

    what: str
    figure: Figure
    published: float | None = None
    tolerance: float = 0.003
    source: str = ""


@dataclass(frozen=True)
class Case:
    """An engine as it is started, and its figures; ``first`` is whether vLLM's first model runner
    runs."""

    about: str
    device: str
    command: str
    figures: tuple[Published, ...]
    first: bool = False


_SMALL = (
    "vllm serve {qwen-half} --gpu-memory-utilization 0.85 --max-model-len 2048 "
    "--max-num-seqs 128 --max-num-batched-tokens 16384"
)
"""Both runners have the same cache without graphs in the source, so that the model's layers and not
the sampler take most in the profile run: docs/serving.md."""
_CARD = "--gpu rtx-pro-6000-server"
_RUNNERS = "vllm#50159"
VLLM = (
    Case(
        "tiny Llama to readiness",
        "--gpu h100-80gb",
        "vllm serve {tiny} --max-num-seqs 16",
        (Published("tokens", TOKENS),),
    ),
    Case(
        "Llama-3-8B",
        "--gpu h100-80gb",
        "vllm serve {llama-3-8b}",
        (Published("weights, GiB", WEIGHTS, 14.96, 0.001, "vllm PR 10511"),),
    ),
    Case(
        "Qwen2.5-0.5B, eager, 0.92",
        "--gpu a100-40gb --memory 39.49GiB",
        "vllm serve {qwen-half} --gpu-memory-utilization 0.92 --enforce-eager",
        (
            Published("weights, GiB", WEIGHTS, 0.93, 0.006, "kvcached#448"),
            Published("cache, GiB", CACHE, 34.70, source="kvcached#448"),
        ),
        first=True,
    ),
    Case(
        "Qwen2.5-0.5B, 0.85, eager, first runner",
        _CARD,
        f"{_SMALL} --enforce-eager",
        (Published("tokens", TOKENS, 6_908_880, source=_RUNNERS),),
        first=True,
    ),
    Case(
        "the same with graphs",
        _CARD,
        _SMALL,
        (Published("tokens", TOKENS, 6_891_296, source=_RUNNERS),),
        first=True,
    ),
    Case(
        "the same, eager, second runner",
        _CARD,
        f"{_SMALL} --enforce-eager",
        (Published("tokens", TOKENS, 6_908_880, source=_RUNNERS),),
    ),
    Case(
        "the same with graphs",
        _CARD,
        _SMALL,
        (Published("tokens", TOKENS, 6_900_336, source=_RUNNERS),),
    ),
    Case(
        "two servers of the tiny Llama, 0.4 each, on one GPU",
        "--gpu h100-80gb --until both-serve",
        f"python {SERVERS} {{tiny}}",
        (Published("at once, GiB", at_once),),
    ),
    Case(
        "Llama-3-70B, rank 0 of eight alone",
        "--gpu h100-80gb --world-size 8 --ranks 0 --to-the-end",
        f"python {ALONE} {{llama-3-70b}} 8",
        (Published("weights, GiB", WEIGHTS), Published("cache, GiB", CACHE)),
    ),
    Case(
        "Llama-3-8B on two ranks",
        "--gpu h100-80gb --devices 2",
        "vllm serve {llama-3-8b} -tp 2",
        (Published("weights, GiB", WEIGHTS, 7.48, 0.001, "vllm PR 10511"),),
    ),
)
SGLANG = (
    Case(
        "tiny Llama to readiness",
        "--gpu h100-80gb",
        "python -m sglang.launch_server --model-path {tiny}",
        (Published("tokens", TOKENS),),
    ),
    Case(
        "Llama-3-8B",
        "--gpu h100-80gb",
        "python -m sglang.launch_server --model-path {llama-3-8b}",
        (
            Published("weights, GiB", WEIGHTS, 14.96, 0.002, "vllm PR 10511"),
            Published("cache, GiB", CACHE),
            Published("tokens", TOKENS),
        ),
    ),
)
CASES = {"vllm": VLLM, "sglang": SGLANG}


def make_model(name: str) -> Path:
    """Folder of a model that has a configuration, a tokenizer of 2,000 words, and no weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = MODELS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    words = models.WordLevel({f"t{i}": i for i in range(2000)}, unk_token="t0")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "t0", "eos_token": "t1", "bos_token": "t2", "pad_token": "t3"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**kind, **special}))
    return folder


def simulate(case: Case, port: int) -> dict[str, Any]:
    """What ``memprof simulate --json`` says of a case; its exit status and messages if nothing."""
    words = [word.format_map(_MODELS) for word in case.command.split()]
    served = ["--load-format", "dummy", "--port", str(port)]
    command = [sys.executable, "-m", "memprof", "simulate", "--json", "--timeout", "1500"]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "OMP_NUM_THREADS": "1",
    }
    if case.first:
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    done = subprocess.run(
        [*command, *case.device.split(), "--", *words, *served],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        return {"failed": f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


class _Models(dict[str, str]):
    def __missing__(self, name: str) -> str:
        self[name] = str(make_model(name))
        return self[name]


_MODELS = _Models()


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("engine", choices=CASES)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="cases that have it in their name"
    )
    args = parser.parse_args()
    columns = {"case": -52, "figure": -12, "published": 12, "simulated": 12, "off": 8, "s": 5}
    table = Table({**columns, "source": -14})
    results, missed = [], 0
    cases = [case for case in CASES[args.engine] if args.only in case.about]
    # Another engine's cases may run beside these.
    for port, case in enumerate(cases[: 1 if args.quick else None], 8200 + os.getpid() % 20_000):
        began = time.monotonic()
        result = simulate(case, port)
        seconds = time.monotonic() - began
        for figure in case.figures:
            if "failed" in result:
                missed += 1
                table.row([case.about, figure.what, "", result["failed"], "", f"{seconds:.0f}", ""])
                continue
            ours = figure.figure(result)
            shown = f"{ours:,.0f}" if ours > 1000 else f"{ours:.3f}"
            off, theirs = "", "-"
            if figure.published is not None:
                share = ours / figure.published - 1
                off, theirs = f"{100 * share:+.2f} %", f"{figure.published:,}"
                missed += abs(share) > figure.tolerance
            row = [case.about, figure.what, theirs, shown, off, f"{seconds:.0f}", figure.source]
            table.row(row)
            results.append(row)
    if args.save:
        save(results)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
