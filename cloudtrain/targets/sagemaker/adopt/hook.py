"""Runs inside a user's script: answers the script's AWS calls, and captures the requests that
create jobs.

Uses only the standard library and supports Python 3.7 or newer, because the script's own
interpreter runs it.
"""

import datetime
import io

ACCOUNT = "111122223333"
ROLE = "EXECUTION-ROLE"
MODULE = "botocore.client"
TAKEN = ("TrainingJob", "HyperParameterTuningJob", "ProcessingJob", "TransformJob", "AutoMLJob")
TAKEN += ("AutoMLJobV2", "Pipeline")
"""What the captured operations create."""

REACHED = ("Completed", "InService", "Succeeded", "Active", "Available", "Created", "Ready")
"""The states that a script waits for."""


def install(module, emit, keep):
    """Replace `_make_api_call`, the method that sends every request of every AWS client; the new
    one sends nothing.

    `module` is `botocore.client`. `emit` takes the operation and its parameters; `keep` takes the
    bytes of an upload and its destination.
    """
    parts = {}
    objects = {}
    created = {}

    def store(place, content):
        objects[place] = content
        keep(place, content)

    def call(self, operation, params):
        region = self.meta.region_name
        place = "s3://%s/%s" % (params.get("Bucket"), params.get("Key"))
        if operation == "PutObject":
            store(place, bytes_of(params.get("Body", b"")))
            return {"ETag": '"0"'}
        if operation == "UploadPart":
            chunks = parts.setdefault(params["Key"], {})
            chunks[params["PartNumber"]] = bytes_of(params.get("Body", b""))
            return {"ETag": '"0"'}
        if operation == "CompleteMultipartUpload":
            chunks = parts.pop(params["Key"], {})
            store(place, b"".join(chunks[number] for number in sorted(chunks)))
            return {}
        if operation in ("GetObject", "HeadObject"):
            if place not in objects:
                raise missing(module, operation, place)
            content = objects[place]
            size = {"ContentLength": len(content), "ETag": '"0"'}
            return size if operation == "HeadObject" else dict(size, Body=stream(content))

        verb = "Describe" if operation.startswith("Describe") else "Create"
        kind = operation[len(verb) :]
        name = params.get(kind.replace("V2", "") + "Name")
        known = dict(params)
        if operation.startswith("Create"):
            created[kind, name] = params
            if kind in TAKEN:
                emit({"name": name, "request": params, "region": region})
        elif operation.startswith("Describe"):
            known.update(created.get((kind, name), {}))
            known.update(results(kind, known))
        return answer(self, operation, known, region)

    module.BaseClient._make_api_call = call


def bytes_of(body):
    """Return the content of an upload."""
    if hasattr(body, "read"):
        body = body.read()
    return body.encode() if isinstance(body, str) else bytes(body)


def stream(content):
    """Return the body of an answer."""
    from botocore.response import StreamingBody

    return StreamingBody(io.BytesIO(content), len(content))


def missing(module, operation, place):
    """Return the error for an object that the script has not uploaded itself: what it would do with
    another content is not known."""
    message = "cloudtrain adopt runs scripts without AWS, so %s cannot be read" % place
    failure = {"Error": {"Code": "404", "Message": message}}
    if hasattr(module, "ClientError"):
        return module.ClientError(failure, operation)
    return OSError(message)


def results(kind, request):
    """Return what the service adds to the description of a job that has completed."""
    name = request.get(kind + "Name")
    if kind == "TrainingJob":
        folder = request.get("OutputDataConfig", {}).get("S3OutputPath", "s3://bucket")
        model = "%s/%s/output/model.tar.gz" % (folder.rstrip("/"), name)
        return {"ModelArtifacts": {"S3ModelArtifacts": model}, "SecondaryStatus": "Completed"}
    if kind == "HyperParameterTuningJob":
        # the service names a training job by its tuning job, a number and a hash
        return {"BestTrainingJob": {"TrainingJobName": "%s-001-00000000" % name}}
    return {}


def answer(client, operation, known, region):
    """Return a made-up AWS response to an operation that the SDKs call before and after they create
    a job. `known` holds values of its members.

    Operations without a prepared response get an empty one with status 200, and those of SageMaker
    one with the names, addresses, states and times of their documentation.
    """
    role = known.get("RoleName", ROLE)
    user = "arn:aws:sts::%s:assumed-role/%s/session" % (ACCOUNT, ROLE)
    arn = "arn:aws:iam::%s:role/%s" % (ACCOUNT, role)
    trust = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": "sagemaker.amazonaws.com"},
    }
    policy = {"Statement": [trust]}
    prepared = {
        "GetCallerIdentity": {"Account": ACCOUNT, "UserId": "AIDA", "Arn": user},
        "GetRole": {"Role": {"RoleName": role, "Arn": arn, "AssumeRolePolicyDocument": policy}},
        "SimulatePrincipalPolicy": {"EvaluationResults": []},
        "HeadBucket": {"ResponseMetadata": {"HTTPHeaders": {"x-amz-bucket-region": region}}},
        "GetBucketLocation": {"LocationConstraint": region},
        "ListBuckets": {"Buckets": []},
        "CreateMultipartUpload": {"UploadId": "0"},
        "ListObjectsV2": {"Contents": [], "KeyCount": 0, "IsTruncated": False},
        "ListObjects": {"Contents": [], "IsTruncated": False},
        "DescribeLogStreams": {"logStreams": []},
        "GetLogEvents": {"events": [], "nextForwardToken": "0"},
    }
    if operation in prepared:
        return prepared[operation]
    response = {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {}}}
    service = getattr(client.meta, "service_model", None)
    if service is not None and service.service_name == "sagemaker":
        shape = service.operation_model(operation).output_shape
        response.update(made_up(shape, known, region) if shape else {})
    elif service is not None and operation.startswith("InvokeEndpoint"):
        response["Body"] = stream(b"[]")
    return response


def made_up(shape, known, region):
    """Return the members of a response: those that are known, states that are reached, addresses,
    times, and empty lists."""
    response = {}
    for name, member in shape.members.items():
        if name in known:
            response[name] = known[name]
        elif member.type_name == "timestamp":
            response[name] = datetime.datetime.now(datetime.timezone.utc)
        elif member.type_name == "list":
            response[name] = []
        elif name.endswith("Arn"):
            place = "arn:aws:sagemaker:%s:%s:" % (region, ACCOUNT)
            named = known.get(name[:-3] + "Name", "made-up")
            response[name] = "%s%s/%s" % (place, name[:-3].lower(), named)
        elif name.endswith("Status") and getattr(member, "enum", None):
            states = [state for state in REACHED if state in member.enum]
            response[name] = (states + list(member.enum))[0]
    return response
