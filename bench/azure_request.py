"""Build the body of examples/torch_cifar10.yaml with the Azure ML SDK as its users do, as a whole process; print it.

    .venv-azureml/bin/python bench/azure_request.py          (tools/run/parity.py makes the environment)

It uses no network: the client's own code makes the body from a `command(...)` before it would send anything.
"""

from __future__ import annotations

import json
import warnings

warnings.simplefilter("ignore")


def main() -> None:
    """Print one command, compiled by the code with which the SDK's client sends jobs."""
    from azure.ai.ml import Input, MLClient, Output, PyTorchDistribution, command
    from azure.ai.ml._restclient.arm_ml_service._utils.model_base import SdkJSONEncoder
    from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object
    from azure.identity import DefaultAzureCredential

    MLClient(  # noqa: B018
        DefaultAzureCredential(), "00000000-0000-0000-0000-000000000000", "research", "team"
    ).jobs
    node = command(
        name="cifar10-ddp",
        command="python train.py --batch 128 --epochs 30 --learning_rate 0.1",
        code="azureml:cifar10-code:1",
        environment="azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/labels/latest",
        inputs={"cifar": Input(path="azureml:cifar-10:1", type="uri_folder")},
        outputs={"model": Output(type="uri_folder")},
        instance_count=2,
        instance_type="Standard_ND96asr_v4",
        distribution=PyTorchDistribution(process_count_per_instance=8),
        timeout=7200,
        experiment_name="cifar10-ddp",
    )
    print(
        json.dumps(
            to_rest_job_object(node._to_job()), cls=SdkJSONEncoder, exclude_readonly=True, indent=2
        )
    )


if __name__ == "__main__":
    main()
