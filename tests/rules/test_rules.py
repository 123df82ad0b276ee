"""Every preflight rule: a bad case that it finds, and the nearest good case that it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.errors import UsageError
from cloudtrain.plans.plan import CompileContext, Finding, Machine
from cloudtrain.rules.engine import all_rules, check_plan, rule_named
from cloudtrain.system.plugins import PORTABLE, all_targets
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.local.compile import compile_local
from tests.code.credential_files import Maker
from tests.hints import suggested
from tests.rules.subjects import subject_of as make_subject

SOURCE = {"train.py": "print(1)\n", "lib/model.py": "x = 1\n"}


@dataclass
class Case:
    """A job, its target, its files and its machine; small defaults."""

    job: dict[str, Any] = field(default_factory=dict)
    target: ct.Local = field(default_factory=ct.Local)
    files: dict[str, str] = field(default_factory=lambda: dict(SOURCE))
    machine: Machine = field(default_factory=lambda: Machine(cpus=8))


def check(
    case: Case, make_source: Callable[..., Path], ignore: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    """The findings for a case, through the real scan and the real compile."""
    job = ct.TrainingJob(**{"name": "job", "entry_point": "train.py", **case.job})
    tree = scan(make_source(case.files))
    account = LocalAccount("/state", "/py", case.machine, "host", "/usr/bin/mpirun")
    plan = compile_local(job, case.target, CompileContext("job-1", tree.identity, account))
    return check_plan(make_subject(job, case.target, account, plan, tree), ignore=ignore)


ARGPARSE = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float)
print(parser.parse_args())
"""
ALONE = {"train.py": "import torch\n"}
JOINED = {
    "train.py": "import torch\nimport steps\n",
    "steps.py": "import torch.distributed as dist\n",
}
SAVES = """\
import torch, os
parser.add_argument("--out-dir", default="out")
torch.save(net, os.path.join(args.out_dir, "net.pt"))
"""
TORCH = {"type": "torch"}
EIGHT = {"gpus_per_instance": 8}
KEY = Maker(1).pem("OPENSSH ")
TOKEN = Maker(2).letters(34, before="hf_")

CASES: dict[str, tuple[Case, Case, str]] = {
    "CT209": (
        Case({"hyperparameters": {"lerning_rate": 1}}, files={**SOURCE, "train.py": ARGPARSE}),
        Case({"hyperparameters": {"learning_rate": 1}}, files={**SOURCE, "train.py": ARGPARSE}),
        suggested("learning_rate"),
    ),
    "CT214": (
        Case(files={"train.py": "get_ipython().run_line_magic('matplotlib', 'inline')\n"}),
        Case(files={"train.py": "try:\n    get_ipython()\nexcept NameError:\n    pass\n"}),
        "delete the line",
    ),
    "CT215": (
        Case(files={"train.py": "# coding: klingon\n"}),
        Case(files={"train.py": "# -*- coding: latin-1 -*-\n"}),
        "python -m py_compile train.py",
    ),
    "CT220": (
        Case({"entry_point": "pkg/train.py"}, files={"pkg/train.py": "from . import util\n", "pkg/util.py": ""}),
        Case({"entry_point": "-m pkg.train"}, files={"pkg/train.py": "from . import util\n", "pkg/util.py": ""}),
        "start it as a module: `entry_point: -m pkg.train`",
    ),
    "CT405": (
        Case(files={"train.py": "open('out/a.txt', 'w')\n"}),
        Case(files={"train.py": "import os\nos.makedirs('out')\nopen('out/a.txt', 'w')\n"}),
        "`os.makedirs('out', exist_ok=True)`",
    ),
    "CT101": (Case({"entry_point": "trian.py"}), Case(), suggested("train.py")),
    "CT102": (
        Case({"environment": {"requirements": "requirement.txt"}}, files={**SOURCE, "requirements.txt": "numpy\n"}),
        Case({"environment": {"requirements": "requirements.txt"}}, files={**SOURCE, "requirements.txt": "numpy\n"}),
        suggested("requirements.txt"),
    ),
    "CT201": (Case({"hyperparameters": {"--lr": 1}}), Case({"hyperparameters": {"l-r": 1}}), "write `lr`"),
    "CT202": (
        Case({"hyperparameters": {"net": {"layers": {"a": 1}}}}), Case({"hyperparameters": {"net": {"layers": 1}}}), "file",
    ),
    "CT203": (
        Case({"environment": {"variables": {"2-X": "1"}}}), Case({"environment": {"variables": {"X_2": "1"}}}), "write `_X`",
    ),
    "CT204": (
        Case({"environment": {"variables": {"MASTER_ADDR": "x"}}}),
        Case({"environment": {"variables": {"MASTER_NAME": "x"}}}),
        "remove `MASTER_ADDR`",
    ),
    "CT205": (
        Case({"environment": {"variables": {"HF_TOKEN": "hf_abc"}}}),
        Case({"environment": {"variables": {"HF_TOKEN_FILE": "/run/token"}}}),
        "`environment.secrets: {HF_TOKEN: {local: \"env:HF_TOKEN\"}}`",
    ),
    "CT206": (
        Case({"metrics": {"loss": "loss=[0-9.]+"}}), Case({"metrics": {"loss": "loss=([0-9.]+)"}}), "loss=([0-9.eE+-]+)",
    ),
    "CT216": (
        Case({"metrics": {"loss": "(loss=([0-9"}}), Case({"metrics": {"loss": "loss=([0-9.]+)"}}), "loss=([0-9.eE+-]+)",
    ),
    "CT207": (
        Case({"environment": {"image": "not an image!! ;"}}),
        Case({"environment": {"image": "ghcr.io/me/train-2:1.0_b@sha256:" + "0a" * 32}}),
        "`REGISTRY/REPOSITORY:TAG`",
    ),
    "CT210": (
        Case(
            {
                "resources": {"instance_type": "ml.m5.xlarge"}, "environment": {"variables": {"A": "1"}},
                "sagemaker_overrides": {"Environment": {"A": "2"}},
            },
            ct.Local(emulate="sagemaker"),
        ),
        Case(
            {
                "resources": {"instance_type": "ml.m5.xlarge"}, "environment": {"variables": {"A": "1"}},
                "sagemaker_overrides": {"Environment": {"A": "1", "B": "2"}},
            },
            ct.Local(emulate="sagemaker"),
        ),
        "remove `Environment.A` from `sagemaker_overrides`",
    ),
    "CT212": (
        Case({"hyperparameters": {"data": ".."}}), Case({"hyperparameters": {"data": "../none"}}), "--set inputs.data.local=/",
    ),
    "CT404": (
        Case({"resources": {"instance_type": "ml.m5.xlarge"}}, ct.Local(emulate="sagemaker"), {"train.py": SAVES}),
        Case(
            {"resources": {"instance_type": "ml.m5.xlarge"}, "hyperparameters": {"out-dir": "${{outputs.model}}"}},
            ct.Local(emulate="sagemaker"), {"train.py": SAVES},
        ),
        "pass `--out-dir '${{outputs.model}}'`",
    ),
    "CT301": (
        Case(files={**SOURCE, "deploy": KEY}), Case(files={**SOURCE, "deploy.pub": "ssh-ed25519 AAAA"}), ".cloudtrainignore",
    ),
    "CT304": (
        Case(files={**SOURCE, ".env.prod": "A=1\n", ".cloudtrainignore": "!.env.*\n"}),
        Case(files={**SOURCE, ".env.prod": "A=1\n"}),
        ".cloudtrainignore",
    ),
    "CT305": (
        Case({"hyperparameters": {"hub": TOKEN}}), Case({"hyperparameters": {"hub": "hf_xxxx"}}), "environment.secrets",
    ),
    "CT401": (Case({"spot": {}}), Case({"spot": {}, "checkpoint": {"local": "/c"}}), "checkpoint:"),
    "CT402": (
        Case({"spot": {"max_wait": "1h"}, "max_runtime": "2h"}),
        Case({"spot": {"max_wait": "2h"}, "max_runtime": "2h"}),
        "at least `2h`",
    ),
    "CT501": (
        Case({"resources": {"instance_count": 2}}),
        Case({"resources": {"instance_count": 2}, "distribution": TORCH}),
        "type: torch",
    ),
    "CT502": (
        Case({"resources": EIGHT, "distribution": {"type": "torch", "processes_per_instance": 1}}),
        Case({"resources": EIGHT, "distribution": TORCH}),
        "processes_per_instance: 8",
    ),
    "CT507": (
        Case({"distribution": TORCH}, files=ALONE), Case({"distribution": TORCH}, files=JOINED), "`torch.distributed`",
    ),
    "CT508": (Case(files=ALONE), Case({"distribution": {"type": "none"}}, files=ALONE), "type: torch"),
    "CT503": (
        Case({"resources": {"gpus_per_instance": 1}, "distribution": {"type": "torch", "processes_per_instance": 2}}),
        Case({"resources": {"gpus_per_instance": 2}, "distribution": {"type": "torch", "processes_per_instance": 2}}),
        "`distribution.processes_per_instance` to 1",
    ),
    "CT504": (
        Case({"distribution": {"type": "tensorflow", "strategy": "parameter_server", "workers": 1}}),
        Case({"distribution": {"type": "tensorflow", "strategy": "parameter_server", "workers": 2}}),
        "2 or more",
    ),
    "CT505": (
        Case({"outputs": {"a": {"local": "/out/x"}, "b": {"local": "/out/x/"}}}),
        Case({"outputs": {"a": {"local": "/out/x"}, "b": {"local": "/out/x2"}}}),
        "write `/out/x/a` and `/out/x/b`",
    ),
    "CT506": (
        Case({"inputs": {"train": {"local": "/data"}}, "outputs": {"a": {"local": "/data/out"}}}),
        Case({"inputs": {"train": {"local": "/data"}}, "outputs": {"a": {"local": "/data-a"}}}),
        "write `/data-a`",
    ),
    "LO101": (
        Case({"inputs": {"train": {"local": "/no/such/place"}}}), Case({"inputs": {"train": {"local": "/"}}}),
        "--set inputs.train.local=PATH",
    ),
    "LO102": (Case(target=ct.Local(python="/no/such/python")), Case(target=ct.Local(python="sh")), "--python"),
    "LO104": (
        Case({"outputs": {"d": {"local": "/dev/null/d"}}}), Case({"outputs": {"d": {"local": "/no/such"}}}),
        "--set outputs.d.local=PATH",
    ),
    "LO105": (
        Case({"distribution": TORCH}, ct.Local(processes_per_instance=6), machine=Machine(8, (), 2**30)),
        Case({"distribution": TORCH}, ct.Local(processes_per_instance=5), machine=Machine(8, (), 2**30)),
        "start at most 5:",
    ),
    "LO208": (
        Case({"distribution": TORCH}, ct.Local(processes_per_instance=4), machine=Machine(cpus=2)),
        Case({"distribution": TORCH}, ct.Local(processes_per_instance=3), machine=Machine(cpus=2)),
        "`--instances 1 --processes-per-instance 2`",
    ),
    "LO201": (
        Case({"resources": EIGHT, "distribution": TORCH}, machine=Machine(cpus=2)),
        Case({"resources": EIGHT, "distribution": TORCH}, machine=Machine(cpus=8)),
        "--instances 1 --processes-per-instance 8",
    ),
    "LO202": (
        Case({"distribution": TORCH}, ct.Local(processes_per_instance=2), machine=Machine(8, ("0",))),
        Case({"distribution": TORCH}, ct.Local(processes_per_instance=2), machine=Machine(8, ("0", "1"))),
        "--processes-per-instance 1",
    ),
    "LO203": (
        Case(target=ct.Local(max_restarts=1)), Case({"distribution": TORCH}, ct.Local(max_restarts=1)), "",
    ),
    "LO204": (
        Case({"distribution": {"type": "mpi"}, "resources": {"instance_count": 2}}),
        Case({"distribution": {"type": "mpi"}}), "",
    ),
    "LO209": (
        Case({"resources": {"shm_size": "8g"}}), Case({"resources": {"gpu": "A100-40GB"}, "spot": {}}), "",
    ),
    "LO205": (Case({"distribution": {"type": "smddp"}}), Case({"distribution": TORCH}), ""),
    "LO206": (
        Case({"checkpoint": {"sagemaker": "s3://b/k"}}), Case({"checkpoint": {"local": "/c"}}), "--set checkpoint.local=",
    ),
}  # fmt: skip

OF_PROCESSING = {"CT521", "CT522", "CT531", "CT532"}
"""Rules with cases in tests of processing jobs, because they look at another kind of job, at earlier runs, or at sweeps."""

ELSEWHERE = {
    "LO207",
    "CT213",
    "CT217",
    "CT218",
    "CT219",
    "CT208",
    "CT403",
    "CT302",
    "CT303",
    "CT306",
    "CT523",
    "CT541",
    "LO103",
}
"""Rules with tests of their own below, because a case needs more than a job."""


def test_every_rule_has_a_case() -> None:
    """No rule without a bad and a good case. Those of a cloud have tests of their own."""
    assert {
        rule.code for rule in all_rules() if rule.code[:2] in ("CT", "LO")
    } == CASES.keys() | ELSEWHERE | OF_PROCESSING


@pytest.mark.parametrize("code", CASES)
def test_the_bad_case_is_found(code: str, make_source: Callable[..., Path]) -> None:
    """The rule speaks, with its level, and its hint says what to type."""
    bad, _, hint = CASES[code]
    found = [finding for finding in check(bad, make_source) if finding.code == code]
    assert found
    assert found[0].level is rule_named(code).level
    assert hint in (found[0].hint or "")


@pytest.mark.parametrize("code", CASES)
def test_the_good_case_is_left_alone(code: str, make_source: Callable[..., Path]) -> None:
    """The nearest good case has no such finding."""
    _, good, _ = CASES[code]
    assert code not in {finding.code for finding in check(good, make_source)}


@pytest.mark.parametrize("code", [code for code in CASES if rule_named(code).can_be_ignored])
def test_an_ignored_rule_is_silent(code: str, make_source: Callable[..., Path]) -> None:
    """`--ignore CODE`, in any case of letters, drops exactly that rule."""
    bad, _, _ = CASES[code]
    everything = {finding.code for finding in check(bad, make_source)}
    without = {finding.code for finding in check(bad, make_source, ignore=(code.lower(),))}
    assert everything - without == {code}


def test_ignoring_an_unknown_rule_is_an_error(make_source: Callable[..., Path]) -> None:
    """A misspelt code does not silently ignore nothing."""
    with pytest.raises(UsageError) as caught:
        check(Case(), make_source, ignore=("CT1O1",))
    assert caught.value.hint == suggested("CT101")


def test_a_wait_is_told_to_the_second(make_source: Callable[..., Path]) -> None:
    """An hour and a minute would still be too short for a run of half a minute more."""
    case = Case({"spot": {"max_wait": "1h1m"}, "max_runtime": 3690})
    (found,) = (item for item in check(case, make_source) if item.code == "CT402")
    assert found.message == "`spot.max_wait` (1h1m) is shorter than `max_runtime` (1h1m30s)"
    assert found.hint == "set `spot.max_wait` to at least `1h1m30s`"


SERVERS = {
    "type": "tensorflow",
    "strategy": "parameter_server",
    "workers": 40,
    "parameter_servers": 40,
}


@pytest.mark.parametrize(
    ("job", "target", "message", "hint"),
    [
        ({"distribution": SERVERS}, ct.Local(), "16 tasks instead of 80", "--instances 40"),
        ({"distribution": SERVERS}, ct.Local(instance_count=40), None, None),
        ({"distribution": SERVERS | {"workers": 2, "parameter_servers": 1}}, ct.Local(), None, None),
        (
            {
                "distribution": SERVERS, "resources": {"instance_count": 40, "instance_type": "ml.m5.xlarge"},
                "environment": {"framework": "tensorflow", "version": "2.19"},
            },
            ct.Local(emulate="sagemaker"), "8 tasks instead of 40", "--instances 40",
        ),
    ],
)  # fmt: skip
def test_fewer_tasks_of_tensorflow_are_told(
    make_source: Callable[..., Path],
    job: dict[str, Any],
    target: ct.Local,
    message: str | None,
    hint: str | None,
) -> None:
    """On a machine with eight CPUs: workers and servers together, or the hosts of an emulation."""
    found = [item for item in check(Case(job, target), make_source) if item.code == "LO201"]
    told = (
        f"scaled down to this machine (8 CPUs, no GPU): {message}",
        f"run it at full size with `{hint}`",
    )
    assert [(item.message, item.hint) for item in found] == ([told] if message else [])


WITH_GPUS = {
    "instance_count": 2,
    "instance_type": {"sagemaker": "ml.p4d.24xlarge", "azureml": "Standard_ND96asr_v4"},
}


@pytest.mark.parametrize("service", ["sagemaker", "azureml"])
@pytest.mark.parametrize(
    ("resources", "target", "machine", "counts"),
    [
        (WITH_GPUS, {}, Machine(8), ("2 x 4", "2 x 8")),
        (WITH_GPUS, {}, Machine(8, ("0", "1")), ("2 x 1", "2 x 8")),
        (WITH_GPUS, {}, Machine(1), ("1 x 1", "2 x 8")),
        (WITH_GPUS, {}, Machine(16), None),
        (WITH_GPUS, {"instance_count": 1}, Machine(8), None),
        (WITH_GPUS | {"instance_count": 1}, {}, Machine(8), None),
    ],
)  # fmt: skip
def test_an_emulation_with_fewer_processes_than_the_plan_is_told(
    make_source: Callable[..., Path],
    service: str,
    resources: dict[str, Any],
    target: dict[str, int],
    machine: Machine,
    counts: tuple[str, str] | None,
) -> None:
    """Sixteen there, and as many as fit here: the notice has both numbers, and the options for all of them."""
    image = {"framework": "pytorch", "version": "2.8"}
    job = {"distribution": TORCH, "resources": resources, "environment": image}
    case = Case(job, ct.Local(emulate=service, **target), machine=machine)
    found = [item for item in check(case, make_source) if item.code == "LO201"]
    if counts is None:
        assert not found
        return
    (notice,) = found
    here, there = counts
    assert f"{here} processes instead of {there} (" in notice.message
    assert "--instances 2 --processes-per-instance 8" in str(notice.hint)


def test_processes_that_nothing_starts_are_told(make_source: Callable[..., Path]) -> None:
    """`--nproc 2` on a job without a distribution is no silent single process."""
    (finding,) = check(Case(target=ct.Local(processes_per_instance=2)), make_source)
    assert (finding.code, "--set distribution.type=torch" in str(finding.hint)) == ("LO203", True)
    assert not check(Case(target=ct.Local(processes_per_instance=1)), make_source)


def test_checkpoints_do_not_go_to_a_file(make_source: Callable[..., Path]) -> None:
    """The file itself is named."""
    found = check(Case({"checkpoint": {"local": "/dev/null"}}), make_source)
    told = [(item.message, item.path) for item in found if item.code == "LO104"]
    assert told == [
        ("`/dev/null` is a file, but `checkpoint` needs a folder", ("checkpoint", "local"))
    ]


@pytest.mark.slow
def test_large_bundles_are_found_before_they_are_uploaded(
    tmp_path: Path, make_source: Callable[..., Path]
) -> None:
    """Over 50 MiB a warning, over 300 MiB an error; both name the largest files. The file is sparse: no disk is used."""
    for size, expected in ((40, set()), (60, {"CT303"}), (310, {"CT302"})):
        source = make_source(SOURCE)
        with (source / "weights.bin").open("wb") as file:
            file.truncate(size * 2**20)
        found = [
            finding for finding in check(Case(), make_source) if finding.code in ("CT302", "CT303")
        ]
        assert {finding.code for finding in found} == expected
        assert all("weights.bin" in finding.details[0] for finding in found)


def test_missing_torch_is_found_before_the_launch(
    make_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this interpreter has no PyTorch, a torchrun job is stopped, unless it names another interpreter."""
    monkeypatch.setattr("cloudtrain.targets.local.rules.find_spec", lambda name: None)
    bad = Case({"distribution": TORCH})
    assert "LO103" in {finding.code for finding in check(bad, make_source)}
    bad.target = ct.Local(python="python3")
    assert "LO103" not in {finding.code for finding in check(bad, make_source)}
    assert "LO103" not in {finding.code for finding in check(Case(), make_source)}


def test_an_ignored_file_is_named_with_its_rule(make_source: Callable[..., Path]) -> None:
    """An entry point that an ignore rule leaves out is not "missing": the finding names the rule."""
    files = {**SOURCE, ".cloudtrainignore": "*.py\n"}
    (found,) = (
        finding for finding in check(Case(files=files), make_source) if finding.code == "CT101"
    )
    assert "`.cloudtrainignore:1 *.py`" in found.message
    assert found.hint == "add `!train.py` to `.cloudtrainignore`"


def test_errors_come_first(make_source: Callable[..., Path]) -> None:
    """Errors, then warnings, then notices."""
    case = Case(
        {"entry_point": "no.py", "spot": {}, "checkpoint": None, "distribution": {"type": "smddp"}}
    )
    levels = [finding.level.value for finding in check(case, make_source)]
    assert levels == sorted(levels, key=("error", "warning", "notice").index)
    assert set(levels) == {"error", "warning", "notice"}


def test_every_rule_explains_itself() -> None:
    """A summary that ends with a full stop, and an explanation longer than it."""
    for rule in all_rules():
        assert rule.summary.endswith(".")
        assert len(rule.explanation) > 60
        assert rule.code[:2] in {PORTABLE, *(target.prefix for target in all_targets())}
