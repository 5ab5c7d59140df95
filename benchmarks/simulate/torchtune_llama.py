"""Llama 3.2 3B as torchtune fine-tunes it on one device: two packed sequences of 4,096 tokens a
step, bfloat16, and the optimisations of its README one after the other.

Needs torchtune (0.6.1) and torchao. Model, losses, checkpointing, attention masks and adapters are
torchtune's; the loop is that of its recipes without a data set and a checkpoint.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torchtune import training
from torchtune.data import padded_collate_packed
from torchtune.models.llama3_2 import llama3_2_3b, lora_llama3_2_3b
from torchtune.modules import TransformerSelfAttentionLayer
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.modules.peft import get_adapter_params, set_trainable_params

LENGTH, BATCH, VOCABULARY, IGNORED = 4096, 2, 128256, -100
DOCUMENT = 128
"""Tokens of one example in a packed sequence."""


def batch() -> dict[str, Tensor]:
    positions = torch.arange(DOCUMENT).repeat(LENGTH // DOCUMENT)
    packs = [
        {
            "tokens": torch.randint(VOCABULARY, (LENGTH,)),
            "labels": torch.randint(VOCABULARY, (LENGTH,)),
            "input_pos": positions,
            "seq_lens": torch.full((LENGTH // DOCUMENT,), DOCUMENT),
        }
        for _ in range(BATCH)
    ]
    collated: dict[str, Tensor] = padded_collate_packed(packs)
    return {name: value.to("cuda") for name, value in collated.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--chunked-loss", action="store_true")
    parser.add_argument("--checkpoint", action="store_true", help="each layer")
    parser.add_argument("--optimizer-in-backward", action="store_true")
    parser.add_argument("--lora", action="store_true", help="rank 64, all layers, as its config")
    parser.add_argument("--offload", action="store_true", help="activations, to the host")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    with training.set_default_dtype(torch.bfloat16), torch.device("cuda"):
        if args.lora:
            model = lora_llama3_2_3b(
                ["q_proj", "v_proj", "output_proj"],
                apply_lora_to_mlp=True,
                lora_rank=64,
                lora_alpha=128,
            )
            set_trainable_params(model, get_adapter_params(model))
        else:
            model = llama3_2_3b()
    loss_function: nn.Module = (
        CEWithChunkedOutputLoss(ignore_index=IGNORED)
        if args.chunked_loss
        else nn.CrossEntropyLoss(ignore_index=IGNORED)
    )
    if args.chunked_loss:
        model.set_num_output_chunks(loss_function.num_output_chunks)
    if args.compile:
        training.compile_model(model)
        loss_function = training.compile_loss(loss_function)
    if args.checkpoint:
        training.set_activation_checkpointing(model, {TransformerSelfAttentionLayer})
    offloading = training.get_act_offloading_ctx_manager(model, args.offload)

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = None
    if args.optimizer_in_backward:
        training.register_optim_in_bwd_hooks(
            model=model,
            optim_dict={p: torch.optim.AdamW([p], lr=2e-5, fused=True) for p in trained},
        )
    else:
        optimizer = torch.optim.AdamW(trained, lr=2e-5, fused=True)

    ignored = torch.full((BATCH, 1), IGNORED, device="cuda")
    for _ in range(args.steps):
        inputs = batch()
        labels = inputs.pop("labels")
        with offloading:
            logits = model(**inputs)
        labels = torch.hstack((labels[..., 1:], ignored))
        if not args.chunked_loss:
            labels, logits = labels.reshape(-1), logits.reshape(-1, logits.size(-1))
        loss = loss_function(logits, labels)
        del logits
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
