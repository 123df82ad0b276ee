"""cloudtrain's queue for a target without a queue of its own: the settings that use the queue, and its runs."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.targets import all_targets, target_names
from cloudtrain.errors import UsageError, did_you_mean
from cloudtrain.settings import Settings
from cloudtrain.targets.base import KeepsQueue
from cloudtrain.targets.registry import service_of
from cloudtrain.targets.settings import TargetSettings


def queued_settings(target: TargetSettings, queue: bool | None, priority: int | None) -> TargetSettings:
    """Return the target's settings with the given queue options.

    Raises:
        UsageError: cloudtrain has no queue for the target.
        JobError: a priority is given without the queue.
    """
    given = {name: value for name, value in (("queue", queue), ("priority", priority)) if value is not None}
    if given and not given.keys() <= type(target).model_fields.keys():
        hint = f"leave out `{next(iter(given))}`: the target has its own queue"
        raise UsageError(f"`{target.type}` does not use cloudtrain's queue", hint=hint, code="CT902")
    return target.replace(**given) if given else target


def queue_of(target: str, settings: Settings) -> KeepsQueue:
    """Return the queue of a target.

    Raises:
        UsageError: no target has that name, or cloudtrain has no queue for the target.
    """
    if target not in target_names():
        raise UsageError(f"`{target}` is not a target", hint=did_you_mean(target, target_names()), code="CT913")
    service = service_of(target, settings)
    if not isinstance(service, KeepsQueue):
        others = " or ".join(f"`cloudtrain queue --target {name}`" for name in _with_queue(settings))
        hint = (
            f"`cloudtrain ps --target {target}` shows the target's waiting runs; {others} shows cloudtrain's own queue"
        )
        raise UsageError(f"`{target}` does not use cloudtrain's queue", hint=hint, code="CT902")
    return service


def _with_queue(settings: Settings) -> Iterator[str]:
    return (each.name for each in all_targets() if isinstance(service_of(each.name, settings), KeepsQueue))
