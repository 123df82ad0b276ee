"""What is mutated: right job files with right settings, as the examples, the training scripts and the golden cases
have them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"

SCRIPTS = "golden"
"""The folder of the golden jobs, which name files that exist nowhere else."""

GOLDEN_FILES = {
    "train.py": "print(1)\n",
    "start-deepspeed.sh": "deepspeed $2\n",
    "requirements.txt": "numpy\n",
    "conda.yml": "dependencies: [python=3.11]\n",
    "docker/Dockerfile": "FROM ubuntu\n",
    ".cloudtrainignore": "*.log\n",
}

Data = dict[str, Any]


@dataclass(frozen=True)
class Seed:
    """A right job: where it lies, its data, its text, and the settings that go with it."""

    name: str
    folder: str
    job: Data
    text: str
    suffix: str
    settings: Data
    target: str | None = None
    """The target that a golden case is for; any, where it is None."""


def seeds() -> list[Seed]:
    """All of them, always in the same order."""
    return [*_files(), *_golden_local(), *_golden_azureml(), *_golden_sagemaker()]


def folders() -> dict[str, Path | None]:
    """The source folders of the seeds, by the name that they get in a sandbox; None is that of the golden jobs."""
    scripts = sorted(path for path in (REPOSITORY / "training_scripts").iterdir() if path.is_dir())
    return {"examples": REPOSITORY / "examples", SCRIPTS: None} | {
        path.name: path for path in scripts
    }


def _loads(text: str, suffix: str) -> Data:
    data: Data
    if suffix == ".toml":
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        data = tomllib.loads(text)
    else:
        data = yaml.load(text, yaml.CSafeLoader)
    return data


def _files() -> Iterator[Seed]:
    settings = _loads((REPOSITORY / "examples" / "cloudtrain.toml").read_text(), ".toml")
    for folder, path in folders().items():
        for file in sorted(path.iterdir()) if path is not None else ():
            if file.suffix in (".yaml", ".json", ".toml") and file.name != "cloudtrain.toml":
                text = file.read_text()
                data = _loads(text, file.suffix)
                if "name" in data:  # the others configure DeepSpeed
                    yield Seed(f"{folder}/{file.name}", folder, data, text, file.suffix, settings)


def _golden(kind: str, name: str, job: Data, target: Mapping[str, Any]) -> Seed:
    data = {key: value for key, value in job.items() if value is not None}
    fields = {key: value for key, value in target.items() if key != "type"}
    return Seed(
        f"{kind}/{name}", SCRIPTS, data, json.dumps(data, indent=1), ".json", {kind: fields}, kind
    )


def _golden_local() -> Iterator[Seed]:
    from tests.targets.local.test_compile import CASES

    for name, (fields, target, _) in CASES.items():
        job = {"name": "job", "entry_point": "train.py"} | fields
        yield _golden("local", name, job, target.model_dump(exclude_unset=True))


def _golden_azureml() -> Iterator[Seed]:
    from tests.targets.azureml.test_compile_golden import CASES, CLUSTER, JOB

    account = {
        "subscription_id": "11112222-3333-4444-5555-666677778888",
        "resource_group": "r",
        "workspace": "vision",
    }
    for name, case in CASES.items():
        yield _golden("azureml", name, JOB | case.job, account | (case.target or CLUSTER))


def _golden_sagemaker() -> Iterator[Seed]:
    from tests.targets.sagemaker.sdk_cases import SAME

    account = {"region": "us-west-2", "role": "arn:aws:iam::111122223333:role/SageMakerTraining"}
    for case in SAME:
        job = case.job.model_dump(mode="json", exclude_unset=True)
        yield _golden("sagemaker", case.golden, job, account | case.target)


def requests() -> dict[str, list[Data]]:
    """Recorded requests by the field of a job that is merged into them; what stands there is what overrides set."""
    azureml = [
        json.loads(file.read_text())["properties"]
        for file in sorted((GOLDEN / "azureml").glob("*.rest.json"))
    ]
    files = sorted((GOLDEN / "sagemaker_sdk_v2").glob("*.json"))
    recorded = [json.loads(file.read_text()) for file in files]
    sagemaker = [one["request"] for one in recorded if isinstance(one.get("request"), dict)]
    return {"azureml_overrides": azureml, "sagemaker_overrides": sagemaker}
