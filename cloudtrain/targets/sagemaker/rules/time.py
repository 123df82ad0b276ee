"""Rules about time on SageMaker: limits, spot capacity, warm pools and training plans."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.core.units import exact_duration, format_duration
from cloudtrain.rules.portable.job import short_wait, wait_shorter_than_run
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.shared import cost as shared
from cloudtrain.targets.sagemaker.rules.view import cluster, seconds, text

_LONGEST_RUN = 28 * 86_400
"""Longest run in seconds (API reference, StoppingCondition). The service's model lacks this limit."""

_LONGEST_POOL_OF_GUIDE = 3600
"""Longest warm pool in seconds (developer guide, managed warm pools); the service's model allows 21,600."""


@rule("SM401", Level.ERROR)
def spot_without_limit(subject: Subject) -> Iterator[Fault]:
    """A spot job does not limit its waiting time.

    A spot job needs `MaxWaitTimeInSeconds`, which limits waiting and running together. The SageMaker SDK sends the job
    without this limit (2.257.7), and the service refuses the job.
    """
    if _spot(subject) and seconds(subject, "MaxWaitTimeInSeconds") is None:
        run = seconds(subject, "MaxRuntimeInSeconds") or 0
        message = "a spot job needs a limit for waiting and running together"
        yield Fault(message, f"write `spot: {{max_wait: {exact_duration(2 * run)}}}`", ("spot",))


@rule("SM402", Level.ERROR)
def spot_with_warm_pool(subject: Subject) -> Iterator[Fault]:
    """The job asks for a warm pool on spot capacity.

    A warm pool cannot keep spot instances, so the service refuses the job (developer guide, managed warm pools).
    """
    if _spot(subject) and seconds(subject, "KeepAlivePeriodInSeconds"):
        yield Fault(
            "spot capacity cannot be kept in a warm pool",
            "remove `spot` from the job, or `keep_alive` from the target's settings",
            ("spot",),
        )


@rule("SM403", Level.ERROR)
def wait_shorter_than_default_run(subject: Subject) -> Iterator[Fault]:
    """`spot.max_wait` is shorter than the time that the job may run.

    `spot.max_wait` limits waiting and running together, so it cannot be less than `max_runtime`, whose default is one
    day. The SageMaker SDK sends such a job, and the service refuses it.
    """
    wait, run = seconds(subject, "MaxWaitTimeInSeconds"), seconds(subject, "MaxRuntimeInSeconds")
    if any(wait_shorter_than_run(subject)):
        return  # CT402 reports it
    if wait is not None and run is not None and wait < run:
        default = ", the default" if subject.job.max_runtime is None else ""
        hint = f"set `max_runtime` to at most `{exact_duration(wait)}`"
        yield Fault(short_wait(wait, exact_duration(run) + default), hint, ("spot", "max_wait"))


@rule("SM404", Level.ERROR)
def warm_pool_of_groups(subject: Subject) -> Iterator[Fault]:
    """The job asks for a warm pool on a heterogeneous cluster.

    Warm pools keep only equal instances, so a job cannot have both `KeepAlivePeriodInSeconds` and `InstanceGroups`
    (developer guide, managed warm pools).
    """
    if cluster(subject).kind == "groups" and seconds(subject, "KeepAlivePeriodInSeconds"):
        yield Fault(
            "a job with instance groups cannot be kept in a warm pool",
            "remove `keep_alive` from the target's settings for this job",
            ("resources", "instance_groups"),
        )


@rule("SM405", Level.WARNING)
def spot_with_training_plan(subject: Subject) -> Iterator[Fault]:
    """The job uses a training plan on spot capacity.

    A training plan is capacity that you reserved and paid for in advance. A spot job would wait for other machines at
    extra cost, while the reserved machines stay idle.
    """
    if _spot(subject) and text(subject, "ResourceConfig", "TrainingPlanArn"):
        yield Fault(
            "the job has reserved capacity from a training plan, and asks for spot capacity",
            "remove `spot` from the job, or `training_plan` from the target's settings",
            ("spot",),
        )


@rule("SM406", Level.ERROR)
def run_too_long(subject: Subject) -> Iterator[Fault]:
    """The job's `max_runtime` is longer than SageMaker allows.

    SageMaker ends a training job after 28 days at the latest. Longer training needs checkpoints and a second job.
    """
    return shared.run_too_long(subject, _LONGEST_RUN)


@rule("SM407", Level.WARNING)
def warm_pool_long(subject: Subject) -> Iterator[Fault]:
    """A warm pool is kept for more than an hour.

    The limit is one hour in the developer guide, and six hours in the API's model. In accounts with the lower limit,
    the service refuses the job. In all accounts, the idle instances are billed like a running job.
    """
    keep = seconds(subject, "KeepAlivePeriodInSeconds") or 0
    if keep > _LONGEST_POOL_OF_GUIDE:
        yield Fault(
            f"`keep_alive` is {format_duration(keep)}, and SageMaker's guide allows 1h",
            'write `keep_alive = "1h"`, or accept it with `--ignore SM407`',
        )


@rule("SM408", Level.NOTICE)
def pending_limit_without_effect(subject: Subject) -> Iterator[Fault]:
    """`max_pending` has no effect on instances without accelerators.

    `MaxPendingTimeInSeconds` works on `ml.p`, `ml.g` and `ml.trn` types only (API reference, StoppingCondition).
    """
    pending, devices = seconds(subject, "MaxPendingTimeInSeconds"), {group.device for group in cluster(subject).groups}
    if pending is not None and devices == {"cpu"}:
        name = cluster(subject).groups[0].instance_type
        hint = "remove `max_pending` from the target's settings for this job, or name a type with GPUs or Trainium"
        yield Fault(f"`max_pending` has no effect on `{name}`", hint)


def _spot(subject: Subject) -> bool:
    return subject.plan.request.get("EnableManagedSpotTraining") is True
