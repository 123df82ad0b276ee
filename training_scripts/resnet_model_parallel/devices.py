"""A pipeline in one process: each stage on a device, with copies between devices during the computing.

PyTorch's tutorial copies with `.to("cuda:1")`, which runs on the current streams of both devices and makes both wait.
Here each stage computes on a stream of its own, and each direction between two stages has streams for its copies:

    stage 0   compute   F0 F1    B0 F2    B1 F3 ...
              copies      >0 >1      >2       >3
              copies            <0       <1
    stage 1   compute        F0 B0    F1 B1    F2 ...

A copy begins when an event says that its tensor is computed, and the other device waits for an event before it uses the
tensor, not before. On CPU there are no streams, and all is done in the order in which it is issued.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Action(NamedTuple):
    """`F` or `B`, forward or backward, of one microbatch on one stage."""

    kind: str
    stage: int
    microbatch: int


def one_forward_one_backward(stages: int, microbatches: int) -> list[list[Action]]:
    """Return the schedule 1F1B as ticks: what the stages do at the same time when all actions take equally long.

    A stage starts with as many forwards as there are stages from it to the end, then alternates, so that stage s never
    holds more than `stages - s` microbatches. GPipe, all forwards first, takes as long but holds them all.
    """
    programs = [_program(stage, stages, microbatches) for stage in range(stages)]
    done: set[Action] = set()
    ticks: list[list[Action]] = []
    while any(programs):
        ticks.append(
            [program[0] for program in programs if program and _needs(program[0], stages) <= done]
        )
        done.update(ticks[-1])
        for action in ticks[-1]:
            programs[action.stage].pop(0)
    return ticks


def _program(stage: int, stages: int, microbatches: int) -> list[Action]:
    ahead = min(stages - stage, microbatches)
    forwards = [Action("F", stage, number) for number in range(microbatches)]
    program = forwards[:ahead]
    for number in range(microbatches):
        program += [Action("B", stage, number), *forwards[ahead + number : ahead + number + 1]]
    return program


def _needs(action: Action, stages: int) -> set[Action]:
    kind, stage, number = action
    if kind == "F":
        return {Action("F", stage - 1, number)} if stage else set()
    return {Action("B", stage + 1, number)} if stage < stages - 1 else {Action("F", stage, number)}


class Lane:
    """A device and the stream on which one stage computes there; on CPU no stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def computing(self) -> AbstractContextManager[object]:
        """Run the operations inside the `with` block on the lane's stream."""
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()

    def take(self, parcel: "Parcel") -> torch.Tensor:
        """Return the tensor for use on this lane from now on: later work here waits until it has arrived."""
        if self.stream and parcel.arrived:
            self.stream.wait_event(parcel.arrived)
            # its memory is not given away before the lane is done with it
            parcel.tensor.record_stream(self.stream)
        return parcel.tensor


class Parcel(NamedTuple):
    """A tensor on its way, and the event that marks its arrival."""

    tensor: torch.Tensor
    arrived: torch.cuda.Event | None


class Link:
    """One direction between two stages. Without `overlap`, copies run on the computing streams, as in the tutorial."""

    def __init__(self, source: Lane, target: Lane, overlap: bool) -> None:
        self.source, self.target = source, target
        self.leaving = (
            torch.cuda.Stream(source.device) if overlap and source.stream else source.stream
        )
        self.arriving = (
            torch.cuda.Stream(target.device) if overlap and target.stream else target.stream
        )

    def send(self, tensor: torch.Tensor) -> Parcel:
        """Copy what the source has issued so far, without delaying the computing of source or target."""
        if self.source.stream is None or self.leaving is None or self.arriving is None:
            return Parcel(tensor, None)
        computed = self.source.stream.record_event()
        for stream in (self.leaving, self.arriving):
            stream.wait_event(computed)
            tensor.record_stream(stream)
        # Between devices the copy runs on the source's current stream, on one device on the
        # innermost.
        with torch.cuda.stream(self.leaving), torch.cuda.stream(self.arriving):
            copied = torch.empty_like(tensor, device=self.target.device).copy_(
                tensor, non_blocking=True
            )
        return Parcel(copied, self.arriving.record_event())


class Upload:
    """Copies from pinned host memory to a lane, during the computing."""

    def __init__(self, target: Lane) -> None:
        self.target = target
        self.stream = torch.cuda.Stream(target.device) if target.stream else None

    def send(self, tensor: torch.Tensor) -> Parcel:
        """Start a copy and return at once, because a copy from pinned memory needs no help of the host."""
        if self.stream is None:
            return Parcel(tensor, None)
        with torch.cuda.stream(self.stream):
            return Parcel(
                tensor.to(self.target.device, non_blocking=True), self.stream.record_event()
            )


class DevicePipeline:
    """Stages of a chain on devices of this process. With one stage it is plain training. With one microbatch per step
    it is the tutorial's model parallelism, with more its pipelining. Gradients equal those of the same microbatches on
    one device."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        devices: Sequence[torch.device],
        split_size: int,
        loss: Loss,
        overlap: bool = True,
        bf16: bool = False,
    ) -> None:
        self.bf16 = bf16
        self.parts = [part.to(device) for part, device in zip(parts, devices, strict=True)]
        self.lanes = [Lane(device) for device in devices]
        self.forth = [Link(a, b, overlap) for a, b in zip(self.lanes, self.lanes[1:], strict=False)]
        self.back = [Link(b, a, overlap) for a, b in zip(self.lanes, self.lanes[1:], strict=False)]
        self.uploads = (Upload(self.lanes[0]), Upload(self.lanes[-1]))
        self.split_size = split_size
        self.loss = loss

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Run forward and backward of one batch from host memory. Add to the gradients and return the sum of the
        losses."""
        if self.lanes[0].stream and not images.is_pinned():
            images, labels = images.pin_memory(), labels.pin_memory()
        self._images, self._labels = images.split(self.split_size), labels.split(self.split_size)
        self._activations: dict[tuple[int, int], Parcel] = {}
        self._gradients: dict[tuple[int, int], Parcel] = {}
        self._held: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._losses: list[torch.Tensor] = []
        for lane in self.lanes:  # the weights that the optimizer wrote
            if lane.stream:
                lane.stream.wait_stream(torch.cuda.current_stream(lane.device))
        for tick in one_forward_one_backward(len(self.parts), len(self._images)):
            for kind, stage, number in tick:
                (self._forward if kind == "F" else self._backward)(stage, number)
        for lane in self.lanes:  # the gradients that the optimizer reads
            if lane.stream:
                torch.cuda.current_stream(lane.device).wait_stream(lane.stream)
        return torch.stack(self._losses).sum()

    def _forward(self, stage: int, number: int) -> None:
        lane, is_last = self.lanes[stage], stage == len(self.parts) - 1
        parcel = (
            self._activations.pop((stage, number))
            if stage
            else self.uploads[0].send(self._images[number])
        )
        x = lane.take(parcel)
        labels = lane.take(self.uploads[1].send(self._labels[number])) if is_last else None
        with lane.computing():
            # the graph ends here: each stage goes backward by itself
            x = x.detach().requires_grad_(stage > 0)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
                y = self.parts[stage](x)
            if labels is not None:
                y = self.loss(y.float() if self.bf16 else y, labels)
                self._losses.append(y.detach())
        self._held[stage, number] = (x, y)
        if not is_last:
            self._activations[stage + 1, number] = self.forth[stage].send(y.detach())

    def _backward(self, stage: int, number: int) -> None:
        lane = self.lanes[stage]
        x, y = self._held.pop((stage, number))
        gradient = (
            lane.take(self._gradients.pop((stage, number))) if stage < len(self.parts) - 1 else None
        )
        with lane.computing():
            torch.autograd.backward(y, gradient)
        if stage and x.grad is not None:
            self._gradients[stage - 1, number] = self.back[stage - 1].send(x.grad)

    @torch.no_grad()
    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return the output for a batch, on the last device."""
        for part, lane in zip(self.parts, self.lanes, strict=True):
            images = part(images.to(lane.device))
        return images

    def shared(self, value: torch.Tensor) -> torch.Tensor:
        """Return a step's loss on every process. Here there is only one process."""
        return value
