"""Rules that need the AWS account. They are checked before a submit and by `cloudtrain check`, but never for a plan.

This module declares only their codes, levels and explanations, for `explain` and `--ignore`.
"""

from __future__ import annotations

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import declare, level_of

__all__ = ["level_of"]

declare(
    "SM901",
    Level.ERROR,
    """The AWS credentials are missing or not valid.

    The job cannot be sent. Log in (`aws sso login`, `aws configure`), or set `profile` in `[sagemaker]` to a profile
    with valid credentials. `aws sts get-caller-identity` shows your identity.
    """,
)

declare(
    "SM902",
    Level.WARNING,
    """A check of the account could not be made.

    The credentials lack a permission, or AWS did not answer; all checks together have 3 s. The job may be right, so
    this is only a warning. The message names the missing permission.
    """,
)

declare(
    "SM903",
    Level.ERROR,
    """The execution role does not exist in the account of the credentials.

    SageMaker runs the job as this role, and only roles of the same account can be passed to it.
    """,
)

declare(
    "SM904",
    Level.ERROR,
    """The execution role does not trust SageMaker.

    The role's trust policy must allow `sts:AssumeRole` for the service `sagemaker.amazonaws.com`. Otherwise the service
    refuses the job.
    """,
)

declare(
    "SM905",
    Level.ERROR,
    """A bucket of the job does not exist.

    The code goes to the target's `bucket`, and the results to its `output`. The default bucket is that of the SageMaker
    SDK, `sagemaker-REGION-ACCOUNT`, which exists after the first use of the SDK in the region.
    """,
)

declare(
    "SM906",
    Level.ERROR,
    """A bucket of the job is in another region.

    SageMaker refuses a job whose code, results or checkpoints are in another region than the job.
    """,
)

declare(
    "SM907",
    Level.ERROR,
    """An input's S3 address contains no data.

    The instances would start, find no data, and fail after you have paid for them.
    """,
)

declare(
    "SM522",
    Level.WARNING,
    """The execution role may not read a secret of the job.

    IAM's simulation of the role's policies denies it, so the job would end before the script starts. The simulation
    does not consider the secret's own policy, which may allow it.
    """,
)

declare(
    "SM908",
    Level.ERROR,
    """The job asks for more instances of a type than the account's quota.

    Each instance type has a quota for training jobs and another for spot training jobs. Both start at zero for most
    types with GPUs. Request an increase in Service Quotas, which takes hours to days.
    """,
)
