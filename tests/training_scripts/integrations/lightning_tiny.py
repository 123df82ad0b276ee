"""Lightning on random numbers: one layer with dropout, 12 steps, three epochs; the order of the data is random."""

import logging
import os
import signal
import sys
import warnings
from contextlib import nullcontext, suppress

import torch
from torch.utils.data import DataLoader, TensorDataset

from cloudtrain.runtime import destroy_process_group, detect_environment, integrations

if os.environ.get("PACKAGE") == "pytorch_lightning":
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class Tiny(pl.LightningModule):
    """Learns to add up. The last rank is asked to stop in step STOP_AT."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )
        self.steps = 0

    def training_step(self, batch, _index):
        """The loss of one batch."""
        self.steps += 1
        if self.steps == int(os.environ.get("STOP_AT") or 0) and self.is_last_rank:
            os.kill(os.getpid(), signal.SIGTERM)
        loss = (self.layers(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _index):
        """The loss of a batch that is not trained on."""
        self.log("validation/loss", self.layers(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.05)

    @property
    def is_last_rank(self):
        return self.trainer.global_rank == self.trainer.world_size - 1


def train():
    """One whole training; from the newest checkpoint, if there is one."""
    pl.seed_everything(1)
    data = TensorDataset(torch.randn(32, 4))
    environment = detect_environment()
    processes = environment.world_size
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(
        data,
        batch_size=8 // processes,
        shuffle=True,
        num_workers=int(os.environ.get("WORKERS", "0")),
    )
    integrations.fit(trainer, Tiny(), loader, DataLoader(data, batch_size=16))


if __name__ == "__main__":
    # `folder` or `folder:step`, one after the other; the latter is stopped in its step
    for training in sys.argv[1:]:
        os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], _, os.environ["STOP_AT"] = training.partition(":")
        with suppress(SystemExit) if len(sys.argv) > 2 else nullcontext():
            train()
        print("trained", flush=True)
    destroy_process_group()
