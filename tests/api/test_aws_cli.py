"""What `plan --format aws-cli` prints is what the AWS command line sends, and what a service takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_examples import FILES

MISSING = find_spec("awscli") is None or find_spec("moto") is None
pytestmark = [
    pytest.mark.awscli,
    pytest.mark.skipif(MISSING, reason="needs awscli and moto: pip install -e '.[dev]'"),
]


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """moto's server: it takes what botocore's model of the service takes."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def aws(*arguments: str, endpoint: str) -> Any:
    """What `aws sagemaker ...` answers."""
    variables = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-west-2",
    }
    command = [sys.executable, "-m", "awscli", "sagemaker", *arguments, "--endpoint-url", endpoint]
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_aws_cli_sends_it(path: Path, service: str, tmp_path: Path) -> None:
    """Every example, planned without credentials, is accepted, and is the job that the plan names."""
    hidden = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    target = tmp_path / "cloudtrain.toml"
    target.write_text(
        '[sagemaker]\nregion = "us-west-2"\nrole = "arn:aws:iam::111122223333:role/Training"\n'
    )
    command = [
        sys.executable,
        "-m",
        "cloudtrain",
        "plan",
        str(path),
        "--target",
        "sagemaker",
        "--format",
        "aws-cli",
    ]
    planned = subprocess.run(
        command, cwd=tmp_path, env=hidden, capture_output=True, text=True, check=False
    )
    assert planned.returncode == 0, planned.stderr
    file, request = tmp_path / "request.json", json.loads(planned.stdout)
    file.write_text(planned.stdout)
    kind = "training" if "TrainingJobName" in request else "processing"
    aws(f"create-{kind}-job", "--cli-input-json", f"file://{file}", endpoint=service)
    name = request[f"{kind.title()}JobName"]
    described = aws(f"describe-{kind}-job", f"--{kind}-job-name", name, endpoint=service)
    for field in ("HyperParameters", "ResourceConfig", "AppSpecification", "ProcessingInputs"):
        assert described.get(field) == request.get(field)
