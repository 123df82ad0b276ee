"""All mistakes of a job come in one go: what compile refuses and what the rules find, each with its line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.errors import JobError

SETTINGS = """\
[sagemaker]
region = "us-west-2"
role = "arn:aws:iam::123456789012:role/R"
bucket = "my-bucket"

[azureml]
subscription_id = "11111111-2222-3333-4444-555555555555"
resource_group = "g"
workspace = "ws"

[profiles.cluster.azureml]
compute = "gpu"
job_tier = "standard"
"""

JOB = """\
name: bad
source_dir: src
entry_point: trian.py
hyperparameters:
  --lr: 1
distribution:
  type: deepspeed
  launch: launcher
resources:
  instance_type: {sagemaker: ml.g55.xlarge, azureml: Standard_NC24s_v2}
environment:
  framework: pytorch
  version: "9.9"
  requirements: req.txt
  variables:
    RANK: "0"
    DATA: ${{inputs.there}}
inputs:
  here:
    local: nowhere
  there:
    sagemaker: azureml:x
    azureml: s3://x
    mode: pipe
outputs:
  log:
    sagemaker: s3://my-bucket/x
  checkpoint:
    local: c
checkpoint: {local: d}
spot:
  max_wait: 1h
max_runtime: 2h
"""

MPI = JOB.replace("type: deepspeed\n  launch: launcher", 'type: mpi\n  options: "--tag-output"')

PROCESSING = """\
kind: processing
name: bad
source_dir: src
entry_point: trian.py
hyperparameters:
  text: "two\\nlines"
resources: {instance_count: 2}
environment: {framework: pytorch, version: "9.9"}
inputs:
  here:
    local: nowhere
    shard: true
  there:
    sagemaker: s3://my-bucket/x
    azureml: azureml:x:1
    mode: direct
    shard: true
"""

BOTH = [
    "entry_point",
    "hyperparameters.--lr",
    "environment.requirements",
    "environment.variables.RANK",
    "spot.max_wait",
]

CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "sagemaker": (
        JOB,
        ["-t", "sagemaker"],
        [*BOTH, "distribution.launch", "resources.instance_type", "environment.version", "inputs.here",
         "inputs.there.sagemaker", "outputs.log.sagemaker"],
    ),
    "sagemaker, without machines": (
        JOB.replace("sagemaker: ml.g55.xlarge, ", ""),
        ["-t", "sagemaker"],
        [*BOTH, "distribution.launch", "resources.instance_type", "inputs.here", "inputs.there.sagemaker",
         "outputs.log.sagemaker"],
    ),
    "sagemaker, a mode that cannot be": (
        MPI.replace("instance_type:", "instance_count: 2\n  instance_type:"),
        ["-t", "sagemaker"],
        [*BOTH, "distribution.type", "resources.instance_type", "environment.version", "inputs.here",
         "inputs.there.sagemaker", "outputs.log.sagemaker"],
    ),
    "azureml": (
        MPI,
        ["-t", "azureml", "--profile", "cluster"],
        [*BOTH, "distribution.options", "resources.instance_type", "environment.version", "environment.variables.DATA",
         "inputs.here", "inputs.there.azureml", "inputs.there.mode", "outputs.checkpoint", "spot", "spot"],
    ),
    "options without an end, sagemaker": (
        MPI.replace("--tag-output", "-x 'A").replace("type: mpi", "type: mpi\n  processes_per_instance: 2"),
        ["-t", "sagemaker"],
        [*BOTH, "distribution.options", "resources.instance_type", "environment.version", "inputs.here",
         "inputs.there.sagemaker", "outputs.log.sagemaker"],
    ),
    "local": (JOB, ["--python", sys.executable], [*BOTH, "inputs.here.local", "inputs.there"]),
    "local, as SageMaker": (
        JOB,
        ["--emulate", "sagemaker"],
        [*BOTH, "distribution.launch", "environment.version", "inputs.there", "inputs.there.sagemaker",
         "outputs.log.sagemaker"],
    ),
    "local, as Azure ML": (
        MPI,
        ["--emulate", "azureml"],
        [*BOTH, "distribution.options", "environment.version", "environment.variables.DATA", "inputs.there",
         "inputs.there.azureml", "inputs.there.mode", "outputs.checkpoint"],
    ),
    "processing on sagemaker": (
        PROCESSING,
        ["-t", "sagemaker"],
        ["entry_point", "hyperparameters.text", "resources.instance_type", "inputs.here", "inputs.there.mode"],
    ),
    "processing on azureml": (
        PROCESSING,
        ["-t", "azureml"],
        ["entry_point", "environment.version", "inputs.here", "inputs.there.shard"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_mistake_has_its_line(
    case: str, clean_environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command says all of them, each with the line of the file where it stands."""
    text, arguments, paths = CASES[case]
    (clean_environment / "src").mkdir()
    (clean_environment / "src" / "train.py").write_text("")
    (clean_environment / "cloudtrain.toml").write_text(SETTINGS)
    (clean_environment / "job.yaml").write_text(text)
    assert run_command(["plan", "job.yaml", *arguments]) == 2
    told = capsys.readouterr().err
    found = re.findall(r"^  job\.yaml:(\d+):\d+  (\S+)$", told, re.MULTILINE)
    assert sorted(path for _, path in found) == sorted(paths)
    lines = text.splitlines()
    for number, path in found:
        last = path.rpartition(".")[2]
        written = [
            place
            for place, line in enumerate(lines, 1)
            if line.strip().startswith((f"{last}:", f"--{last[2:]}:"))
        ]
        assert not written or int(number) in {*written, *(place + 1 for place in written)}


def test_what_is_ignored_is_not_said_beside_a_refusal(clean_environment: Path) -> None:
    """`--ignore` counts for the findings that come together with what compile refuses."""
    (clean_environment / "train.py").write_text("")
    job = ct.TrainingJob(
        name="job",
        entry_point="train.py",
        inputs={"x": {"sagemaker": "s3://b/x"}},
        environment={"variables": {"RANK": "0"}},
    )
    for ignore, codes in (((), {"CT032", "CT204"}), (("CT204",), {"CT032"})):
        with pytest.raises(JobError) as caught:
            ct.plan(job, "local", ignore=ignore)
        assert caught.value.problems[0].path == ("inputs", "x")
        assert {problem.code for problem in caught.value.problems} == codes


def test_warnings_do_not_come_with_a_refusal(clean_environment: Path) -> None:
    """Only what stops the job: a warning is for a plan that there is."""
    (clean_environment / "train.py").write_text("")
    job = ct.TrainingJob(
        name="job", entry_point="train.py", inputs={"x": {"sagemaker": "s3://b/x"}}, spot={}
    )
    with pytest.raises(JobError) as caught:
        ct.plan(job, "local")
    assert len(caught.value.problems) == 1


START = "name: job\nentry_point: train.py\nresources: {instance_type: ml.g5.xlarge}\n"
ALONE: dict[str, tuple[str, str, list[str], str, int]] = {
    "a command for the toolkit": (
        START.replace("entry_point: train.py", "command: python train.py"), "toolkit", ["-t", "sagemaker"], "CT031", 2,
    ),
    "another requirements file for the toolkit": (
        START + "environment:\n  requirements: needs.txt\n", "toolkit", ["-t", "sagemaker"], "CT031", 5,
    ),
    "MPI between instances for our own launcher": (
        START.replace("ml.g5.xlarge", "ml.p4d.24xlarge, instance_count: 2") + "distribution:\n  type: mpi\n",
        "entrypoint", ["-t", "sagemaker"], "CT031", 5,
    ),
    "options without an end in the overrides": (
        START + "distribution: {type: mpi}\nsagemaker_overrides:\n  HyperParameters:\n"
        "    cloudtrain_launch: '{\"launcher\": \"mpirun\", \"mpi_options\": \"-x \\\\\"A\"}'\n",
        "entrypoint", ["-t", "sagemaker"], "", 7,
    ),
    "too much to emulate": (
        START, "auto", ["--emulate", "sagemaker", "--instances", "1000"], "CT031", 3,
    ),
    "no machine": ("name: job\nentry_point: train.py\n", "auto", ["-t", "sagemaker"], "CT033", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONE)
def test_what_compile_refuses_has_a_line(
    case: str, clean_environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a setting is what does not go with the job, or only the overrides are wrong."""
    text, launch, arguments, code, line = ALONE[case]
    (clean_environment / "train.py").write_text("")
    (clean_environment / "needs.txt").write_text("")
    settings = SETTINGS.replace("[azureml]", f'launch = "{launch}"\n\n[azureml]', 1)
    (clean_environment / "cloudtrain.toml").write_text(settings)
    (clean_environment / "job.yaml").write_text(text)
    assert run_command(["plan", "job.yaml", *arguments]) == 2
    told = capsys.readouterr().err
    assert f"[{code}" in told
    assert re.findall(r"^  job\.yaml:(\d+):\d+", told, re.MULTILINE) == [str(line)]


@pytest.mark.parametrize(
    ("file", "text", "hint"),
    [
        (
            "job.toml",
            'name = "job"\nentry_point = "train.py"\nspot = {}\n',
            'add `checkpoint = {sagemaker = "s3://...", ',
        ),
        (
            "job.json",
            '{"name": "job", "entry_point": "train.py", "spot": {}}',
            'add `"checkpoint": {"sagemaker": "s3://...", ',
        ),
        (
            "job.yaml",
            "name: job\nentry_point: train.py\nspot: {}\n",
            "add `checkpoint: {sagemaker: s3://..., ",
        ),
    ],
)
def test_a_finding_speaks_the_language_of_the_file(
    file: str, text: str, hint: str, clean_environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a hint says to add can be added as it is."""
    (clean_environment / "train.py").write_text("")
    (clean_environment / file).write_text(text)
    assert run_command(["check", file]) == 0
    assert hint in " ".join(capsys.readouterr().out.split())
