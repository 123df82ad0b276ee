"""Rules that need the Azure account. The service checks them before a submit and for `cloudtrain check`, never for a
plan.

They are declared here with their codes, levels and pages, so that `explain` and `--ignore` treat them like other rules.
"""

from __future__ import annotations

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import declare, level_of

__all__ = ["level_of"]

declare(
    "AZ901",
    Level.ERROR,
    """Azure does not accept the credentials, or there are none, or they cannot see the subscription.

    The job cannot be sent. Log in (`az login`), or name the kind of credential that works here: `credential` in
    `[azureml]`. `az account show` tells who you are to Azure.
    """,
)

declare(
    "AZ902",
    Level.WARNING,
    """Something could not be looked at.

    The credentials may not ask for it, or Azure does not answer. The job may be right all the same, so this stops
    nothing; the message names what would let the check look.
    """,
)

declare(
    "AZ903",
    Level.ERROR,
    """The workspace does not exist, or these credentials cannot see it.

    Look at `subscription_id`, `resource_group` and `workspace` in `[azureml]`; `az ml workspace list` shows those of a
    resource group.
    """,
)

declare(
    "AZ904",
    Level.ERROR,
    """The workspace has no compute of that name.

    The job would be refused when it is sent, after its code was uploaded. Leave `compute` out to run serverless.
    """,
)

declare(
    "AZ905",
    Level.ERROR,
    """The compute is not a cluster that can run the job.

    A compute instance is one machine for one person, and runs when it was started; a job of several instances needs an
    AmlCompute cluster.
    """,
)

declare(
    "AZ906",
    Level.ERROR,
    """The compute is not in a state to run jobs.

    Making it failed, it is being deleted, or it is a compute instance that has been stopped. The job would wait in the
    queue and never start.
    """,
)

declare(
    "AZ907",
    Level.ERROR,
    """The cluster has another instance type than the job.

    A cluster's machines are all of the one size that it was made with: the service uses that one, whatever the job
    says, and the counts of GPUs and processes that were planned do not fit.
    """,
)

declare(
    "AZ908",
    Level.ERROR,
    """The job needs more instances than the cluster may have.

    The cluster grows to its `max_instances` and no further, and a job that needs more waits in the queue for ever.
    """,
)

declare(
    "AZ909",
    Level.ERROR,
    """The instance type is not offered where the job would run.

    A serverless job needs a size that Azure ML lists for the workspace's region, or for one of `locations`; spot
    capacity, one that is sold as low priority.
    """,
)

declare(
    "AZ910",
    Level.ERROR,
    """The quota does not allow so many vCPUs of the instance type's family.

    Azure ML counts vCPUs: those of each family in a region, those of all families, and for spot capacity those of all
    families at low priority. The quota of most families with GPUs starts at zero. Ask for more in the studio, under
    Quota; it takes hours to days.
    """,
)

declare(
    "AZ911",
    Level.WARNING,
    """The quota allows the job, and other jobs use it up now.

    The job waits in the queue until enough vCPUs of the quota are free.
    """,
)

declare(
    "AZ912",
    Level.ERROR,
    """The environment does not exist in that version.

    `az ml environment list --name NAME` shows the versions; with `--registry-name azureml` those that Microsoft keeps.
    """,
)

declare(
    "AZ913",
    Level.ERROR,
    """A data asset, a model or a datastore of an input does not exist.

    The instances would start, find no data, and fail after they were paid for.
    """,
)

declare(
    "AZ914",
    Level.ERROR,
    """The datastore of an output does not exist.

    What the job writes would have nowhere to go, and the job fails when it starts.
    """,
)

declare(
    "AZ915",
    Level.WARNING,
    """The managed identity is not one of the compute or the workspace.

    A job can only act as an identity that was assigned to the cluster that it runs on, or for a serverless job to the
    workspace. Whether the identity may read the job's data is not looked at.
    """,
)

declare(
    "AZ916",
    Level.NOTICE,
    """The label of an environment or of data means this version now.

    The plan holds the label; a submit sends the version. Who wants the same one tomorrow writes it into the job.
    """,
)
