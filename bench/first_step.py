"""The smallest real distributed training: two linear layers under DDP. It writes the time of its first finished step.

torchrun --nproc-per-node 2 bench/first_step.py --mark FILE
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--mark", type=Path, required=True)
options = parser.parse_args()

dist.init_process_group("gloo")
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.randn(8, 64)).square().mean()
loss.backward()
optimizer.step()
if dist.get_rank() == 0:
    options.mark.write_text(str(time.time()))
dist.barrier()
# leaving is not measured, and gloo's threads can abort an interpreter that leaves
# (cloudtrain.runtime)
os._exit(0)
