"""Secrets in what a job itself says: found, named, and shown nowhere, while what is sent stays exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.errors import PreflightError
from cloudtrain.plans.plan import HIDDEN, Finding, Plan, hide
from tests.code.credential_files import BASE64, HEX, Maker
from tests.examples import examples

M = Maker(77)
HF, GITLAB, WANDB = M.letters(34, before="hf_"), M.of(HEX, 20, before="glpat-"), M.of(HEX, 40)
AWS, PASSWORD, SAS = M.of(BASE64, 40), M.password(), M.of(HEX, 44)
PEM = M.pem("RSA ")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("print(1)\n")
    return tmp_path / "src"


def plan_of(source: Path, target: Any = "local", **job: Any) -> Plan:
    start = {} if "command" in job else {"entry_point": "train.py"}
    return ct.plan(
        ct.TrainingJob(name="job", source_dir=str(source), **start, **job), target=target
    )


def about_secrets(plan: Plan) -> list[Finding]:
    return [finding for finding in plan.findings if finding.code in ("CT205", "CT305")]


FOUND: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({"environment": {"variables": {"X": HF}}}, ("environment", "variables", "X"), HF),
    ({"environment": {"variables": {"WANDB_API_KEY": WANDB}}}, ("environment", "variables", "WANDB_API_KEY"), WANDB),
    ({"environment": {"variables": {"DB_PASSWORD": PASSWORD}}}, ("environment", "variables", "DB_PASSWORD"), PASSWORD),
    ({"environment": {"variables": {"KEY": PEM}}}, ("environment", "variables", "KEY"), PEM.splitlines()[3]),
    ({"hyperparameters": {"hub": {"tokens": ["a", GITLAB]}}}, ("hyperparameters", "hub", "tokens", 1), GITLAB),
    ({"tags": {"owner": f"me {GITLAB}"}}, ("tags", "owner"), GITLAB),
    ({"description": f"see https://me:{PASSWORD}@git.example.org"}, ("description",), PASSWORD),
    ({"command": f"HF_TOKEN={HF} python train.py"}, ("command",), HF),
    ({"command": f"python train.py --wandb-api-key {WANDB}"}, ("command",), WANDB),
    ({"command": f"python train.py --db-password={PASSWORD} --x 1"}, ("command",), PASSWORD),
    ({"sagemaker_overrides": {"Environment": {"AWS_SECRET_ACCESS_KEY": AWS}}},
     ("sagemaker_overrides", "Environment", "AWS_SECRET_ACCESS_KEY"), AWS),
    ({"azureml_overrides": {"properties": {"displayName": f"https://a.blob.core.windows.net/c?sv=2&sig={SAS}"}}},
     ("azureml_overrides", "properties", "displayName"), SAS),
    ({"inputs": {"x": {"value": HF}}, "hyperparameters": {"hub": "${{inputs.x}}"}}, ("hyperparameters", "hub"), HF),
]  # fmt: skip


@pytest.mark.parametrize(("job", "path", "value"), FOUND, ids=lambda item: "")
def test_a_secret_is_an_error_and_is_never_shown(
    source: Path, job: dict[str, Any], path: tuple[str, ...], value: str
) -> None:
    """The finding says where, and which rule; no text, HTML, JSON or repr of the plan has the value."""
    plan = plan_of(source, **job)
    (finding,) = about_secrets(plan)
    assert (finding.code, finding.path) == ("CT305", path)
    assert finding.hint
    shown = [
        plan.to_text(),
        plan.to_text(width=20),
        plan.to_html(),
        plan.to_json(),
        repr(plan.findings),
    ]
    assert not [text for text in shown if value in text]


@pytest.mark.parametrize("target", ["sagemaker", "azureml"])
def test_the_clouds_hide_it_too(source: Path, target: str) -> None:
    """The hint names the target's own store of secrets; Azure ML's literal inputs are looked at as well."""
    job: dict[str, Any] = {
        "environment": {"framework": "pytorch", "version": "2.8", "variables": {"HF_TOKEN": HF}}
    }
    job["resources"] = {
        "instance_type": {"sagemaker": "ml.g5.xlarge", "azureml": "Standard_NC6s_v3"}
    }
    plan = plan_of(source, target, inputs={"x": {"value": GITLAB}}, **job)
    found = {finding.path: finding.hint for finding in about_secrets(plan)}
    assert ("environment", "variables", "HF_TOKEN") in found
    assert (("inputs", "x", "value") in found) == (target == "azureml")
    assert all(
        ("secretsmanager:" if target == "sagemaker" else "keyvault:") in (hint or "")
        for hint in found.values()
    )
    assert HF in plan.request_json
    assert not [
        value for value in (HF, GITLAB) if value in plan.to_text() + plan.to_json() + plan.to_html()
    ]


def test_what_is_sent_stays_exact(source: Path) -> None:
    """The value is hidden from readers, and stands in the request as it was written."""
    plan = plan_of(source, environment={"variables": {"HF_TOKEN": HF}})
    assert plan.request["processes"][0]["env"]["HF_TOKEN"] == HF
    assert HF in plan.request_json
    assert json.loads(plan.to_json())["request"]["processes"][0]["env"]["HF_TOKEN"] == HIDDEN
    assert f"HF_TOKEN  {HIDDEN}" in plan.to_text() or f"HF_TOKEN={HIDDEN}" in plan.to_text()


def test_all_secrets_of_one_value_are_hidden(source: Path) -> None:
    """One finding, and neither of the two values."""
    plan = plan_of(
        source, command=f"HF_TOKEN={HF} python train.py --wandb-key {WANDB} --password {PASSWORD}"
    )
    assert len(about_secrets(plan)) == 1
    assert not [
        value
        for value in (HF, WANDB, PASSWORD)
        if value in plan.to_text() + plan.to_json() + plan.to_html()
    ]


def test_an_ignored_rule_still_hides(source: Path) -> None:
    """`--ignore CT305` sends the value; the terminal and its log need not have it."""
    job = ct.TrainingJob(name="job", source_dir=str(source), entry_point="train.py", tags={"t": HF})
    plan = ct.plan(job, ignore=["CT305"])
    assert about_secrets(plan) == []
    assert HF not in plan.to_text() + plan.to_json()


INNOCENT: list[dict[str, Any]] = [
    {"environment": {"variables": {
        "TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "4096", "PAD_TOKEN": "<pad>", "EOS_TOKEN": "</s>",
        "HF_TOKEN": "hf_xxxx", "HF_TOKEN_FILE": "/run/secrets/hf", "AWS_SECRET_ARN": "arn:aws:secretsmanager:eu-west-1:1:x",
        "API_KEY": "${{outputs.model}}", "NCCL_DEBUG": "INFO", "TOKEN": "", "NVIDIA_API_KEY": "your-key",
    }}},
    {"hyperparameters": {
        "pad_token": "[PAD]", "image_token": "img_99", "max_new_tokens": 512, "key": "value", "token": "false",
        "model": "NousResearch/Meta-Llama-3-8B-Instruct", "sha": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    }},
    {"command": "python train.py --tokenizer bert-base-uncased --max-tokens 512 --token-file /x --password $DB_PASSWORD"},
    {"tags": {"team": "vision", "commit": "528a1174aa96b214ba9f6f9935dbcaf6da0fec02"}, "description": "AKIAIOSFODNN7EXAMPLE"},
]  # fmt: skip


@pytest.mark.parametrize("job", INNOCENT, ids=["variables", "hyperparameters", "command", "tags"])
def test_what_only_sounds_like_a_secret_is_left_alone(source: Path, job: dict[str, Any]) -> None:
    """Neither an error nor a warning, and nothing is hidden."""
    plan = plan_of(source, **job)
    assert about_secrets(plan) == []
    assert HIDDEN not in plan.to_text()


def test_a_submit_with_a_secret_is_stopped(source: Path, state_dir: Path) -> None:
    """Nothing is written, neither to the store nor to a run's folder."""
    job = ct.TrainingJob(
        name="job", source_dir=str(source), entry_point="train.py", tags={"t": GITLAB}
    )
    with pytest.raises(PreflightError) as caught:
        ct.submit(job)
    assert GITLAB not in repr(caught.value) + str(caught.value)
    assert not [
        path
        for path in state_dir.rglob("*")
        if path.is_file() and GITLAB.encode() in path.read_bytes()
    ]


def test_the_command_line_never_prints_it(
    source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`plan` in text and JSON, `check` and `submit`: exit code 2, the place, the rule, and no value."""
    (source.parent / "job.yaml").write_text(
        f"name: job\nsource_dir: src\nentry_point: train.py\nenvironment: {{variables: {{HF_TOKEN: {HF}}}}}\n"
    )
    monkeypatch.chdir(source.parent)
    for arguments in (
        ["plan"],
        ["plan", "--json"],
        ["check"],
        ["check", "--json"],
        ["submit"],
        ["submit", "--dry-run"],
    ):
        code = run_command([arguments[0], "job.yaml", *arguments[1:]])
        text = "".join(capfd.readouterr())
        assert code == 2, text
        assert HF not in text
        assert "huggingface" in text


words = st.text(st.sampled_from("ab\"'\\\n ü"), min_size=1, max_size=12)


@settings(max_examples=examples(100), deadline=None)
@given(before=words, secret=words, behind=words)
def test_hiding_finds_every_form(before: str, secret: str, behind: str) -> None:
    """As it is, in JSON, and in JSON inside JSON, with quotes, backslashes and line ends in it."""
    secret = f"{secret}S3cretS3cret"
    text = before + secret + behind
    for form in (
        text,
        json.dumps(text),
        json.dumps(json.dumps(text)),
        json.dumps(text, ensure_ascii=False),
    ):
        assert "S3cretS3cret" not in repr(hide({"a": [(form,)]}, [secret]))
    assert hide(before[:8], [secret]) == before[:8]  # no line of a secret is so short
