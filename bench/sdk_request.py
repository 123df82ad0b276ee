"""Build the request of examples/torch_cifar10.yaml with the SageMaker SDK v2, as a whole process, and print it.

    .venv-sagemaker-v2/bin/python bench/sdk_request.py          (tools/run/parity.py makes the environment)

It uses no network: every HTTP request ends below botocore and gets a canned answer, so only the SDK's own time counts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ |= {
    "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-west-2",
    "SAGEMAKER_SUPPRESS_V2_WARNING": "1", "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


def main() -> None:
    """Print one estimator's request, from one fit."""
    from botocore.httpsession import URLLib3Session

    from tests.parity.wire import Wire

    wire = Wire()
    URLLib3Session.send = lambda _, request: wire.send(request)
    from sagemaker.inputs import TrainingInput
    from sagemaker.pytorch import PyTorch

    options: dict[str, Any] = {"max_run": 7200, "max_wait": 21600, "use_spot_instances": True}
    estimator = PyTorch(
        entry_point="train.py",
        source_dir="s3://sagemaker-us-west-2-111122223333/cloudtrain/code/sourcedir.tar.gz",
        role="arn:aws:iam::111122223333:role/SageMakerTraining",
        instance_count=2,
        instance_type="ml.p4d.24xlarge",
        framework_version="2.8.0",
        py_version="py312",
        output_path="s3://sagemaker-us-west-2-111122223333/cloudtrain/output",
        checkpoint_s3_uri="s3://your-bucket/checkpoints/cifar10-ddp",
        hyperparameters={"epochs": 30, "batch": 128, "learning_rate": 0.1},
        distribution={"torch_distributed": {"enabled": True}},
        **options,
    )
    estimator.fit(
        {"cifar": TrainingInput("s3://your-bucket/cifar-10")}, wait=False, job_name="cifar10-ddp"
    )
    print(json.dumps(wire.training_jobs[0], indent=2))


if __name__ == "__main__":
    main()
