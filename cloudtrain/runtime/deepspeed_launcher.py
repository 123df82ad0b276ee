"""Starts DeepSpeed's own launcher on each instance of an Azure ML job. Azure ML starts this module
once on each instance.

    python -m cloudtrain.runtime.deepspeed_launcher [OPTIONS OF deepspeed] SCRIPT [ARGUMENTS]

    one instance        deepspeed --num_gpus N OPTIONS SCRIPT ARGUMENTS
    several instances   deepspeed --hostfile FILE --no_ssh --node_rank I --master_addr A
                        --master_port P OPTIONS ...

The hosts come from AZ_BATCH_HOST_LIST. Each has `--num_gpus` slots; default: the number of GPUs of
this instance. With `--no_ssh` (DeepSpeed pull request 5728, July 2024) each instance starts only
its own ranks, so no instance has to log in to another. The user's options come last, so they
override cloudtrain's. Autotuning reaches other instances only through ssh, so it works only on one
instance.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from cloudtrain.runtime.environment import Variables, detect_environment
from cloudtrain.runtime.errors import SetupError, tell
from cloudtrain.runtime.sagemaker_launcher.machine import this_machine

FLAGS = frozenset(
    "--module --no_python --no_local_rank --no_ssh --no_ssh_check --force_multi --save_pid "
    "--elastic_training "
    "--bind_cores_to_rank -h --help".split()
)
"""Options of `deepspeed` without a value (from its `launcher/runner.py`). All other options have
one value, so the first word after the options is the script."""

COUNTS = ("--num_gpus", "--num_accelerators")

CHOICES = (*COUNTS, "-i", "--include", "-e", "--exclude")
"""Options that choose GPUs. DeepSpeed does not accept `--num_gpus` together with another of
them."""


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """Map each option of `deepspeed` before the script to its value; the value is empty for options
    that take none."""
    options = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            break
        name, equals, value = argument.partition("=")
        options[name] = value if equals or name in FLAGS else next(rest, "")
    return options


def deepspeed_argv(arguments: Sequence[str], variables: Variables, *, gpus: int) -> list[str]:
    """Write the hostfile and return the command that this instance runs. `gpus` is this instance's
    number of GPUs."""
    options = options_of(arguments)
    environment = detect_environment(variables)
    count = environment.node_count
    if count == 1:
        if not options.keys().isdisjoint(CHOICES):
            return ["deepspeed", *arguments]
        return ["deepspeed", "--num_gpus", _slots(options, variables, gpus), *arguments]
    if "--autotuning" in options:
        raise SetupError(
            f"DeepSpeed's autotuning needs ssh between the {count} instances, which they lack",
            hint="tune on one instance (`instance_count: 1`), then train on several with the "
            "result",
        )
    if environment.master_addr is None:
        raise SetupError(
            "the address of the first instance is unknown: `MASTER_ADDR` is not set",
            hint="on Azure ML the distribution is `PyTorch` with one process per instance",
        )
    hostfile = Path(tempfile.mkdtemp(prefix="cloudtrain-"), "hostfile")
    hosts = list(filter(None, variables.get("AZ_BATCH_HOST_LIST", "").split(",")))
    if len(set(hosts)) != count:
        # without ssh, DeepSpeed only counts the names
        hosts = [f"instance-{number}" for number in range(count)]
    slots = _slots(options, variables, gpus)
    hostfile.write_text("".join(f"{host} slots={slots}\n" for host in hosts))
    return [
        "deepspeed",
        "--hostfile", str(hostfile),
        "--no_ssh",
        "--node_rank", str(environment.node_rank),
        "--master_addr", environment.master_addr,
        "--master_port", str(environment.master_port),
        *arguments,
    ]  # fmt: skip


def main(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by `deepspeed`.

    Raises:
        SystemExit: `deepspeed` cannot start; stderr says why.
    """
    try:
        argv = deepspeed_argv(arguments, os.environ, gpus=this_machine(os.environ, "").gpus)
        program = shutil.which(argv[0])
        if program is None:
            raise SetupError(
                "`deepspeed` is not on the PATH",
                hint="add it to the job's `requirements`, or use an environment that has it",
            )
    except SetupError as error:
        error.tell()
        raise SystemExit(1) from None
    tell("starting " + " ".join(argv))
    os.execv(program, argv)


def _slots(options: Variables, variables: Variables, gpus: int) -> str:
    """Return the number of slots per instance: the number in `options`, else `gpus` (NVIDIA GPUs),
    else AZ_BATCHAI_GPU_COUNT, which counts other GPUs as well."""
    text = str(gpus) if gpus else variables.get("AZ_BATCHAI_GPU_COUNT", "")
    for name in reversed(COUNTS):
        text = options.get(name) or text
    if text.isdecimal() and int(text):
        return text
    raise SetupError(
        "no GPU was found on this instance, so DeepSpeed can start no ranks",
        hint="give the job `processes_per_instance`, or an instance type with GPUs",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
