"""TRL's SFTTrainer with a LoRA adapter of PEFT, and memprof: docs/guides/trl.md."""

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from memprof.integrations.transformers import MemprofCallback

small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
llama = LlamaForCausalLM(LlamaConfig(vocab_size=512, num_hidden_layers=2, **small))
model = get_peft_model(llama, LoraConfig(target_modules=["q_proj", "v_proj"]))
model.compile(backend="memprof")
words = Tokenizer(models.WordLevel({"</s>": 0}, unk_token="</s>"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>")
data = Dataset.from_dict({"input_ids": torch.randint(512, (16, 32)).tolist()})

memory = MemprofCallback("run.memprof", steps="steps.jsonl", on_oom="oom.memprof")
settings = SFTConfig("out", max_steps=3, bf16=False, save_strategy="no", report_to="none")
trainer = SFTTrainer(
    model, settings, train_dataset=data, processing_class=tokenizer, callbacks=[memory]
)
trainer.train()
memory.session.report()
