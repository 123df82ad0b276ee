"""A worker: it asks for a task, computes a gradient and hands it in. This file also has the data and the network."""

from __future__ import annotations

import gzip
import importlib.util
import math
import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from server import Result, Task
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cloudtrain.runtime import SetupError

Call = Callable[[int, "Result | None", bool], "Task | None"]


def load_digits() -> tuple[Tensor, Tensor]:
    """Return 1,797 scans as 64 grey values from 0 to 1, and their digits. The file comes with scikit-learn, which is
    not imported because that takes a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise SetupError(
            "the digits come with scikit-learn, which is not installed",
            hint="pip install scikit-learn",
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = [line.split(b",") for line in gzip.decompress(path.read_bytes()).splitlines()]
    table = torch.tensor([[float(cell) for cell in row] for row in rows])
    return table[:, :64] / 16, table[:, 64].long()


class Digits:
    """The data and the network of one process. Its weights are the last ones it was given, as one flat tensor."""

    def __init__(self, *, hidden: int, batch: int, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)  # the same initial weights everywhere
        sizes = [64, hidden, hidden, 10]
        layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.GELU())]
        self.network = nn.Sequential(*layers[:-1]).to(device)
        self.images, self.labels = (part.to(device) for part in load_digits())
        shuffled = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(0)).to(
            device
        )
        self.test, self.train = shuffled[: len(shuffled) // 5], shuffled[len(shuffled) // 5 :]
        if batch > len(self.train):
            raise SetupError(
                f"`--batch {batch}` of {len(self.train)} images", hint="give at most as many"
            )
        self.batch, self.seed = batch, seed
        self.batches_per_epoch = len(self.train) // batch

    def weights(self) -> Tensor:
        return parameters_to_vector(self.network.parameters()).detach().cpu()

    def gradient(self, weights: Tensor, number: int) -> tuple[Tensor, float]:
        """Return the gradient of one batch at these weights, flat on the CPU, and the loss. What a network of yours may
        draw, such as dropout, follows from the batch's number, so a resumed run draws the same without saved states."""
        torch.manual_seed(self.seed * 1_000_003 + number)
        self.network.train()
        vector_to_parameters(weights.to(self.images.device), self.network.parameters())
        epoch, position = divmod(number, self.batches_per_epoch)
        order = torch.randperm(
            len(self.train), generator=torch.Generator().manual_seed(self.seed * 100_003 + epoch)
        )
        chosen = self.train[order[position * self.batch :][: self.batch].to(self.train.device)]
        loss = nn.functional.cross_entropy(self.network(self.images[chosen]), self.labels[chosen])
        gradients = torch.autograd.grad(loss, list(self.network.parameters()))
        return parameters_to_vector(gradients).cpu(), loss.item()

    @torch.no_grad()
    def accuracy(self, weights: Tensor) -> float:
        self.network.eval()
        vector_to_parameters(weights.to(self.images.device), self.network.parameters())
        return (
            (self.network(self.images[self.test]).argmax(1) == self.labels[self.test])
            .float()
            .mean()
            .item()
        )


def learning_rate_at(config: Any, digits: Digits, update: int) -> float:
    warm = min(1.0, (update + 1) / digits.batches_per_epoch)
    progress = update / (config.epochs * digits.batches_per_epoch)
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * progress))


def seconds_of(config: Any, worker: int, number: int) -> float:
    """Return the least seconds that a gradient takes: longer on the slow worker, and for batches with a hiccup."""
    hiccup = random.Random(number * 7919 + config.seed).random() < config.hiccups
    return config.step_seconds * (
        config.slow_factor if hiccup or worker == config.slow_worker else 1
    )


def compute(
    config: Any, digits: Digits, worker: int, number: int, weights: Tensor
) -> tuple[Tensor, float, float]:
    """Return gradient, loss and the seconds they took. A sleep fills up the time, because the digits are too small a
    task. So workers that share a core wait for each other like workers on separate machines."""
    started = time.perf_counter()
    gradient, loss = digits.gradient(weights, number)
    time.sleep(max(0.0, seconds_of(config, worker, number) - (time.perf_counter() - started)))
    return gradient, loss, time.perf_counter() - started


def work(
    config: Any, digits: Digits, worker: int, call: Call, should_stop: Callable[[], bool]
) -> None:
    """Work until the server has no more tasks."""
    torch.set_num_threads(1)
    result = None
    while True:
        asked = time.perf_counter()
        task = call(worker, result, should_stop())
        if task is None:
            return
        waiting = time.perf_counter() - asked
        gradient, loss, computing = compute(config, digits, worker, task.number, task.weights)
        result = Result(task.number, task.version, gradient, loss, computing, waiting)
