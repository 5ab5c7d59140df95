"""Published measurements of device memory, and how each is simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Case:
    """A published measurement and the script that repeats it.

    Attributes:
        about: settings, in words.
        source: where it was published.
        figure: what was published, in ``unit``.
        counter: ``reserved`` (``torch.cuda.max_memory_reserved``) or ``allocated``
            (``max_memory_allocated``).
        then: versions that the figure was measured with.
        script: in ``simulate/``.
        needs: distributions that it imports; a version is that of the recorded outcome.
    """

    id: str
    about: str
    source: str
    figure: float
    unit: str
    counter: str
    gpu: str
    then: str
    script: str
    args: str = ""
    needs: tuple[str, ...] = ()
    quick: bool = False


def variants(common: Case, *rows: tuple[str, str, float, str, dict[str, object]]) -> list[Case]:
    """Cases that share all but id, settings, figure, arguments and what else a row names."""
    return [
        replace(common, id=common.id + name, about=about, figure=figure, args=args, **other)  # type: ignore[arg-type]
        for name, about, figure, args, other in rows
    ]


TEXTBOOK = Case(
    id="gpt2-",
    about="",
    source="https://github.com/rasbt/LLMs-from-scratch/blob/main/ch05/10_llm-training-speed/README.md",
    figure=0,
    unit="GiB",
    counter="reserved",
    gpu="a100-80gb",
    then="torch 2.6.0+cu124",
    script="gpt2_textbook.py",
)
LIGER = Case(
    id="liger-",
    about="",
    source="https://github.com/linkedin/Liger-Kernel/blob/main/benchmark/data/all_benchmark_data.csv",
    figure=0,
    unit="MiB",
    counter="allocated",
    gpu="a100-80gb",
    then="Liger-Kernel 0.2.1 (September 2024)",
    script="liger_kernels.py",
    needs=("liger_kernel==0.4.2", "transformers==4.46.3", "tokenizers"),
)
LITGPT = Case(
    id="litgpt-",
    about="",
    source="https://github.com/Lightning-AI/litgpt/blob/main/tutorials/resource-tables.md",
    figure=0,
    unit="GB",
    counter="allocated",
    gpu="a100-40gb",
    then="torch 2.1.0+cu121, LitGPT 8641822 (October 2023)",
    script="litgpt_lora.py",
    needs=("litgpt==0.5.11", "lightning"),
)

CASES = [
    *variants(
        TEXTBOOK,
        (
            "original",
            "GPT-2 124M out of elementwise operations, 8 x 1024, float32, AdamW",
            26.2617,
            "--level=original",
            {},
        ),
        (
            "causal-mask",
            "the same, masks made in the forward, fused AdamW, TF32",
            26.2422,
            "--level=causal-mask",
            {},
        ),
        ("bfloat16", "the same, bfloat16", 13.7871, "--level=bfloat16", {}),
        (
            "native-layers",
            "the same, torch's LayerNorm and GELU",
            11.5645,
            "--level=native-layers",
            {"quick": True},
        ),
        (
            "flash",
            "the same, scaled_dot_product_attention",
            5.9004,
            "--level=flash",
            {"quick": True},
        ),
        ("compile", "the same, torch.compile", 6.1875, "--level=compile", {}),
        (
            "padded-vocabulary",
            "the same, 50,304 words",
            5.8906,
            "--level=compile --vocabulary=50304",
            {},
        ),
        (
            "batch-32",
            "the same, 32 x 1024",
            22.5078,
            "--level=compile --vocabulary=50304 --batch=32",
            {},
        ),
    ),
    *variants(
        LIGER,
        (
            "cross-entropy-torch",
            "torch's cross entropy, 16384 x 32768, float32, forward and backward",
            10240.1259765625,
            "cross_entropy --size=32768",
            {"quick": True},
        ),
        (
            "cross-entropy",
            "Liger-Kernel's cross entropy (Triton), the same",
            2048.32861328125,
            "cross_entropy --liger --size=32768",
            {"quick": True},
        ),
        (
            "head-torch",
            "linear layer 4096 to 128,256 and cross entropy, 32768 rows, bf16",
            27582.5,
            "fused_linear_cross_entropy --size=32768",
            {"then": "Liger-Kernel 0.4.2 (November 2024)"},
        ),
        (
            "head",
            "Liger-Kernel's fused linear cross entropy (Triton), the same",
            5794.6259765625,
            "fused_linear_cross_entropy --liger --size=32768",
            {"then": "Liger-Kernel 0.4.2 (November 2024)"},
        ),
        (
            "geglu-torch",
            "gated feed-forward layer of Llama 2 7B, 8 x 2048, bf16",
            3452.25,
            "geglu --size=2048",
            {},
        ),
        (
            "geglu",
            "the same layer of Liger-Kernel (Triton)",
            2546.25,
            "geglu --liger --size=2048",
            {},
        ),
    ),
    *variants(
        LITGPT,
        (
            "phi-1.5-1",
            "LoRA of phi-1.5 (1.3 B), 1 x 1044, bf16",
            4.82,
            "--model=phi-1_5 --length=1044",
            {},
        ),
        (
            "phi-1.5-2",
            "the same, 2 x 1044",
            6.76,
            "--model=phi-1_5 --length=1044 --batch=2",
            {},
        ),
        (
            "phi-1.5-4",
            "the same, 4 x 1044",
            10.68,
            "--model=phi-1_5 --length=1044 --batch=4",
            {},
        ),
        (
            "llama2-7b-1",
            "LoRA of Llama 2 7B, 1 x 1304, bf16",
            21.30,
            "--model=Llama-2-7b-hf --length=1304",
            {},
        ),
        (
            "llama2-7b-2",
            "the same, 2 x 1304",
            29.07,
            "--model=Llama-2-7b-hf --length=1304 --batch=2",
            {},
        ),
        (
            "llama2-13b-1",
            "LoRA of Llama 2 13B, 1 x 1304, bf16",
            38.12,
            "--model=Llama-2-13b-hf --length=1304",
            {},
        ),
    ),
]
