"""Capture the job that a script creates with azure-ai-ml, instead of sending it.

This code runs inside the script, so it uses only the standard library and supports Python 3.7 or
newer.
"""

import io
import os
import sys
import tarfile
import types
import uuid

MODULE = "azure.ai.ml._ml_client"


CODE = "code.tar.gz"
"""Ends the place under which a job's code is kept, if it is a folder."""

MADE_UP = ("display_name", "experiment_name")
"""Without them, the SDK makes up a name, and takes that of the script's folder."""

OPERATIONS = (
    "get", "list", "stream", "download", "archive", "restore", "begin_delete", "invoke",
    "create_or_update", "begin_create_or_update",
)  # fmt: skip
"""The methods that ask the service. Those of jobs, assets and workspaces have other stand-ins."""


def install(module, emit, keep):
    """Replace methods of azure-ai-ml (`module`), so that a job goes to `emit` instead of the
    service. The replaced methods send jobs, register and look up the assets that a job needs, and
    read the client's configuration file from the user's folders."""
    operations = sys.modules["azure.ai.ml.operations"]
    from_config = module.MLClient.from_config.__func__

    created = {}

    def create_job(self, job, **fields):
        for field, value in fields.items():
            if value is not None and hasattr(job, field):
                setattr(job, field, value)
        place = "%d/%s" % (len(created), CODE)
        code = getattr(job, "code", None) or getattr(getattr(job, "trial", None), "code", None)
        if code and os.path.isdir(str(code)):
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w:gz") as tar:
                tar.add(str(code), ".")
            keep(place, archive.getvalue())

        name = getattr(job, "name", None) or "job-%s" % uuid.uuid4().hex[:12]
        record = {"job": description(job), "workspace": workspace(self), "code": place}
        record["made_up"] = [field for field in MADE_UP if not getattr(job, field, None)]
        emit(dict(record, name=name))
        created[name] = Created(name, job)
        return created[name]

    def register(self, entity, **_):  # noqa: ARG001
        """Return an asset as if it were registered, which gives it a version."""
        for name in ("version", "_version"):
            if hasattr(entity, name) and getattr(entity, name) is None:
                setattr(entity, name, "1")
        return entity

    class Named(str):
        """Stands for an asset, compute or workspace that the script looks up. The class is a `str`,
        because the SDK accepts a string as an environment."""

        def __new__(cls, name, version=None):
            return super().__new__(
                cls, name if version is None else "azureml:%s:%s" % (name, version)
            )

        def __init__(self, name, version=None):
            self.name = name
            self.size = self.version = version or "1"
            self.provisioning_state = "Succeeded"
            self.id = self.path = str(self)

    class Created(Named):
        """Stands for a job that has completed, and for a part of it, such as the address of an
        output."""

        def __new__(cls, name, job=None):  # noqa: ARG004
            return str.__new__(cls, name)

        def __init__(self, name, job=None):
            super().__init__(name)
            self.job = job
            self.status = "Completed"
            self.studio_url = self.endpoint = "https://ml.azure.com/runs/" + name

        def __getattr__(self, part):
            if part.startswith("_"):
                raise AttributeError(part)
            if part == "outputs":
                return Created("azureml://jobs/%s/outputs" % self)
            value = getattr(self.__dict__.get("job"), part, None)
            return value or Created("%s/%s" % (self, part))

        def __getitem__(self, part):
            return getattr(self, part) if isinstance(part, str) else super().__getitem__(part)

    def begin(self, entity, **_):  # noqa: ARG001
        """Return a poller of a long-running operation that has already finished."""
        return types.SimpleNamespace(result=lambda *_: entity, wait=lambda *_: entity)

    def get_job(self, name):  # noqa: ARG001
        return created.get(name) or Created(name)

    def get(self, name, *_, **__):  # noqa: ARG001
        return Named(name)

    def get_asset(self, name, version=None, label=None):  # noqa: ARG001
        return Named(name, version or "1")

    def get_workspace(self, name=None, **_):
        place = Named(name or self._workspace_name)
        place.resource_group = self._resource_group_name
        place.location = "eastus"
        place.id = (
            "/subscriptions/%s/resourceGroups/%s/providers/Microsoft.MachineLearningServices"
            "/workspaces/%s" % (self._subscription_id, place.resource_group, place.name)
        )
        return place

    def client_from_config(cls, credential, *arguments, **keywords):
        try:
            return from_config(cls, credential, *arguments, **keywords)
        except Exception:  # noqa: BLE001 - there is none in the folder of the script
            return cls(credential, "<SUBSCRIPTION_ID>", "<RESOURCE_GROUP>", "<WORKSPACE>")

    stand_ins = {"get": get, "list": lambda *_, **__: [], "create_or_update": register}
    stand_ins["begin_create_or_update"] = begin
    for kind in vars(operations).values():
        for name in OPERATIONS:
            if isinstance(kind, type) and hasattr(kind, name):
                setattr(kind, name, stand_ins.get(name, lambda *_, **__: None))

    module.MLClient.from_config = classmethod(client_from_config)
    operations.JobOperations.create_or_update = create_job
    operations.JobOperations.get = get_job
    for name in ("Environment", "Data", "Model", "Component"):
        kind = getattr(operations, name + "Operations", None)
        if kind:
            kind.get = get_asset
    operations.WorkspaceOperations.get = get_workspace


def workspace(operations):
    """Return the workspace of a client's operations, as far as the script names it."""
    values = {
        "subscription_id": getattr(operations, "_subscription_id", None),
        "resource_group": getattr(operations, "_resource_group_name", None),
        "workspace": getattr(operations, "_workspace_name", None),
    }
    return {name: value for name, value in values.items() if isinstance(value, str) and value}


def description(job):
    """Return the body that the SDK would send for `job`. If the job defines its environment inline,
    return the content of a job file instead, because the SDK would have to register the environment
    before it can make the body."""
    entity = job._to_job() if hasattr(job, "_to_job") else job
    environment = getattr(entity, "environment", None)
    if environment is None or isinstance(environment, str):
        try:
            from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

            rest = to_rest_job_object(entity)
            body = rest.serialize() if hasattr(rest, "serialize") else rest.as_dict()
            return {"name": getattr(entity, "name", None), "properties": body["properties"]}
        except Exception:  # noqa: BLE001 - whatever it is, the job file says the same
            pass
    fields = dict(entity._to_dict())
    if isinstance(fields.get("environment"), dict) and not getattr(
        environment, "_is_anonymous", True
    ):
        # In a job file the SDK ignores an environment's name; here it registers the environment
        # under it.
        fields["environment"] = dict(
            fields["environment"], asset_name=environment.name, asset_version=environment.version
        )
    return fields
