"""`environment.secrets`: the value reaches the script, and stands in no plan, request, log or file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Result
from tests.runtime.sagemaker_host import Host
from tests.targets.places import eventually

VALUE = "hf_WhatNobody'May$ee0815"
SCRIPT = """
import os, sys
value = os.environ["HF_TOKEN"]
print("length", len(value), value, flush=True)
print("partly:" + value + ":", end="", file=sys.stderr, flush=True)
if "--fail" in sys.argv:
    raise SystemExit("refused: " + value)
"""
PLACES = '{local: "env:MY_HF", sagemaker: "secretsmanager:prod/hf#token", azureml: "keyvault:myvault/hf"}'
JOB = """\
name: secret
source_dir: code
entry_point: train.py
environment: {framework: pytorch, version: "2.8", secrets: {HF_TOKEN: %s}}
resources: {instance_type: {sagemaker: ml.g5.xlarge, azureml: Standard_NC24ads_A100_v4}}
"""


@pytest.fixture
def folder(clean_environment: Path) -> Path:
    """A job with a secret; its script prints it."""
    (clean_environment / "code").mkdir()
    (clean_environment / "code/train.py").write_text(SCRIPT)
    (clean_environment / "job.yaml").write_text(JOB % PLACES)
    return clean_environment


def unwrapped(result: Result) -> str:
    """What a command has printed, without the ends of its lines."""
    return " ".join((result.out + result.err).split())


def nowhere(folder: Path) -> None:
    """The value is in no file, whole or as a service sends it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not [
        path
        for path in files
        if any(form in path.read_bytes() for form in (VALUE.encode(), b"WhatNobody"))
    ]


@pytest.mark.lifecycle
def test_the_value_reaches_the_script_and_no_file(
    cli: Cli, folder: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked up by the supervisor; masked in the log, in the files of the ranks and in the reason of a failure."""
    monkeypatch.setenv("MY_HF", VALUE)
    shown = cli("plan", "job.yaml", "--json").out + cli("plan", "job.yaml").out
    assert "env:MY_HF" in shown
    result = cli("submit", "job.yaml", "--set", "hyperparameters.fail=1")
    assert result.code == 1
    name = json.loads(cli("ps", "--json", "--all").out)[0]["name"]
    told = (
        shown
        + result.out
        + result.err
        + cli("logs", name).out
        + cli("status", name).out
        + cli("show", name).out
    )
    assert f"length {len(VALUE)} ***" in told
    assert "refused: ***" in told
    assert VALUE not in told
    nowhere(state_dir)


@pytest.mark.lifecycle
def test_a_supervisor_that_is_killed_leaves_no_value(
    cli: Cli, folder: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the supervisor: whoever finishes the run hides the value too."""
    monkeypatch.setenv("MY_HF", VALUE)
    (folder / "code/train.py").write_text(
        SCRIPT.replace("if ", "import time; time.sleep(3600)\nif ", 1)
    )
    name = cli("submit", "job.yaml", "--detach").out.strip()
    eventually(lambda: "length" in cli("logs", name).out)
    os.kill(json.loads((state_dir / f"runs/{name}/status.json").read_text())["pid"], 9)
    eventually(lambda: "lost" in cli("status", name).out)
    nowhere(state_dir)


@pytest.mark.lifecycle
def test_a_missing_secret_ends_the_run_before_the_script(cli: Cli, folder: Path) -> None:
    """A plan notes it, and the run says so and starts nothing."""
    assert "the secret `HF_TOKEN` cannot be read: the variable `MY_HF` is not set" in unwrapped(
        cli("plan", "job.yaml")
    )
    result = cli("submit", "job.yaml")
    assert result.code == 1
    assert "failed" in result.err
    assert "the secret `HF_TOKEN` cannot be read: the variable `MY_HF` is not set" in unwrapped(
        result
    )
    assert "length" not in result.out + result.err


def test_a_file_that_others_may_read_is_refused(cli: Cli, folder: Path) -> None:
    """The hint says what to type, and helps."""
    secret = folder / "hf"
    secret.write_text(f"{VALUE}\n")
    secret.chmod(0o644)
    (folder / "job.yaml").write_text(JOB % f"file:{secret}")
    assert f"`chmod 600 {secret}`" in unwrapped(cli("plan", "job.yaml"))
    secret.chmod(0o600)
    assert "cannot be read" not in unwrapped(cli("plan", "job.yaml"))


@pytest.mark.parametrize(
    ("places", "code", "words"),
    [
        (VALUE, "CT070", "must be the location of its value"),
        (f"{{local: {VALUE!r}}}".replace("\\'", ""), "CT070", "the location of its value"),
        ("{sagemaker: 'ssm:/hf'}", "CT072", "has no location that this machine can read"),
        ("secretsmanager:hf", "CT072", "has no location that this machine can read"),
    ],
)
def test_what_is_no_place_is_refused(
    cli: Cli, folder: Path, places: str, code: str, words: str
) -> None:
    """And no message repeats what may be the secret itself."""
    (folder / "job.yaml").write_text(JOB % (json.dumps(places) if places == VALUE else places))
    result = cli("plan", "job.yaml")
    assert result.code == 2
    assert f"[{code}]" in result.err
    assert words in unwrapped(result)
    assert "WhatNobody" not in result.err + result.out


def test_a_secret_and_a_variable_of_one_name(cli: Cli, folder: Path) -> None:
    """The script would find one of the two."""
    text = (JOB % "env:PATH").replace("secrets:", "variables: {HF_TOKEN: x}, secrets:")
    (folder / "job.yaml").write_text(text)
    assert "[CT071]" in cli("plan", "job.yaml").err


class Vault(BaseHTTPRequestHandler):
    """Secrets Manager, Key Vault and a managed identity, as far as a job asks them."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(f"{self.path} {self.headers.get('Authorization')}")
        self.answer(
            {"access_token": "token-of-the-job"}
            if self.path.startswith("/msi")
            else {"value": VALUE}
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(f"{self.headers['X-Amz-Target']} {body.decode()}")
        self.answer({"SecretString": json.dumps({"token": VALUE})})

    def answer(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def vault(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a fake of both clouds' vaults was asked."""
    Vault.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vault)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B", "AWS_REGION": "eu-west-1",
        "AZURE_KEY_VAULT_ENDPOINT": url, "MSI_ENDPOINT": f"{url}/msi", "MSI_SECRET": "S",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield Vault.asked
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.lifecycle
@pytest.mark.parametrize("service", ["sagemaker", "azureml"])
def test_emulated_jobs_ask_the_vault_of_their_cloud(
    cli: Cli, folder: Path, state_dir: Path, vault: list[str], service: str
) -> None:
    """Through the reference that the request holds, and masked like everywhere on this machine."""
    if service == "sagemaker":
        pytest.importorskip("boto3")
    (folder / "job.yaml").write_text(JOB % PLACES.replace('local: "env:MY_HF", ', ""))
    result = cli("submit", "job.yaml", "--emulate", service)
    assert result.code == 0, result.err
    assert f"length {len(VALUE)} ***" in result.out + result.err
    assert (
        vault
        == {
            "sagemaker": ['secretsmanager.GetSecretValue {"SecretId": "prod/hf"}'],
            "azureml": [
                "/msi?api-version=2017-09-01&resource=https%3A%2F%2Fvault.azure.net None",
                "/secrets/hf?api-version=7.4 Bearer token-of-the-job",
            ],
        }[service]
    )
    nowhere(state_dir)


def test_the_launcher_in_a_container_looks_it_up(tmp_path: Path) -> None:
    """cloudtrain's launcher on SageMaker: the script has it, and the failure file does not. A missing one starts
    nothing."""
    secret = tmp_path / "hf"
    secret.write_text(VALUE)
    secret.chmod(0o600)
    variables = {"CLOUDTRAIN_SECRETS": json.dumps({"HF_TOKEN": f"file:{secret}"})}
    host = Host(tmp_path / "ml", variables=variables).fill(
        {"train.py": SCRIPT}, {"fail": 1}, entry_point="train.py"
    )
    assert host.run() == 1
    assert VALUE in host.out
    assert "refused: ***" in (host.failure or "")
    assert VALUE not in (host.failure or "")
    secret.chmod(0o640)
    assert host.run() == 1
    assert "length" not in host.out
    assert host.err.startswith(
        f"error: the secret `HF_TOKEN` cannot be read: other users may read `{secret}` (mode 640)"
    )


def test_a_shell_gets_it_by_eval(tmp_path: Path) -> None:
    """As the batch script on Slurm and the command line on Azure ML do, whatever stands in the value."""
    value = 'it\'s "so" $(touch pwned) `id` \\ \n two'
    env = {**os.environ, "HF": value, "CLOUDTRAIN_SECRETS": json.dumps({"HF_TOKEN": "env:HF"})}
    line = (
        f'eval "$("{sys.executable}" -m cloudtrain.runtime.secret_values)"; printf %s "$HF_TOKEN"'
    )
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["sh", "-c", line], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == value
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["sagemaker", "azureml", "slurm"])
def test_requests_hold_the_place_alone(cli: Cli, folder: Path, target: str) -> None:
    """Nothing is looked up for a plan, and what starts on the cluster looks it up."""
    (folder / "cloudtrain.toml").write_text('[slurm]\nshared_dir = "/shared"\n')
    (folder / "job.yaml").write_text(
        JOB % PLACES.replace("local:", 'slurm: "file:~/.secrets/hf", local:')
    )
    plan = json.loads(cli("plan", "job.yaml", "--target", target, "--json").out)
    text = json.dumps(plan["request"])
    assert "CLOUDTRAIN_SECRETS" in text
    assert (
        "sagemaker_launcher" if target == "sagemaker" else "cloudtrain.runtime.secret_values"
    ) in text
