"""Runs inside a user's script: answers the script's AWS calls, and captures the request that
creates a job.

Uses only the standard library and supports Python 3.7 or newer, because the script's own
interpreter runs it.
"""

ACCOUNT = "111122223333"
ROLE = "EXECUTION-ROLE"
MODULE = "botocore.client"
TAKEN = ("CreateTrainingJob", "CreateHyperParameterTuningJob", "CreateProcessingJob")


def install(module, emit, keep):
    """Replace `_make_api_call`, the method that sends every request of every AWS client; the new
    one sends nothing.

    `module` is `botocore.client`. `emit` takes the operation and its parameters and ends the
    process; `keep` takes the bytes of an upload and its destination.
    """
    parts = {}

    def call(self, operation, params):
        region = self.meta.region_name
        if operation in TAKEN:
            emit({"operation": operation, "request": params, "region": region})
        place = "s3://%s/%s" % (params.get("Bucket"), params.get("Key"))
        if operation == "PutObject":
            keep(place, bytes_of(params.get("Body", b"")))
            return {"ETag": '"0"'}
        if operation == "UploadPart":
            chunks = parts.setdefault(params["Key"], {})
            chunks[params["PartNumber"]] = bytes_of(params.get("Body", b""))
            return {"ETag": '"0"'}
        if operation == "CompleteMultipartUpload":
            chunks = parts.pop(params["Key"], {})
            keep(place, b"".join(chunks[number] for number in sorted(chunks)))
            return {}
        return answer(operation, params, region)

    module.BaseClient._make_api_call = call


def bytes_of(body):
    """Return the content of an upload."""
    if hasattr(body, "read"):
        body = body.read()
    return body.encode() if isinstance(body, str) else bytes(body)


def answer(operation, params, region):
    """Return a made-up AWS response to an operation that the SDKs call before they create a job.

    Operations without a prepared response get an empty one with status 200.
    """
    role = params.get("RoleName", ROLE)
    user = "arn:aws:sts::%s:assumed-role/%s/session" % (ACCOUNT, ROLE)
    arn = "arn:aws:iam::%s:role/%s" % (ACCOUNT, role)
    trust = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": "sagemaker.amazonaws.com"},
    }
    policy = {"Statement": [trust]}
    return {
        "GetCallerIdentity": {"Account": ACCOUNT, "UserId": "AIDA", "Arn": user},
        "GetRole": {"Role": {"RoleName": role, "Arn": arn, "AssumeRolePolicyDocument": policy}},
        "SimulatePrincipalPolicy": {"EvaluationResults": []},
        "HeadBucket": {"ResponseMetadata": {"HTTPHeaders": {"x-amz-bucket-region": region}}},
        "GetBucketLocation": {"LocationConstraint": region},
        "ListBuckets": {"Buckets": []},
        "CreateMultipartUpload": {"UploadId": "0"},
        "ListObjectsV2": {"Contents": [], "KeyCount": 0, "IsTruncated": False},
        "ListObjects": {"Contents": [], "IsTruncated": False},
    }.get(operation, {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {}}})
