"""What only the AWS account can tell. The backend asks before a submit and for `cloudtrain check`; a plan never does.

The rules stand here for their codes, levels and pages: `explain` and `--ignore` know them like any other.
"""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.checks.rule import Fault, Subject, registered, rule
from cloudtrain.plans import Level


def level_of(code: str) -> Level:
    """How bad a finding of that code is."""
    return registered[code].level


@rule("SM901", Level.ERROR)
def no_credentials(_: Subject) -> Iterator[Fault]:
    """AWS does not accept the credentials, or there are none.

    The job cannot be sent. Log in (`aws sso login`, `aws configure`), or name a profile that can: `profile` in
    `[sagemaker]`. `aws sts get-caller-identity` shows who you are to AWS.
    """
    return iter(())


@rule("SM902", Level.WARNING)
def not_looked_at(_: Subject) -> Iterator[Fault]:
    """Something could not be looked at.

    The credentials may not ask for it, or AWS does not answer. The job may be right all the same, so this stops
    nothing; the message names the permission that would let the check look.
    """
    return iter(())


@rule("SM903", Level.ERROR)
def no_such_role(_: Subject) -> Iterator[Fault]:
    """The execution role does not exist in the account of the credentials.

    SageMaker runs the job as this role, and only roles of the same account can be passed to it.
    """
    return iter(())


@rule("SM904", Level.ERROR)
def role_without_trust(_: Subject) -> Iterator[Fault]:
    """The execution role does not trust SageMaker.

    Its trust policy must allow `sts:AssumeRole` to the service `sagemaker.amazonaws.com`; without that the job is
    refused when it is sent.
    """
    return iter(())


@rule("SM905", Level.ERROR)
def no_such_bucket(_: Subject) -> Iterator[Fault]:
    """A bucket of the job does not exist.

    The code goes to the target's bucket, and the results to `output`. Unless given it is the SageMaker SDK's default
    bucket, `sagemaker-REGION-ACCOUNT`, which exists once somebody has used that SDK in the region.
    """
    return iter(())


@rule("SM906", Level.ERROR)
def bucket_elsewhere(_: Subject) -> Iterator[Fault]:
    """A bucket of the job is in another region.

    SageMaker refuses a job whose code, results or checkpoints are in another region than the job.
    """
    return iter(())


@rule("SM907", Level.ERROR)
def empty_input(_: Subject) -> Iterator[Fault]:
    """There is nothing at an input's place.

    The instances would start, find no data, and fail after they were paid for.
    """
    return iter(())


@rule("SM908", Level.ERROR)
def quota_too_small(_: Subject) -> Iterator[Fault]:
    """The account's quota does not allow so many instances of the type.

    Each instance type has a quota for training jobs, another for spot training jobs, and both start at zero for most
    types with GPUs. Ask for more in Service Quotas; it takes hours to days.
    """
    return iter(())
