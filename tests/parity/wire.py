"""The network, cut below botocore: every HTTP request of every AWS client ends here and gets a canned answer.

Nothing of the SDKs is replaced. What is compared is what botocore was about to put on the wire: its validated,
serialised bytes, decoded again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

ACCOUNT = "123456789012"

_CALLER = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
    f"<Arn>arn:aws:iam::{ACCOUNT}:user/ann</Arn><UserId>AIDA</UserId><Account>{ACCOUNT}</Account>"
    "</GetCallerIdentityResult></GetCallerIdentityResponse>"
)


@dataclass
class Wire:
    """What was sent. `send` stands in for the `send` of botocore's HTTP session."""

    calls: list[str] = field(default_factory=list)
    """`sagemaker:CreateTrainingJob`, in order."""
    hosts: list[str] = field(default_factory=list)
    """Where each call went."""
    training_jobs: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of CreateTrainingJob."""
    tuning_jobs: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of CreateHyperParameterTuningJob."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """What was put to S3, by `bucket/key`."""

    def send(self, request: Any) -> Any:
        """The canned answer to a prepared request; an unknown one is an error."""
        from botocore.awsrequest import AWSResponse

        status, content_type, body = self._answer(request)
        response = AWSResponse(request.url, status, {"Content-Type": content_type}, None)
        response._content = body.encode()
        return response

    def _answer(self, request: Any) -> tuple[int, str, str]:
        self.hosts.append(urlsplit(request.url).hostname or "")
        target = request.headers.get("X-Amz-Target")
        if target is not None:
            operation = (target.decode() if isinstance(target, bytes) else target).partition(".")[2]
            return (
                200,
                "application/x-amz-json-1.1",
                json.dumps(self._sagemaker(operation, json.loads(request.body))),
            )
        host = urlsplit(request.url).hostname or ""
        if host.startswith("sts."):
            self.calls.append("sts:" + parse_qs(_bytes(request.body).decode())["Action"][0])
            return 200, "text/xml", _CALLER
        if ".s3." in host or host.startswith("s3."):
            return self._s3(request)
        if host.startswith("iam."):
            action = parse_qs(_bytes(request.body).decode())["Action"][0]
            self.calls.append(f"iam:{action}")
            return 200, "text/xml", _iam(action)
        raise AssertionError(f"a request that nobody expects: {request.method} {request.url}")

    def _sagemaker(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(f"sagemaker:{operation}")
        name = body.get("TrainingJobName", "")
        arn = f"arn:aws:sagemaker:us-west-2:{ACCOUNT}:training-job/{name}"
        if operation == "CreateTrainingJob":
            self.training_jobs.append(body)
            return {"TrainingJobArn": arn}
        if operation == "CreateHyperParameterTuningJob":
            self.tuning_jobs.append(body)
            return {
                "HyperParameterTuningJobArn": arn.replace(
                    "training-job", "hyper-parameter-tuning-job"
                )
            }
        assert operation == "DescribeTrainingJob", operation
        algorithm = {"TrainingInputMode": "File"}
        return {
            "TrainingJobName": name,
            "TrainingJobArn": arn,
            "TrainingJobStatus": "InProgress",
            "SecondaryStatus": "Starting",
            "AlgorithmSpecification": algorithm,
            "ResourceConfig": {"VolumeSizeInGB": 30},
            "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
            "ModelArtifacts": {"S3ModelArtifacts": "s3://b/model.tar.gz"},
            "CreationTime": 0,
        }

    def _s3(self, request: Any) -> tuple[int, str, str]:
        url = urlsplit(request.url)
        bucket = (url.hostname or "").partition(".s3")[0]
        self.calls.append(f"s3:{request.method}")
        if request.method == "PUT":
            self.objects[f"{bucket}{url.path}"] = _bytes(request.body)
        return 200, "application/xml", _BUCKETS if request.method == "GET" else ""


_BUCKETS = (
    '<ListAllMyBucketsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Buckets><Bucket><Name>my-bucket</Name>'
    "<CreationDate>2026-01-01T00:00:00.000Z</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>"
)
_TRUST = quote(
    '{"Statement":[{"Effect":"Allow","Principal":{"Service":"sagemaker.amazonaws.com"},"Action":"sts:AssumeRole"}]}'
)
_IAM = {
    "GetRole": f"<Role><Path>/</Path><RoleName>SageMakerRole</RoleName><RoleId>AROA</RoleId><Arn>arn:aws:iam::{ACCOUNT}"
    ":role/SageMakerRole</Arn><CreateDate>2026-01-01T00:00:00Z</CreateDate>"
    f"<AssumeRolePolicyDocument>{_TRUST}</AssumeRolePolicyDocument></Role>",
    "SimulatePrincipalPolicy": "<EvaluationResults><member><EvalActionName>s3:PutObject</EvalActionName>"
    "<EvalDecision>allowed</EvalDecision></member></EvaluationResults><IsTruncated>false</IsTruncated>",
}


def _iam(action: str) -> str:
    result = f"<{action}Result>{_IAM[action]}</{action}Result>"
    return f'<{action}Response xmlns="https://iam.amazonaws.com/doc/2010-05-08/">{result}</{action}Response>'


def _bytes(body: Any) -> bytes:
    if hasattr(body, "read"):
        return bytes(body.read())
    return body if isinstance(body, bytes) else (body or "").encode()
