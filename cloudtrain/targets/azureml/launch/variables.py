"""The environment variables that the processes of all distributions have.

Some variables are left out because they are unknown before the job runs: the run's token, the service's endpoints, and
the settings of the common runtime (`AZUREML_CR_..._CONFIG`) and of MLflow.
"""

from __future__ import annotations

import json

from cloudtrain.targets.azureml.launch.body import Body
from cloudtrain.targets.azureml.launch.layout import JobLayout
from cloudtrain.targets.azureml.launch.places import is_literal

UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"
"""Stands in for the ids of experiment and workspace, which the service makes up."""

LONG = (
    "AZUREML_ARM_PROJECT_NAME", "AZUREML_ARM_RESOURCEGROUP", "AZUREML_ARM_SUBSCRIPTION", "AZUREML_ARM_WORKSPACE_NAME",
    "AZUREML_CR_DISTRIBUTED_CONFIG", "AZUREML_CR_EXECUTION_WORKING_DIR_PATH", "AZUREML_EXPERIMENT_ID",
    "AZUREML_EXPERIMENT_SCOPE", "AZUREML_ROOT_RUN_ID", "AZUREML_WORKSPACE_ID", "AZUREML_WORKSPACE_SCOPE",
    "AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST",
)  # fmt: skip
"""Variables left out of a plan's processes: they repeat the request, or list the addresses of all instances."""


def common_variables(body: Body, layout: JobLayout, instance: int, *, whole: bool = True) -> dict[str, str]:
    """Return the variables that all processes of an instance get: the job's own, the paths of its data, and the
    service's. The service's variables override the job's. If `whole` is false, the variables in `LONG` are left out.
    """
    found = {
        **body.variables,
        **_of_data(body, layout),
        **_of_the_run(body, layout),
        **_of_the_instance(layout, instance),
    }
    if whole:
        return found | _of_all_hosts(layout, instance)
    return {name: value for name, value in found.items() if name not in LONG}


def _of_data(body: Body, layout: JobLayout) -> dict[str, str]:
    variables = {}
    for name, item in body.inputs.items():
        prefix = "AZUREML_PARAMETER" if is_literal(item) else "AZURE_ML_INPUT"
        variables[f"{prefix}_{name}"] = layout.paths[f"inputs.{name}"]
    return variables | {f"AZURE_ML_OUTPUT_{name}": layout.paths[f"outputs.{name}"] for name in body.outputs}


def _of_the_run(body: Body, layout: JobLayout) -> dict[str, str]:
    """Return the variables that name the run, its experiment and its workspace, as in a published pod specification.

    `AZUREML_ARM_PROJECT_NAME` is the name of the experiment.
    """
    parts = layout.workspace_id.split("/")
    return {
        "AZUREML_ARM_PROJECT_NAME": body.experiment,
        "AZUREML_ARM_RESOURCEGROUP": parts[4],
        "AZUREML_ARM_SUBSCRIPTION": parts[2],
        "AZUREML_ARM_WORKSPACE_NAME": parts[-1],
        "AZUREML_EXPERIMENT_ID": UNKNOWN_ID,
        "AZUREML_EXPERIMENT_SCOPE": f"{layout.workspace_id}/experiments/{body.experiment}",
        "AZUREML_ROOT_RUN_ID": layout.run_name,
        "AZUREML_RUN_ID": layout.run_name,
        "AZUREML_WORKSPACE_ID": UNKNOWN_ID,
        "AZUREML_WORKSPACE_SCOPE": layout.workspace_id,
    }


def _of_the_instance(layout: JobLayout, instance: int) -> dict[str, str]:
    """Return the instance's variables.

    AZ_BATCH_* are set only if the job has several instances, as documented. Microsoft's DeepSpeed example relies on
    their absence from jobs with one instance.
    """
    variables = {
        "AZUREML_CR_EXECUTION_WORKING_DIR_PATH": layout.code[instance],
        "AZUREML_CR_NODE_RANK": str(instance),
        "AZUREML_NODE_COUNT": str(len(layout.hosts)),
        "AZ_BATCHAI_JOB_MASTER_NODE_IP": layout.hosts[0],
        "AZ_BATCHAI_TASK_INDEX": str(instance),
    }
    if layout.gpus is not None:
        variables["AZ_BATCHAI_GPU_COUNT"] = str(layout.gpus)
    if layout.is_multi:
        variables["AZ_BATCH_IS_CURRENT_NODE_MASTER"] = str(instance == 0).lower()
    return variables


def _of_all_hosts(layout: JobLayout, instance: int) -> dict[str, str]:
    """Return one instance's variables with the addresses of all instances.

    `rank` in AZUREML_CR_DISTRIBUTED_CONFIG is the instance's number. On Kubernetes, Azure ML writes the name of a
    variable instead.
    """
    config = {"AZUREML_CR_DISTRIBUTED_CONFIG": json.dumps({"rank": instance, "host_list": list(layout.hosts)})}
    if not layout.is_multi:
        return config
    return config | {"AZ_BATCH_HOST_LIST": ",".join(layout.hosts), "AZ_BATCH_NODE_LIST": ";".join(layout.hosts)}
