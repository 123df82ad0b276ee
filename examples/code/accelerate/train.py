"""Four clouds of points told apart, with Accelerate: nothing of cloudtrain but metric lines and folders.

accelerate launch --num_processes 2 train.py      or the job examples/accelerate.yaml
"""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from cloudtrain import runtime

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--learning_rate", type=float, default=0.01)
options = parser.parse_args()

# without GPUs it needs telling, or ranks train alone
accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(1)
labels = torch.randint(0, 4, (1024,))
points = torch.stack([labels % 2, labels // 2], dim=1) * 2.0 + torch.randn(1024, 2) * 0.5
data = TensorDataset(points, labels)
model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), options.learning_rate)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=32, shuffle=True)
)

step = 0
for epoch in range(1, options.epochs + 1):
    for batch, wanted in loader:
        loss = torch.nn.functional.cross_entropy(model(batch), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    mean = accelerator.reduce(loss.detach(), "mean")
    runtime.report(step=step, epoch=epoch, loss=mean, processes=accelerator.num_processes)

if accelerator.is_main_process:
    accelerator.save(accelerator.unwrap_model(model).state_dict(), runtime.model_dir() / "model.pt")
accelerator.end_training()
