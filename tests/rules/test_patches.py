"""Images whose security patches have ended: the date, and what to ask for instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.code.bundled import script_names, script_path
from cloudtrain.job.training import TrainingJob
from cloudtrain.targets.sagemaker.catalogue.images import (
    end_of_patches,
    facts,
    numbers,
    resolve_image,
    versions,
)
from cloudtrain.targets.sagemaker.rules import distribution
from tests.rules.following import followed
from tests.rules.sagemaker_rule_cases import (
    DLC,
    SMDDP,
    Case,
    hugging_face,
    image,
    job,
    on,
    overrides,
    pytorch,
)
from tests.rules.test_sagemaker_rules import check

MakeSource = Callable[..., Path]

TARGET = ct.SageMaker(
    region="us-west-2", role="arn:aws:iam::123456789012:role/R", bucket="my-bucket"
)
AZURE = ct.AzureML(
    subscription_id="11111111-2222-3333-4444-555555555555", resource_group="group", workspace="ws1"
)


@pytest.fixture
def on_the_day(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the rules believe in another day."""

    def pretend(day: str) -> None:
        class Pretended(date):
            @classmethod
            def today(cls) -> Pretended:
                return cls.fromisoformat(day)

        monkeypatch.setattr(distribution, "date", Pretended)

    return pretend


def said(case: Case, make_source: MakeSource) -> list[tuple[str, str | None]]:
    return [(one.message, one.hint) for one in check(case, make_source) if one.code == "SM309"]


CHOICE = 'use `version: "2.10"` (until 2027-01-21) or `version: "2.13"` (until 2027-07-20)'

TOLD: dict[str, tuple[Case, str, str]] = {
    "by its version": (job(environment=pytorch("2.8")), "PyTorch 2.8.0 ... support ended on 2026-08-06", CHOICE),
    "a year that AWS no longer lists": (
        job(environment=pytorch("1.12.1")), "PyTorch 1.12.1 ... support ended on 2024-03-15 or earlier", CHOICE,
    ),
    "TensorFlow": (
        job(environment={"framework": "tensorflow", "version": "2.19"}),
        "TensorFlow 2.19.0 ... support ended on 2026-03-11", 'use `version: "2.21"` (until 2027-07-10)',
    ),
    "Hugging Face's is as old as its PyTorch": (
        job(environment=hugging_face("4.56.2")),
        "Hugging Face 4.56.2 ... support of its PyTorch 2.8.0 ended on 2026-08-06", 'use `version: "5.3.0"`',
    ),
    "a Python that the newer ones lack": (
        job(environment=pytorch("2.8") | {"python": "3.12"}),
        "PyTorch 2.8.0 ... support ended on 2026-08-06", 'remove `python`, and use `version: "2.10"` (until 2027-01-21)',
    ),
    "by its address": (
        job(environment=image(f"{DLC}/pytorch-training:2.8.0-gpu-py312")),
        "PyTorch 2.8.0 ... support ended on 2026-08-06",
        'write `environment: {framework: pytorch, version: "2.10"}` instead of `image`',
    ),
    "by the overrides": (
        overrides(AlgorithmSpecification={"TrainingImage": f"{DLC}/pytorch-training:2.8.0-gpu-py312"}),
        "PyTorch 2.8.0 ... support ended on 2026-08-06",
        "remove `AlgorithmSpecification.TrainingImage` from `sagemaker_overrides`, and write `environment: "
        '{framework: pytorch, version: "2.10"}`',
    ),
    "a library that no patched image has": (
        job(resources=on("ml.p4d.24xlarge", 2), distribution=SMDDP, environment=pytorch("2.5")),
        "PyTorch 2.5.1 ... support ended on 2025-10-29", f"write `distribution: {{type: torch}}`, and {CHOICE.partition(' or ')[0]}",
    ),
    "Horovod of the image": (
        job(resources=on("ml.p3.16xlarge"), distribution={"type": "horovod"},
            environment={"framework": "tensorflow", "version": "2.11"}),
        "TensorFlow 2.11.0 ... support ended on 2024-09-26 or earlier",
        'write `distribution: {type: tensorflow}`, and use `version: "2.21"` (until 2027-07-10)',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_the_end_of_patches_is_told(
    name: str, make_source: MakeSource, on_the_day: Callable[[str], None]
) -> None:
    """With AWS's date and the versions that it still patches; who follows the hint hears nothing of it any more."""
    on_the_day("2026-11-27")
    case, message, hint = TOLD[name]
    middle = "is no longer patched: AWS's"
    assert said(case, make_source) == [(f"the image of {message.replace('...', middle)}", hint)]
    finding = next(one for one in check(case, make_source) if one.code == "SM309")
    mended = [after for _, after, _ in followed(case, finding)]
    assert mended
    assert [said(after, lambda files: make_source(files)) for after in mended] == [[]] * len(mended)


def test_patches_end_after_their_last_day(
    make_source: MakeSource, on_the_day: Callable[[str], None]
) -> None:
    """On the day itself AWS still patches. Later the hint leaves out what has ended by then, too."""
    case = job(environment=pytorch("2.10"))
    for day in ("2026-11-27", "2027-01-21"):
        on_the_day(day)
        assert said(case, make_source) == []
    on_the_day("2027-01-22")
    ((message, hint),) = said(case, make_source)
    assert message.endswith("support ended on 2027-01-21")
    assert (
        hint == 'use `version: "2.11"` (until 2027-04-30) or `version: "2.13"` (until 2027-07-20)'
    )
    on_the_day("2028-01-01")
    # the end of its patches is not known
    assert said(case, make_source)[0][1] == 'use `version: "2.14"`'


def test_nothing_is_said_without_a_newer_image(
    make_source: MakeSource, on_the_day: Callable[[str], None]
) -> None:
    """Hugging Face's newest released image is built on PyTorch 2.9, which AWS patches no longer; Trainium's images and
    those of model parallelism library v2 have other ends; nor is a version that has no known end blamed."""
    on_the_day("2026-11-27")
    assert end_of_patches("pytorch", "2.9.0") == "2026-10-15"
    for case in (
        job(environment=hugging_face("5.3")),
        job(environment=pytorch("2.14")),
        job(environment={"framework": "pytorch"}),
        job(
            resources=on("ml.trn1.32xlarge"),
            distribution={"type": "torch"},
            environment=pytorch("2.8"),
        ),
    ):
        assert said(case, make_source) == []


def test_the_dates_are_whole() -> None:
    """Each version that the catalogue has is in one range at most; each range has a source; newer ones end later."""
    for framework in ("pytorch", "tensorflow"):
        table = [row for row in facts()["patches"] if row["framework"] == framework]
        assert all(
            row["source"] and (row["from"] == row["to"]) == (len(row["end"]) == 10) for row in table
        )
        assert [numbers(row["to"]) for row in table] == sorted(numbers(row["to"]) for row in table)
        # AWS gave that two years
        ends = [row["end"] for row in table if row["from"] != "0" and row["to"] != "1.13"]
        assert ends == sorted(ends)
        unknown = [one for one in versions(framework) if not end_of_patches(framework, one)]
        assert unknown == [
            one for one in versions(framework) if numbers(one)[:2] > numbers(table[-1]["to"])
        ]


def test_the_page_has_the_dates_of_the_catalogue() -> None:
    """docs/targets/sagemaker.md, line by line; and its images of Hugging Face."""
    page = (Path(__file__).parents[2] / "docs" / "targets" / "sagemaker.md").read_text()
    rows = re.findall(r"(PyTorch|TensorFlow) ([\d.]+) \| ([\d-]+)", page)
    assert [
        (name, version, end_of_patches(name.lower(), version)) for name, version, _ in rows
    ] == rows
    assert len(rows) == 8
    for version, torch in re.findall(r'\| `"(\d+\.\d+)"` \| (2\.[\d.]+) \|', page):
        assert resolve_image("huggingface", version, region="us-west-2").engine == (
            "pytorch",
            torch,
        )


@pytest.mark.in_ci
def test_no_bundled_job_asks_for_an_unpatched_image(on_the_day: Callable[[str], None]) -> None:
    """None but those that use a library of SageMaker, which only old images have."""
    on_the_day("2026-11-27")
    told: dict[str, list[str]] = {"SM309": [], "AZ607": []}
    files = [file for name in script_names() for file in sorted(script_path(name).glob("*.yaml"))]
    for file in files:
        fields: Any = ct.load_job(file) if file.name != "sweep.yaml" else None
        if not isinstance(fields, TrainingJob):
            continue
        for target in (TARGET, AZURE):
            try:
                found = ct.plan(fields, target).findings
            except ct.CloudtrainError:
                continue  # a job for other targets
            for code in told.keys() & {one.code for one in found}:
                told[code].append(f"{file.parent.name}/{file.name}")
    assert len(files) > 30
    assert told == {
        "SM309": ["pipeline_gpt/job_smp.yaml", "toy_smddp/job.yaml", "toy_smddp/job_gpu.yaml"],
        "AZ607": [],
    }


def test_azure_says_what_its_environment_holds(make_source: MakeSource) -> None:
    """A job for PyTorch 2.8 gets the environment of that name, and hears that it holds 2.10; `version: "2.10"` gets the
    same. A list that pins the torch inside fits, and one that pins 2.8 does not."""
    folder = make_source(
        {"train.py": "print(1)\n", "new.txt": "torch==2.10.0\n", "old.txt": "torch==2.8.0\n"}
    )

    def plan(version: str, **more: str) -> ct.Plan:
        fields = {"framework": "pytorch", "version": version, "requirements": "none"} | more
        made = ct.TrainingJob(name="digits", entry_point="train.py", source_dir=str(folder), environment=fields,
                               resources={"instance_type": "Standard_NC24ads_A100_v4"})  # fmt: skip
        return ct.plan(made, AZURE)

    (told,) = [one for one in plan("2.8").findings if one.code == "AZ607"]
    assert (
        told.message
        == "`acpt-pytorch-2.8-cuda12.6` has held PyTorch 2.10 since 2026-07-23, not 2.8"
    )
    assert (told.hint or "").startswith('write `version: "2.10"`')
    assert told.path == ("environment", "version")
    plans = [plan(version) for version in ("2.8", "2.8.0", "2.10", "2.10.0")]
    assert [sum(one.code == "AZ607" for one in found.findings) for found in plans] == [1, 1, 0, 0]
    bodies = {found.request["properties"]["environmentId"] for found in plans}
    assert bodies == {
        "azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/labels/latest"
    }
    with pytest.raises(ct.CloudtrainError, match=r"no curated environment of `pytorch` 2\.9"):
        plan("2.9")
    assert plan("2.8", requirements="new.txt").errors == ()
    with pytest.raises(
        ct.CloudtrainError, match=r"torch 2\.8\.0 is in `old\.txt`, and the image has 2\.10"
    ):
        plan("2.8", requirements="old.txt")
