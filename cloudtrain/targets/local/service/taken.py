"""Which GPUs a run takes that did not ask the queue for them, as far as its variables tell."""

from __future__ import annotations

from cloudtrain.targets.common.gpus import VISIBLE, gpu_ids, visible_ids

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtrain.launch.specification import LaunchSpecification


def taken_gpus(spec: LaunchSpecification, environments: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The first ones that each instance sees, one for each of its ranks: the rank n of an instance takes the n-th.

    A process whose own variables name GPUs has them, whether they can be seen here or not.
    """
    ranks = max(1, spec.world_size // spec.instances)
    found = dict[str, None]()
    for process, environment in zip(spec.processes, environments, strict=True):
        ids = visible_ids(environment[VISIBLE]) if VISIBLE in process.env else gpu_ids(environment)
        found.update(dict.fromkeys(ids[:ranks]))
    return tuple(found)
