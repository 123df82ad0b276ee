"""Read the request that a script was about to send, and insert the account number of the job's
role."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path as File
from typing import Any

from cloudtrain.documents.document import Unreadable, read_text
from cloudtrain.job.script import job_name_from
from cloudtrain.plans.comparison import ValuePath, overrides_between
from cloudtrain.plans.plan import CompileContext, Plan, map_texts
from cloudtrain.rules.values import secret_texts
from cloudtrain.system.files import expand_home
from cloudtrain.targets.adoption import (
    FILL_IN,
    UNREAD,
    Comparable,
    Draft,
    Original,
    StaticCall,
    Unknown,
    draft_context,
    said,
)
from cloudtrain.targets.sagemaker.adopt.hook import ACCOUNT
from cloudtrain.targets.sagemaker.adopt.jobs import (
    MODES,
    code_uri,
    drafts_of,
    input_of,
    is_of_one_run,
)
from cloudtrain.targets.sagemaker.adopt.requests import OF_SEARCH, flat, originals_in
from cloudtrain.targets.sagemaker.adopt.trainers import (
    CODE,
    DRIVERS,
    RENEWED_BY_START,
    START,
    WHY_STARTED,
    Changed,
    code_of,
    covers,
    idle_instances,
    is_trainer,
    lost_in_code,
    place_of,
    started_by_drivers,
    started_by_us,
    with_start,
)
from cloudtrain.targets.sagemaker.compile.places import CHECKPOINT_DIR, CHECKPOINT_VARIABLE
from cloudtrain.targets.sagemaker.export.distributions import SDK_TABLES
from cloudtrain.targets.sagemaker.plan import RUN_TAG
from cloudtrain.targets.sagemaker.reading import DEFAULT_MAX_RUNTIME
from cloudtrain.targets.sagemaker.request import (
    JOB_NAME,
    ROWS,
    RUN_NAME,
    SUBMIT_DIRECTORY,
    JsonMapping,
    JsonObject,
    rows_by_name,
)
from cloudtrain.targets.sagemaker.settings import (
    REGION,
    SageMaker,
    account_id,
    account_of,
    regions_of_profiles,
)


def with_code(original: Original, objects: Mapping[str, bytes]) -> tuple[Original, bytes | None]:
    """Return the job and its code, read from S3 objects (content by address).

    If version 3's drivers start the job, the returned job also describes the program that they
    start. The code is None if `objects` lack it, or if a driver is missing or changed.
    """
    request = original.request
    if not is_trainer(request):
        return original, objects.get(code_uri(request) or "")
    try:
        start = started_by_drivers(request, objects)
    except Changed as error:
        return replace(original, lost={**original.lost, "InputDataConfig": f"{error}"}), None
    code = code_of(request, objects)
    lost = {**original.lost, **idle_instances(start, request), **lost_in_code(code, start)}
    return replace(original, start=start, lost=lost), code


_ADDRESS = re.compile(r's3://[^/"\\\s]+/[^"\\\s]+')


_WRITTEN = re.compile(r'"S3OutputPath": "[^"]*"')


def with_uploads(original: Original, objects: Mapping[str, bytes]) -> Original:
    """Return the job with the uploads of its script, `objects` (content by address), besides its
    code. Uploads that the job reads and that no input can hold are lost."""
    request = original.request
    of_code = {
        code_uri(request),
        *(place_of(request, name) for name in (CODE, DRIVERS) if is_trainer(request)),
    }
    inputs, lost, named = dict[str, dict[str, bytes]](), dict[str, str](), set[str]()
    rest = {
        place
        for place in objects
        if not any(covers(address, place) for address in of_code if address)
    }
    rows = [
        row.get("DataSource", {}).get("S3DataSource", {})
        for row in request.get("InputDataConfig", ())
    ]
    sources = {row["S3Uri"]: row for row in rows if "S3Uri" in row}
    text = _WRITTEN.sub("", json.dumps(request))
    for address in dict.fromkeys((*sources, *_ADDRESS.findall(text))):
        places = sorted(place for place in rest if covers(address, place))
        named |= {*places}
        files = {
            place[len(address) :].strip("/") or place.rpartition("/")[2]: objects[place]
            for place in places
        }
        if (
            files
            and all(files.values())
            and sources.get(address, {}).get("S3DataType") == "S3Prefix"
        ):
            inputs[address] = files
        elif files:
            count = f"{len(files)} files" if len(files) > 1 else "a file"
            lost[address] = (
                f"the script uploads {count} to it, and the job does not: copy what it needs there"
            )
    others = tuple(sorted(rest - named))
    return replace(original, uploads=inputs, lost={**original.lost, **lost}, other_uploads=others)


# Read estimators, trainers and requests from the text of a script, as a draft of a job.

_FRAMEWORKS: dict[str, str] = SDK_TABLES["classes"]

_OTHERS = ("Processor", "Monitor", "Model")
"""Endings of classes of the SDK that have a role and an instance type, and train nothing."""

_AS_USUAL = {"debugger_hook_config": False, "disable_profiler": True}
"""Arguments with the values that a job has anyway."""

_INPUTS = ("TrainingInput", "s3_input", "InputData")
"""Classes of inputs."""

_METHODS = ("set_hyperparameters", "fit", "train")


def draft_of_calls(calls: Sequence[StaticCall]) -> tuple[Draft, dict[str, str]] | None:
    """Return the first job that the script creates, if any, and the values that cannot be read from
    its text."""
    for call in calls:
        kind = call.name.rpartition(".")[2]
        if kind == "create_training_job":
            unknown: dict[str, str] = {}
            request = said(dict(call.keywords), "", unknown)
            original = Original(
                "sagemaker", request, str(request.get("TrainingJobName", "training")), ""
            )
            return next(drafts_of(original)), unknown
        trains = (
            call.keywords.keys() & {"instance_type", "train_instance_type"}
            and "role" in call.keywords
        )
        if kind in (*_FRAMEWORKS, "Estimator", "ModelTrainer") or (
            trains and not kind.endswith(_OTHERS)
        ):
            own = {
                f"{name}().{method}": method for name in (kind, call.name) for method in _METHODS
            }
            return _Reader(kind, call).draft(
                [(own[one.name], one) for one in calls if one.name in own]
            )
    return None


class _Reader:
    """Turns the arguments of one estimator or trainer into a job.

    What no method takes out of the arguments is reported, so none of them is lost in silence."""

    def __init__(self, kind: str, call: StaticCall) -> None:
        first = (
            ["image_uri", "role", "instance_count", "instance_type"]
            if kind == "Estimator"
            else ["entry_point"]
        )
        names = first + [
            f"argument {number}" for number in range(len(first) + 1, len(call.arguments) + 1)
        ]
        self.kind = kind
        self.given = dict(zip(names, call.arguments, strict=False)) | dict(_flat(call.keywords))
        self.mode = "File"
        self.job: JsonObject = {}
        self.settings: JsonObject = {}
        self.unknown: dict[str, str] = {}

    def draft(self, calls: Sequence[tuple[str, StaticCall]]) -> tuple[Draft, dict[str, str]]:
        """Return the draft; `calls` are those of the object's methods, with the methods' names."""
        name = self._known("base_job_name", self.given.pop("base_job_name", None))
        self.job["name"] = job_name_from(str(name or self.kind.lower()))
        is_script = "entry_point" in self.given or "command" in self.given
        self.job["source_dir"] = "." if is_script else None
        for argument, path in SDK_TABLES["job"].items():
            self._put(tuple(path.split(".")), self.given.pop(argument, None))
        if is_script and not {"entry_point", "command"} & self.job.keys():
            self.job["entry_point"] = FILL_IN
        self._read_environment()
        for argument, name in SDK_TABLES["settings_of_arguments"].items():
            setting = self._known(f"[sagemaker] {name}", self.given.pop(argument, None))
            self.settings |= {} if setting is None else {name: setting}
        self._read_distribution(self.given.pop("distribution", self.given.pop("distributed", None)))
        self._read_lists()
        self.mode = (
            self._known("[sagemaker] input_mode", self.given.pop("input_mode", None)) or self.mode
        )
        self.settings |= {"input_mode": MODES[self.mode]} if self.mode != "File" else {}
        for method, call in calls:
            self._read_call(method, call)
        self._read_rest(is_script)
        return Draft(self.job, self.settings), self.unknown

    def _known(self, path: str, value: Any) -> Any:
        return said(value, path, self.unknown)

    def _put(self, path: tuple[str, ...], value: Any) -> None:
        value = self._known(".".join(path), value)
        if value is None:
            return
        holder = self.job
        for part in path[:-1]:
            holder = holder.setdefault(part, {})
        holder[path[-1]] = value

    def _read_environment(self) -> None:
        framework, image = _FRAMEWORKS.get(self.kind), self.given.pop("image_uri", None)
        if framework is None or image is not None:
            image = self._known("environment.image", image or Unknown(f"the image of {self.kind}"))
            self._put(("environment", "image", "sagemaker"), image or FILL_IN)
            return
        self._put(("environment", "framework"), framework)
        self._put(
            ("environment", "version"), self.given.pop(SDK_TABLES["version_of"][framework], None)
        )
        for argument, base in SDK_TABLES["base_of"].items():
            if framework == "huggingface" and argument in self.given:
                version = self._known("environment.base", self.given.pop(argument))
                self._put(("environment", "base"), f"{base}{version}" if version else None)
        python = self.given.get("py_version")
        if isinstance(python, str) and python.startswith("py3"):
            self._put(("environment", "python"), f"3.{self.given.pop('py_version')[3:]}")

    def _read_distribution(self, argument: Any) -> None:
        if isinstance(argument, StaticCall):
            launcher = {"Torchrun": "torch", "MPI": "mpi"}.get(argument.name.rpartition(".")[2])
            if launcher:
                words = dict(argument.keywords)
                count = words.pop("process_count_per_node", None)
                self._put(
                    ("distribution",),
                    {"type": launcher} | ({"processes_per_instance": count} if count else {}),
                )
                self.given |= {f"distribution.{name}": value for name, value in words.items()}
                return
        value = self._known("distribution", argument)
        if isinstance(value, dict):
            fields = dict(_distribution(value))
            if fields and (
                fields["type"] != "tensorflow" or self.kind in ("TensorFlow", "Estimator")
            ):
                self.job["distribution"] = fields
            elif value:
                self.unknown["distribution"] = repr(value)

    def _read_lists(self) -> None:
        of_rows = (
            ("metrics", "metric_definitions", "Name", "Regex"),
            ("tags", "tags", "Key", "Value"),
        )
        for field, argument, name, value in of_rows:
            rows = self._known(field, self.given.pop(argument, None)) or []
            self._put(
                (field,),
                {row[name]: row[value] for row in rows if {name, value} <= row.keys()} or None,
            )
        size = self._known("resources.volume_size", self.given.pop("volume_size", None))
        self._put(("resources", "volume_size"), f"{size}g" if size else None)
        spot, wait = (
            self._known("spot", self.given.pop("use_spot_instances", None)),
            self.given.pop("max_wait", None),
        )
        if spot is True:  # without spot instances, the SDK ignores `max_wait`
            self.job["spot"] = {}
            self._put(("spot", "max_wait"), wait)

    def _read_call(self, method: str, call: StaticCall) -> None:
        keywords = dict(call.keywords)
        if method == "set_hyperparameters":
            self._put(("hyperparameters",), self.job.get("hyperparameters", {}) | keywords)
            return
        inputs = call.arguments[0] if call.arguments else keywords.pop("inputs", None)
        for name, value in (inputs if isinstance(inputs, dict) else {"training": inputs}).items():
            self._read_input(name, value)
        channels = keywords.pop("input_data_config", None)
        for row in channels if isinstance(channels, list) else [channels]:
            name = row.keywords.get("channel_name") if isinstance(row, StaticCall) else None
            self._read_input(name if isinstance(name, str) else "input_data_config", row)
        self.given |= {
            f"{method}.{name}": value
            for name, value in keywords.items()
            if name not in ("wait", "logs")
        }

    def _read_input(self, name: str, value: Any) -> None:
        fields, place = dict[str, Any](), value
        if isinstance(value, StaticCall) and value.name.rpartition(".")[2] in _INPUTS:
            words = {key: word for key, word in value.keywords.items() if key != "channel_name"}
            first = value.arguments[0] if value.arguments else None
            place = words.pop("s3_data", words.pop("data_source", first))
            fields = {
                ours: words.pop(theirs)
                for theirs, ours in SDK_TABLES["inputs"].items()
                if theirs in words
            }
            self.given |= {f"inputs.{name}.{key}": word for key, word in words.items()}
        place = self._known(f"inputs.{name}.sagemaker", place)
        if place is not None:
            fields = self._known(f"inputs.{name}", fields) | {"S3Uri": place}
            self._put(("inputs", name), input_of(fields, fields, self.mode))

    def _read_rest(self, is_script: bool) -> None:
        """An estimator of an algorithm takes the algorithm's hyperparameters as arguments."""
        for argument, value in self.given.items():
            if (
                value is None
                or argument == "sagemaker_session"
                or (argument, value) in _AS_USUAL.items()
            ):
                continue
            is_own = (
                not is_script
                and self.kind not in ("Estimator", "ModelTrainer")
                and "." not in argument
            )
            if is_own and isinstance(value, str | int | float):
                self._put(("hyperparameters", argument), value)
            else:
                self._known(
                    argument,
                    value if isinstance(value, Unknown | StaticCall) else Unknown(repr(value)),
                )


def _flat(keywords: JsonMapping) -> Iterator[tuple[str, Any]]:
    """Yield each argument's name and value, by version 2's names. Nested objects, such as
    `Compute(...)`, are flattened."""
    for name, value in keywords.items():
        kind = value.name.rpartition(".")[2] if isinstance(value, StaticCall) else ""
        parts = SDK_TABLES["trainer_parts"].get(kind)
        if parts is None:
            yield SDK_TABLES["old_names"].get(name, name.removeprefix("train_")), value
            continue
        for inner, one in value.keywords.items():
            yield parts.get(inner, inner), one


def _distribution(argument: JsonMapping) -> Iterator[tuple[str, Any]]:
    """Yield the estimator argument `distribution` of SDK version 2 as fields of a job's
    distribution."""

    def on(key: str) -> JsonMapping:
        value = argument.get(key)
        return value if isinstance(value, dict) and value.get("enabled") is not False else {}

    library, mpi = on("smdistributed"), on("mpi")
    options = mpi.get("custom_mpi_options")
    if "modelparallel" in library:
        yield "type", "smp"
        yield "version", 2 if "torch_distributed" in argument else 1
        if library["modelparallel"].get("parameters"):
            yield "parameters", library["modelparallel"]["parameters"]
    elif "dataparallel" in library or "pytorchddp" in argument:
        yield "type", "smddp"
        options = {**library.get("dataparallel", {}), **on("pytorchddp")}.get("custom_mpi_options")
    elif "torch_distributed" in argument:
        yield "type", "torch"
    elif "parameter_server" in argument:
        yield from {"type": "tensorflow", "strategy": "parameter_server"}.items()
    elif "multi_worker_mirrored_strategy" in argument:
        yield "type", "tensorflow"
    elif mpi:
        yield "type", "mpi"
    if options:
        yield "options" if mpi and not library else "mpi_options", shlex.join(shlex.split(options))
    if mpi.get("processes_per_host"):
        yield "processes_per_instance", mpi["processes_per_host"]


# The SageMaker part of `cloudtrain adopt`.

_CODE, _DATA = "(the code's own place)", "(data of this machine)"

_KEYS = "aws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = none\n"
"""Keys that are not valid, for profiles that a script names."""


class SageMakerAdopter:
    """Adopts CreateTrainingJob requests, and documents that contain such requests."""

    def originals(self, data: Any, folder: str | None) -> list[Original]:
        return originals_in(data, folder)

    def drafts(self, original: Original) -> Iterator[Draft]:
        return drafts_of(original)

    def context(self, original: Original, settings: SageMaker) -> CompileContext:
        # without the AWS configuration of this machine
        account = account_of(settings, {"HOME": "/nonexistent"})
        return draft_context(original.name, account._replace(overlay=None))

    def comparable(
        self, request: JsonMapping, original: Original, context: CompileContext, plan: Plan | None
    ) -> Comparable:
        """The form omits the run's tag and replaces the location of the code with a fixed text. If
        the drivers of SDK version 3 start the original, one description of the program replaces the
        fields that start the program."""
        form = json.loads(
            json.dumps(
                flat(request) if "TrainingJobDefinition" in request else request, default=str
            )
        )
        if original.search is None:
            form = {name: value for name, value in form.items() if name not in OF_SEARCH}
        renewed = [
            (
                "TrainingJobName",
                "every run gets a name of its own; the original's stands in for it here",
            )
        ]
        tags = [row for row in form.get("Tags", ()) if row.get("Key") != RUN_TAG]
        form.pop("Tags", None)
        form |= {"Tags": tags} if tags else {}
        if plan is not None:
            renewed.append((f"Tags.{RUN_TAG}", "the tag makes the run known to cloudtrain"))
        variables = form.get("Environment", {})
        place = form.get("CheckpointConfig", {}).get("LocalPath")
        if plan is not None and place and variables.get(CHECKPOINT_VARIABLE) == place:
            del variables[CHECKPOINT_VARIABLE]
            renewed.append(
                (
                    f"Environment.{CHECKPOINT_VARIABLE}",
                    "the runtime reads the place of checkpoints there",
                )
            )
        for channel in form.get("InputDataConfig", ()):
            source = channel.get("DataSource", {}).get("S3DataSource", {})
            if source.get("S3Uri") in original.data or (
                plan is not None and f"/data/{UNREAD}" in str(source)
            ):
                source["S3Uri"] = _DATA
                renewed.append((f"InputDataConfig.{channel.get('ChannelName')}", _WHY_DATA))
        _drop_defaults(form)
        if original.start is not None:
            start = (
                original.start if plan is None else started_by_us(request, context.account.region)
            )
            form = with_start(form, start)
            renewed += [(name, WHY_STARTED) for name in RENEWED_BY_START]
        parameters = form.get("HyperParameters", {})
        if original.search is not None and parameters.pop(JOB_NAME, None):
            renewed.append(("HyperParameters.sagemaker_job_name", "it is the name of the run"))
        where = str(parameters.get(SUBMIT_DIRECTORY, "")).strip('"')
        if where.startswith("s3://"):
            parameters[SUBMIT_DIRECTORY] = _CODE
            renewed.append((f"HyperParameters.{SUBMIT_DIRECTORY}", _WHY_CODE))
        elif where:
            for channel in form.get("InputDataConfig", ()):
                source = channel.get("DataSource", {}).get("S3DataSource")
                if channel.get("ChannelName") == "code" and source is not None:
                    source["S3Uri"] = _CODE
                    renewed.append(("InputDataConfig.code", _WHY_CODE))
        for name in [name for name, value in form.items() if value in ({}, [], None)]:
            del form[name]  # the service treats an empty field as missing
        return Comparable(form, tuple(renewed))

    def overrides(self, ours: JsonMapping, theirs: JsonMapping) -> JsonObject:
        """None of the overrides removes the run's tag or code."""
        overrides = overrides_between(ours, theirs)
        for name, key in ROWS.items():
            rows = rows_by_name(ours.get(name), key), rows_by_name(theirs.get(name), key)
            if name in overrides and rows[0] and rows[0].keys() <= rows[1].keys():
                own = {
                    row: overrides_between(rows[0].get(row, {}), whole)
                    for row, whole in rows[1].items()
                }
                overrides[name] = [{key: row, **changes} for row, changes in own.items() if changes]
        for name in ("Tags", *OF_SEARCH):
            overrides.pop(name, None)
        drivers = overrides.pop(START, None) or START in theirs
        if drivers or any(
            text in json.dumps(overrides.get("InputDataConfig")) for text in (_CODE, _DATA)
        ):
            overrides.pop("InputDataConfig", None)
        parameters = overrides.get("HyperParameters")
        if parameters is not None and parameters.get(SUBMIT_DIRECTORY) == _CODE:
            del parameters[SUBMIT_DIRECTORY]
        name = str(theirs.get("TrainingJobName") or RUN_NAME)
        return (
            map_texts(overrides, lambda text: text.replace(name, RUN_NAME))
            if is_of_one_run(name)
            else overrides
        )

    def hook(self) -> str:
        return File(__file__).with_name("hook.py").read_text(encoding="utf-8")

    def home(self, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        """The AWS profiles with their regions alone, and the SDK's defaults at the path where it
        looks for them."""
        regions = regions_of_profiles(environ)
        profile = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
        region = (
            environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or regions.get(profile)
        )
        regions |= {} if region else {profile: REGION}
        rows = (
            f'[profile "{name}"]\n{_KEYS}{"region = " * bool(text)}{text}\n'
            for name, text in regions.items()
        )
        yield (
            ".aws/config",
            "".join(rows),
            "your AWS region" if region else f"{REGION}, because you have set no region",
        )
        folder = (
            environ.get("XDG_CONFIG_HOME") or expand_home(environ.get("HOME") or "~") / ".config"
        )
        place = File(environ.get("SAGEMAKER_USER_CONFIG_OVERRIDE") or File(folder, "sagemaker"))
        place = place / "config.yaml" if place.suffix not in (".yaml", ".yml") else place
        with suppress(OSError, Unreadable):
            lines = read_text(place).splitlines()
            parts = (line.partition(":") for line in lines)
            hidden = secret_texts([((key.strip(" -"),), value.strip()) for key, _, value in parts])
            clean = "\n".join(
                line for line in lines if not any(secret in line for secret in hidden)
            )
            yield (
                ".config/sagemaker/config.yaml",
                clean,
                f"`{place}`{' without its secrets' if hidden else ''}",
            )

    def captured(
        self, record: JsonMapping, uploads: Mapping[str, bytes]
    ) -> tuple[list[Original], bytes | None]:
        """If the script asked AWS for its account number, the hook answered with a placeholder. The
        account number of the job's role replaces this placeholder."""
        request = record.get("request")
        text = json.dumps(request)
        role = re.search(r'"RoleArn": "([^"]+)"', text)  # of a tuning job, in its definitions
        owner = account_id(role[1]) if role else None
        if owner is not None and owner != ACCOUNT:
            text = text.replace(ACCOUNT, owner)
            uploads = {place.replace(ACCOUNT, owner): content for place, content in uploads.items()}
        settings = {"region": record["region"]} if isinstance(record.get("region"), str) else {}
        jobs = originals_in(json.loads(text), None)
        originals = [with_code(with_uploads(item, uploads), uploads) for item in jobs]
        code = next((archive for _, archive in originals if archive is not None), None)
        return [
            replace(item, settings={**settings, **item.settings}) for item, _ in originals
        ], code

    def reason(self, path: ValuePath) -> str:
        return str(SDK_TABLES["reasons"].get(str(path[0]) if path else "", "a job cannot say this"))


def _drop_defaults(request: JsonObject) -> None:
    """Drop fields that only repeat a default.

    A channel's mode is redundant if it equals the mode of the whole job: version 3 of the SDK
    writes it, version 2 does not. The service's default checkpoint folder is redundant too (API
    reference, CheckpointConfig). One count for all preferred instance types is copied to each type,
    which means the same (ResourceConfig). Descriptions of jobs name the service's defaults, which
    requests leave out (recorded answers of DescribeTrainingJob, API reference).
    """
    for section, defaults in _DEFAULTS.items():
        _drop(request.get(section, {}) if section else request, defaults)
    config = request.get("ResourceConfig", {})
    if config.get("InstancePreferences") and "InstanceCount" in config:
        count = config.pop("InstanceCount")
        config["InstancePreferences"] = [
            {"InstanceCount": count, **row} for row in config["InstancePreferences"]
        ]
    mode = request.get("AlgorithmSpecification", {}).get("TrainingInputMode")
    for channel in request.get("InputDataConfig", ()):
        _drop(channel, {"InputMode": mode, "CompressionType": "None", "RecordWrapperType": "None"})
        _drop(
            channel.get("DataSource", {}).get("S3DataSource", {}),
            {"S3DataDistributionType": "FullyReplicated"},
        )
    for name, key in ROWS.items():  # whose order has no meaning
        request[name] = sorted(request.get(name, ()), key=lambda row: str(row.get(key)))


def _drop(holder: JsonObject, defaults: JsonMapping) -> None:
    for name in [
        name for name, default in defaults.items() if name in holder and holder[name] == default
    ]:
        del holder[name]


_OFF = (
    "EnableManagedSpotTraining",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
)
_DEFAULTS: Mapping[str, JsonMapping] = {
    "": dict.fromkeys(_OFF, False),
    "OutputDataConfig": {"KmsKeyId": "", "CompressionType": "GZIP"},
    "ResourceConfig": {"VolumeKmsKeyId": ""},
    "StoppingCondition": {"MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME},
    "CheckpointConfig": {"LocalPath": CHECKPOINT_DIR},
}
"""The defaults of the request (under an empty name) and of its sections."""

_WHY_DATA = "cloudtrain uploads the data under the hash of its content"
_WHY_CODE = "cloudtrain uploads the code under the hash of its content"
