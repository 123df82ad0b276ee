"""Rules that need the Azure account. `AzureMLService.check` applies them, before a submit and in `cloudtrain check`; a
plan does not need them.

This module declares their codes, levels and texts, so that `explain` and `--ignore` treat them like other rules.
"""

from __future__ import annotations

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import declare, level_of

__all__ = ["level_of"]

declare(
    "AZ901",
    Level.ERROR,
    """This machine has no credentials, or Azure does not accept them for the subscription.

    The job cannot be sent. Log in with `az login`, or set `credential` in `[azureml]` to a kind of credential that
    works on this machine. `az account show` prints your current account and subscription.
    """,
)

declare(
    "AZ902",
    Level.WARNING,
    """A check could not be done.

    The credentials do not have the permission, or Azure does not answer. The job may still be right, so this is only a
    warning. The message names the missing permission or the reason.
    """,
)

declare(
    "AZ903",
    Level.ERROR,
    """The workspace does not exist, or these credentials cannot see it.

    Check `subscription_id`, `resource_group` and `workspace` in `[azureml]`. `az ml workspace list` lists a resource
    group's workspaces.
    """,
)

declare(
    "AZ904",
    Level.ERROR,
    """The workspace has no compute of that name.

    Azure ML would refuse the job, after the code has been uploaded. Leave `compute` out to run serverless.
    """,
)

declare(
    "AZ905",
    Level.ERROR,
    """The compute is not a cluster that can run the job.

    A compute instance is a single machine for one user, who must start it. A job with several instances needs an
    AmlCompute cluster.
    """,
)

declare(
    "AZ906",
    Level.ERROR,
    """The compute cannot run jobs in its current state.

    Its creation failed, it is being deleted, or it is a stopped compute instance. The job would wait in the queue and
    never start.
    """,
)

declare(
    "AZ907",
    Level.ERROR,
    """The cluster's instance type is not the job's.

    All machines of a cluster have the size with which the cluster was created. The service ignores the job's type, and
    the planned numbers of GPUs and processes do not fit the cluster's machines.
    """,
)

declare(
    "AZ908",
    Level.ERROR,
    """The job needs more instances than the cluster's `max_instances`.

    The cluster never has more than `max_instances` machines, so the job would wait in the queue forever.
    """,
)

declare(
    "AZ909",
    Level.ERROR,
    """Azure ML does not offer the instance type in the job's regions.

    A serverless job needs a size that Azure ML lists for the workspace's region, or for one of `locations`. A job on
    spot capacity needs a size that Azure sells at low priority.
    """,
)

declare(
    "AZ910",
    Level.ERROR,
    """The job needs more vCPUs than the quota allows.

    Azure ML limits the number of vCPUs: of each family in a region, of all families, and for spot capacity of all
    families at low priority. The quota of most families with GPUs starts at zero. Ask for more in the studio, under
    Quota; approval takes hours to days.
    """,
)

declare(
    "AZ911",
    Level.WARNING,
    """Other jobs currently use up the quota that the job needs.

    The job waits in the queue until enough vCPUs of the quota are free.
    """,
)

declare(
    "AZ912",
    Level.ERROR,
    """The environment, or the version of it that the job names, does not exist.

    `az ml environment list --name NAME` lists the versions; add `--registry-name azureml` for Microsoft's environments.
    """,
)

declare(
    "AZ913",
    Level.ERROR,
    """A data asset, a model or a datastore of an input does not exist.

    The job would start, find no data and fail, and you would pay for its instances.
    """,
)

declare(
    "AZ914",
    Level.ERROR,
    """The datastore of an output does not exist.

    The service could not store the output, so the job would fail when it starts.
    """,
)

declare(
    "AZ915",
    Level.WARNING,
    """The managed identity is not assigned to the compute or the workspace.

    A job can act only as an identity that is assigned to its cluster, or to the workspace if the job is serverless.
    This check does not test whether the identity may read the job's data.
    """,
)

declare(
    "AZ916",
    Level.NOTICE,
    """The label `latest` of an environment or of data currently means the reported version.

    The plan contains the label; `cloudtrain submit` sends the version. To use the same version later, write it into the
    job.
    """,
)
