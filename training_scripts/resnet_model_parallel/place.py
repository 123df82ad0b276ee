"""Which devices hold the stages, where the chain is cut, and the pipeline over the devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from balance import balanced, measured, stage_costs
from devices import DevicePipeline, Loss
from processes import ProcessPipeline
from torch import nn

from cloudtrain.runtime import SetupError


@dataclass(frozen=True)
class Place:
    """The device of each stage. `across`: each stage has its own process. `words` describes the arrangement."""

    devices: list[torch.device]
    across: bool
    words: str

    def pipeline(
        self,
        parts: Sequence[nn.Module],
        images: torch.Tensor,
        split_size: int,
        loss: Loss,
        overlap: bool = True,
        bf16: bool = False,
    ) -> DevicePipeline | ProcessPipeline:
        """Make the pipeline of the parts on their devices, for batches like `images`."""
        if self.across:
            return ProcessPipeline(parts, self.devices[dist.get_rank()], images, split_size, loss)
        return DevicePipeline(parts, self.devices, split_size, loss, overlap, bf16)


def find_place(
    processes: int, backend: str, device: str, stages: int | None, microbatches: int = 2
) -> Place:
    """Choose devices. Several processes: one stage in each. One process: one stage on each GPU, but at most as many
    stages as microbatches, because further stages would only wait. With fewer than two GPUs: two stages on the one
    device."""
    gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    if device == "cuda" and not gpus:
        raise SetupError("there is no GPU here", hint="leave `--device` out")
    name = torch.cuda.get_device_name(0) if gpus else "CPU"
    if processes > 1:
        if stages not in (None, processes):
            raise SetupError(
                f"{processes} processes are {processes} stages, not {stages}",
                hint="leave `--stages` out",
            )
        if gpus and "nccl" in backend:  # each process has a GPU of its own
            local = torch.device("cuda", torch.cuda.current_device())
            return Place([local] * processes, True, f"{processes} processes, each with its {name}")
        threads = f"{torch.get_num_threads()} CPU thread{'s' * (torch.get_num_threads() > 1)}"
        return Place(
            [torch.device("cpu")] * processes,
            True,
            f"{processes} processes with {threads} each as devices",
        )
    stages = stages or max(2, min(gpus, microbatches))
    if not gpus:
        return Place(
            [torch.device("cpu")] * stages,
            False,
            "one process on CPU: stages in turn, no speed-up possible",
        )
    devices = [torch.device("cuda", number % gpus) for number in range(stages)]
    if gpus >= stages:
        return Place(devices, False, f"{stages} x {name}")
    return Place(
        devices,
        False,
        f"{stages} stages share {gpus} x {name}: the cost of splitting, not a speed-up",
    )


def cut(
    place: Place, pieces: dict[str, nn.Module], microbatch: torch.Tensor, asked: Sequence[str]
) -> tuple[list[int], list[float]]:
    """Return each stage's first piece, and the seconds that each piece takes. `asked` names the cuts; otherwise they
    are balanced by those seconds.

    The first process measures while the others wait, and all use its answer."""
    names, stages = list(pieces), len(place.devices)
    if unknown := [name for name in asked if name not in names[1:]]:
        raise SetupError(
            f"no stage can begin at `{unknown[0]}`", hint=f"it can at {', '.join(names[1:])}"
        )
    if asked and len(asked) != stages - 1:
        raise SetupError(
            f"{len(asked)} cuts do not make {stages} stages", hint=f"give {stages - 1}, or none"
        )
    if stages > len(pieces):
        raise SetupError(
            f"{len(pieces)} pieces do not make {stages} stages", hint="use fewer stages"
        )
    costs = [0.0] * len(pieces)
    if not place.across or dist.get_rank() == 0:
        costs = measured(
            list(pieces.values()), microbatch.to(place.devices[0]), repeats=1 if asked else 3
        )
    if place.across:
        dist.broadcast_object_list(box := [costs], src=0)
        costs = box[0]
    return [0, *sorted(map(names.index, asked))] if asked else balanced(costs, stages), costs


def parts_of(pieces: dict[str, nn.Module], cuts: Sequence[int]) -> list[nn.Sequential]:
    """Return the pieces of each stage."""
    chain = list(pieces.values())
    return [nn.Sequential(*chain[first:end]) for first, end in pairwise([*cuts, len(chain)])]


def stage_table(
    place: Place, pieces: dict[str, nn.Module], cuts: Sequence[int], costs: Sequence[float]
) -> str:
    """Return a table of what each stage holds, and how long it takes for one microbatch."""
    names, seconds = list(pieces), stage_costs(costs, cuts)
    counts = [sum(p.numel() for p in part.parameters()) for part in parts_of(pieces, cuts)]
    lines = [
        f"{'stage':<6} {'device':<7} {'pieces':<22} {'parameters':>11} {'ms per microbatch':>18} {'share':>6}"
    ]
    for number, (first, end) in enumerate(pairwise([*cuts, len(names)])):
        held = names[first] if end == first + 1 else f"{names[first]} to {names[end - 1]}"
        share = seconds[number] / sum(seconds)
        line = f"{number:<6} {place.devices[number]!s:<7} {held:<22} {counts[number]:>11,} {seconds[number] * 1e3:>18.1f}"
        lines.append(f"{line} {share:>6.0%}")
    return "\n".join(lines)
