"""Runs inside a user's script: answers the script's AWS calls, and captures the requests that
create jobs.

Uses only the standard library and supports Python 3.7 or newer, because the script's own
interpreter runs it.
"""

import io
import os
import sys

ACCOUNT = "111122223333"
ROLE = "EXECUTION-ROLE"
MODULE = "botocore.client"
TAKEN = (
    "TrainingJob", "HyperParameterTuningJob", "ProcessingJob", "TransformJob", "AutoMLJob",
    "AutoMLJobV2", "Pipeline",
)  # fmt: skip
"""What the captured operations create."""


class Answer(dict):
    """A response of AWS that makes up what a script reads of it: states that a script waits for,
    names, addresses, and empty mappings."""

    def __missing__(self, name):
        name = str(name)  # a number where a script takes the first of a list
        if name.endswith("Arn"):
            return "arn:aws:sagemaker:us-east-1:%s:made-up/%s" % (ACCOUNT, name)
        if name.endswith("Status"):
            return {"EndpointStatus": "InService"}.get(name, "Completed")
        if name.endswith("Name"):
            return "made-up"
        return Answer()


class Description(Answer):
    """The description of a job that has not run. What the script's own code reads of it is added to
    `reads`, except for the job's request, states and names, and the address of its model, which
    are as after a run. An SDK reads much more while it waits."""

    def __init__(self, fields, name, reads):
        super().__init__(fields)
        self.job = name
        self.reads = reads
        self.known = {*fields, "ModelArtifacts", "FailureReason"}

    def note(self, field=None):
        caller = sys._getframe(2).f_code.co_filename
        is_known = field in self.known or str(field).endswith(("Arn", "Name", "Status"))
        if caller.startswith(SCRIPTS) and not is_known:
            part = " (all of it)" if field is None else ".%s" % field
            self.reads[self.job, part] = True


def noting(name):
    """Return a method of mappings that notes first what it reads."""
    method = getattr(Answer, name)

    def noted(self, *arguments):
        self.note(*arguments[:1])
        return method(self, *arguments)

    return noted


for reading in ("__getitem__", "__contains__", "get", "__iter__", "keys", "values", "items"):
    setattr(Description, reading, noting(reading))

SCRIPTS = (os.path.dirname(os.getcwd()) + os.sep, "cell ")
"""How the names of the script's own files begin, and of the cells of a notebook."""


def install(module, emit, keep):
    """Replace `_make_api_call`, the method that sends every request of every AWS client; the new
    one sends nothing.

    `module` is `botocore.client`. `emit` takes the request of a job; `keep` takes the bytes of an
    upload and its destination.
    """
    parts = {}
    objects = {}
    created = {}
    reads = {}

    def store(place, content):
        objects[place] = content
        keep(place, content)
        return Answer(ETag='"0"')

    def call(self, operation, params):
        region = self.meta.region_name
        place = "s3://%s/%s" % (params.get("Bucket"), params.get("Key"))
        if operation == "PutObject":
            return store(place, body_of(params))
        if operation == "UploadPart":
            chunks = parts.setdefault(params["Key"], {})
            chunks[params["PartNumber"]] = body_of(params)
            return Answer(ETag='"0"')
        if operation == "CompleteMultipartUpload":
            chunks = parts.pop(params["Key"], {})
            return store(place, b"".join(chunks[number] for number in sorted(chunks)))
        if operation in ("GetObject", "HeadObject"):
            # what the script would do with the content of any other object is not known
            if place not in objects:
                message = "cloudtrain adopt runs scripts without AWS, so it cannot read " + place
                error = {"Error": {"Code": "404", "Message": message}}
                raise getattr(module, "ClientError", OSError)(error, operation)
            content = objects[place]
            return Answer(ContentLength=len(content), ETag='"0"', Body=io.BytesIO(content))

        verb = "Describe" if operation.startswith("Describe") else "Create"
        kind = operation[len(verb) :]
        name = params.get(kind.replace("V2", "") + "Name")
        if operation.startswith(verb):
            request = created.setdefault((kind, name), params)
            if verb == "Create" and kind in TAKEN:
                refuse_unsendable(self, operation, params)
                record = {"name": name, "request": params, "region": region}
                emit(dict(record, reads=list(reads)))
            description = described(kind, name, request)
            if kind not in TAKEN:
                return description
            return Description(description, name, reads)
        return answer(operation, params, region)

    module.BaseClient._make_api_call = call


def refuse_unsendable(client, operation, params):
    """Raise the error of botocore for a request that it would not send, such as one with an empty
    id."""
    if hasattr(client, "_serializer"):
        client._serializer.serialize_to_request(
            params, client.meta.service_model.operation_model(operation)
        )


def described(kind, name, request):
    """Return the description of what a `request` has created, and of a job that has completed."""
    arn = "arn:aws:sagemaker:us-east-1:%s:%s/%s" % (ACCOUNT, kind.lower(), name)
    description = Answer(request)
    description.setdefault(kind + "Arn", arn)
    # a waiter reads it where `__missing__` is not asked
    description.setdefault(kind + "Status", description[kind + "Status"])
    if kind == "TrainingJob":
        folder = request.get("OutputDataConfig", {}).get("S3OutputPath", "s3://bucket")
        model = "%s/%s/output/model.tar.gz" % (folder.rstrip("/"), name)
        description["ModelArtifacts"] = {"S3ModelArtifacts": model}
        description["SecondaryStatus"] = "Completed"
    return description


def body_of(params):
    """Return the content of an upload."""
    body = params.get("Body", b"")
    if hasattr(body, "read"):
        body = body.read()
    return body.encode() if isinstance(body, str) else bytes(body)


def answer(operation, params, region):
    """Return a made-up AWS response to an operation that the SDKs call besides those that create a
    job."""
    role = params.get("RoleName", ROLE)
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
        "InvokeEndpoint": {"Body": io.BytesIO(b"[]")},
    }
    return Answer(
        prepared.get(operation, {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {}}})
    )
