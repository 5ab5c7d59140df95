"""Trains ResNet-50 on made-up pictures with Lightning, in mixed precision.

    python examples/simulate/resnet_lightning.py
    torchrun --nproc-per-node 8 examples/simulate/resnet_lightning.py --devices 8
    memprof simulate --gpu t4 -- python examples/simulate/resnet_lightning.py
    memprof simulate --gpu t4 --world-size 8 -- \\
        python examples/simulate/resnet_lightning.py --devices 8

Needs lightning. Started by torchrun, or as one rank of it, Lightning starts no processes itself.
"""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.nn.functional as F
from resnet import resnet50
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """As many as ImageNet has, of noise."""

    def __len__(self) -> int:
        return 1_281_167

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.rand(3, 224, 224), torch.tensor(index % 1000)


class Classifier(lightning.LightningModule):
    """ResNet-50 as its authors trained it: SGD with momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.model = resnet50()

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        pictures, classes = batch
        loss = F.cross_entropy(self.model(pictures), classes)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128, help="pictures of each GPU")
    parser.add_argument("--workers", type=int, default=2, help="processes that load data")
    parser.add_argument("--devices", type=int, default=1, help="GPUs of each host")
    args = parser.parse_args()

    loader = DataLoader(
        Pictures(), batch_size=args.batch, num_workers=args.workers, pin_memory=True, shuffle=True
    )
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=args.devices,
        precision="16-mixed",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
