"""The process that becomes DeepSpeed's own launcher on each instance, with a `deepspeed` that records its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.runtime.deepspeed_launcher import FLAGS, options_of
from tests.deadlines import DEADLINE

RECORD = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import json, os, sys
hostfile = sys.argv[sys.argv.index("--hostfile") + 1] if "--hostfile" in sys.argv else None
print(json.dumps({{"argv": sys.argv[1:], "pid": os.getpid(), "rank": os.environ.get("RANK"),
                  "hosts": open(hostfile).read() if hostfile else None}}))
"""
SECOND_OF_TWO = {
    "AZUREML_NODE_COUNT": "2", "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5", "NODE_RANK": "1", "RANK": "1",
    "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105",
}  # fmt: skip


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Starts the launcher as the service does; what it became, or its error."""
    program = tmp_path / "bin" / "deepspeed"
    program.parent.mkdir()
    program.write_text(RECORD.format(python=sys.executable))
    program.chmod(0o755)

    def run(*arguments: str, path: str = f"{program.parent}:{os.defpath}", **variables: str) -> Any:
        process = subprocess.Popen(
            [sys.executable, "-m", "cloudtrain.runtime.deepspeed_launcher", *arguments],
            env={
                "PATH": path,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "TMPDIR": str(tmp_path),
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, err = process.communicate(timeout=DEADLINE)
        return json.loads(out) | {"own": process.pid} if process.returncode == 0 else err

    return run


def test_one_instance(start: Any) -> None:
    """The same process goes on as `deepspeed`, with this instance's GPUs and the user's options and arguments."""
    found = start(
        "--autotuning",
        "tune",
        "train.py",
        "--epochs",
        "10",
        "--name",
        "a b",
        AZ_BATCHAI_GPU_COUNT="8",
    )
    assert found["argv"] == [
        "--num_gpus", "8", "--autotuning", "tune", "train.py", "--epochs", "10", "--name", "a b",
    ]  # fmt: skip
    assert found["pid"] == found["own"]
    assert found["hosts"] is None


def test_several_instances(start: Any) -> None:
    """Every instance starts its own ranks, without ssh: it knows its number, and all know the hosts and the master."""
    found = start("--num_gpus=4", "train.py", "--lr", "0.1", **SECOND_OF_TWO)
    assert found["argv"][0] == "--hostfile"
    assert found["argv"][2:] == [
        "--no_ssh", "--node_rank", "1", "--master_addr", "10.0.0.4", "--master_port", "6105",
        "--num_gpus=4", "train.py", "--lr", "0.1",
    ]  # fmt: skip
    assert found["hosts"] == "10.0.0.4 slots=4\n10.0.0.5 slots=4\n"


def test_hosts_that_nobody_names(start: Any) -> None:
    """Without a list of different hosts they get names, which DeepSpeed only counts."""
    variables = SECOND_OF_TWO | {
        "AZ_BATCH_HOST_LIST": "127.0.0.1,127.0.0.1",
        "AZ_BATCHAI_GPU_COUNT": "1",
    }
    assert start("train.py", **variables)["hosts"] == "instance-0 slots=1\ninstance-1 slots=1\n"


@pytest.mark.parametrize(
    "choice", ["--include=localhost:0,2", "--exclude=localhost:1", "--num_gpus=2"]
)
def test_the_users_choice_of_gpus(start: Any, choice: str) -> None:
    """DeepSpeed refuses `--num_gpus` beside `--include`, so what the user chose stands alone."""
    assert start(choice, "train.py", AZ_BATCHAI_GPU_COUNT="8")["argv"] == [choice, "train.py"]


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["--autotuning", "run", "train.py"], SECOND_OF_TWO, "2 instances"),
        (["train.py"], {}, "no GPU was found on this instance"),
        (["train.py"], {"AZ_BATCHAI_GPU_COUNT": "0"}, "processes_per_instance"),
        (
            ["train.py"],
            {"RANK": "0", "WORLD_SIZE": "2", "AZUREML_NODE_COUNT": "2"},
            "`MASTER_ADDR` is not set",
        ),
        (
            ["train.py"],
            {"AZ_BATCHAI_GPU_COUNT": "1", "path": "/nowhere"},
            "`deepspeed` is not on the PATH",
        ),
    ],
)
def test_what_cannot_start(
    start: Any, arguments: list[str], variables: dict[str, str], words: str
) -> None:
    """The reason is said with what to do, and without a traceback."""
    said = start(*arguments, **variables)
    assert said.startswith("error: ")
    assert words in said
    assert "hint: " in said
    assert "Traceback" not in said


def test_the_script_ends_the_options() -> None:
    """What follows the script is the script's, whatever it is called; flags have no value, other options do."""
    assert options_of(
        ["--force_multi", "--master_port", "1", "--num_gpus=2", "t.py", "--autotuning", "tune"]
    ) == {
        "--force_multi": "",
        "--master_port": "1",
        "--num_gpus": "2",
    }
    assert "--autotuning" not in FLAGS
    assert options_of(["--launcher_args"]) == {"--launcher_args": ""}
