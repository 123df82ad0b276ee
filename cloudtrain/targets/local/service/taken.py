"""Which GPUs a run uses that started outside the queue, judged by its variables."""

from __future__ import annotations

from cloudtrain.targets.common.gpus import VISIBLE, gpu_ids, visible_ids

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtrain.launch.specification import LaunchSpecification


def taken_gpus(spec: LaunchSpecification, environments: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the first GPUs that each instance sees, one for each of its ranks: rank n of an instance uses the n-th.

    A process whose own variables name GPUs uses those, whether this machine shows them or not.
    """
    ranks = max(1, spec.world_size // spec.instances)
    found = dict[str, None]()
    for process, environment in zip(spec.processes, environments, strict=True):
        ids = visible_ids(environment[VISIBLE]) if VISIBLE in process.env else gpu_ids(environment)
        found.update(dict.fromkeys(ids[:ranks]))
    return tuple(found)
