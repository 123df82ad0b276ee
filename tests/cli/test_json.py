"""Every command prints JSON with `--json`, on success and on error, as `cloudtrain schema --output` says."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

from cloudtrain.cli.app import COMMANDS, load_command
from tests.cli.conftest import Cli, Result

OTHERWISE = {
    "exec": "passes on the output of another program",
    "ui": "serves a page",
    "agents mcp": "speaks a protocol",
}
"""Commands without `--json`, and why."""


class Line(NamedTuple):
    """A command line, without `--json`; the schema of its output; and its exit code. `NAME` and `OTHER` stand for runs."""

    words: str
    output: str
    code: int = 0


SUCCESSES = [
    Line("plan job.yaml", "plan"),
    Line("plan job.yaml --short", "plan-short"),
    Line("plan job.yaml --part processes --instance 0", "plan-part"),
    Line("plan job.yaml --part numbers", "plan-part"),
    Line("plan job.yaml -t local -t slurm", "plan-several", 2),
    Line("submit job.yaml --dry-run", "plan"),
    Line("check job.yaml", "check"),
    Line("check wrong.yaml", "check", 2),
    Line("explain", "explain-all"),
    Line("explain CT901", "explain"),
    Line("instances -t sagemaker", "instances"),
    Line("instances ml.g5.xlarge -t sagemaker", "instance"),
    Line("approve", "approve"),
    Line("submit job.yaml", "status"),
    Line("ps", "ps"),
    Line("ps --short", "ps"),
    Line("status NAME", "status"),
    Line("status NAME --short", "status"),
    Line("logs NAME", "logs"),
    Line("wait NAME", "status"),
    Line("stop NAME", "stop"),
    Line("metrics NAME", "metrics", 1),
    Line("download NAME", "download"),
    Line("show NAME", "show"),
    Line("show NAME --short", "show"),
    Line("diff NAME OTHER", "diff"),
    Line("rerun NAME --detach", "submit"),
    Line("code NAME old", "code"),
    Line("cost", "cost"),
    Line("recover", "recover"),
    Line("notify", "notify"),
    Line("environments", "environments"),
    Line("init new.yaml --script train.py", "init"),
    Line("scripts list", "scripts"),
    Line("scripts show digits_ddp", "script"),
    Line("scripts copy digits_ddp mine", "folder"),
    Line("schema", "schema"),
    Line("schema --output error", "schema"),
    Line("doctor", "doctor"),
    Line("agents skill", "skill"),
    Line("prune --job none --dry-run", "would-remove"),
    Line("prune --job none", "removed"),
    Line("rm OTHER", "removed"),
]

ELSEWHERE = {
    "trials", "continue", "rehearse", "adopt", "notify test", "queue", "queue move", "queue drop", "environments remove",
    "environments lock", "fit",
}  # fmt: skip
"""Commands whose success needs other programs; the tests of each look at their JSON."""

ERRORS = [
    Line("plan nowhere.yaml", "CT001", 2),
    Line("plan wrong.yaml", "CT010", 2),
    Line("plan job.yaml --part nothing", "CT909", 2),
    Line("plan job.yaml --instance 1", "CT902", 2),
    Line("fit nowhere.yaml", "CT001", 2),
    Line("submit wrong.yaml", "CT010", 2),
    Line("submit job.yaml --plan x", "CT909", 2),
    Line("submit job.yaml --plan 000000000000", "CT927", 5),
    Line("submit", "CT901", 2),
    Line("check job.yaml --target nobody", "CT913", 2),
    Line("explain XX1", "CT929", 2),
    Line("instances nothing -t sagemaker", "CT929", 2),
    Line("approve 000000000000", "CT929", 2),
    Line("rehearse nowhere.yaml", "CT001", 2),
    Line("ps --where x", "CT909", 2),
    Line("ps --short --limit 0", "CT909", 2),
    Line("queue --target sagemaker", "CT902", 2),
    Line("queue move nobody --first", "CT931", 3),
    Line("queue drop nobody", "CT931", 3),
    Line("status nobody", "CT931", 3),
    Line("logs nobody", "CT931", 3),
    Line("metrics nobody", "CT931", 3),
    Line("wait nobody", "CT931", 3),
    Line("stop nobody", "CT931", 3),
    Line("trials nobody", "CT931", 3),
    Line("continue nobody", "CT931", 3),
    Line("download nobody", "CT931", 3),
    Line("show nobody", "CT931", 3),
    Line("diff nobody nobody", "CT931", 3),
    Line("rerun nobody", "CT931", 3),
    Line("code nobody x", "CT931", 3),
    Line("cost --by nothing", "CT909", 2),
    Line("notify", "CT922", 2),
    Line("notify test", "CT922", 2),
    Line("recover --nothing", "CT901", 2),
    Line("rm nobody", "CT931", 3),
    Line("prune", "CT901", 2),
    Line("environments --nothing", "CT901", 2),
    Line("environments remove nothing", "CT929", 2),
    Line("environments lock nowhere.txt", "CT903", 2),
    Line("init job.yaml", "CT910", 2),
    Line("adopt nowhere.json", "CT981", 2),
    Line("scripts list more", "CT901", 2),
    Line("scripts show nothing", "CT908", 2),
    Line("scripts copy nothing", "CT908", 2),
    Line("schema --output nothing", "CT929", 2),
    Line("doctor more", "CT901", 2),
    Line("agents skill more", "CT901", 2),
    Line("frobnicate", "CT901", 2),
]


@cache
def commands() -> dict[str, Any]:
    """Every command that does something, by its words."""
    found = {}
    for name in COMMANDS:
        command = load_command(name)
        inner = getattr(command, "commands", {})
        if not inner or command.invoke_without_command:
            found[name] = command
        found |= {f"{name} {below}": inner[below] for below in inner}
    return found


def path_of(line: Line) -> str:
    """The command of a command line."""
    words = line.words.split()
    both = " ".join(words[:2])
    return both if both in commands() else words[0]


def of_schema(cli: Cli, name: str) -> Any:
    """What `cloudtrain schema --output` prints."""
    return json.loads(cli("schema", "--output", name).out)


def test_every_command_is_in_the_tables() -> None:
    """It has `--json`, succeeds with it and fails with it."""
    for path, command in commands().items():
        has_json = any("--json" in param.opts for param in command.params)
        assert has_json == (path not in OTHERWISE), path
    known = commands().keys() - OTHERWISE.keys()
    assert {path_of(line) for line in SUCCESSES} | ELSEWHERE == known
    assert {path_of(line) for line in ERRORS} - {"frobnicate"} == known


@pytest.fixture
def files(job: str, clean_environment: Path, scripted: Path, monkeypatch: Any) -> Path:
    """A job, and one with mistakes."""
    (clean_environment / "wrong.yaml").write_text("name: x\nentry_point: train.py\nepoch: 3\n")
    fate = {"state": "succeeded", "lines": [[0, "loss"], [0, "done"]]}
    (scripted / "fate.json").write_text(json.dumps(fate))
    monkeypatch.setattr("cloudtrain.cli.commands.doctor._TORCH_PROBE", "print('2.13.0', True, 0)")
    return clean_environment


@pytest.mark.in_ci
def test_success_is_json(cli: Cli, files: Path) -> None:
    """One document on stdout, which its schema describes."""
    names = [cli("submit", "job.yaml", "--detach").out.strip() for _ in range(2)]
    (files / ".config/cloudtrain").mkdir(parents=True)
    own = files / ".config/cloudtrain/cloudtrain.toml"
    own.write_text('[notify]\ncommand = ["true"]\n')
    schemas = {line.output: of_schema(cli, line.output) for line in SUCCESSES}
    for line in SUCCESSES:
        words = line.words.replace("NAME", names[0]).replace("OTHER", names[1]).split()
        result = cli(*words, "--json")
        assert result.code == line.code, (line, result)
        documents = result.out.splitlines() if line.output == "logs" else [result.out]
        for document in documents:
            jsonschema.validate(json.loads(document), schemas[line.output])
            if "--short" in words:
                assert document.count("\n") == 1


@pytest.mark.slow_after(12)
@pytest.mark.parametrize("line", ERRORS, ids=lambda line: line.words)
def test_an_error_is_json(cli: Cli, files: Path, line: Line) -> None:
    """One line on stdout with the code, the exit code and what to type, and nothing on stderr."""
    result = cli(*line.words.split(), "--json")
    assert_error(cli, result, line)


def assert_error(cli: Cli, result: Result, line: Line) -> None:
    assert result.out.count("\n") == 1, result
    assert "error:" not in result.err
    data = json.loads(result.out)
    jsonschema.validate(data, of_schema(cli, "error"))
    error = data["error"]
    assert (error["code"], error["exit_code"], result.code) == (line.output, line.code, line.code)
    assert error["hint"]
    assert error["problems"]


def test_a_program_of_the_users_keeps_its_own_option(cli: Cli, files: Path) -> None:
    """`--json` after a script or a command belongs to that."""
    (files / "train.py").write_text("import sys; assert '--json' in sys.argv\n")
    result = cli("submit", "--detach", "train.py", "--json")
    assert result.code == 0, result.err
    assert not result.out.startswith("{")
    result = cli("exec", "nobody", "nvidia-smi", "--json")
    assert (result.code, result.out) == (3, "")


def test_a_defect_is_json(cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a program need not read a traceback."""

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("unexpected")

    monkeypatch.setattr("cloudtrain.runs", fail)
    assert_error(cli, cli("ps", "--json"), Line("ps", "CT900", 70))


def test_a_large_plan_is_short(cli: Cli, files: Path) -> None:
    """64 instances take less than 400 tokens, which are about four bytes each, and have a part for each."""
    resources = "resources: {instance_count: 64, instance_type: {sagemaker: ml.p4d.24xlarge}}\n"
    more = "distribution: {type: torch}\nenvironment: {framework: pytorch, version: '2.8'}\nmax_runtime: 1h\n"
    (files / "job.yaml").write_text((files / "job.yaml").read_text() + resources + more)
    (files / "cloudtrain.toml").write_text(
        '[sagemaker]\nregion = "us-east-1"\nrole = "arn:aws:iam::123456789012:role/x"\n'
    )
    words = ("plan", "job.yaml", "--target", "sagemaker", "--json")
    result = cli(*words, "--short")
    data = json.loads(result.out)
    assert len(result.out) < 1600
    assert (data["instances"], data["processes"], data["max_runtime_seconds"]) == (64, 512, 3600)
    assert data["cost"]["currency"] == "USD"
    assert data["cost"]["at_most"] == pytest.approx(data["cost"]["per_hour"])
    assert data["code"]["files"] >= 1
    processes = json.loads(cli(*words, "--part", "processes", "--instance", "63").out)
    assert {process["instance"] for process in processes} == {63}
    whole = json.loads(cli(*words).out)
    assert whole["sha256"] == data["plan"]


def test_short_needs_json(cli: Cli, files: Path) -> None:
    """An option is never ignored."""
    result = cli("ps", "--short")
    assert (result.code, "CT902" in result.err) == (2, True)


def test_a_question_needs_a_person(cli: Cli, files: Path) -> None:
    """One exit code for all of them, whatever is asked."""
    cli("submit", "job.yaml")
    assert_error(cli, cli("prune", "--job", "digits", "--json"), Line("prune", "CT924", 6))
    (files / "script.py").write_text("import sagemaker\n")
    assert_error(cli, cli("adopt", "script.py", "--json"), Line("adopt", "CT985", 6))


def test_the_skill_is_short_and_of_this_version(cli: Cli) -> None:
    """At most 2,000 tokens, with the front matter of skills and every command."""
    from cloudtrain import __version__

    text = cli("agents", "skill").out
    assert text.startswith("---\nname: cloudtrain\ndescription: ")
    assert __version__ in text
    assert len(text) < 7500
    for name in COMMANDS:
        assert f"`{name}`" in text
    for option in re.findall(r"`cloudtrain (\w+)[^`]*`", text):
        assert option in COMMANDS


@pytest.mark.lifecycle
@pytest.mark.slow
def test_a_program_finds_out_and_repairs(cli: Cli, job: str, clean_environment: Path) -> None:
    """With nothing but JSON and exit codes: it plans, sends that plan, waits, reads why it failed, and repairs the job."""

    def run(*words: str) -> tuple[int, Any]:
        result = cli(*words, "--json")
        return result.code, json.loads(result.out)

    def send() -> str:
        _, plan = run("plan", "job.yaml", "--short")
        code, sent = run("submit", "job.yaml", "--plan", plan["plan"], "--detach")
        assert (code, sent["name"]) == (0, plan["run"])
        return str(sent["name"])

    script = clean_environment / "train.py"
    script.write_text("raise ValueError('epochs must be 3')\n")
    assert run("check", "job.yaml", "--offline")[0] == 0
    name = send()
    code, status = run("wait", name)
    assert (code, status["state"]) == (1, "failed")
    assert "epochs must be 3" in status["reason"]
    lines = cli("logs", name, "--level", "error", "--json").out.splitlines()
    assert any("epochs must be 3" in json.loads(line)["text"] for line in lines)
    script.write_text("print('trained')\n")
    code, status = run("wait", send(), "--timeout", "10m")
    assert (code, status["state"]) == (0, "succeeded")
