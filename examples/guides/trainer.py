"""transformers' Trainer with memprof: docs/guides/transformers.md."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from memprof.integrations.transformers import MemprofCallback

small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=512, num_hidden_layers=2, **small)
model = LlamaForCausalLM(config)
# In the place of torch_compile=True, torch_compile_backend="memprof".
model.compile(backend="memprof")

tokens = torch.randint(512, (64, 32))
data = [{"input_ids": row, "labels": row} for row in tokens]
settings = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    max_steps=4,
    save_strategy="no",
    report_to="none",
)
memory = MemprofCallback("run.memprof", steps="steps.jsonl", on_oom="oom.memprof")
Trainer(model, settings, train_dataset=data, callbacks=[memory]).train()
memory.session.report()
