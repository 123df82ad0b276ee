"""Find the GPUs of a run that started outside the queue, from its environment variables."""

from __future__ import annotations

from cloudtrain.targets.common.gpus import VISIBLE, gpu_ids, visible_ids

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtrain.launch.specification import LaunchSpecification


def taken_gpus(spec: LaunchSpecification, environments: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the GPUs that the instances use. In each instance, rank n uses the n-th GPU that the instance sees.

    If a process sets CUDA_VISIBLE_DEVICES itself, its GPUs count even if this machine does not have them.
    """
    ranks = max(1, spec.world_size // spec.instances)
    found = dict[str, None]()
    for process, environment in zip(spec.processes, environments, strict=True):
        ids = visible_ids(environment[VISIBLE]) if VISIBLE in process.env else gpu_ids(environment)
        found.update(dict.fromkeys(ids[:ranks]))
    return tuple(found)
