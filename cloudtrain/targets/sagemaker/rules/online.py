"""Rules that need the AWS account. The service checks them before a submit and for `cloudtrain check`, and never for a
plan.

They are declared here with their codes, levels and pages, so that `explain` and `--ignore` treat them like other rules.
"""

from __future__ import annotations

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import declare, level_of

__all__ = ["level_of"]

declare(
    "SM901",
    Level.ERROR,
    """AWS does not accept the credentials, or there are none.

    The job cannot be sent. Log in (`aws sso login`, `aws configure`), or name a profile that can: `profile` in
    `[sagemaker]`. `aws sts get-caller-identity` shows who you are to AWS.
    """,
)

declare(
    "SM902",
    Level.WARNING,
    """Something could not be looked at.

    The credentials may not ask for it, or AWS does not answer; all questions together have 3 s. The job may be right
    all the same, so this stops nothing; the message names the permission that would let the check look.
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

    Its trust policy must allow `sts:AssumeRole` to the service `sagemaker.amazonaws.com`; without that the job is
    refused when it is sent.
    """,
)

declare(
    "SM905",
    Level.ERROR,
    """A bucket of the job does not exist.

    The code goes to the target's bucket, and the results to `output`. Unless given it is the SageMaker SDK's default
    bucket, `sagemaker-REGION-ACCOUNT`, which exists once that SDK has been used in the region.
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
    """There is nothing at an input's place.

    The instances would start, find no data, and fail after they were paid for.
    """,
)

declare(
    "SM522",
    Level.WARNING,
    """The execution role may not read a secret of the job.

    IAM's simulation of the role's policies does not allow it, so that the job would end before the script starts. A
    policy of the secret itself, which the simulation does not see, may allow it all the same.
    """,
)

declare(
    "SM908",
    Level.ERROR,
    """The account's quota does not allow so many instances of the type.

    Each instance type has a quota for training jobs, another for spot training jobs, and both start at zero for most
    types with GPUs. Ask for more in Service Quotas; it takes hours to days.
    """,
)
