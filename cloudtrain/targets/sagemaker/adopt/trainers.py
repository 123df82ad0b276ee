"""Compare the program that version 3 of the SDK starts with the program that cloudtrain's request
starts.

Version 3 starts a job with its own scripts in a channel `sm_drivers`: Python files that are the
same for every job, `sm_train.sh` made from a template, and two JSON files with the program and its
launcher. Only unchanged drivers are accepted, because a changed driver could start anything.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from cloudtrain.documents.archives import archive_of, files_of
from cloudtrain.rules.engine import text_at
from cloudtrain.runtime.sagemaker_launcher.arguments import text_of
from cloudtrain.targets.common.services import own_value
from cloudtrain.targets.sagemaker.export.distributions import SDK_TABLES, StartedScript, start_of
from cloudtrain.targets.sagemaker.reading import instances_in
from cloudtrain.targets.sagemaker.request import MODEL_PARALLEL, JsonMapping, JsonObject

DRIVERS, CODE = "sm_drivers", "code"
"""The channels that version 3 adds."""

START = "(start)"
"""The field of the comparison that contains the started program."""

WHY_STARTED = (
    "the SDK's version 3 starts the job by drivers that it uploads, and cloudtrain by its "
    "launcher or the image's "
    "toolkit; what both start is compared instead"
)

RENEWED_BY_START: list[str] = SDK_TABLES["renewed_by_start"]["fields"].split()
"""The request fields that the drivers need."""

_ENTRYPOINT: JsonObject = SDK_TABLES["start_of_drivers"]

_AFTER_HEAD = re.compile(r"\nsource /opt/ml/input/sm_training\.env\n(?:set -x\n)?\n")

_WHAT = re.compile(
    r"(?:cd /opt/ml/input/data/code \n(?:tar -xzf (?P<tar>[^\n]+) \n)?)?\n"
    r"(?:\n?echo [\"']Installing requirements[\"']\n"
    r"(?:\$SM_PYTHON_CMD /opt/ml/input/data/sm_drivers/scripts/install_requirements\.py|"
    r"\$SM_PIP_CMD install -r) "
    r"(?P<requirements>[^\n]+)\n?)?\n"
    r'(?:\necho "Running (?:Basic Script|Torchrun|MPI) (?:d|D)river"\n'
    r"\$SM_PYTHON_CMD /opt/ml/input/data/sm_drivers/distributed_drivers/(?P<driver>\w+)\.py\n"
    r"|\nCMD=\$\(cat <<'SAGEMAKER_BASE_COMMAND_EOF'\n"
    r"(?P<command>.*)\nSAGEMAKER_BASE_COMMAND_EOF\n\)\n"
    r'echo "Executing command: \$CMD"\neval "\$CMD"\n'
    r'|\nCMD="(?P<plain>[^"$`\\\n]*)"\necho "Executing command: \$CMD"\neval \$CMD\n)'
    r'\n\necho "Training Container Execution Completed"\n',
    re.DOTALL,
)

_LAUNCHERS = {
    "basic_script_driver": "single",
    "torchrun_driver": "torchrun",
    "mpi_driver": "mpirun",
}

_ONLY_THERE = re.compile(
    rb"SM_(?:SOURCE_DIR|ENTRY_SCRIPT|HOST_COUNT|CURRENT_HOST_RANK|MASTER_ADDR|MASTER_PORT|"
    rb"DISTRIBUTED_CONFIG"
    rb"|DISTRIBUTED_DRIVER_DIR|INPUT_DATA_DIR|OUTPUT_FAILURE)\b|/opt/ml/input/data/(?:code|"
    rb"sm_drivers)\b"
)
"""Matches the variables and the code folder that a script gets only from version 3's drivers."""


class Changed(Exception):
    """A driver differs from the SDK's, so cloudtrain cannot know what the driver starts."""


def is_trainer(request: JsonMapping) -> bool:
    """Return whether the drivers of version 3 of the SDK start the job."""
    return DRIVERS in (channel.get("ChannelName") for channel in request.get("InputDataConfig", ()))


def started_by_drivers(request: JsonMapping, uploads: Mapping[str, bytes]) -> JsonObject:
    """Return the launcher, script and arguments that the uploaded drivers of version 3 start."""
    algorithm = request.get("AlgorithmSpecification", {})
    if any(algorithm.get(name) != value for name, value in _ENTRYPOINT.items()):
        raise Changed("the container starts in another way than version 3's drivers do")
    files = _below(place_of(request, DRIVERS), uploads)
    script = _read_train_script(files)
    source, distributed = _json(files, "sourcecode.json"), _json(files, "distributed.json")
    if script.get("command") is None:
        script |= {
            "entry_point": source.get("entry_script"),
            "launcher": _LAUNCHERS.get(script.pop("driver"), "other"),
        }
    _refuse_unknown(files)
    values = {name: own_value(text) for name, text in request.get("HyperParameters", {}).items()}
    return _start(
        script.get("launcher", "single"),
        entry_point=script.get("entry_point"),
        command=script.get("command"),
        requirements=script.get("requirements"),
        processes=distributed.get("process_count_per_node"),
        mpi_options=distributed.get("mpi_additional_options") or [],
        smp=values.get(MODEL_PARALLEL),
        arguments={
            f"--{name}": own_value(value)
            if isinstance(own_value(value), str)
            else json.dumps(own_value(value))
            for name, value in values.items()
            if name != MODEL_PARALLEL
        },
    )


def _start(launcher: str, *, processes: int | None, **details: Any) -> JsonObject:
    """Return a started program as fields that can be compared, without empty ones."""
    count = (processes or "one for each GPU") if launcher in ("torchrun", "mpirun") else None
    fields = {"launcher": launcher, "processes": count, **details}
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def started_by_us(request: JsonMapping, region: str) -> JsonObject | None:
    """Return what cloudtrain's request starts, in the form of `started_by_drivers`; None if the
    request has no code."""
    start: StartedScript | None = start_of(dict(request), region)
    if start is None:
        return None
    values = {name: own_value(text) for name, text in start.hyperparameters.items()}
    return _start(
        start.launcher if start.launcher != MODEL_PARALLEL else "torchrun",
        entry_point=start.entry_point,
        command=start.command,
        requirements=start.requirements,
        processes=start.processes,
        mpi_options=shlex.split(start.mpi_options),
        smp=start.model_parallel,
        arguments={
            f"-{name}" if len(name) == 1 else f"--{name}": text_of(value)
            for name, value in values.items()
        },
    )


def with_start(request: JsonObject, start: JsonMapping | None) -> JsonObject:
    """Return the request without the fields that start the program; instead, one field describes
    this program."""
    comparable = {name: value for name, value in request.items() if name != "HyperParameters"}
    comparable["AlgorithmSpecification"] = {
        name: value
        for name, value in request.get("AlgorithmSpecification", {}).items()
        if name not in _ENTRYPOINT
    }
    comparable["InputDataConfig"] = [
        channel
        for channel in request.get("InputDataConfig", ())
        if channel.get("ChannelName") not in (CODE, DRIVERS)
    ]
    return comparable if start is None else comparable | {START: dict(start)}


def idle_instances(start: JsonMapping, request: JsonMapping) -> dict[str, str]:
    """Return a message for the field of the process count if version 3's MPI driver leaves
    instances idle; else empty.

    The driver starts only as many processes as one instance has, whatever the number of instances.
    """
    if (
        start.get("launcher") != "mpirun"
        or (instances_in(request.get("ResourceConfig", {})) or 1) == 1
    ):
        return {}
    why = "version 3's MPI driver starts the processes of one instance, and leaves the others idle"
    return {f"{START}.processes": f"{why}; the job starts them on every instance"}


def code_of(request: JsonMapping, uploads: Mapping[str, bytes]) -> bytes | None:
    """Return the uploaded code as an archive; None if the script has uploaded no code."""
    files = _below(place_of(request, CODE), uploads)
    only = (
        next(iter(files.values()))
        if len(files) == 1 and next(iter(files)).endswith(".tar.gz")
        else None
    )
    return only or (archive_of(files) if files else None)


def lost_in_code(code: bytes | None, start: JsonMapping) -> dict[str, str]:
    """Return a message that names the variables and folders in the code that only version 3's
    drivers provide.

    The key is the field that the message belongs to. The result is empty if the code uses none of
    them."""
    texts = [json.dumps(start).encode()]
    if code is not None:
        texts += [content for name, content in files_of(code) if name.endswith((".py", ".sh"))]
    names = ", ".join(
        sorted({match.decode() for text in texts for match in _ONLY_THERE.findall(text)})
    )
    return (
        {f"{START}.environment": f"the code uses what only version 3's drivers give it: {names}"}
        if names
        else {}
    )


def draft_fields(start: JsonMapping) -> JsonObject:
    """Return the fields of a job that starts the program described by `start` (see
    `started_by_drivers`)."""
    fields: JsonObject = {name: start[name] for name in ("entry_point", "command") if name in start}
    # a number such as 64 for `64`, if cloudtrain would pass the same text to the script
    own = {
        name.removeprefix("--"): value if text_of(value := own_value(text)) == text else text
        for name, text in start.get("arguments", {}).items()
    }
    if own:
        fields["hyperparameters"] = own
    distribution: JsonObject = {"torchrun": {"type": "torch"}, "mpirun": {"type": "mpi"}}.get(
        start["launcher"], {}
    )
    if "smp" in start:
        distribution = {"type": "smp", "version": 2, "parameters": start["smp"]}
    if isinstance(start.get("processes"), int):
        distribution["processes_per_instance"] = start["processes"]
    if start.get("mpi_options"):
        distribution["options"] = shlex.join(start["mpi_options"])
    return fields | ({"distribution": distribution} if distribution else {})


def place_of(request: JsonMapping, channel: str) -> str:
    """Return the S3 address of a channel's data; empty if the request lacks the channel."""
    for row in request.get("InputDataConfig", ()):
        if row.get("ChannelName") == channel:
            return text_at(row, "DataSource", "S3DataSource", "S3Uri")
    return ""


def covers(address: str, place: str) -> bool:
    """Return whether `place` is the object at an S3 address, or is in its folder."""
    return place == address or place.startswith(f"{address.rstrip('/')}/")


def _below(address: str, uploads: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the uploads to an address by their paths below it; empty without an address."""
    places = [place for place in uploads if address and covers(address, place)]
    return {
        place[len(address.rstrip("/")) + 1 :] or place.rpartition("/")[2]: uploads[place]
        for place in places
    }


def _digest(text: bytes) -> str:
    """Return a hash of a file's lines, without comments and empty lines, which differ between
    releases."""
    lines = [line.rstrip() for line in text.decode(errors="replace").splitlines()]
    code = "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def _refuse_unknown(files: Mapping[str, bytes]) -> None:
    files_of_job = ("sm_train.sh", "sourcecode.json", "distributed.json")
    for name, content in files.items():
        if name in files_of_job or "__pycache__/" in name:
            continue
        if _digest(content) not in SDK_TABLES["drivers"].get(name, "").split():
            raise Changed(f"`{DRIVERS}/{name}` is none of the SDK's drivers that cloudtrain knows")


def _read_train_script(files: Mapping[str, bytes]) -> JsonObject:
    text = files.get("sm_train.sh", b"").decode(errors="replace")
    mark = _AFTER_HEAD.search(text)
    end = mark.end() if mark else 0
    match = _WHAT.fullmatch(text[end:])
    digest = hashlib.sha256(text[:end].encode()).hexdigest()[:16]
    if digest not in SDK_TABLES["drivers"]["sm_train.sh"].split() or match is None:
        raise Changed(f"`{DRIVERS}/sm_train.sh` is not made from the SDK's template")
    command = match["command"] or match["plain"]
    fields = {"requirements": match["requirements"], "driver": match["driver"], "command": command}
    return {name: value for name, value in fields.items() if value is not None}


def _json(files: Mapping[str, bytes], name: str) -> JsonObject:
    content = own_value(files.get(name, b"{}").decode(errors="replace"))
    if not isinstance(content, dict):
        raise Changed(f"`{DRIVERS}/{name}` holds no configuration")
    return content
