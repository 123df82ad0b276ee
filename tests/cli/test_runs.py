"""Commands about runs, against a target whose runs have a scripted fate."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest

import cloudtrain as ct
from tests.cli.conftest import Cli
from tests.hints import suggested

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "ValueError: no",
]

METRICS = [
    [0, "hello"],
    [1, "there"],
    [None, "a word of the launcher"],
    [0, "[metrics] step=4 epoch=1 loss=0.25"],
]


def fate(service: Path, **fields: object) -> None:
    """Decide what becomes of every run."""
    (service / "fate.json").write_text(json.dumps(fields))


def submitted(cli: Cli, *more: str) -> str:
    """The name of a run that was just submitted."""
    result = cli("submit", "job.yaml", "--detach", *more)
    assert result.code == 0, result.err
    return result.out.strip()


def test_submit_follows_to_the_end(cli: Cli, scripted: Path, job: str) -> None:
    """Not on a terminal: plan and result on stderr, prefixed lines on stdout, exit code 0, and what to type next."""
    fate(scripted, lines=METRICS)
    result = cli("submit", job)
    name = next((scripted / "jobs").iterdir()).name
    assert result.code == 0
    assert result.out == (
        "[rank 0] hello\n"
        "[rank 1] there\n"
        "[instance 0] a word of the launcher\n"
        "[rank 0] [metrics] step=4 epoch=1 loss=0.25\n"
    )
    assert result.err.startswith(f"{name} on local\n")
    assert f"`{name}` succeeded after 12s: loss 0.25 (epoch 1, step 4)\n" in result.err
    assert f"`cloudtrain logs {name}`" in result.err
    assert f"`cloudtrain download {name} model/`" in result.err


def test_failed_run_is_an_error_block_and_exit_code_1(cli: Cli, scripted: Path, job: str) -> None:
    """Why it failed, the last lines of its traceback, and how to see all of it."""
    fate(
        scripted,
        state="failed",
        reason="rank 1 exited with 1: ValueError: no",
        failed_rank=1,
        details=TRACEBACK,
    )
    result = cli("submit", job)
    assert result.code == 1
    error = result.err[result.err.index("error: ") :]
    assert "failed after 12s: rank 1 exited with 1: ValueError: no" in " ".join(error.split())
    assert all(f"  {line}\n" in error for line in TRACEBACK)
    assert "--rank 1` prints its whole output" in " ".join(error.split())


def test_a_followed_run_prints_its_traceback_once(cli: Cli, scripted: Path, job: str) -> None:
    """The report at the end repeats no line that has just been printed, but does after a selection, and in `wait`."""
    fate(scripted, state="failed", reason="rank 1 exited with 1: ValueError: no", failed_rank=1, details=TRACEBACK,
         lines=[[1, line] for line in TRACEBACK])  # fmt: skip
    followed = cli("submit", job)
    assert "exited with 1: ValueError: no" in " ".join(followed.err.split())
    for line in TRACEBACK[:2]:
        assert (followed.out + followed.err).count(line.strip()) == 1
    again = cli("logs", "last", "-f", "--grep", "ValueError")
    assert TRACEBACK[1] not in again.out
    assert TRACEBACK[1] in again.err
    assert TRACEBACK[1] in cli("wait", "last").err


LOST_PEER = """\
[rank0]:[W1124 19:30:00.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe
Exception raised from sendBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:653 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f0a in /venv/torch/lib/libc10.so)
[rank0]: frame #1: <unknown function> + 0x5ffc5b1 (0x7f0b in /venv/torch/lib/libtorch_cpu.so)
frames of the film: 25"""


def test_a_followed_run_prints_no_frames_of_cpp(cli: Cli, scripted: Path, job: str) -> None:
    """Each rank that loses a peer prints thirty of them, which push the reason off the screen. `logs` prints them all."""
    lines = LOST_PEER.splitlines()
    fate(scripted, lines=[[0, line] for line in lines])
    without = [*lines[:2], lines[-1]]
    assert cli("submit", job).out.splitlines() == [f"[rank 0] {line}" for line in without]
    assert cli("logs", "last", "-f", "--no-prefix").out.splitlines() == without
    for option in ((), ("-f", "--raw")):
        assert cli("logs", "last", "--no-prefix", *option).out.splitlines() == lines
    assert len(cli("logs", "last", "-f", "--json").out.splitlines()) == len(lines)


@pytest.mark.parametrize(
    ("state", "code"), [("succeeded", 0), ("failed", 1), ("stopped", 1), ("lost", 1)]
)
def test_wait_tells_by_its_exit_code(
    cli: Cli, scripted: Path, job: str, state: str, code: int
) -> None:
    """0 for success, 1 for every other end, and the state in words and in JSON."""
    fate(scripted, state=state)
    name = submitted(cli)
    result = cli("wait", name)
    assert (result.code, result.out) == (code, "")
    assert state in result.err
    as_json = cli("wait", name, "--json")
    assert as_json.code == code
    assert json.loads(as_json.out)["state"] == state


def test_status_says_how_to_get_metrics(cli: Cli, scripted: Path, job: str) -> None:
    """One line for a run that measured nothing: the call for a script, and a pattern that can be typed. Nothing for a
    job that has patterns, a failed run, and metrics in the status or, as on some targets, only in the output."""
    submitted(cli)
    err = cli("status", "last").err
    assert err.startswith("no metrics: call `runtime.report(loss=loss)`")
    option = err[err.index("--set") :].split("`")[0]
    submitted(cli, *shlex.split(option))
    assert cli("status", "last").err == ""
    submitted(cli)
    assert cli("status", "last", "--json").err == ""
    for fields in ({"metrics": {"loss": 0.5}}, {"state": "failed"}, {"lines": METRICS}):
        fate(scripted, **fields)
        submitted(cli)
        assert cli("status", "last").err == ""


@pytest.mark.slow
def test_wait_gives_up(cli: Cli, scripted: Path, job: str) -> None:
    """When the time is up the run goes on: code 4."""
    fate(scripted, state="running")
    submitted(cli)
    result = cli("wait", "last", "--timeout", "1s")
    assert result.code == 4
    assert "is still running after 1 s; the run continues" in " ".join(result.err.split())


def test_ctrl_c_leaves_the_run_alone_and_says_how_to_stop_it(
    cli: Cli, scripted: Path, job: str
) -> None:
    """Ctrl-C while following: 130, nothing asked, nothing stopped, three lines that can be copied."""
    fate(scripted, lines=METRICS, interrupt=True, state="running")
    result = cli("submit", job)
    name = next((scripted / "jobs").iterdir()).name
    assert result.code == 130
    assert result.err.endswith(
        f"`{name}` continues\nstop it with: `cloudtrain stop {name}`\nfollow it with: `cloudtrain logs {name} -f`\n"
    )
    assert not (scripted / "stopped").exists()
    assert cli("logs", name, "-f").code == 130


def test_dry_run_is_plan_and_leaves_nothing(
    cli: Cli, scripted: Path, job: str, state_dir: Path
) -> None:
    """`--dry-run` prints what `plan` prints, twice the same, sends nothing and writes nothing."""
    first, second, plan = (
        cli("submit", job, "--dry-run"),
        cli("submit", job, "--dry-run"),
        cli("plan", job),
    )
    assert first == second == plan
    assert (first.code, first.err) == (0, "")
    assert list((scripted / "jobs").iterdir()) == []
    assert not state_dir.exists()


def test_short_plan(cli: Cli, scripted: Path, job: str) -> None:
    """`--short` is the summary and the findings of the whole plan, and has its exit code."""
    whole, short = (
        cli("plan", job, "--instances", "3"),
        cli("plan", job, "--instances", "3", "--short"),
    )
    assert short.code == whole.code
    assert len(short.out.splitlines()) < 20 < len(whole.out.splitlines())
    assert "Processes" not in short.out
    for line in short.out.splitlines():
        sha256 = re.fullmatch(" +plan +([0-9a-f]{12})", line)
        assert (f"(plan {sha256[1]})" if sha256 else line) in whole.out


def test_plan_formats(cli: Cli, scripted: Path, job: str) -> None:
    """json is the whole plan, request the exact body alone, and the dry run names the run that a submit makes."""
    plan = json.loads(cli("plan", job, "--json").out)
    assert json.loads(cli("plan", job, "--format", "request").out) == plan["request"]
    assert json.loads(cli("submit", job, "--dry-run", "--json").out) == plan
    assert submitted(cli) == plan["run_name"]
    assert json.loads((scripted / "jobs" / plan["run_name"]).read_text()) == plan["request"]


def test_flags_and_overrides_reach_the_plan(cli: Cli, scripted: Path, job: str) -> None:
    """--set changes the job, --instances and the rest the local target."""
    out = cli(
        "plan", job, "--format", "request", "--set", "hyperparameters.epochs=7", "--set", "distribution.type=torch",
        "--instances", "2", "--processes-per-instance", "3", "--max-restarts", "4", "--grace-period", "1m",
    ).out  # fmt: skip
    request = json.loads(out)
    argv = request["processes"][0]["argv"]
    assert (request["instances"], request["world_size"], request["grace_period"]) == (2, 6, 60)
    assert argv[argv.index("--epochs") + 1] == "7"
    assert argv[argv.index("--max-restarts") + 1] == "4"


def test_plan_with_errors_prints_them_and_fails(cli: Cli, scripted: Path, job: str) -> None:
    """A plan that a submit would refuse is shown all the same, with code 2."""
    result = cli("plan", job, "--set", "entry_point=missing.py")
    assert result.code == 2
    assert "[CT101]" in result.out


def test_errors_of_a_plan_stand_above_its_request(cli: Cli, scripted: Path, job: str) -> None:
    """They are read before pages of processes, and the last line, on stderr, says that they are there."""
    result = cli("plan", job, "--set", "entry_point=missing.py")
    assert result.code == 2
    assert result.out.index("error: ") < result.out.index("Processes")
    assert result.err.startswith(
        "1 error, above the request: `CT101`. A submit would send nothing;"
    )
    assert ", above" not in cli("plan", job, "--short", "--set", "entry_point=missing.py").err


def test_a_local_plan_shows_its_processes_once(cli: Cli, job: str) -> None:
    """The request refers to the list above it; as data it is whole."""
    shown = cli("plan", job).out
    assert shown.count("train.py --epochs 2") == 1
    assert '"argv"' not in shown
    assert '"processes": "1 as above; `--format request` has the text"' in shown
    assert json.loads(cli("plan", job, "--format", "request").out)["processes"][0]["argv"][-2:] == [
        "--epochs",
        "2",
    ]
    assert json.loads(cli("plan", job, "--json").out)["request"]["processes"][0]["argv"]


def test_a_plan_compares_targets(cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row each, the most it can cost, and what would stop it; the plans as JSON. The request has one target."""
    monkeypatch.setenv("COLUMNS", "120")
    places = ("-t", "sagemaker", "-t", "local")
    change = ("--set", "resources.instance_type.sagemaker=ml.g5.2xlarge", "--set", "max_runtime=2h")
    result = cli("plan", job, *places, *change)
    header, first, second = result.out.splitlines()
    assert header.split() == ["TARGET", "INSTANCES", "PROCESSES", "COST", "CHECKS"]
    assert first.startswith("sagemaker  1 x ml.g5.2xlarge  1")
    assert "$3.04" in first
    assert "error" in first
    assert second.split() == ["local", "this", "machine", "1", "-", "no", "problems"]
    assert result.code == 2, "the plan for SageMaker has errors"
    data = json.loads(cli("plan", job, *places, *change, "--json").out)
    assert [plan["target"] for plan in data] == ["sagemaker", "local"]
    assert data[1]["request"]["name"] == data[1]["run_name"]
    assert cli("plan", job, "-t", "local", "-t", "local", "--short").out.startswith("digits-")
    refused = cli("plan", job, *places, "--format", "request")
    assert (refused.code, refused.out) == (2, "")


def test_a_target_that_this_job_cannot_have_is_a_row(cli: Cli, job: str) -> None:
    """The others are still compared, and the codes say why."""
    azure = ("--set", "resources.instance_type.azureml=Standard_NC24ads_A100_v4")
    result = cli("plan", job, "-t", "azureml", "-t", "local", *azure)
    assert result.code == 2
    assert "CT034" in result.out
    assert "local" in result.out


@pytest.mark.parametrize("command", ["check", "submit", "plan"])
def test_a_second_target_is_not_forgotten(cli: Cli, job: str, command: str) -> None:
    """A wrong name is an error wherever it stands, and only a plan takes two."""
    result = cli(command, job, "-t", "nonsense", "-t", "local")
    assert (result.code, result.out) == (2, "")
    assert "nonsense" in result.err


def test_old_rehearsals_are_not_listed(cli: Cli, scripted: Path, job: str) -> None:
    """`ps` and `last` mean your own runs; `--rehearsals`, `--all` and `--job` have the others, and one that goes on is
    listed anyway."""
    fate(scripted, state="succeeded")
    rehearsal = submitted(cli, "--set", "name=digits-rehearsal")
    cli("status", rehearsal)
    assert "`cloudtrain ps --rehearsals`" in cli("ps").err
    own = submitted(cli)
    later = submitted(cli, "--set", "name=digits-rehearsal", "--set", "hyperparameters.epochs=3")
    cli("status", later)

    def listed(*arguments: str) -> list[str]:
        return [item["name"] for item in json.loads(cli("ps", "--json", *arguments).out)]

    assert listed() == listed("--state", "succeeded") == listed("-n", "1") == [own]
    assert listed("--rehearsals") == listed("--all") == [later, own, rehearsal]
    assert listed("--job", "digits-rehearsal") == [later, rehearsal]
    assert json.loads(cli("status", "last", "--json").out)["name"] == own
    fate(scripted, state="running")
    going = submitted(cli, "--set", "name=digits-rehearsal", "--set", "hyperparameters.epochs=4")
    assert listed() == [going, own]


def test_check(cli: Cli, scripted: Path, job: str) -> None:
    """Findings alone: on stdout, in JSON too; code 2 for errors, 0 and a word on stderr for none."""
    clean = cli("check", job)
    assert (clean.code, clean.out) == (0, "")
    bad = cli("check", job, "--set", "entry_point=missing.py", "--json")
    assert bad.code == 2
    assert [(item["code"], item["level"]) for item in json.loads(bad.out)] == [("CT101", "error")]


def test_check_says_in_json_what_no_rule_has_seen(cli: Cli, clean_environment: Path) -> None:
    """A file that is no job gives the same list as findings do: code, message, hint and line; stderr has nothing."""
    files = {
        "fields.yaml": "name: a b\nentry_point: train.py\nmax_runtime: 5x\n",
        "text.yaml": "name: a\nentry_point: [train.py\n",
        "compile.yaml": "name: a\nentry_point: train.py\ninputs:\n  x: {sagemaker: s3://b/k}\n",
    }
    expected = {
        "fields.yaml": [("CT016", 1), ("CT015", 3)],
        "text.yaml": [("CT002", 3)],
        "compile.yaml": [("CT032", 4)],
    }
    (clean_environment / "train.py").write_text("")
    for name, text in files.items():
        (clean_environment / name).write_text(text)
        result = cli("check", name, "--json")
        assert (result.code, result.err) == (2, "")
        found = json.loads(result.out)
        assert [(item["code"], item["line"]) for item in found] == expected[name]
        assert all(item["message"] and item["hint"] and item["level"] == "error" for item in found)
        assert all(item["place"].startswith(f"{name}:{item['line']}:") for item in found)
    missing = cli("check", "nowhere.yaml", "--json")
    assert (missing.code, missing.err) == (2, "")
    assert json.loads(missing.out)["error"]["code"] == "CT001"
    (clean_environment / "job.yaml").write_text("name: a\nentry_point: tain.py\n")
    (item,) = json.loads(cli("check", "job.yaml", "--json").out)
    assert (item["code"], item["line"], item["hint"]) == ("CT101", 2, suggested("train.py"))


def test_the_launchers_traceback_is_folded(cli: Cli, scripted: Path, job: str) -> None:
    """Following says once why a rank failed; the launcher's own traceback is in `logs` only."""
    lines = [
        [None, "W torchrun: a warning"],
        [1, "ValueError: no"],
        [None, "Traceback (most recent call last):"],
        [None, "ChildFailedError"],
    ]
    fate(scripted, lines=lines, state="failed", reason="rank 1 exited with 1: ValueError: no")
    followed = cli("submit", job)
    assert "a warning" in followed.out
    assert "ChildFailedError" not in followed.out + followed.err
    assert "ChildFailedError" in cli("logs", "last").out


def test_ps(cli: Cli, scripted: Path, job: str) -> None:
    """The newest of all states, filters, JSON, and 80 columns."""
    assert "there is no run yet" in cli("ps").err
    fate(scripted, state="running")
    first = submitted(cli)
    fate(scripted, state="succeeded")
    second = submitted(cli, "--set", "hyperparameters.epochs=9")
    assert cli("ps", "--active").out == ""
    table = cli("ps")
    assert table.err == ""
    assert len(cli("ps", "--all").out.splitlines()) == len(table.out.splitlines())
    header, *rows = table.out.splitlines()
    assert header.split() == ["NAME", "STATE", "TARGET", "AGE", "DURATION"]
    assert {row.split()[0] for row in rows} == {first, second}
    assert max(map(len, table.out.splitlines())) <= 80
    assert len(cli("ps", "-n", "1").out.splitlines()) == 2
    assert "`cloudtrain ps --all` lists all runs" in cli("ps", "-n", "1").err
    assert [run["name"] for run in json.loads(cli("ps", "--json").out)] == [second, first]
    assert json.loads(cli("ps", "--state", "failed", "--json").out) == []
    assert json.loads(cli("ps", "--job", "other", "--json").out) == []


def test_ps_says_the_newest_of_each_run(
    cli: Cli, scripted: Path, job: str, monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    """The share, the metrics, or the exception, cut to one line; the store keeps the metrics of a run that has ended."""
    values = {"step": 4.0, "total": 8.0, "loss": 0.25}
    fate(scripted, state="succeeded", metrics=values)
    ended = submitted(cli)
    cli("wait", ended)
    fate(
        scripted, state="failed", reason=f"rank 1 failed with exit code 1: ValueError: {'no ' * 40}"
    )
    failed = submitted(cli, "--set", "hyperparameters.epochs=8")
    cli("wait", failed)
    fate(scripted, state="running", metrics=values)
    running = submitted(cli, "--set", "hyperparameters.epochs=9")
    monkeypatch.setenv("COLUMNS", "80")
    header, *rows = cli("ps").out.splitlines()
    of_run = {row.split()[0]: row[header.index("LAST") :] for row in rows}
    assert of_run[running] == "50%, loss 0.25"
    assert of_run[failed].startswith("ValueError: no no")
    assert of_run[failed].endswith("...")
    assert of_run[ended] == "loss 0.25, step 4"
    assert len(rows) == 3
    assert max(map(len, rows)) <= 80
    metrics = {run["name"]: run["metrics"] for run in json.loads(cli("ps", "--json").out)}
    assert metrics == {running: values, failed: {}, ended: values}
    runs = ct.runs()
    assert "LAST" in repr(runs)
    assert "ValueError: no no" in repr(runs)
    assert runs._repr_html_().count("<tr>") == 4
    assert f">{running}</td>" in runs._repr_html_()
    status = repr(ct.run(ended).last_status)
    assert status.startswith("RunStatus(state=succeeded, started=1970-01-01T00:01:40Z, ended=")
    assert "None" not in status
    with closing(connect(state_dir / "runs.db")) as db, db:
        db.execute("UPDATE runs SET metrics = '[1'")
    assert "50%" in cli("ps").out, "a damaged value hides no run"


def test_ps_looks_past_the_newest_for_a_state(cli: Cli, scripted: Path, job: str) -> None:
    """N runs in the state that is asked for, however many newer ones are in another, or turn out to be."""
    fate(scripted, state="failed")
    failed = [submitted(cli), submitted(cli)]
    assert json.loads(cli("ps", "--json").out)[0]["state"] == "failed"
    fate(scripted, state="running")
    running = [submitted(cli) for _ in range(3)]
    listed = json.loads(cli("ps", "-n", "1", "--state", "failed", "--json").out)
    assert [run["name"] for run in listed] == [failed[1]]
    fate(scripted, state="running", states=dict.fromkeys(running[1:], "succeeded"))
    listed = json.loads(cli("ps", "-n", "1", "--active", "--json").out)
    assert [run["name"] for run in listed] == [running[0]]
    listed = json.loads(cli("ps", "-n", "2", "--state", "succeeded", "--json").out)
    assert [run["name"] for run in listed] == running[:0:-1]


def test_more_than_there_can_be_is_all(cli: Cli, scripted: Path, job: str) -> None:
    """A count that no machine word holds is no defect."""
    fate(scripted, lines=METRICS)
    submitted(cli)
    many = "9" * 20
    every = cli("ps", "--all", "--json").out
    assert len(json.loads(every)) == 1
    assert cli("ps", "-n", many, "--json").out == every
    assert cli("ps", "-n", many, "--state", "succeeded", "--json").out == every
    assert cli("ps", "-n", many, "--target", "local").code == 0
    assert cli("logs", "last", "--tail", many).out == cli("logs", "last").out != ""


@pytest.mark.slow
def test_a_beginning_of_many_names_says_how_many_more(cli: Cli, scripted: Path, job: str) -> None:
    """The hint names five runs, and how to see the others."""
    names = [submitted(cli) for _ in range(6)]
    result = cli("logs", "digits")
    words = " ".join(result.err.split())
    assert "the names of 6 runs begin with `digits`" in words
    assert all(f"`{name}`" in words for name in names[1:])
    assert "`cloudtrain ps --all` lists the other 1" in words
    submitted(cli, "--set", "name=other")
    assert "lists the other" not in " ".join(cli("logs", "other").err.split())


def test_status(cli: Cli, scripted: Path, job: str) -> None:
    """State, reason and last output; code 0 whatever the state; the same in JSON."""
    fate(scripted, state="failed", reason="rank 1 exited with 1: ValueError: no", details=TRACEBACK)
    name = submitted(cli)
    result = cli("status", name)
    assert result.code == 0
    for part in (name, "failed", "rank 1 exited with 1: ValueError: no", "12s", *TRACEBACK):
        assert part in result.out
    data = json.loads(cli("status", name, "--json").out)
    assert (data["name"], data["state"], data["details"]) == (name, "failed", TRACEBACK)


def test_a_loss_that_diverged_is_null_in_json(cli: Cli, scripted: Path, job: str) -> None:
    """JSON has no NaN: strict readers get null, and other values stay."""
    fate(scripted, metrics={"loss": float("nan"), "acc": float("inf"), "step": 3.0})
    submitted(cli)

    def refuse(word: str) -> None:
        raise AssertionError(f"`{word}` is not JSON")

    for command in (["status", "last"], ["wait", "last"], ["submit", job]):
        data = json.loads(cli(*command, "--json").out, parse_constant=refuse)
        assert data["metrics"] == {"loss": None, "acc": None, "step": 3.0}


def test_a_run_is_found_by_prefix_reference_and_last(cli: Cli, scripted: Path, job: str) -> None:
    """Four ways to name the same run; a misspelt name is corrected."""
    name = submitted(cli)
    ref = json.loads(cli("status", "last", "--json").out)["ref"]
    for way in (name, name[:-3], ref, "last"):
        assert json.loads(cli("status", way, "--json").out)["name"] == name
    wrong = name.replace("digits", "digist")
    assert suggested(name) in cli("status", wrong).err


def test_logs(cli: Cli, scripted: Path, job: str) -> None:
    """All, one rank, the last lines, without prefix, with time, as JSON lines, and following."""
    fate(scripted, lines=METRICS)
    submitted(cli)
    assert cli("logs", "last").out.splitlines()[:2] == ["[rank 0] hello", "[rank 1] there"]
    assert cli("logs", "last", "--rank", "1").out == "[rank 1] there\n"
    assert (
        cli("logs", "last", "--tail", "1", "--no-prefix").out
        == "[metrics] step=4 epoch=1 loss=0.25\n"
    )
    assert (
        cli("logs", "last", "--tail", "1", "-f").out
        == "[rank 0] [metrics] step=4 epoch=1 loss=0.25\n"
    )
    assert cli("logs", "last", "--tail", "0").out == ""
    assert cli("logs", "last", "--timestamps").out.startswith(
        "1970-01-01T00:01:40.250Z [rank 0] hello\n"
    )
    lines = [json.loads(line) for line in cli("logs", "last", "--json").out.splitlines()]
    assert lines[0] == {
        "time": 100.25,
        "instance": 0,
        "rank": 0,
        "stream": "stdout",
        "text": "hello",
    }


def test_stop(cli: Cli, scripted: Path, job: str) -> None:
    """A live run is asked to stop; one that has ended is told apart, and both are fine."""
    fate(scripted, state="running")
    name = submitted(cli)
    result = cli("stop", "last")
    assert (result.code, result.out) == (0, "")
    assert (scripted / "stopped").read_text() == name
    fate(scripted, state="stopped")
    assert "has already ended: stopped" in cli("stop", name).err


@pytest.mark.parametrize("name", ["", " "])
@pytest.mark.parametrize("command", ["status", "logs", "wait", "stop", "download", "rehearse"])
def test_an_empty_name_is_no_run(
    cli: Cli, scripted: Path, job: str, command: str, name: str
) -> None:
    """`cloudtrain stop "$UNSET"` means nothing, not the only run that there is."""
    fate(scripted, state="running")
    submitted(cli)
    result = cli(command, name)
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith(
        "error: the name of the run is empty [CT931]\n\nhint: `cloudtrain ps` lists the runs"
    )
    assert not (scripted / "stopped").exists()


def test_download_prints_what_it_copied(
    cli: Cli, scripted: Path, job: str, clean_environment: Path
) -> None:
    """Into a folder with the run's name unless told otherwise; the files on stdout."""
    name = submitted(cli)
    result = cli("download", name, "model/")
    assert (result.code, result.out) == (0, f"{name}/weights.pt\n")
    assert (clean_environment / name / "weights.pt").is_file()
    assert json.loads(cli("download", name, "--to", "here", "--json").out) == ["here/weights.pt"]


def test_the_end_names_what_a_script_wrote_beside_its_code(
    cli: Cli, clean_environment: Path
) -> None:
    """A script that knows no model folder has not lost its model: the end says where it is, and what copies it."""
    script = "import os\nos.mkdir('out')\nopen('out/last.pt', 'w').write('x' * 2048)\nopen('log.txt', 'w').close()"
    (clean_environment / "train.py").write_text(script)
    (clean_environment / "job.yaml").write_text(
        "name: plain\nsource_dir: .\nentry_point: train.py\n"
    )
    result = cli("submit", "job.yaml")
    name = json.loads(cli("status", "last", "--json").out)["name"]
    assert (
        "the script wrote 2 files (2 KiB) into its working folder, such as `out/last.pt`;"
        in " ".join(result.err.split())
    )
    assert f"`cloudtrain download {name} work/`" in result.err
    assert "a cloud would lose it: pass the script the folder '${{outputs.model}}'" in " ".join(
        result.err.split()
    )
    nothing = cli("download", name, "model/")
    assert (nothing.code, f"`cloudtrain download {name} work/`" in nothing.err) == (1, True)
    none = cli("download", name, "outputs/")
    assert (
        none.code,
        "hint: copy `work/`: the script wrote into its working folder" in none.err,
    ) == (2, True)
    assert cli("download", name, "work/", "--to", "here").out.split() == [
        "here/log.txt",
        "here/out/last.pt",
    ]


def test_the_end_offers_no_download_of_nothing(cli: Cli, clean_environment: Path) -> None:
    """A run that wrote no file has nothing to download; who tries is told where a script saves its model."""
    (clean_environment / "train.py").write_text("print('hello')")
    (clean_environment / "job.yaml").write_text(
        "name: plain\nsource_dir: .\nentry_point: train.py\n"
    )
    result = cli("submit", "job.yaml")
    assert "`cloudtrain logs plain-" in result.err
    assert "download" not in result.err
    nothing = cli("download", "last", "model/")
    assert (nothing.code, nothing.out) == (1, "")
    assert "wrote no files to `model/`\n" in nothing.err
    assert "runtime.model_dir()" in nothing.err


def test_the_end_of_a_run_that_never_started_says_why(cli: Cli, clean_environment: Path) -> None:
    """The run that it waited for failed; following it says so, without a second command."""
    (clean_environment / "first.py").write_text(
        "import os, time\nwhile not os.path.exists(os.environ['GO']):\n    time.sleep(0.05)\nraise SystemExit(3)\n"
    )
    (clean_environment / "train.py").write_text("print('hello')")
    go = clean_environment / "go"
    first = f"name: first\nentry_point: first.py\nenvironment: {{variables: {{GO: {go}}}}}\n"
    (clean_environment / "first.yaml").write_text(first)
    second = "name: second\nentry_point: train.py\ninputs: {d: {local: 'run:first/model'}}\n"
    (clean_environment / "second.yaml").write_text(second)
    name = cli("submit", "first.yaml", "--detach").out.strip()
    assert cli("submit", "second.yaml", "--detach").code == 0
    go.touch()
    ended = cli("wait", "last")
    assert ended.code == 1
    assert f"was stopped: cancelled: it waited for `{name}`, which failed" in " ".join(
        ended.err.split()
    )


def test_outputs_are_copied_together(cli: Cli, clean_environment: Path) -> None:
    """`download outputs/` copies each declared output into its own folder, and nothing of the model."""
    script = (
        "import os\nfor kind in ('OUTPUT_PLOTS', 'OUTPUT_SCORES', 'MODEL_DIR'):\n"
        "    open(os.environ[f'CLOUDTRAIN_{kind}'] + '/made', 'w').write(kind)\n"
    )
    (clean_environment / "train.py").write_text(script)
    (clean_environment / "job.yaml").write_text(
        "name: two\nentry_point: train.py\noutputs: {plots: {}, scores: {}}\n"
    )
    assert cli("submit", "job.yaml").code == 0
    both = cli("download", "last", "outputs/", "--to", "all")
    assert (both.code, sorted(both.out.split())) == (0, ["all/plots/made", "all/scores/made"])
    assert (clean_environment / "all/scores/made").read_text() == "OUTPUT_SCORES"
    assert cli("download", "last", "outputs/plots", "--to", "one").out == "one/made\n"
    assert f"hint: {suggested('outputs/plots')}" in cli("download", "last", "plots").err


def test_outputs_of_a_job_with_a_model_alone(cli: Cli, clean_environment: Path) -> None:
    """The hint leads to the model, where there is one."""
    script = "import os\nopen(os.environ['CLOUDTRAIN_MODEL_DIR'] + '/m', 'w').close()\nopen('log.txt', 'w').close()"
    (clean_environment / "train.py").write_text(script)
    (clean_environment / "job.yaml").write_text(
        "name: plain\nsource_dir: .\nentry_point: train.py\n"
    )
    assert cli("submit", "job.yaml").code == 0
    assert "hint: copy `model/`\n" in cli("download", "last", "outputs/").err


def test_the_end_says_nothing_of_a_clean_working_folder(cli: Cli, clean_environment: Path) -> None:
    """A script that writes its model where it belongs is told how to copy that, and nothing else."""
    script = "import os\nopen(os.environ['CLOUDTRAIN_MODEL_DIR'] + '/m', 'w').close()"
    (clean_environment / "train.py").write_text(script)
    (clean_environment / "job.yaml").write_text(
        "name: plain\nsource_dir: .\nentry_point: train.py\n"
    )
    result = cli("submit", "job.yaml")
    assert "working folder" not in result.err
    assert " model/`" in result.err


def test_download_into_a_place_that_cannot_be_written(
    cli: Cli, scripted: Path, job: str, clean_environment: Path
) -> None:
    """What the disk refuses is told, with the flag that helps; it is no defect of cloudtrain."""
    name = submitted(cli)
    (clean_environment / "here").write_text("a file")
    result = cli("download", name, "--to", "here")
    assert (result.code, result.out) == (4, "")
    assert "the copy into `here` failed: File exists" in result.err
    assert "hint: name another folder with `--to`" in result.err


def test_submit_as_json(cli: Cli, scripted: Path, job: str) -> None:
    """stdout is one JSON document; the output of the run goes to stderr."""
    fate(scripted, lines=METRICS)
    result = cli("submit", job, "--json")
    assert json.loads(result.out)["state"] == "succeeded"
    assert "[rank 0] hello" in result.err
    detached = json.loads(cli("submit", job, "--json", "--detach").out)
    assert detached["ref"] == f"local://here/{detached['name']}"


def test_recover_with_nothing_to_recover(cli: Cli, scripted: Path, job: str) -> None:
    """Nothing was cut off: a word on stderr, an empty list in JSON."""
    submitted(cli)
    assert cli("recover") == (0, "", "no submission was interrupted\n")
    assert json.loads(cli("recover", "--json").out) == []
