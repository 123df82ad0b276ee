"""Starts the script of a processing job inside a SageMaker container, on every instance. The
module's arguments have one of two forms:

    [--requirements FILE] SCRIPT ARGUMENTS...
    [--requirements FILE] --command LINE

SageMaker mounts the bundle as the input `code`. The script finds its data through
`cloudtrain.runtime`. `CLOUDTRAIN_INSTANCE` and `CLOUDTRAIN_INSTANCE_COUNT` hold the instance's
number and the number of instances. The reason of a failure goes to `/opt/ml/output/message`: the
first 1,024 bytes of that file become the job's ExitMessage, and a file that is not UTF-8 fails the
job.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from cloudtrain.runtime.sagemaker_launcher import CODE_INPUT, ROOT, shell_line
from cloudtrain.runtime.sagemaker_launcher.machine import read_config
from cloudtrain.runtime.secret_values import forms_of, masked, resolved

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from cloudtrain.runtime.sagemaker_launcher.children import Children

CODE_DIR = "processing/input/code"
"""Folder of the code input, below `/opt/ml`. File-mode inputs are writable, so the archive is
unpacked there."""

MESSAGE_LIMIT = 1024
"""Bytes of the message that the service keeps."""

_LINE = (
    "cd {root}/processing/input/code&&P={python}||{{ echo 'no Python in the "
    "image'>../../../output/message;exit 127;}};"
    '"$P" -Wi -m tarfile -e sourcedir.tar.gz .&&exec "$P" -m '
    'cloudtrain.runtime.sagemaker_processing "$@"'
)


def container_entrypoint(
    words: Sequence[str], root: str = ROOT, python: str | None = None
) -> list[str]:
    """Return the `ContainerEntrypoint`. It unpacks the bundle and runs this module with the
    arguments `words`, followed by the `ContainerArguments`. For emulation, `root` and `python`
    replace the container's paths."""
    return ["/bin/sh", "-c", shell_line(_LINE, root, python), "sh", *words]


def main(arguments: Sequence[str]) -> int:
    """Run the script and return the container's exit code: the script's exit code, or 128 plus the
    number of the signal that killed the script."""
    from cloudtrain.runtime.sagemaker_launcher.children import run_guarded

    root = Path.cwd().parents[2]
    return run_guarded(
        lambda children: _run(list(arguments), root, children),
        lambda text: _write_message(root, text),
    )


def script_argv(words: Sequence[str], python: str = "python3") -> list[str]:
    """Return the argv that runs the script. `words` are this module's arguments after its options:
    a script with its arguments, or `--command LINE`."""
    if words[:1] == ["--command"]:
        return ["/bin/sh", "-c", *words[1:]]
    interpreters = {".py": [python], ".sh": ["/bin/sh"]}
    return [*interpreters.get(Path(words[0]).suffix, ()), *words]


def variables_of(config: Mapping[str, Any], resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the script's environment, from `processingjobconfig.json` and
    `resourceconfig.json`."""
    hosts = resource["hosts"]
    host = resource["current_host"]
    variables = {
        "CLOUDTRAIN_INSTANCE": str(hosts.index(host)),
        "CLOUDTRAIN_INSTANCE_COUNT": str(len(hosts)),
        "CLOUDTRAIN_RUN_NAME": str(config.get("ProcessingJobName", "")),
        "SM_CURRENT_HOST": host,
        "SM_HOSTS": json.dumps(hosts, separators=(",", ":")),
    }
    for item in config.get("ProcessingInputs") or ():
        name = item["InputName"]
        place = item.get("S3Input") or item.get("DatasetDefinition") or {}
        if name != CODE_INPUT and place.get("LocalPath"):
            variables[f"CLOUDTRAIN_INPUT_{name.upper()}"] = place["LocalPath"]
    outputs = config.get("ProcessingOutputConfig") or {}
    for item in outputs.get("Outputs") or ():
        place = item.get("S3Output") or {}
        if place.get("LocalPath"):
            variables[f"CLOUDTRAIN_OUTPUT_{item['OutputName'].upper()}"] = place["LocalPath"]
    return variables


def _run(words: list[str], root: Path, children: Children) -> int:
    from cloudtrain.runtime.install import install
    from cloudtrain.runtime.sagemaker_launcher.plan import HostProgram

    code = root / CODE_DIR
    config = read_config(root / "config/processingjobconfig.json")
    own = variables_of(config, read_config(root / "config/resourceconfig.json"))
    path = os.pathsep.join(filter(None, (str(code), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, **own, "PYTHONPATH": path}
    if words[:1] == ["--requirements"]:
        install(words[1], code, environment)
        del words[:2]
    secrets = resolved(environment)
    environment.update(secrets)
    argv = script_argv(words, sys.executable)
    receiver = "leader" if argv[0] == sys.executable else "group"
    program = HostProgram("the script", tuple(argv), signal=receiver)
    children.start(program, environment, str(code))
    exit_code, failed = children.finish(())
    if failed is not None and not children.asked_to_stop:
        place = ""
        if own["CLOUDTRAIN_INSTANCE_COUNT"] != "1":
            place = f" on {own['SM_CURRENT_HOST']}"
        _write_message(root, masked(failed.explain_failure(place), forms_of(secrets)))
    return exit_code


def _write_message(root: Path, text: str) -> None:
    """Write the message, shortened to the service's limit. It ends in a line break, because the
    service joins the messages of several instances."""
    from cloudtrain.runtime.sagemaker_launcher.failure import write_once

    start = text.encode("utf-8", "replace")[: MESSAGE_LIMIT - 1]
    write_once(root / "output" / "message", start.decode("utf-8", "ignore") + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
