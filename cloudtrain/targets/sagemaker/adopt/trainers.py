"""Compare the program that version 3 of the SDK starts with the program that cloudtrain's request
starts.

Version 3 starts a job with its own scripts in a channel `sm_drivers`: Python files that are the
same for every job, `sm_train.sh` made from a template, and two JSON files with the program and its
launcher. Only unchanged drivers are accepted, because a changed driver could start anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudtrain.code.data import files_below
from cloudtrain.documents.archives import archive_of, files_of
from cloudtrain.rules.engine import mapping_at, text_at
from cloudtrain.runtime.sagemaker_launcher.arguments import text_of
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.common.services import own_value
from cloudtrain.targets.sagemaker.export.distributions import SDK_TABLES, start_of
from cloudtrain.targets.sagemaker.fields import ALGORITHM, CHANNELS, MACHINES, PARAMETERS
from cloudtrain.targets.sagemaker.reading import instances_in
from cloudtrain.targets.sagemaker.request import (
    MODEL_PARALLEL,
    JsonMapping,
    JsonObject,
    only,
    without,
    without_nulls,
)

DRIVERS = "sm_drivers"
CODE = "code"
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


Objects = Mapping[str, bytes]
"""What a script uploads to S3: maps addresses, or paths below one, to contents."""


class Changed(Exception):
    """A driver differs from the SDK's, so cloudtrain cannot know what the driver starts."""


def is_trainer(request: JsonMapping) -> bool:
    """Return whether the drivers of version 3 of the SDK start the job."""
    return any(row.get("ChannelName") == DRIVERS for row in request.get(CHANNELS, ()))


def started_by_drivers(request: JsonMapping, uploads: Objects) -> JsonObject:
    """Return the launcher, script and arguments that the uploaded drivers of version 3 start.
    Raises `Changed`."""
    if only(request.get(ALGORITHM, {}), _ENTRYPOINT) != _ENTRYPOINT:
        raise Changed("the container starts in another way than version 3's drivers do")

    files = below(place_of(request, DRIVERS), uploads)
    script = _read_train_script(files)
    source = _json(files, "sourcecode.json")
    distributed = _json(files, "distributed.json")
    launcher = "single"
    entry_point = None
    if "command" not in script:
        launcher = _LAUNCHERS.get(script["driver"], "other")
        entry_point = source.get("entry_script")
    _refuse_unknown(files)

    values = own_values(request)
    model_parallel = values.pop(MODEL_PARALLEL, None)
    return _start(
        launcher,
        entry_point=entry_point,
        command=script.get("command"),
        requirements=script.get("requirements"),
        processes=distributed.get("process_count_per_node"),
        mpi_options=distributed.get("mpi_additional_options") or [],
        smp=model_parallel,
        arguments={f"--{name}": _argument(value) for name, value in values.items()},
    )


def own_values(request: JsonMapping) -> JsonObject:
    """Return the values that the hyperparameters of a request stand for."""
    texts = mapping_at(request, PARAMETERS)
    return {name: own_value(text) for name, text in texts.items()}


def _argument(value: Any) -> str:
    """Return a hyperparameter as version 3's drivers pass it to the script."""
    decoded = own_value(value)
    return decoded if isinstance(decoded, str) else json.dumps(decoded)


def _start(launcher: str, *, processes: int | None, **details: Any) -> JsonObject:
    """Return a started program as fields that can be compared, without empty ones."""
    count = None
    if launcher in ("torchrun", "mpirun"):
        count = processes or "one for each GPU"
    return filled({"launcher": launcher, "processes": count, **details})


def filled(fields: JsonMapping) -> JsonObject:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def started_by_us(request: JsonMapping, region: str) -> JsonObject | None:
    """Return what cloudtrain's request starts, in the form of `started_by_drivers`; None if the
    request has no code."""
    start = start_of(dict(request), region)
    if start is None:
        return None
    arguments = {}
    for name, text in start.hyperparameters.items():
        dashes = "-" if len(name) == 1 else "--"
        arguments[f"{dashes}{name}"] = text_of(own_value(text))
    return _start(
        "torchrun" if start.launcher == MODEL_PARALLEL else start.launcher,
        entry_point=start.entry_point,
        command=start.command,
        requirements=start.requirements,
        processes=start.processes,
        mpi_options=shlex.split(start.mpi_options),
        smp=start.model_parallel,
        arguments=arguments,
    )


def with_start(request: JsonObject, start: JsonMapping | None) -> JsonObject:
    """Return the request without the fields that start the program; instead, one field describes
    this program."""
    comparable = without(request, {PARAMETERS})
    comparable[ALGORITHM] = without(request.get(ALGORITHM, {}), _ENTRYPOINT)
    comparable[CHANNELS] = []
    for channel in request.get(CHANNELS, ()):
        if channel.get("ChannelName") not in (CODE, DRIVERS):
            comparable[CHANNELS].append(channel)
    if start is not None:
        comparable[START] = dict(start)
    return comparable


def idle_instances(start: JsonMapping, request: JsonMapping) -> dict[str, str]:
    """Return a message for the field of the process count if version 3's MPI driver leaves
    instances idle; else empty.

    The driver starts only as many processes as one instance has, whatever the number of instances.
    """
    instances = instances_in(request.get(MACHINES, {})) or 1
    if start.get("launcher") != "mpirun" or instances == 1:
        return {}
    why = (
        "version 3's MPI driver starts the processes of one instance, and leaves the others idle; "
        "the job starts them on every instance"
    )
    return {f"{START}.processes": why}


def code_of(request: JsonMapping, uploads: Objects) -> bytes | None:
    """Return the uploaded code as an archive; None if the script has uploaded no code."""
    files = below(place_of(request, CODE), uploads)
    if len(files) == 1:
        name, content = next(iter(files.items()))
        if content and name.endswith(".tar.gz"):
            return content
    return archive_of(files) if files else None


def lost_in_code(code: bytes | None, start: JsonMapping) -> dict[str, str]:
    """Return a message that names the variables and folders in the code that only version 3's
    drivers provide.

    The key is the field that the message belongs to. The result is empty if the code uses none of
    them."""
    found = set(_ONLY_THERE.findall(json.dumps(start).encode()))
    for name, content in files_of(code) if code is not None else ():
        if name.endswith((".py", ".sh")):
            found.update(_ONLY_THERE.findall(content))
    if not found:
        return {}
    names = ", ".join(sorted(match.decode() for match in found))
    return {f"{START}.environment": f"the code uses what only version 3's drivers give it: {names}"}


def draft_fields(start: JsonMapping) -> JsonObject:
    """Return the fields of a job that starts the program described by `start` (see
    `started_by_drivers`)."""
    fields = only(start, ("entry_point", "command"))
    hyperparameters: JsonObject = {}
    for name, text in start.get("arguments", {}).items():
        # a number such as 64 for `64`, if cloudtrain would pass the same text to the script
        value = own_value(text)
        if text_of(value) != text:
            value = text
        hyperparameters[name.removeprefix("--")] = value
    if hyperparameters:
        fields["hyperparameters"] = hyperparameters

    distribution: JsonObject = {}
    if "smp" in start:
        distribution = {"type": "smp", "version": 2, "parameters": start["smp"]}
    elif start["launcher"] in _TYPES:
        distribution["type"] = _TYPES[start["launcher"]]
    if isinstance(start.get("processes"), int):
        distribution["processes_per_instance"] = start["processes"]
    if start.get("mpi_options"):
        distribution["options"] = shlex.join(start["mpi_options"])
    if distribution:
        fields["distribution"] = distribution
    return fields


_TYPES = {"torchrun": "torch", "mpirun": "mpi"}
"""Maps launchers to types of distributions."""


def place_of(request: JsonMapping, channel: str) -> str:
    """Return the S3 address of a channel's data; empty if the request lacks the channel."""
    for row in request.get(CHANNELS, ()):
        if row.get("ChannelName") == channel:
            return text_at(row, "DataSource", "S3DataSource", "S3Uri")
    return ""


def covers(address: str, place: str) -> bool:
    """Return whether `place` is the object at an S3 address, or is in its folder."""
    return place == address or place.startswith(f"{address.rstrip('/')}/")


def below(address: str, uploads: Objects) -> dict[str, bytes]:
    """Return the uploads to an address by their paths below it; empty without an address."""
    files: dict[str, bytes] = {}
    length = len(address.rstrip("/")) + 1
    for place, content in uploads.items():
        if covers(address, place):
            path = place[length:].strip("/") or place.rpartition("/")[2]
            files[path] = content
    return files


def _digest(text: bytes) -> str:
    """Return a hash of a file's lines, without comments and empty lines, which differ between
    releases."""
    lines = []
    for line in text.decode(errors="replace").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            lines.append(line.rstrip())
    return _hash_of("\n".join(lines))


def _hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _refuse_unknown(files: Objects) -> None:
    """Raise `Changed` for a driver that is none of the SDK's. Files of the job itself are left
    out."""
    files_of_job = ("sm_train.sh", "sourcecode.json", "distributed.json")
    for name, content in files.items():
        if name in files_of_job or "__pycache__/" in name:
            continue
        known = SDK_TABLES["drivers"].get(name, "").split()
        if _digest(content) not in known:
            raise Changed(f"`{DRIVERS}/{name}` is none of the SDK's drivers that cloudtrain knows")


def _read_train_script(files: Objects) -> JsonObject:
    """Return what `sm_train.sh` starts: `driver` or `command`, and `requirements`. Raises `Changed`
    for a script that is not made from the SDK's template."""
    text = files.get("sm_train.sh", b"").decode(errors="replace")
    mark = _AFTER_HEAD.search(text)
    end = mark.end() if mark else 0
    match = _WHAT.fullmatch(text[end:])
    known = SDK_TABLES["drivers"]["sm_train.sh"].split()
    if match is None or _hash_of(text[:end]) not in known:
        raise Changed(f"`{DRIVERS}/sm_train.sh` is not made from the SDK's template")
    fields = {
        "requirements": match["requirements"],
        "driver": match["driver"],
        "command": match["command"] or match["plain"],
    }
    return without_nulls(fields)


def _json(files: Objects, name: str) -> JsonObject:
    """Return the mapping in a JSON file; empty without the file. Raises `Changed`."""
    content = own_value(files.get(name, b"{}").decode(errors="replace"))
    if not isinstance(content, dict):
        raise Changed(f"`{DRIVERS}/{name}` holds no configuration")
    return content


# The files of a code folder that the SageMaker SDK sends.

_IGNORED = {".env", ".git", "__pycache__", ".DS_Store", ".cache", ".ipynb_checkpoints"}
"""The default of `ignore_patterns` in version 3 (sagemaker-train 1.27.0)."""


def sent_files(original: Original, folder: Path) -> Iterator[str]:
    """Yield the paths of the files that the SDK sends. Version 2 packs the whole folder, with
    folders that are empty: their paths end with a slash."""
    is_version_3 = is_trainer(original.request)
    for file in files_below(folder):
        if not is_version_3 or _IGNORED.isdisjoint(file.path.split("/")):
            yield file.path

    if not is_version_3:
        for place, folders, names in os.walk(folder):
            if not folders and not names:
                yield f"{os.path.relpath(place, folder)}/"
