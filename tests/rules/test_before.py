"""Jobs that deserve a finding, of every kind, in one table: what a job or its folder has wrong is told before it costs
money, and sensible jobs are left alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudtrain as ct
from cloudtrain.api import load_job_file
from cloudtrain.errors import CloudtrainError
from cloudtrain.plans.plan import Level

SETTINGS = """\
[sagemaker]
region = "us-west-2"
role = "arn:aws:iam::111122223333:role/Train"
bucket = "my-bucket"
[azureml]
subscription_id = "11112222-3333-4444-5555-666677778888"
resource_group = "training"
workspace = "vision"
[slurm]
shared_dir = "/nowhere/shared"
"""
JOB: dict[str, Any] = {
    "name": "ok-job",
    "entry_point": "train.py",
    "distribution": {"type": "torch"},
    "resources": {
        "instance_count": 1,
        "instance_type": {"sagemaker": "ml.p4d.24xlarge", "azureml": "Standard_ND96asr_v4"},
    },
    "environment": {"framework": "pytorch", "version": "2.10"},
    "max_runtime": "2h",
}
SCRIPT = "from torch import distributed\ndistributed.init_process_group()\n"
LOSS = {"metrics": {"loss": "loss=([0-9.]+)"}}
SM, AZ, SL, HERE = "sagemaker", "azureml", "slurm", "local"
NONE, WARNING, ERROR = "", "warning", "error"


def sweep(
    search: Mapping[str, Any], job: Mapping[str, Any] = LOSS, **fields: Any
) -> dict[str, Any]:
    objective = {"objective": {"minimize": "loss"}}
    return {"kind": "sweep", "name": "s", "job": JOB | job, "search": search} | objective | fields


def spans(*names: str, groups: int = 2) -> dict[str, Any]:
    """Machines in groups that are called `a`, `b` and so on."""
    kinds = ("ml.p4d.24xlarge", "ml.c5.2xlarge", *["ml.c5.xlarge"] * groups)[:groups]
    rows = [
        {"name": "abcdefgh"[i], "instance_type": kind, "instance_count": 1}
        for i, kind in enumerate(kinds)
    ]
    return {"instance_groups": rows, "distribution_groups": list(names)}


def grouped(*named: list[str]) -> dict[str, Any]:
    inputs = {}
    for number, names in enumerate(named):
        inputs[f"i{number}"] = {"sagemaker": f"s3://b-bucket/{number}/x", "instance_groups": names}
    return {"inputs": inputs, "resources": spans("a")}


def raw(channels: list[tuple[str, list[str]]]) -> dict[str, Any]:
    """Channels in the overrides, each with its groups."""
    rows = []
    for name, names in channels:
        source = {"S3DataType": "S3Prefix", "S3Uri": "s3://b-bucket/x", "InstanceGroupNames": names}
        rows.append({"ChannelName": name, "DataSource": {"S3DataSource": source}})
    return {"sagemaker_overrides": {"InputDataConfig": rows}, "resources": spans("a")}


def on_s3(**places: str) -> dict[str, Any]:
    return {name: {"sagemaker": f"s3://b-bucket/{place}"} for name, place in places.items()}


LOG: dict[str, Any] = {"log": [1e-4, 1e-1]}
SPOT = {"spot": {"max_wait": "400d"}}
PROCESSING = {
    "kind": "processing", "name": "p", "entry_point": "train.py",
    "resources": {"instance_count": 4, "instance_type": {"sagemaker": "ml.m5.xlarge"}},
}  # fmt: skip
FSX = {"sagemaker": "fsx://fs-0123456789abcdef0/x"}

CASES: dict[str, tuple[str, str, Any]] = {
    "a plain job": (NONE, SM, {}),
    # sweeps
    "a sweep": (NONE, SM, sweep({"lr": [0.1, 0.2]}, strategy="grid")),
    "more at a time than trials": (WARNING, SM, sweep({"lr": LOG}, trials=4, parallel=9)),
    "more at a time than the grid has": (WARNING, HERE, sweep({"lr": [1, 2]}, {"distribution": {"type": "none"}}, strategy="grid", parallel=3)),
    "more trials than the grid has": (WARNING, AZ, sweep({"lr": [1, 2]}, strategy="grid", trials=50)),
    "a grid over a range": (ERROR, SM, sweep({"lr": LOG}, strategy="grid")),
    "no range": (ERROR, SM, sweep({}, trials=2)),
    "too many trials": (ERROR, SM, sweep({"lr": LOG}, trials=100_000)),
    "a logarithm of zero": (ERROR, SM, sweep({"lr": {"log": [0, 1]}}, trials=4)),
    "a metric of trials that is no pattern": (ERROR, HERE, sweep({"lr": [1, 2]}, {"metrics": {"loss": "(loss"}}, strategy="grid")),
    # metrics
    "a metric that is no pattern": (ERROR, HERE, {"metrics": {"loss": "(loss=([0-9"}}),
    "a metric with a range backwards": (ERROR, SM, {"metrics": {"loss": "[z-a]"}}),
    "a metric that repeats nothing": (ERROR, AZ, {"metrics": {"loss": "*loss"}}),
    "a metric without group": (WARNING, SM, {"metrics": {"loss": "loss"}}),
    # inputs and outputs
    "the model in the checkpoint": (
        ERROR, SM, {"checkpoint": {"sagemaker": "s3://b-bucket/c"}, "outputs": on_s3(model="c")},
    ),
    "a checkpoint in an asset": (ERROR, AZ, {"checkpoint": {"azureml": "azureml:ckpt:1"}}),
    "an output that is a file": (ERROR, HERE, {"outputs": {"model": {"local": "train.py"}}}),
    "a checkpoint that is an input": (
        ERROR, SM, {"checkpoint": {"sagemaker": "s3://b-bucket/c"}, "inputs": on_s3(a="c")},
    ),
    "two inputs of one channel": (
        ERROR, SM, {"inputs": {name: {"sagemaker": "s3://b-bucket/x", "channel": "c"} for name in "ab"}},
    ),
    "a reference to nothing": (ERROR, SM, {"hyperparameters": {"d": "${{inputs.nope}}"}}),
    # instance groups
    "inputs of groups": (NONE, SM, grouped(["a"], ["a", "b"])),
    "an input without its group": (ERROR, SM, grouped(["a"], [])),
    "the first input without its group": (ERROR, SM, grouped([], ["b"], ["a"])),
    "a channel without its group": (ERROR, SM, raw([("t", ["a"]), ("u", [])])),
    "a file system beside groups": (ERROR, SM, {
        "inputs": {"t": {"sagemaker": "s3://b-bucket/x", "instance_groups": ["a"]}, "u": FSX}, "resources": spans("a"),
    }),
    "an unknown group": (ERROR, SM, grouped(["zz"])),
    "an unknown group in the overrides": (ERROR, SM, raw([("t", ["zz"])])),
    "a group that is named twice": (ERROR, SM, {"resources": spans("a", "a")}),
    "groups and a type": (ERROR, SM, {
        "resources": spans("a"), "sagemaker_overrides": {"ResourceConfig": {"InstanceType": "ml.p4d.24xlarge"}},
    }),
    "six groups": (ERROR, SM, {"resources": spans("a", groups=6)}),
    # the rest
    "a wait that no one has": (WARNING, AZ, SPOT),
    "a library of SageMaker on a cluster": (ERROR, SL, {"distribution": {"type": "smddp"}}),
    "a module that is not there": (ERROR, HERE, {"entry_point": "-m nope.mod"}),
    "no time at all": (ERROR, HERE, {"max_runtime": "0s"}),
    "a distribution of a processing job": (ERROR, SM, PROCESSING | {"distribution": {"type": "torch"}}),
    "processing on an unknown type": (ERROR, SM, PROCESSING | {"resources": {"instance_type": "ml.p4d.24xlarge"}}),
    "processing for 30 days": (ERROR, SM, PROCESSING | {"max_runtime": "30d"}),
}  # fmt: skip
"""Each with the level of its gravest finding, its target, and its fields."""


def gravest(
    folder: Path, target: str, fields: Mapping[str, Any], script: bytes | str = SCRIPT
) -> str:
    """The level of the gravest finding about a job; an error that stops the command is one."""
    folder.joinpath("cloudtrain.toml").write_text(SETTINGS)
    content = script.encode() if isinstance(script, str) else script
    folder.joinpath("train.py").write_bytes(content)
    work = dict(fields) if "kind" in fields else JOB | dict(fields)
    folder.joinpath("job.yaml").write_text(yaml.safe_dump(work, sort_keys=False))
    os.chdir(folder)
    try:
        file = load_job_file("job.yaml")
        plan = ct.plan(file.work, target, place_of=file.place_of)
    except CloudtrainError:
        return ERROR
    levels = {finding.level for finding in plan.findings if finding.code not in ("SM309", "AZ702")}
    if Level.ERROR in levels:
        return ERROR
    return WARNING if Level.WARNING in levels else NONE


@pytest.mark.parametrize("name", CASES)
def test_a_job_gets_what_it_deserves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error where the run would end badly, a warning where it may, and nothing otherwise."""
    monkeypatch.chdir(tmp_path)
    level, target, fields = CASES[name]
    assert gravest(tmp_path, target, fields) == level


SCRIPTS: dict[str, tuple[bytes, int | None]] = {
    "Latin-1": (b"# -*- coding: latin-1 -*-\nname = '\xe9'\n", None),
    "in the second line": (
        b"#!/usr/bin/env python\n# vim: set fileencoding=iso-8859-15 :\nname = '\xa4'\n",
        None,
    ),
    "Shift JIS": ("# coding: shift_jis\nname = '\u65e5\u672c'\n".encode("shift_jis"), None),
    "byte order mark": (b"\xef\xbb\xbfimport torch\n", None),
    "form feed": (b"import torch\n\x0c\nname = 1\n", None),
    "form feed before the coding": (b"\x0c# coding: cp1252\nname = '\xe9'\n", None),
    "unknown": (b"# coding: klingon\n", 1),
    "no coding": (b"# coding: undefined\n", 1),
    "a coding that fails": (b"# coding: punycode\nx=1-\n", 1),
    "no encoding of text": (b"#!/usr/bin/python\n# coding: rot13\n", 2),
    "none": (b"import torch\n\nname = '\xe9'\n", 3),
    "none, in a comment": (b"import torch\n# \xe9\n", 2),
    "after the second line": (b"\n\n# coding: latin-1\nname = '\xe9'\n", 4),
    "another one": (b"# coding: ascii\nname = 1\nname = '\xe9'\n", 3),
    "mark and another one": (b"\xef\xbb\xbf# coding: latin-1\n", 1),
    "UTF-16": ("import torch\n".encode("utf-16"), 1),
    "a zero byte": (b"import torch\n\0\n", 2),
    "Python 2": (b"import torch\nprint 'a'\n", 2),
    "marks of a conflict": (b"import torch\n<<<<<<< HEAD\n", 2),
    "a notebook's line": (b"%matplotlib inline\n", 1),
    "no body": (b"def f():\nx = 1\n", 2),
    "perhaps a newer Python": (b"type A = int\ndef f[T](x: T): return f'{'a'}'\n", None),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_python_cannot_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error with the line, for the script and for a module that it imports at its start."""
    monkeypatch.chdir(tmp_path)
    content, line = SCRIPTS[name]
    if name == "a coding that fails" and sys.version_info[:2] == (3, 13):
        line = 2  # which names the line that it could not decode
    tmp_path.joinpath("own.py").write_bytes(content)
    tmp_path.joinpath("train.py").write_text("import own\n")
    for entry_point, file in (("own.py", "own.py"), ("train.py", "own.py")):
        job = ct.TrainingJob(name="a", entry_point=entry_point)
        details = [
            item.details for item in ct.plan(job, ct.Local()).findings if item.code == "CT215"
        ]
        assert details == ([(f"{file}:{line}",)] if line else [])
