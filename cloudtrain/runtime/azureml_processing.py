"""Starts the script of a processing job on each instance of an Azure ML job, with this instance's
share of the data.

    python -m cloudtrain.runtime.azureml_processing [--shard NAME=PATH]... -- PROGRAM [ARGUMENTS]

Azure ML gives every instance all data, so each instance makes a folder of links to its share of the
files. In the arguments and variables of the script, this folder replaces the input's folder. The
script is a single process, as on other targets. `CLOUDTRAIN_INSTANCE` and
`CLOUDTRAIN_INSTANCE_COUNT` hold the instance's number and the number of instances. The variables
with Azure ML's ranks, which number the instances, are removed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from typing import NoReturn

from cloudtrain.runtime.environment import Variables, detect_environment
from cloudtrain.runtime.errors import SetupError, tell
from cloudtrain.runtime.shards import link_share

MODULE = "cloudtrain.runtime.azureml_processing"

RANKS = frozenset("RANK LOCAL_RANK NODE_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT".split())
"""Variables of Azure ML's PyTorch distribution. Each process of a processing job is rank 0 of 1."""


def prepare(
    arguments: Sequence[str], variables: Variables, directory: str
) -> tuple[list[str], dict[str, str]]:
    """For each sharded input, fill a folder below `directory` with links to this instance's share
    of the files. Return the script's argv and environment."""
    shards, argv = _parse(arguments)
    here = detect_environment(variables)
    environment = {name: value for name, value in variables.items() if name not in RANKS}
    environment["CLOUDTRAIN_INSTANCE"] = str(here.rank)
    environment["CLOUDTRAIN_INSTANCE_COUNT"] = str(here.world_size)
    paths = filter(None, (os.getcwd(), variables.get("PYTHONPATH")))
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    for name, path in shards.items():
        # Becomes a part of texts.
        share = os.path.join(directory, name)
        try:
            files = link_share(share, path, here.rank, here.world_size)
        except OSError as error:
            raise SetupError(
                f"the input `{name}` cannot be read: {error}",
                hint="see that the job's identity, which `az ml job show` prints, may read it",
            ) from None
        instance = f"instance {here.rank} of {here.world_size} (the first is 0)"
        tell(f"files of the input `{name}` on {instance}: {files}")
        own = re.compile(rf"{re.escape(path)}(?![\w.-])")  # not `/data2` if the path is `/data`
        text = share.replace("\\", r"\\")
        argv = [own.sub(text, word) for word in argv]
        environment[f"CLOUDTRAIN_INPUT_{name.upper()}"] = share
        environment[f"AZURE_ML_INPUT_{name}"] = share
    return argv, environment


def main(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the script.

    Raises:
        SystemExit: the script cannot start; stderr says why.
    """
    try:
        argv, environment = prepare(arguments, os.environ, tempfile.mkdtemp(prefix="cloudtrain-"))
        program = shutil.which(argv[0])
        if program is None:
            raise SetupError(
                f"`{argv[0]}` is not on the PATH", hint="use an environment that has it"
            )
    except SetupError as error:
        error.tell()
        raise SystemExit(1) from None
    sys.stderr.flush()
    os.execve(program, argv, environment)


def _parse(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return a map from the names of the sharded inputs to their paths, and the script's argv."""
    if "--" not in arguments[:-1]:
        raise SetupError(
            "no program was given",
            hint=f"python -m {MODULE} --shard NAME=PATH -- PROGRAM ARGUMENTS",
        )
    options = list(arguments)
    shards = {}
    while options[0] != "--":
        name, _, path = options[1].partition("=")
        if options[0] != "--shard" or not name or not path:
            raise SetupError(f"`{' '.join(options[:2])}` is not `--shard NAME=PATH`")
        shards[name] = path.rstrip("/") or "/"
        del options[:2]
    return shards, options[1:]


if __name__ == "__main__":
    main(sys.argv[1:])
