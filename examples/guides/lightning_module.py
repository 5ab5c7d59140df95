"""Lightning's Trainer with memprof: docs/guides/lightning.md."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from memprof.integrations.lightning import MemprofCallback


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def training_step(self, batch, number):
        return self.model(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


memory = MemprofCallback("run.memprof", steps="steps.jsonl", on_oom="oom.memprof")
trainer = lightning.Trainer(max_epochs=1, callbacks=[memory], enable_checkpointing=False)
module = torch.compile(Regression(), backend="memprof")
trainer.fit(module, DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=8))
memory.session.report()
