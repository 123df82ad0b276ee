"""What sbatch is given: whole batch scripts, byte for byte, without a cluster."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.errors import JobError
from cloudtrain.targets.slurm.adopt import batch_settings
from cloudtrain.targets.slurm.settings import Slurm, SlurmAccount
from tests.targets.slurm.site import compile_plan

SHARED = "/fsx/you/cloudtrain"
TWO = {"instance_count": 2, "gpus_per_instance": 8}

JOBS: dict[str, dict[str, Any]] = {
    "torch": {"distribution": {"type": "torch"}, "resources": TWO},
    "deepspeed": {"distribution": {"type": "deepspeed"}, "resources": TWO},
    "deepspeed_mpi": {"distribution": {"type": "deepspeed", "launch": "mpi"}, "resources": TWO},
    "mpi": {
        "distribution": {
            "type": "mpi",
            "processes_per_instance": 4,
            "options": "-x NCCL_DEBUG=INFO",
        }
    },
    "horovod": {"distribution": {"type": "horovod"}, "resources": TWO},
    "tensorflow": {"distribution": {"type": "tensorflow"}, "resources": {"instance_count": 3}},
    "parameter_server": {
        "distribution": {
            "type": "tensorflow",
            "strategy": "parameter_server",
            "parameter_servers": 2,
        },
        "resources": {"instance_count": 2},
    },
    "none": {"resources": {"instance_count": 2}},
}

CLUSTERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pyxis": (
        {"container": "pyxis", "mounts": ("/data", "/home/you:/home/me"), "partition": "p5"},
        {**JOBS["torch"], "environment": {"image": {"slurm": "nvcr.io#nvidia/pytorch:25.01-py3"}}},
    ),
    "apptainer": (
        {"container": "apptainer", "mpi": "pmix"},
        {**JOBS["mpi"], "environment": {"image": {"slurm": "/images/pytorch 2.sif"}}},
    ),
    "everything": (
        {
            "partition": "train", "spot_partition": "spare", "account": "vision", "qos": "high", "constraint": "a100|h100",
            "reservation": "course", "setup": ("module load cuda/12.4", 'source "$HOME/venv/bin/activate"'),
            "exclusive": False, "cpus_per_instance": 96, "gpu_type": "h100", "grace_period": 120,
            "extra_sbatch": ("--nice=100", "--contiguous"), "rendezvous_host": "head.example.org",
        },
        {
            **JOBS["torch"],
            "resources": {**TWO, "instance_type": {"slurm": "p5.48xlarge"}},
            "spot": {"max_wait": "3d"}, "max_runtime": "1d2h3m4s", "checkpoint": {"slurm": "/fsx/you/ckpt", "keep": 2},
            "inputs": {"train": {"slurm": "/data/it's here"}}, "outputs": {"scores": {}, "model": {"slurm": "/fsx/m"}},
            "hyperparameters": {"data": "${{inputs.train}}", "note": "a 'b' \"c\" $(d) `e` \\ é"},
            "environment": {"variables": {"GREETING": "it's $HOME; `ls`\nsecond line", "OUT": "${{outputs.scores}}"}},
            "slurm_overrides": {"nice": 5, "mail-type": "END", "contiguous": None},
        },
    ),
}  # fmt: skip


def job_of(fields: dict[str, Any]) -> ct.TrainingJob:
    return ct.TrainingJob(
        **({"name": "digits", "entry_point": "train.py", "hyperparameters": {"lr": 0.1}} | fields)
    )


@pytest.mark.parametrize("name", JOBS)
def test_batch_scripts(name: str, golden: Callable[[str, str], None]) -> None:
    """Each distribution has its batch script; the options stand in the file that `--format sbatch` prints."""
    golden(
        f"slurm/{name}.sbatch",
        compile_plan(job_of(JOBS[name]), Slurm(shared_dir=SHARED)).forms()["sbatch"](),
    )


@pytest.mark.parametrize("name", CLUSTERS)
def test_settings(name: str, golden: Callable[[str, str], None]) -> None:
    """What the settings add to it."""
    settings, fields = CLUSTERS[name]
    golden(
        f"slurm/{name}.sbatch",
        compile_plan(job_of(fields), Slurm(shared_dir=SHARED, **settings)).forms()["sbatch"](),
    )


@pytest.mark.parametrize("name", JOBS)
def test_launch_view(name: str, golden: Callable[[str, str], None]) -> None:
    """The plan shows what starts on every node, rank by rank."""
    plan = compile_plan(job_of(JOBS[name]), Slurm(shared_dir=SHARED))
    lines = [
        f"{one.instance} {one.role} {one.rank} {one.local_rank} {' '.join(one.argv)}"
        for one in plan.processes
    ]
    golden(f"slurm/{name}.processes", "\n".join(lines) + "\n")


def test_command_line() -> None:
    """The request's command line is sbatch's, and its last word is the script that is sent."""
    plan = compile_plan(job_of(JOBS["torch"]), Slurm(shared_dir=SHARED, partition="p5"))
    argv = plan.request["argv"]
    assert argv[:2] == ["sbatch", "--parsable"]
    assert argv[-1] == f"{SHARED}/runs/run-1/job.sh"
    assert {
        "--partition=p5",
        "--nodes=2",
        "--gres=gpu:8",
        "--job-name=run-1",
        "--export=NIL",
    } < set(argv)
    assert plan.outputs == {
        "model": f"{SHARED}/runs/run-1/model",
        "checkpoint": f"{SHARED}/runs/run-1/checkpoint",
    }
    assert str(plan.ref) == "slurm://:fsx:you:cloudtrain/run-1"


def test_same_request() -> None:
    """The same job, settings and context give the same bytes."""
    settings, fields = CLUSTERS["everything"]
    first, second = (
        compile_plan(job_of(fields), Slurm(shared_dir=SHARED, **settings)) for _ in range(2)
    )
    assert first.request_json == second.request_json


def test_no_secret_on_the_command_line() -> None:
    """Variables of the job stand in the script, which only its owner reads, and not among sbatch's options."""
    fields = {
        "environment": {"variables": {"TOKEN": "hunter2"}},
        "hyperparameters": {"key": "hunter3"},
    }
    plan = compile_plan(job_of(fields), Slurm(shared_dir=SHARED))
    assert "hunter" not in " ".join(plan.request["argv"])
    assert "TOKEN=hunter2" in plan.request["script"]


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "smddp": ({"distribution": {"type": "smddp"}}, "CT030", "type: torch"),
    "smp": ({"distribution": {"type": "smp", "version": 2}}, "CT030", "type: torch"),
    "deepspeed_launcher": (
        {"distribution": {"type": "deepspeed", "launch": "launcher"}},
        "CT030",
        "launch: torch",
    ),
    "no_place": ({"inputs": {"train": {"local": "data"}}}, "CT032", "slurm: /PATH"),
    "bucket": ({"inputs": {"train": {"slurm": "s3://bucket/train"}}}, "CT031", "/data/train"),
    "relative_output": ({"outputs": {"scores": {"slurm": "scores"}}}, "CT031", "/data/train"),
    "relative_checkpoint": ({"checkpoint": {"slurm": "ckpt"}}, "CT031", "/data/train"),
    "shard": ({"inputs": {"train": {"slurm": "/data", "shard": True}}}, "CT031", "rank"),
    "image": ({"environment": {"image": {"slurm": "pytorch.sif"}}}, "CT034", "container"),
    "variable": ({"environment": {"variables": {"A B; ls": "x"}}}, "CT031", "letters"),
    "groups": (
        {
            "resources": {
                "instance_groups": [{"name": "a", "instance_type": "x", "instance_count": 1}]
            }
        },
        "CT031",
        "instance_count",
    ),
    "options": ({"distribution": {"type": "mpi", "options": "-x 'A"}}, "CT018", "quotes"),
    "contradicted_limit": (
        {"max_runtime": "1h", "slurm_overrides": {"time": "2:00:00"}},
        "CT035",
        "remove one of",
    ),
    "contradicted_spot": (
        {"spot": {}, "slurm_overrides": {"no-requeue": True}},
        "CT035",
        "remove one of",
    ),
    "override": (
        {"slurm_overrides": {"job-name": "mine"}},
        "CT035",
        "remove it from the overrides",
    ),
    "waiting_override": (
        {"slurm_overrides": {"wait": True}},
        "CT035",
        "remove it from the overrides",
    ),
    "shortened_override": (
        {"slurm_overrides": {"arr": "0-3"}},
        "CT035",
        "remove it from the overrides",
    ),
    "nested_override": ({"slurm_overrides": {"nice": [1]}}, "CT035", "number"),
    "override_of_two_lines": (
        {"slurm_overrides": {"nice": "1\ntouch x"}},
        "CT035",
        "sbatch --help",
    ),
    "override_with_a_name_of_two_lines": (
        {"slurm_overrides": {"nice\ntouch x": 1}},
        "CT035",
        "sbatch --help",
    ),
    "feature_of_two_lines": (
        {"resources": {"instance_type": {"slurm": "a100\ntouch x"}}},
        "CT031",
        "one line",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """What a cluster does not have is an error that names what it has instead."""
    fields, code, hint = REFUSED[name]
    with pytest.raises(JobError) as caught:
        compile_plan(job_of(fields), Slurm(shared_dir=SHARED))
    (problem,) = caught.value.problems
    assert problem.code == code
    assert hint in str(problem.hint)


def test_no_program() -> None:
    """A job that only names an image has nothing to run."""
    job = ct.TrainingJob(name="digits", environment={"image": {"slurm": "x.sif"}})
    with pytest.raises(JobError) as caught:
        compile_plan(job, Slurm(shared_dir=SHARED, container="apptainer"))
    assert [problem.code for problem in caught.value.problems] == ["CT036"]


def test_container_of_mpirun() -> None:
    """mpirun would start the ranks outside of the container."""
    fields = {**JOBS["mpi"], "environment": {"image": {"slurm": "x.sif"}}}
    with pytest.raises(JobError) as caught:
        compile_plan(job_of(fields), Slurm(shared_dir=SHARED, container="apptainer"))
    assert "pmix" in str(caught.value.hint)


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "relative": ({"shared_dir": "cloudtrain"}, "absolute path"),
    "percent": ({"shared_dir": "/fsx/100%"}, "replaces"),
    "option_as_host": ({"host": "-oProxyCommand=ls"}, "ssh"),
    "no_option": ({"extra_sbatch": ("nice=5",)}, "long option"),
    "option_with_a_space": ({"extra_sbatch": ("--qos  high",)}, 'write `"--qos=high"`'),
    "short_option": ({"extra_sbatch": ("-p gpu",)}, "long option"),
    "option_of_two_lines": ({"extra_sbatch": ("--nice=1\n#SBATCH --array=0-3",)}, "long option"),
    "misspelt": ({"partitoin": "train"}, "partition"),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings(name: str) -> None:
    """Settings that cannot work are refused where they are written."""
    fields, said = BAD_SETTINGS[name]
    with pytest.raises(JobError) as caught:
        Slurm(**fields)
    assert said in str(caught.value)


TEXTS = [
    name
    for name, field in Slurm.model_fields.items()
    if field.annotation in (str, str | None) and name != "type"
]


@pytest.mark.parametrize("name", TEXTS)
def test_no_setting_begins_a_line_of_the_script(name: str) -> None:
    """A line break within a setting would begin a command, or another option, of the script that sbatch runs."""
    assert {"partition", "account", "qos", "constraint", "reservation", "gpu_type"} < set(TEXTS)
    for value in ("gpu\ntouch x", "gpu\n#SBATCH --array=0-9", "/gpu\rx"):
        with pytest.raises(JobError) as caught:
            Slurm(**{name: value})
        assert {problem.path for problem in caught.value.problems} == {(name,)}


names = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/%\\"), min_size=1
)


@given(host=st.none() | names, folders=st.lists(names, min_size=1, max_size=3))
def test_places(host: str | None, folders: list[str]) -> None:
    """A run's reference says which login node and which folder it is at, whatever they are called."""
    account = SlurmAccount(host, "/" + "/".join(folders))
    assert SlurmAccount.parse(account.place) == account
    assert "/" not in account.place


def test_a_plan_shows_the_script_as_it_is_run() -> None:
    """Line by line below the request's other fields, and none of it changed."""
    plan = compile_plan(job_of(JOBS["torch"]), Slurm(shared_dir=SHARED))
    script = plan.request["script"]
    shown = plan.to_text(width=80).partition('    "script": |\n')[2].splitlines()
    assert [line[6:] for line in shown[: script.count("\n")]] == [
        line.rstrip() for line in script.splitlines()
    ]


@pytest.mark.parametrize("name", ["2080ti", "3090", "a100", "nvidia_a100-sxm4.80gb"])
def test_adopted_gpu(name: str) -> None:
    """The model of the GPUs in an adopted batch script, also one that begins with a digit."""
    adopted = batch_settings({"gpus-per-node": f"{name}:4"}, ())
    assert adopted.settings["gpu_type"] == name
    assert "gpu_type" not in batch_settings({"gpus-per-node": ":4"}, ()).settings


def test_carriage_returns() -> None:
    """sbatch refuses a script with line ends of Windows, also within a value, and bash reads the value as it was given."""
    value = "it's\r\ntwo lines\r"
    fields = {"environment": {"variables": {"TEXT": value}}, "hyperparameters": {"text": value}}
    for settings in ({}, {"setup": ("true\r\ntrue",)}):
        script = str(
            compile_plan(job_of(fields), Slurm(shared_dir=SHARED, **settings)).request["script"]
        )
        assert "\r" not in script
    (start,) = re.findall(r"^export TEXT=.*?(?=^export )", script, re.MULTILINE | re.DOTALL)
    echo = ["bash", "-c", start + 'printf %s "$TEXT"']
    assert subprocess.run(echo, capture_output=True, check=True).stdout.decode() == value
