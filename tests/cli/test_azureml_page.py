"""The page about Azure ML is what the program does: its commands run as they stand, its files are read, its code runs."""

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
from cloudtrain.machines.table import instance_named, instance_types
from cloudtrain.rules.engine import all_rules
from cloudtrain.targets.azureml.compile.job import INFINIBAND
from cloudtrain.targets.azureml.service.status import STATES
from cloudtrain.targets.settings import load_settings
from tests.cli.conftest import Cli
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.job import Job
from tests.lifecycle.submission.test_exactly_once_azureml import POINTS
from tests.parity.azureml_jobs import CASES

pytestmark = pytest.mark.lifecycle

REPOSITORY = Path(__file__).parents[2]
NAMES = ("azureml", "azureml-launch", "azureml-sdk")
PAGE = "\n".join(
    (REPOSITORY / "docs" / "targets" / f"{name}.md").read_text("utf-8") for name in NAMES
)
SUBSCRIPTION = "11112222-3333-4444-5555-666677778888"
TARGET = ct.AzureML(subscription_id=SUBSCRIPTION, resource_group="training", workspace="vision")


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
    """Every command that needs a workspace: the lines of the blocks without a language."""
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
    asked = {line.split()[1] for line in account_commands()}
    assert asked >= {"check", "submit", "status", "logs", "stop", "download", "ps", "instances"}


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
def test_commands_work_with_a_workspace(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The commands that ask Azure, in the order of the page, each with exit code 0."""
    fake = FakeAzure(
        subscription_id=SUBSCRIPTION, resource_group="training", workspace_name="vision"
    )
    with fake:
        fake.jobs.on_create = lambda job: succeed(fake, job)
        defaults = {"AZURE_SUBSCRIPTION_ID": SUBSCRIPTION, "AZURE_DEFAULTS_GROUP": "training"}
        for name, value in {
            **fake.environ,
            **defaults,
            "AZURE_DEFAULTS_WORKSPACE": "vision",
        }.items():
            monkeypatch.setenv(name, value)
        for shown_line in account_commands():
            line = shown_line.replace("/JOB", f"/{next(iter(fake.jobs.by_name), '')}").replace(
                "SUBSCRIPTION", SUBSCRIPTION
            )
            arguments = shlex.split(line, comments=True)[1:]
            result = cli(
                *arguments, *(["--to", str(tmp_path)] if arguments[0] == "download" else [])
            )
            assert result.code == 0, f"{line}: {result.err}"


def succeed(fake: FakeAzure, job: Job) -> None:
    """A job that ended long ago, so that nobody waits for late lines: a line of log, and a model."""
    for ago, phase in ((1500, "Preparing"), (1200, "Running")):
        job.enter(phase, at=time.time() - ago)
    fake.logs.write(job.name, "user_logs/std_log_process_0.txt", "hello")
    fake.outputs.write(job.name, "model", "weights.pt", b"weights")
    job.end("Completed", at=time.time() - 300)


def test_job_files_are_jobs(tmp_path: Path) -> None:
    """Every job on the page compiles for Azure ML without an error; fields alone are put into one that does."""
    machine = "resources: {instance_type: Standard_DS3_v2}\nenvironment: {framework: pytorch}\nmax_runtime: 1h\n"
    for number, block in enumerate(blocks("yaml")):
        file = tmp_path / f"job{number}.yaml"
        file.write_text(
            ("" if "name:" in block else f"name: a\nentry_point: train.py\n{machine}") + block
        )
        job = ct.load_job(file, [] if "bundled:" in block else [f"source_dir={tmp_path}"])
        (tmp_path / (job.entry_point or "")).write_text("print(1)\n")
        assert ct.plan(job, TARGET).errors == ()


def test_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings, the services and the corrections of the catalogue are what the program reads."""
    settings, corrections, services = blocks("toml")
    (tmp_path / "cloudtrain.toml").write_text(f"{settings}\n{services}")
    (tmp_path / "instances.toml").write_text(corrections)
    monkeypatch.chdir(tmp_path)
    target = load_settings().target("azureml", profile="cluster")
    assert (target.subscription_id, target.workspace) == (SUBSCRIPTION, "vision")
    assert (target.compute, target.credential) == ("gpu-cluster", "cli")
    assert {name: service.type for name, service in target.services.items()} == {
        "board": "tensor_board",
        "shell": "ssh",
    }
    assert [item.name for item in load_overlays(tmp_path, tmp_path, "azureml")] == [
        "Standard_ND96isr_H200_v5"
    ]


def test_code_runs() -> None:
    """The Python that needs no SDK runs as it stands."""
    scope: dict[str, object] = {}
    exec(blocks("python")[0], scope)
    plan = scope["plan"]
    assert isinstance(plan, ct.Plan)
    assert plan.request["properties"]["distribution"] == {
        "distributionType": "PyTorch",
        "processCountPerInstance": 1,
    }
    assert "to_command" in dir(plan)


def test_settings_and_rules_exist() -> None:
    """Every `CODE` on the page is a rule, and every setting in `[azureml]` is named."""
    assert set(re.findall(r"\b(?:AZ|CT|LO)\d{3}\b", PAGE)) <= {rule.code for rule in all_rules()}
    named = set(re.findall(r"`(\w+)(?: = [^`]*)?`", PAGE))
    assert ct.AzureML.model_fields.keys() - named == {"type"}


def test_every_state_is_in_the_table() -> None:
    """Each word of the service stands in the row of the state that it becomes."""
    rows = dict(re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|$", PAGE, re.MULTILINE))
    finals = {"`succeeded`, `failed`, `stopped`": "`Completed`, `Failed`, `Canceled`"}
    assert finals.items() <= rows.items()
    for word, state in STATES.items():
        if not state.is_final:
            assert f"`{word}`" in rows[f"`{state.value}`"]


def test_figures_of_the_catalogue() -> None:
    """How many sizes there are, how many with GPUs, retired, and priced, is what the catalogue has."""
    types = instance_types("azureml")
    with_gpus, priced = (
        [row for row in types if row.gpus],
        [row for row in types if row.price is not None],
    )
    retired = [row for row in types if row.retired]
    text = " ".join(PAGE.split())
    assert (
        f"has {len(types)} sizes of Microsoft's documentation, {len(with_gpus)} with GPUs; " in text
    )
    assert f"{len(retired)} are retired" in text
    assert (
        f"{len(priced)} have a price ({len([row for row in priced if row.gpus])} of those with GPUs)"
        in text
    )
    assert {row.price_date for row in priced} == {""}


def test_the_three_types_of_microsofts_page() -> None:
    """InfiniBand, SR-IOV and the end of each are what the catalogue says, and so are the rules that two of them break."""
    rows = re.findall(
        r"^\| `(Standard_NC24\w+)` \| (.*?) \| (.*?) \| (\S+) \| (.*?) \|$", PAGE, re.MULTILINE
    )
    assert len(rows) == 3
    for name, infiniband, sr_iov, retired, said in rows:
        known = instance_named("azureml", name)
        assert known is not None
        assert known.retired == retired
        assert (infiniband != "none") == (known.fabric == "infiniband")
        assert (sr_iov == "yes") == (known.interconnect == "rdma")
        job = ct.TrainingJob(
            name="two", command="true", distribution=ct.Torch(), environment={"framework": "pytorch"},
            source_dir="bundled:digits_ddp", max_runtime="1h",
            resources={"instance_count": 2, "instance_type": name},
        )  # fmt: skip
        assert {finding.code for finding in ct.plan(job, TARGET).errors} == set(
            re.findall(r"AZ\d{3}", said)
        )


def test_warnings_that_two_tables_name() -> None:
    """`job_tier` on a cluster (AZ104), and workers that share GPUs (AZ305; without GPUs they may share): warnings."""

    def warned(
        settings: dict[str, str], workers: int = 1, size: str = "Standard_NC24ads_A100_v4"
    ) -> set[str]:
        job = ct.TrainingJob(
            name="two", command="true", distribution=ct.TensorFlow(workers=workers), source_dir="bundled:digits_ddp",
            environment={"framework": "tensorflow"}, resources={"instance_count": 2, "instance_type": size},
        )  # fmt: skip
        findings = ct.plan(job, TARGET.replace(**settings)).findings
        return {finding.code for finding in findings if finding.level.value == "warning"}

    assert "`job_tier` has no effect there, a warning (`AZ104`)" in PAGE
    assert "AZ104" in warned({"compute": "gpu", "job_tier": "premium"})
    assert "AZ104" not in warned({"compute": "gpu", "priority": "high"})
    assert "| 9 workers on 2 instances with GPUs | sent | a warning (`AZ305`) |" in PAGE
    assert "AZ305" in warned({}, 9)
    assert "AZ305" not in warned({}, 9, "Standard_D4s_v3")
    assert "AZ305" not in warned({}, 2)


def test_variables_of_infiniband_are_named() -> None:
    """All that are set stand on the page."""
    for name, value in INFINIBAND.items():
        assert f"`{name}={value}`" in PAGE


def test_figures_of_the_tests() -> None:
    """At how many points a submission is killed, and how many jobs are compared with the SDK."""
    assert f"kill a submission at {POINTS} points" in " ".join(PAGE.split())
    assert f"for {len(CASES)} jobs" in PAGE
