"""Trains Qwen models with random weights, as FakeGPU's authors did on two real GPUs.

One step of one sequence: full parameters or LoRA, alone or under FSDP2 or FSDP; or tokens that are
generated after a prompt. Whatever loading takes is left out of the peak.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

HYBRID = {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 16,
    "tie_word_embeddings": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3.5-0.8b": {**HYBRID, "hidden_size": 1024, "intermediate_size": 3584},
    "qwen3.5-2b": {**HYBRID, "hidden_size": 2048, "intermediate_size": 6144},
    "qwen3-8b": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}


def make_model(name: str, *, lora: bool, checkpoint: bool) -> torch.nn.Module:
    """The model on the device, in bfloat16; parameters of LoRA stay in float32."""
    config = AutoConfig.for_model(**CONFIGS[name])
    torch.set_default_dtype(torch.bfloat16)
    with no_init_weights():  # Memory that nobody writes takes none of the host's.
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    model.tie_weights()
    model.config.use_cache = False
    if lora:
        from peft import LoraConfig, get_peft_model

        adapters = LoraConfig(
            r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = get_peft_model(model, adapters)
    if checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if lora:
            model.enable_input_require_grads()
    return model.train().to("cuda:0")


def sharded(model: torch.nn.Module, how: str) -> torch.nn.Module:
    """The model with each decoder layer sharded, and what is left."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("nccl")
    (layers,) = (m for n, m in model.named_modules() if n.endswith("model.layers"))
    if how == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(layers[0])}),
            backward_prefetch=None,
            device_id=torch.device("cuda:0"),
        )
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    return model


def train(model: torch.nn.Module, length: int, accumulate: int) -> None:
    batches = []
    for _ in range(accumulate):
        ids = torch.randint(100, 248320, (1, length))
        labels = ids.clone()
        labels[:, : length // 2] = -100
        positions = torch.arange(length).expand(3, 1, length).clone()
        names = ("input_ids", "labels", "position_ids")
        batches.append(dict(zip(names, (t.cuda() for t in (ids, labels, positions)), strict=True)))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=False)
    torch.cuda.reset_peak_memory_stats()
    outputs = loss = None
    for batch in batches:
        del outputs, loss
        outputs = model(**batch, use_cache=False)
        loss = outputs.loss / accumulate
        loss.backward()
    optimizer.step()


@torch.inference_mode()
def generate(model: torch.nn.Module, prompt: int, tokens: int) -> None:
    ids, past = torch.randint(100, 1000, (1, prompt), device="cuda:0"), None
    torch.cuda.reset_peak_memory_stats()
    for i in range(tokens):
        mask = torch.ones(1, prompt + i, dtype=torch.int64, device="cuda:0")
        outputs = model(ids, attention_mask=mask, past_key_values=past, use_cache=True)
        ids, past = outputs.logits[:, -1:].argmax(-1), outputs.past_key_values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CONFIGS, required=True)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--shard", choices=("fsdp", "fsdp2"))
    parser.add_argument("--generate", type=int, help="so many tokens, in the place of training")
    args = parser.parse_args()
    # A model that is not trained is made where it stays: a host may have no memory for it.
    with torch.device("cpu" if args.generate is None else "cuda:0"):
        model = make_model(args.model, lora=args.lora, checkpoint=args.checkpoint)
    if args.shard:
        model = sharded(model, args.shard)
    if args.generate is not None:
        generate(model.eval(), args.length, args.generate)
    else:
        train(model, args.length, args.accumulate)


if __name__ == "__main__":
    main()
