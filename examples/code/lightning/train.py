"""A small network learns Python's own manual with the Trainer of Lightning.

python train.py --max_epochs 2
"""

import argparse
import pydoc_data.topics

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

from cloudtrain.runtime import (
    checkpoint_dir,
    destroy_process_group,
    detect_environment,
    integrations,
    model_dir,
)

CONTEXT = 16  # bytes


class Manual(pl.LightningModule):
    """Predicts the byte after a text of CONTEXT bytes."""

    def __init__(self, width: int, learning_rate: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        read = nn.Sequential(nn.Embedding(256, 32), nn.Flatten())
        think = nn.Sequential(nn.Linear(32 * CONTEXT, width), nn.ReLU())
        write = nn.Sequential(nn.Dropout(0.1), nn.Linear(width, 256))
        self.layers = nn.Sequential(read, think, write)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = cross_entropy(self.layers(batch[0][:, :-1]), batch[0][:, -1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        loss = cross_entropy(self.layers(batch[0][:, :-1]), batch[0][:, -1])
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), self.learning_rate)
        steps = self.trainer.estimated_stepping_batches
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        schedule = {"scheduler": rate, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def loaders(batch_size: int, workers: int) -> tuple[DataLoader, DataLoader]:
    text = "\n".join(pydoc_data.topics.topics.values()).encode()
    rows = torch.tensor(list(text[: 16384 + CONTEXT])).unfold(0, CONTEXT + 1, 1)
    train, held_out = random_split(TensorDataset(rows), [0.875, 0.125])
    return (
        DataLoader(train, batch_size, shuffle=True, num_workers=workers),
        DataLoader(held_out, batch_size),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=128, help="per process")
    parser.add_argument("--learning_rate", type=float, default=0.003)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--workers", type=int, default=0, help="of a data loader")
    options = parser.parse_args()

    pl.seed_everything(1)
    best = ModelCheckpoint(checkpoint_dir() / "best", monitor="val_loss")
    trainer = pl.Trainer(
        max_epochs=options.max_epochs,
        devices=detect_environment().local_world_size,
        num_nodes=detect_environment().node_count,
        callbacks=[best],
        log_every_n_steps=10,
    )
    model = Manual(options.width, options.learning_rate)
    data = loaders(options.batch_size, options.workers)
    integrations.fit(trainer, model, *data)
    trainer.save_checkpoint(model_dir() / "model.ckpt")
    destroy_process_group()
