"""A pipeline over processes: each stage in a process of its own, with torch.distributed.pipelining.

This pipeline can cross machines, and two CPU cores can stand for two devices. Stages pass on only contiguous tensors,
while convolutions are fastest in channels_last. So tensors are turned to (image, height, width, channel), the memory
layout of channels_last, and back, without a copy.

`PipelineStage` is given the shapes. Otherwise it would run a forward pass over uninitialised memory, and BatchNorm
would remember those values, perhaps NaN (torch 2.13). Training does not use these statistics and would continue
unaffected, but evaluation would be ruined.
"""

import copy
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Boundaries(nn.Module):
    """A part that takes and returns images as (image, height, width, channel) where it borders on another process."""

    def __init__(self, part: nn.Module, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.part, self.is_first, self.is_last = part, is_first, is_last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.part(x.permute(0, 3, 1, 2) if x.dim() == 4 and not self.is_first else x)
        return y.permute(0, 2, 3, 1).contiguous() if y.dim() == 4 and not self.is_last else y


class ProcessPipeline:
    """The stage of this process. Every process calls every method with the same batch. The first process uses the
    images, the last the labels."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        device: torch.device,
        images: torch.Tensor,
        split_size: int,
        loss: Loss,
    ) -> None:
        self.device = device
        self.rank, self.stages = dist.get_rank(), len(parts)
        self.is_first, self.is_last = self.rank == 0, self.rank == self.stages - 1
        ends = [(number == 0, number == self.stages - 1) for number in range(self.stages)]
        chain = nn.Sequential(
            *(Boundaries(part, *end) for part, end in zip(parts, ends, strict=True))
        )
        self.shapes = copy.deepcopy(chain).eval().to("meta")  # computes shapes, and holds nothing
        for number, part in enumerate(chain):  # of the others' parts only names stay
            part.to(device if number == self.rank else "meta")
        self.part = chain[self.rank]
        x = self._input_shape(images[:split_size])
        stage = PipelineStage(
            self.part,
            self.rank,
            self.stages,
            device,
            input_args=(x.detach().requires_grad_(not self.is_first),),
            output_args=(self.shapes[self.rank](x).detach().requires_grad_(),),
        )
        microbatches = len(images) // split_size
        schedule = Schedule1F1B if microbatches >= self.stages else ScheduleGPipe
        self.schedule = schedule(stage, microbatches, loss_fn=loss, scale_grads=False)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Run forward and backward of one batch from host memory, adding to the gradients. The last process returns the
        sum of the losses, the others 0."""
        losses: list[torch.Tensor] = []
        if self.is_first:
            self.schedule.step(self._upload(images))
        elif self.is_last:
            self.schedule.step(target=self._upload(labels), losses=losses)
        else:
            self.schedule.step()
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=self.device)

    @torch.no_grad()
    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return the output for a batch, on every process."""
        x = (
            self._upload(images)
            if self.is_first
            else torch.empty_like(self._input_shape(images), device=self.device)
        )
        if not self.is_first:
            dist.recv(x, self.rank - 1)
        y = self.part(x)
        if not self.is_last:
            dist.send(y, self.rank + 1)
        box = [y.cpu() if self.is_last else None]
        dist.broadcast_object_list(box, src=self.stages - 1)
        assert box[0] is not None
        return box[0]

    def shared(self, value: torch.Tensor) -> torch.Tensor:
        """Return a step's loss, on every process."""
        dist.all_reduce(value)
        return value

    def _input_shape(self, images: torch.Tensor) -> torch.Tensor:
        """Return the input of this stage for these images, on the meta device: a shape without numbers."""
        return self.shapes[: self.rank](images.to("meta"))

    def _upload(self, tensor: torch.Tensor) -> torch.Tensor:
        return (
            tensor.pin_memory().to(self.device, non_blocking=True)
            if self.device.type == "cuda"
            else tensor
        )
