"""Text that somebody else has written cannot steer a terminal or forge output, whatever command shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.cli.live import LineFormat
from cloudtrain.plans.progress import LogLine
from tests.cli.conftest import Cli, Result
from tests.cli.test_completion import complete
from tests.cli.test_terminal import terminal  # noqa: F401 - a fixture
from tests.plans.test_escape import OURS, TEXT, unseen_in

EVIL = "a\x1b[2J\x1b]0;t\x07\x9b1m\r\u202eb\u2066c\u200bd\ufeff\u2028e\U000e0041f\x7fg\nerror: forged\th"
"""Clears the screen, sets the title, turns text around, hides, and begins a line."""

NAMES = EVIL.replace("\n", "\u200b").replace("\t", "\u200b")
"""The same within a line, for what cannot hold a line feed."""

JOB = {
    "name": "digits",
    "entry_point": "train.py",
    "hyperparameters": {"note": EVIL, NAMES: 1},
    "environment": {"framework": "pytorch", "version": "2.8", "variables": {"NOTE": EVIL}},
    "resources": {
        "instance_type": {"azureml": "Standard_NC24ads_A100_v4", "sagemaker": "ml.p4d.24xlarge"}
    },
    "tags": {"team": EVIL},
    "description": EVIL,
}
FATE = {
    "state": "failed",
    "reason": EVIL,
    "details": [EVIL, NAMES],
    "failed_rank": 1,
    "exit_code": 1,
    "metrics": {NAMES: 1.0},
    "lines": [
        [0, EVIL],
        [1, NAMES],
        [None, EVIL],
        [0, "\x1b[32mgreen\x1b[0m"],
        [0, f"[metrics] {'x' + chr(0x202E)}=1"],
    ],
}


@pytest.fixture
def evil_job(scripted: Path, clean_environment: Path) -> str:
    """A job whose values are hostile, and a target whose words are."""
    (clean_environment / "train.py").write_text("print(1)\n")
    (clean_environment / "job.json").write_text(json.dumps(JOB))
    (scripted / "fate.json").write_text(json.dumps(FATE))
    return "job.json"


def assert_harmless(result: Result, *, bare: bool = False) -> Result:
    """Nothing unseen on either stream, no forged line; `bare` lines are asked for as the script printed them."""
    for text in (result.out, result.err):
        assert unseen_in(text.replace("\t", "")) == [], text
        assert bare or not re.search(r"^error: forged", text, re.MULTILINE), text
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "status last", "status last --json", "ps", "ps --json", "ps --job EVIL", "logs last", "logs last --timestamps",
        "logs last --no-prefix", "logs last --json", "logs last -f", "wait last", "wait last --json", "stop last",
        "download last --to EVIL", "download last --to EVIL --json", "submit job.json --ignore CT201", "submit job.json -d --ignore CT201",
        "submit job.json --json --ignore CT201", "submit job.json --dry-run", "recover",
    ],
)  # fmt: skip
@pytest.mark.slow_after(7)
def test_runs(cli: Cli, evil_job: str, command: str) -> None:
    """What a target says about runs, and what they write."""
    assert assert_harmless(cli("submit", evil_job, "--detach", "--ignore", "CT201")).code == 0
    arguments = [word.replace("EVIL", NAMES) for word in command.split()]
    result = assert_harmless(cli(*arguments), bare="--no-prefix" in arguments)
    assert result.out + result.err


@pytest.mark.parametrize(
    "command",
    [
        "plan job.json", "plan job.json --json", "plan job.json --format request", "check job.json",
        "check job.json --json", "plan job.json --target sagemaker", "plan job.json --target sagemaker --format aws-cli",
        "plan job.json --target sagemaker --format python", "plan job.json --target azureml",
        "plan job.json --target azureml --format az-cli", "plan job.json --target azureml --format python",
        "plan job.json --target azureml --json", "check job.json --target azureml --offline",
        "check job.json --target sagemaker --offline --json",
    ],
)  # fmt: skip
def test_plans(cli: Cli, evil_job: str, command: str) -> None:
    """Values of a job, in every form of its plan and in the findings."""
    result = assert_harmless(cli(*command.split()))
    assert result.out + result.err


@pytest.mark.parametrize(
    "command",
    [
        "show last", "show last --json", "show last --job", "diff last job.json", "diff last other.json --json",
        "diff EVIL last", "cost", "cost --by tag:team --csv", "cost --by tag:team --json", "cost --by tag:EVIL", "cost --since EVIL",
        "rm EVIL", "prune --by EVIL --keep 1 --dry-run", "prune --job EVIL --dry-run", "prune --state EVIL --dry-run",
        "queue", "queue move EVIL --first", "queue drop EVIL", "code EVIL x", "code last EVIL", "rerun last -d --name EVIL",
        "rerun last -d --set tags.EVIL=EVIL", "trials last", "continue EVIL", "submit job.json --priority EVIL",
        "plan job.json --each EVIL", "plan job.json --each hyperparameters.EVIL=EVIL,1",
    ],
)  # fmt: skip
@pytest.mark.slow_after(9)
def test_what_was_sent(cli: Cli, evil_job: str, command: str) -> None:
    """Runs shown, compared, summed, queued, removed and sent again."""
    Path("other.json").write_text(
        json.dumps(JOB | {"tags": {"team": f"{EVIL}x"}, "hyperparameters": {"note": "x"}})
    )
    cli("submit", evil_job, "--detach", "--ignore", "CT201")
    result = assert_harmless(cli(*(word.replace("EVIL", NAMES) for word in command.split())))
    assert result.code != 70, result.err


SECRETS = {
    "A": {
        "local": f"file:/tmp/{NAMES}",
        "sagemaker": f"secretsmanager:{NAMES}",
        "azureml": f"keyvault:{NAMES}",
    },
    "B": {"local": f"env:{NAMES}"},
    NAMES: {"local": "env:X"},
}


@pytest.mark.parametrize("command", ["plan", "check", "submit"])
@pytest.mark.parametrize("target", ["local", "sagemaker", "azureml"])
def test_places_of_secrets(cli: Cli, evil_job: str, command: str, target: str) -> None:
    """Their names and references, right or wrong."""
    environment = {"framework": "pytorch", "version": "2.8", "secrets": SECRETS}
    Path(evil_job).write_text(json.dumps(JOB | {"environment": environment}))
    assert assert_harmless(cli(command, evil_job, "--target", target)).code == 2


SOURCES = {
    "request.json": json.dumps({
        "TrainingJobName": "a", "RoleArn": f"arn:aws:iam::123456789012:role/{NAMES}", "Environment": {"A": EVIL}, NAMES: 1,
        "AlgorithmSpecification": {"TrainingImage": f"x{NAMES}", "TrainingInputMode": "File"},
        "HyperParameters": {NAMES: EVIL, "sagemaker_program": '"t.py"'}, "Tags": [{"Key": NAMES, "Value": EVIL}],
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600}, "OutputDataConfig": {"S3OutputPath": f"s3://b/{NAMES}"},
    }),
    "job.yaml": f"type: command\ncommand: {json.dumps(EVIL)}\nenvironment: azureml:a@latest\ntags: {json.dumps({NAMES: EVIL})}\n",
    "batch.sh": f"#!/bin/bash\n#SBATCH --job-name=a{NAMES}\n#SBATCH --{NAMES}=1\nexport A={NAMES}\nsrun torchrun train.py '{NAMES}'\n",
}  # fmt: skip


@pytest.mark.parametrize(
    "write", [(), ("--json",), ("--write", "out")], ids=lambda item: "".join(item)
)
@pytest.mark.parametrize("name", SOURCES)
def test_what_is_adopted(
    cli: Cli, clean_environment: Path, name: str, write: tuple[str, ...]
) -> None:
    """Jobs of other tools, as text, as JSON and as files that a terminal may show."""
    (clean_environment / "train.py").touch()
    (clean_environment / name).write_text(SOURCES[name])
    result = assert_harmless(cli("adopt", name, *write))
    assert result.code != 70, result.err
    for file in clean_environment.glob("out/*.*"):
        assert unseen_in(file.read_text().replace("\t", "")) == []


def test_a_plan_is_what_it_was(cli: Cli, evil_job: str) -> None:
    """What is written out in JSON is the same value."""
    request = json.loads(cli("plan", evil_job, "--format", "request").out)
    assert request["processes"][0]["env"]["NOTE"] == EVIL
    body = json.loads(cli("plan", evil_job, "--target", "sagemaker", "--format", "aws-cli").out)
    assert json.loads(body["HyperParameters"]["note"]) == EVIL


@pytest.mark.parametrize(
    "command",
    [
        "submit EVIL", "submit EVIL/job.yaml", "plan job.json --profile EVIL", "plan job.json --set EVIL=1",
        "plan job.json --set hyperparameters.EVIL=EVIL", "plan job.json --target EVIL", "explain EVIL", "status EVIL",
        "status local://here/EVIL", "logs last --instance EVIL", "instances EVIL", "instances --gpu EVIL",
        "instances --sort EVIL", "scripts show EVIL", "scripts show digits_ddp --file EVIL", "scripts copy digits_ddp EVIL",
        "init EVIL/job.yaml", "init job.json --name EVIL", "ps --state EVIL", "rehearse EVIL", "EVIL", "ps --EVIL",
        "submit job.json EVIL", "wait EVIL", "plan job.json --max-restarts EVIL", "download EVIL",
    ],
)  # fmt: skip
@pytest.mark.slow_after(9)
def test_errors(cli: Cli, evil_job: str, command: str) -> None:
    """What a user, or a page that a user copied from, has typed."""
    result = assert_harmless(cli(*(word.replace("EVIL", NAMES) for word in command.split(" "))))
    assert result.out + result.err


@pytest.mark.usefixtures("_torch_is_known")
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("cloudtrain.toml", '["NAME"]\n'),
        ("cloudtrain.toml", '[local]\n"NAME" = 1\n'),
        ("cloudtrain.toml", '[local]\npython = "NAME"\n'),
        ("cloudtrain.toml", "NAME"),
        ("instances.toml", '[azureml."NAME"]\nvcpus = 1\nmemory_gib = 1\n'),
        ("instances.toml", '[azureml."x"]\n"NAME" = 1\n'),
        ("job.json", '{"NAME": 1}'),
        ("job.json", '{"name": "NAME", "entry_point": "NAME"}'),
        ("job.json", "NAME"),
    ],
)
@pytest.mark.slow_after(4)
def test_files(cli: Cli, evil_job: str, clean_environment: Path, file: str, text: str) -> None:
    """What files say, right or wrong."""
    name = json.dumps(NAMES)[1:-1].replace("\\ud", "\\u0") if '"NAME' in text else NAMES
    (clean_environment / file).write_text(text.replace("NAME", name), errors="surrogatepass")
    for command in (
        ["plan", "job.json"],
        ["check", "job.json"],
        ["doctor"],
        ["instances", "--target", "azureml", "-a"],
    ):
        assert_harmless(cli(*command))


@pytest.mark.usefixtures("_torch_is_known")
@pytest.mark.slow
def test_a_folder_with_a_hostile_name(
    cli: Cli, evil_job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory and the files in it stand in plans and findings."""
    folder = tmp_path / EVIL.replace("/", "")
    folder.mkdir()
    shutil.copy("job.json", folder)
    monkeypatch.chdir(folder)
    (folder / EVIL).write_text("x")
    (folder / f"{EVIL}.pem").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    (folder / "link").symlink_to(EVIL)
    for command in (
        "plan job.json",
        "check job.json",
        "submit job.json -d",
        "doctor",
        "init",
        "init x.yaml",
    ):
        assert_harmless(cli(*command.split()))


def test_raw_logs_are_what_the_run_wrote(cli: Cli, evil_job: str) -> None:
    """`--raw` is asked for; nothing else prints a control character."""
    cli("submit", evil_job, "--detach", "--ignore", "CT201")
    assert cli("logs", "last", "--raw", "--no-prefix", "--rank", "1").out == f"{NAMES}\n"
    assert r"\u202eb" in cli("logs", "last", "--no-prefix", "--rank", "1").out


def test_a_line_of_several_lines_has_its_rank_before_each(cli: Cli, evil_job: str) -> None:
    """A service may send a traceback as one event; none of its lines passes for another rank's."""
    cli("submit", evil_job, "--detach", "--ignore", "CT201")
    lines = cli("logs", "last", "--rank", "0").out.splitlines()
    assert lines[1] == "[rank 0] error: forged\th"


@pytest.mark.slow
def test_colours_of_a_log_on_a_terminal(
    terminal: Callable[..., tuple[str, int]],  # noqa: F811
    evil_job: str,
    cli: Cli,
) -> None:
    """They stay on a terminal, and end with their line; NO_COLOR and a pipe take them away."""
    cli("submit", evil_job, "--detach", "--ignore", "CT201")
    assert "[rank 0] \x1b[32mgreen\x1b[0m" in terminal("logs", "last")[0]
    for output in (terminal("logs", "last", NO_COLOR="1")[0], cli("logs", "last").out):
        assert "[rank 0] green" in output
        assert "\x1b" not in output
    # the live table's own
    followed = re.sub(r"\x1b\[(\?25[hl]|\d*[AJK]|2K)", "", terminal("logs", "last", "-f")[0])
    assert unseen_in(OURS.sub("", followed).replace("\r", "")) == []


@given(TEXT, st.booleans(), st.booleans(), st.booleans())
def test_a_line_in_any_form(text: str, prefix: bool, as_json: bool, color: bool) -> None:
    """JSON keeps the text; else every line of it has its prefix."""
    line = LogLine(0.0, 0, 3, "stdout", text)
    shown = LineFormat(prefix=prefix, as_json=as_json, color=color).text(line)
    assert unseen_in(OURS.sub("", shown).replace("\t", "")) == []
    if as_json:
        assert json.loads(shown)["text"] == text
    else:
        assert len(shown.split("\n")) == len(text.split("\n"))
        assert not prefix or all(part.startswith("[rank 3] ") for part in shown.split("\n"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.slow_after(1)
def test_completion_offers_no_command(clean_environment: Path, shell: str) -> None:
    """A file whose name a shell would run is not put on the command line; the others are."""
    for name in (
        "job.yaml",
        "job;touch pwned;.yaml",
        "job$(touch pwned).yaml",
        "job`x`.yaml",
        f"job{NAMES}.yaml",
        "job'.yaml",
    ):
        (clean_environment / name).write_text("")
    offered = complete("cloudtrain submit job", shell=shell)
    assert "job.yaml" in "".join(offered)
    assert not re.search(r"pwned|`|\x1b|'\.yaml", "".join(offered))


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_what_is_printed_to_be_typed_can_be_pasted(cli: Cli, clean_environment: Path) -> None:
    """A shell reads the path of a new job file back as it is, whatever is in it."""
    folder = clean_environment / "a b; touch pwned; $(touch pwned)"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    said = cli("init", str(folder / "job.yaml")).err.replace("\n", " ")
    command = re.search(r"`cloudtrain check (.*?)`, `cloudtrain submit", said)
    assert command is not None
    argv = ["bash", "-c", f"printf %s {command[1]}"]
    assert subprocess.run(argv, capture_output=True, check=True, text=True).stdout == str(
        folder / "job.yaml"
    )
    assert not (clean_environment / "pwned").exists()


def test_an_error_as_text(clean_environment: Path) -> None:
    """Python prints `str(error)` below a traceback: there, too, no character acts on the terminal."""
    (clean_environment / "job.json").write_text(
        json.dumps({"name": "digits", "entry_point": "train.py", NAMES: EVIL})
    )
    errors = []
    for attempt in (
        lambda: ct.run(EVIL),
        lambda: ct.load_job("job.json"),
        lambda: ct.runs(where=[EVIL]),
    ):
        with pytest.raises(ct.CloudtrainError) as caught:
            attempt()
        errors.append(str(caught.value))
    assert not any(unseen_in(error) for error in errors)
    assert all("\\x1b[2J" in error for error in errors)
