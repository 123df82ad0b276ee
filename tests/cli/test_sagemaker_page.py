"""The page about SageMaker is what the program does: its commands run as they stand, its files are read, its code runs."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import cloudtrain as ct
from cloudtrain.machines.overlay import load_overlays
from cloudtrain.machines.table import instance_types
from cloudtrain.rules.engine import all_rules
from cloudtrain.targets.settings import load_settings
from tests.cli.conftest import Cli
from tests.fakes.sagemaker.identity import TRUST
from tests.fakes.sagemaker.jobs import Job
from tests.fakes.sagemaker.runner import packed
from tests.fakes.sagemaker.server import FakeAws
from tests.lifecycle.submission.test_exactly_once_sagemaker import POINTS
from tests.parity.jobs import CASES

pytestmark = pytest.mark.lifecycle

REPOSITORY = Path(__file__).parents[2]
NAMES = (
    "targets/sagemaker",
    "targets/sagemaker-launch",
    "targets/sagemaker-sdk",
    "guides/processing",
    "guides/emulation",
)
PAGE = "\n".join((REPOSITORY / "docs" / f"{name}.md").read_text("utf-8") for name in NAMES)
ACCOUNT = "111122223333"
TARGET = ct.SageMaker(region="us-west-2", role=f"arn:aws:iam::{ACCOUNT}:role/SageMakerTraining")


class Shown(NamedTuple):
    """A command, and what the page shows of its output: `...` stands for anything."""

    command: str
    output: str


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language; empty for those without."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [text for found, text in fenced if found == language]


def shown() -> Iterator[Shown]:
    """Every command of the `console` blocks."""
    for block in blocks("console"):
        for part in re.split(
            r"^\$ (?=cloudtrain)", re.sub(r" *\\\n *", " ", block), flags=re.MULTILINE
        )[1:]:
            command, _, output = part.partition("\n")
            yield Shown(command, output)


def account_commands() -> list[str]:
    """Every command that needs an account: the lines of the blocks without a language."""
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if line.startswith("cloudtrain ")]


def matches(expected: str, actual: str) -> bool:
    """Whether the shown lines are those of the output; `...` stands for any text, on a line of its own for lines."""
    pattern = "".join(
        r"(?s:.*)" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in expected.splitlines()
    )
    return re.fullmatch(pattern, actual) is not None


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("COLUMNS", "200")


def test_the_page_shows_commands() -> None:
    """There is something to test."""
    assert {item.command.split()[1] for item in shown()} >= {
        "plan",
        "instances",
        "check",
        "explain",
    }
    assert {line.split()[1] for line in account_commands()} >= {
        "check",
        "submit",
        "logs",
        "stop",
        "download",
        "ps",
    }


def cases() -> Iterator[object]:
    """An emulation is planned with this machine's PyTorch, which not every environment of the tests has."""
    for item in shown():
        marks = [pytest.mark.torch] if "--emulate" in item.command else []
        yield pytest.param(item, id=item.command, marks=marks)


@pytest.mark.parametrize("item", [*cases()])
def test_commands_print_what_is_shown(item: Shown, cli: Cli) -> None:
    """Without an account: exit code 0, and the output that stands on the page."""
    result = cli(*shlex.split(item.command)[1:])
    assert result.code == 0, result.err
    assert not item.output or matches(item.output, result.out), result.out


@pytest.mark.slow
def test_commands_work_with_an_account(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The commands that ask AWS, in the order of the page, each with exit code 0."""
    with FakeAws(region="us-west-2") as fake:
        fake.identity.account, fake.identity.roles = ACCOUNT, {"SageMakerTraining": TRUST}
        fake.s3.add_bucket(f"sagemaker-us-west-2-{ACCOUNT}", owner=ACCOUNT)
        fake.jobs.on_create = lambda job: succeed(fake, job, tmp_path)
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        for line in account_commands():
            arguments = shlex.split(
                line.replace("/JOB", f"/{next(iter(fake.jobs.by_name), '')}"), comments=True
            )[1:]
            result = cli(
                *arguments, *(["--to", str(tmp_path)] if arguments[0] == "download" else [])
            )
            assert result.code == 0, f"{line}: {result.err}"


def succeed(fake: FakeAws, job: Job, folder: Path) -> None:
    """A job that ended long ago, so that nobody waits for late lines: a line of log on two hosts, and a model."""
    for ago, phase in ((1500, "Downloading"), (1200, "Training")):
        job.enter(phase, at=time.time() - ago)
    for host in (1, 2):
        fake.logs.write(f"{job.name}/algo-{host}-1", f"[rank{host + 1}]: hello")
    (folder / "model").mkdir()
    (folder / "model" / "weights.pt").write_bytes(b"weights")
    uri = f"{job.request['OutputDataConfig']['S3OutputPath']}/{job.name}/output/model.tar.gz"
    fake.s3.put(uri, packed(folder / "model"))
    job.end("Completed", at=time.time() - 300, ModelArtifacts={"S3ModelArtifacts": uri})


def test_job_files_are_jobs(tmp_path: Path) -> None:
    """Every job on the page compiles for SageMaker without an error; fields alone are put into one that does."""
    for number, block in enumerate(block for block in blocks("yaml") if "run:" not in block):
        file = tmp_path / f"job{number}.yaml"
        head = (
            ""
            if "name:" in block
            else "name: a\nentry_point: train.py\nresources: {instance_type: ml.m5.large}\n"
        )
        file.write_text(head + block)
        job = ct.load_job(file, [] if "bundled:" in block else [f"source_dir={tmp_path}"])
        (tmp_path / (job.entry_point or "")).write_text("print(1)\n")
        assert ct.plan(job, TARGET).errors == ()


def test_the_shown_job_is_the_example() -> None:
    """What a page shows of an example is in its file, line for line."""
    lines = (REPOSITORY / "examples" / "prepare_data.yaml").read_text().splitlines()
    there = {line.split("  #")[0].rstrip() for line in lines}
    block = next(block for block in blocks("yaml") if "name: prepare-data\n" in block)
    assert set(block.splitlines()) <= there


def test_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings and the corrections of the catalogue are what the program reads."""
    settings, corrections, monitoring = blocks("toml")
    (tmp_path / "cloudtrain.toml").write_text(settings)
    (tmp_path / "instances.toml").write_text(corrections)
    monkeypatch.chdir(tmp_path)
    target = load_settings().target("sagemaker", profile="research")
    assert (target.region, target.profile, target.bucket) == (
        "us-west-2",
        "research",
        "research-training",
    )
    (tmp_path / "cloudtrain.toml").write_text(monitoring)
    rule, losses = (
        load_settings().target("sagemaker").debug_rules[0],
        {"losses": {"save_interval": "500"}},
    )
    assert (rule.parameters, load_settings().target("sagemaker").debugger_collections) == (
        {"rule_to_invoke": "LossNotDecreasing"}, losses,
    )  # fmt: skip
    assert [item.name for item in load_overlays(tmp_path, tmp_path)] == ["ml.p4de.24xlarge"]


def test_code_runs() -> None:
    """The Python that needs no SDK runs as it stands."""
    scope: dict[str, object] = {}
    exec(blocks("python")[0], scope)
    plan = scope["plan"]
    assert isinstance(plan, ct.Plan)
    assert plan.request["HyperParameters"]["sagemaker_torch_distributed_enabled"] == "true"
    assert {"to_estimator", "fit_arguments"} <= set(dir(plan))


def test_settings_and_rules_exist() -> None:
    """Every `CODE` on the page is a rule, and every setting in `[sagemaker]` is named."""
    assert set(re.findall(r"\b(?:SM|CT|LO)\d{3}\b", PAGE)) <= {rule.code for rule in all_rules()}
    named = set(re.findall(r"`(\w+)(?: = [^`]*)?`", PAGE))
    assert ct.SageMaker.model_fields.keys() - named == {"type"}


def test_what_the_page_says_is_so(tmp_path: Path) -> None:
    """What version 2 cannot express, who offers `torch`, and where SMDDP runs."""
    sentence = " ".join(
        PAGE[PAGE.index("A request that version 2 cannot express") :].split("\n\n")[0].split()
    )
    preferred = {"instance_preferences": ["ml.p5.48xlarge", "ml.p4d.24xlarge"]}
    for field, machine, setting in (
        ("InstancePreferences", preferred, {}),
        ("MaxPendingTimeInSeconds", {"instance_type": "ml.g5.xlarge"}, {"max_pending": "1h"}),
        (
            "MlflowConfig",
            {"instance_type": "ml.g5.xlarge"},
            {"mlflow": "arn:aws:sagemaker:us-west-2:1:x"},
        ),
    ):
        job = ct.TrainingJob(name="a", command="x", source_dir=str(tmp_path), resources=machine,
                             environment={"framework": "pytorch"})  # fmt: skip
        with pytest.raises(ct.CloudtrainError, match=field):
            ct.plan(job, TARGET.replace(**setting)).to_python()
        assert f"`{field}`" in sentence
    by_default = {row.name for row in instance_types("sagemaker") if row.smddp}
    assert {name.rpartition(".")[0] for name in by_default} == {"ml.p4d", "ml.p4de"}
    older = {row.name for row in instance_types("sagemaker") if row.smddp_in_sdk} - by_default
    assert older == {"ml.p3.16xlarge", "ml.p3dn.24xlarge"}
    (tmp_path / "train.py").write_text("")
    for code, version, machine, distribution, offer in (
        ("SM301", "2.8", "ml.p4d.24xlarge", {"type": "smddp"}, "{type: torch}"),
        ("SM302", "2.2", "ml.g5.48xlarge", {"type": "smddp"}, "{type: torch}"),
        ("SM304", "2.8", "ml.p4d.24xlarge", {"type": "smp", "version": 1}, "PyTorch"),
    ):
        job = ct.TrainingJob(name="a", entry_point="train.py", source_dir=str(tmp_path), distribution=distribution,
                             resources={"instance_type": machine}, environment={"framework": "pytorch", "version": version})  # fmt: skip
        found = {finding.code: finding.hint for finding in ct.plan(job, TARGET).findings}
        assert offer in found[code]
        assert ("torch}" in found[code]) == (code != "SM304")
    assert "All else is equal" not in PAGE


def test_the_instance_of_a_rule_is_checked(tmp_path: Path) -> None:
    """SM201 knows the job's own machines; the service's list for rules is SM110's."""
    (tmp_path / "train.py").write_text("")
    job = ct.TrainingJob(name="a", entry_point="train.py", source_dir=str(tmp_path),
                         resources={"instance_type": "ml.g5.xlarge"}, environment={"framework": "pytorch"})  # fmt: skip
    for kind, codes in (("ml.none", {"SM110"}), ("ml.m5.xlarge", set())):
        target = TARGET.replace(debug_rules=[{"name": "r", "image": "i:1", "instance_type": kind}])
        assert {finding.code for finding in ct.plan(job, target).errors} == codes


def test_what_boto3_checks() -> None:
    """No maximum, no pattern and no enum; a minimum."""
    botocore = pytest.importorskip("botocore.session")
    from botocore.validate import ParamValidator

    shape = (
        botocore.get_session()
        .get_service_model("sagemaker")
        .operation_model("CreateTrainingJob")
        .input_shape
    )
    resources = {"InstanceType": "ml.none", "InstanceCount": 1, "VolumeSizeInGB": 1}
    request = {
        "TrainingJobName": "not a name " * 10, "RoleArn": "x" * 30, "AlgorithmSpecification": {"TrainingInputMode": "None"},
        "OutputDataConfig": {"S3OutputPath": "nowhere"}, "ResourceConfig": resources, "StoppingCondition": {},
    }  # fmt: skip
    assert not ParamValidator().validate(request, shape).has_errors()
    resources["InstanceCount"] = -1
    assert ParamValidator().validate(request, shape).has_errors()


def test_figures_of_the_catalogue() -> None:
    """How many types there are, and how many prices of which date, is what the catalogue has."""
    types = instance_types("sagemaker")
    priced = [row for row in types if row.price is not None]
    with_gpus = [row for row in types if row.gpus]
    undated = [row for row in priced if not row.price_date]
    assert {row.price_date for row in priced} == {"", "2026-09-01", "2026-09-27"}
    assert f"the {len(types)} types" in PAGE
    there = len([row for row in priced if row.gpus])
    assert f"{len(priced)} have a price ({there} of the {len(with_gpus)} with GPUs)" in PAGE
    assert len(undated) == 4


def test_figures_of_the_tests() -> None:
    """At how many points a submission is killed, and how many jobs are compared with the SDK."""
    assert f"kill a submission at {POINTS} points" in PAGE
    assert len(CASES) > 100
