"""What a person sees after a mistake: one block each, a hint, an exit code, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.system import plugins as targets
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.local.target import LocalTarget
from tests.cli.conftest import Cli
from tests.hints import one_of, suggested, words_before_name

FIVE_MISTAKES = """\
name: my_job!
entry_point: train.py
epoch: 3
resources:
  instance_cout: 2
  instance_type: ml.p4d.24xlarge
  gpu: A100-40GB
max_runtime: soon
"""


@pytest.mark.parametrize("command", ["submit", "plan", "check"])
def test_five_mistakes_are_five_blocks(cli: Cli, clean_environment: Path, command: str) -> None:
    """Every problem of a file in one go: message, place, hint; then how many. Exit code 2, nothing on stdout."""
    (clean_environment / "job.yaml").write_text(FIVE_MISTAKES)
    result = cli(command, "job.yaml")
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("error: ") == 5
    assert result.err.count("  job.yaml:") == 5
    assert result.err.endswith("\n\n5 errors in job.yaml\n")
    assert suggested("instance_count") in result.err
    assert max(map(len, result.err.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["sumbit", "job.yaml"], "`cloudtrain` has no command `sumbit`", suggested("submit")),
        (["frobnicate"], "`frobnicate` [CT901]", "see `cloudtrain --help`"),
        (
            ["cancel", "my run"],
            "`cancel` [CT901]",
            suggested("cloudtrain stop 'my run'"),
        ),
        (["list"], "`list` [CT901]", suggested("cloudtrain ps")),
        (
            ["cancel", "digits-1"],
            "`cancel` [CT901]",
            suggested("cloudtrain stop digits-1"),
        ),
        (
            ["describe", "job", "-o", "json"],
            "`describe` [CT901]",
            suggested("cloudtrain status"),
        ),
        (["get", "jobs"], "`get` [CT901]", suggested("cloudtrain ps")),
        (["version"], "`version` [CT901]", suggested("cloudtrain --version")),
        (
            ["my job.yaml"],
            "`my job.yaml` [CT901]",
            suggested("cloudtrain submit 'my job.yaml'"),
        ),
        (
            ["train.py"],
            "`train.py` [CT901]",
            suggested("cloudtrain submit train.py"),
        ),
        (["submit", "a b.py"], "there is no script `a b.py`", "name a Python file or a job file"),
        (
            ["logs", "last", "--tail"],
            "option `--tail` requires an argument",
            "see `cloudtrain logs --help`",
        ),
        (["submit"], "`cloudtrain submit` needs JOB", "see `cloudtrain submit --help`"),
        (
            ["submit", "j.yaml", "--epochs", "3"],
            "no option `--epochs`",
            "`--set hyperparameters.epochs=3`",
        ),
        (
            ["submit", "j.yaml", "--epochs=3"],
            "no option `--epochs`",
            "`--set hyperparameters.epochs=3`",
        ),
        (
            ["plan", "j.yaml", "--amp", "--bf16"],
            "no option `--amp`",
            "`--set hyperparameters.amp=true`",
        ),
        (
            ["rerun", "last", "--max-runtime", "2h"],
            "no option `--max-runtime`",
            "`--set max_runtime=2h`",
        ),
        (["logs", "last", "--epochs", "3"], "no option `--epochs`", "see `cloudtrain logs --help`"),
        (
            ["adopt", "train_job.py", "--static"],
            "`cloudtrain adopt` has no option `--static`",
            "leave out `--static`: cloudtrain runs the script up to its first job",
        ),
        (
            ["inspect", "last"],
            "`inspect` [CT901]",
            suggested("cloudtrain status last"),
        ),
        (
            ["resume", "last"],
            "`resume` [CT901]",
            "`cloudtrain rerun last` sends a run again",
        ),
        (
            ["submit", "j.yaml", "--insances", "2"],
            "has no option `--insances`",
            suggested("--instances"),
        ),
        (["ps", "-n", "0"], "`--limit`: it must be at least 1", "write `--limit 1` or more"),
        (
            ["plan", "j.yaml", "--format", "jsn"],
            "invalid value for `--format` / `-f`: `jsn` is not",
            suggested("json"),
        ),
        (
            ["plan", "j.yaml", "--format", "csv"],
            "`csv` is not one of `text`, `json`",
            one_of("aws-cli", "az-cli"),
        ),
        (["ps", "--where", "epochs"], "`epochs` is not a condition", "hint: "),
        (["ps", "--where", "lr>>0.1"], "`lr>>0.1` is not a condition", "`learning_rate<0.01`"),
        (["ps", "--where", "lr===1"], "`lr===1` is not a condition", "`learning_rate<0.01`"),
        (
            ["logs", "last", "--rank", "two"],
            "`--rank`: it is not a whole number",
            "write for example `--rank 1`",
        ),
        (
            ["instances", "--max-price", "much"],
            "`--max-price`: it is not a number",
            "write for example `--max-price 1`",
        ),
        (
            ["ps", "--state", "finished"],
            "there is no state `finished`",
            words_before_name(one_of("")).strip(),
        ),
        (
            ["ps", "--state", ""],
            "there is no state ``",
            words_before_name(one_of("")).strip(),
        ),
        (
            ["prune", "--state", "running"],
            "there is no final state `running`",
            one_of("failed"),
        ),
        (["submit", "nowhere.yaml"], "there is no job file `nowhere.yaml`", "`cloudtrain init`"),
        (
            ["submit", "digits_ddp"],
            "there is no file `digits_ddp`",
            suggested("bundled:digits_ddp"),
        ),
        (
            ["submit", "bundled:digits_dpd"],
            "no bundled script `digits_dpd`",
            suggested("digits_ddp"),
        ),
        (["submit", "."], "`.` is a folder", "job.yaml"),
        (["explain", "CT999x"], "no rule and no error has the code `CT999x`", None),
        (["explain", "CT10"], "no rule and no error has the code `CT10`", "`CT"),
        (["queue", "mov"], "`cloudtrain queue` has no command `mov` [", suggested("move")),
        (["notify", "x"], "`cloudtrain notify` has no command `x` [", one_of("test")),
        (
            ["scripts", "show", "digits_ddp", "--file", "trian.py"],
            "there is no file `trian.py`",
            suggested("train.py"),
        ),
        (["scripts"], "missing command", "see `cloudtrain scripts --help`"),
        (["wait", "last", "--timeout", "soon"], '`"soon"` is not a duration', "`10m`"),
        (["logs", "last", "--instance", "²"], "`²` is not a valid instance", "`algo-1`"),
        (["logs", "last", "--instance", "9" * 5000], "is not a valid instance", "`algo-1`"),
    ],
)
def test_wrong_command_lines(
    cli: Cli, arguments: list[str], message: str, hint: str | None
) -> None:
    """Exit code 2, one error block on stderr that says what to type, nothing on stdout."""
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert "\n\nhint: " in err
    assert hint is None or hint in err
    assert "Value error" not in err


def test_an_option_that_argparse_would_refuse_is_an_error(
    cli: Cli, job: str, clean_environment: Path
) -> None:
    """The job would fail after its machines have started. `--ignore` sends it anyway."""
    script = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--steps')\nparser.parse_args()\n"
    (clean_environment / "train.py").write_text(script)
    result = cli("submit", job)
    assert result.code == 2
    assert "error: `epochs` is not an option of `train.py` [CT209]" in result.err
    assert one_of("steps") + "\n" in result.err
    assert cli("plan", job, "--ignore", "CT209").code == 0


@pytest.mark.parametrize(
    ("given", "is_error"),
    [
        ((), True),
        (("--lr", "1"), True),
        (("--data", "x"), False),
        (("--da=x",), False),
        (("-d", "x"), False),
    ],
)
def test_a_required_option_is_asked_for_before_the_job_starts(
    cli: Cli, clean_environment: Path, given: tuple[str, ...], is_error: bool
) -> None:
    """argparse would end the script on a machine that is paid for. A search space and a `--set` give values too."""
    script = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('-d', '--data', required=True)\n"
        "parser.add_argument('--lr')\nparser.add_argument('--model_dir', required=True)\nparser.parse_args()\n"
    )  # SageMaker's TensorFlow images add `--model_dir`
    (clean_environment / "train.py").write_text(script)
    result = cli("check", "train.py", *given)
    assert (result.code, "requires the option `--data`" in result.out + result.err) == (
        (2, True) if is_error else (0, False)
    )
    sweep = {
        "kind": "sweep",
        "name": "s",
        "trials": 2,
        "objective": {"maximize": "a"},
        "search": {"data": {"choice": ["x", "y"]}},
    }
    text = json.dumps(
        {**sweep, "job": {"name": "j", "entry_point": "train.py", "metrics": {"a": "a=([0-9]+)"}}}
    )
    (clean_environment / "sweep.json").write_text(text)
    assert cli("check", "sweep.json").code == 0
    if is_error:
        assert cli("check", "--set", "hyperparameters.data=x", "train.py", *given).code == 0


def test_files_with_credentials_that_stay_here_are_named(
    cli: Cli, job: str, clean_environment: Path
) -> None:
    """The plan has one line, because the script may want to read them; what the user left out needs no mention."""
    said = "files that may hold credentials are not in the bundle"
    assert said not in cli("plan", job).out
    for name in (".env", "id_rsa", "mine.pem", "a.log"):
        (clean_environment / name).write_text("x")
    (clean_environment / ".cloudtrainignore").write_text("mine.pem\n")
    out = " ".join(cli("plan", job).out.split())
    assert f"{said}: `.env`, `id_rsa`" in out
    assert "mine.pem" not in out
    (clean_environment / ".cloudtrainignore").write_text("mine.pem\n!.env\n")
    assert f"{said}: `id_rsa`" in " ".join(cli("plan", job).out.split())


@pytest.mark.parametrize("command", ["plan", "check", "submit"])
def test_a_field_that_is_set_twice_is_an_error(cli: Cli, job: str, command: str) -> None:
    """A list of options that was copied and changed: which value was meant is not clear. Names may hold a `=`."""
    result = cli(
        command,
        job,
        "--set",
        "hyperparameters.lr=1",
        "--set",
        "name=x",
        "--set",
        "hyperparameters.lr=2",
    )
    assert (result.code, result.out) == (2, "")
    undone = "`--set hyperparameters.lr=2` undoes `--set hyperparameters.lr=1` [CT069]"
    assert undone in result.err
    two = ("--set", 'hyperparameters."a=b"=1', "--set", 'hyperparameters."a=c"=1')
    assert "undoes" not in cli("check", job, *two).err


@pytest.mark.parametrize("target", ["local", "sagemaker", "azureml", "slurm"])
def test_a_misspelt_option_of_a_bundled_script_is_an_error(cli: Cli, target: str) -> None:
    """On every target, before anything is sent; the run would have trained with the default."""
    job = str(Path(__file__).parents[2] / "training_scripts/digits_ddp/job.yaml")
    result = cli("plan", job, "--target", target, "--set", "hyperparameters.learing_rate=0.5")
    assert result.code == 2
    assert "error: `learing_rate` is not an option of `train.py` [CT209]" in result.out + result.err
    assert suggested("learning_rate") in result.out + result.err


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("lr", suggested("learning_rate")), ("batch", suggested("global_batch")), ("rate", suggested("learning_rate")),
     ("every", one_of("accumulate")), ("e", one_of("accumulate"))],
)  # fmt: skip
def test_a_short_word_leads_to_the_option_that_holds_it(cli: Cli, typed: str, hint: str) -> None:
    """Other scripts say `lr` or `batch`. If several options hold the word, all are listed."""
    job = str(Path(__file__).parents[2] / "training_scripts/digits_ddp/job.yaml")
    assert hint in cli("plan", job, "--set", f"hyperparameters.{typed}=1").out


def test_the_commands_of_other_tools_lead_to_ours() -> None:
    """Each word is offered a command that exists, and none hides one of ours."""
    from cloudtrain.cli.app import COMMANDS, commands_elsewhere

    words = commands_elsewhere()
    assert set(words.values()) <= COMMANDS.keys()
    assert not words.keys() & COMMANDS.keys()


def test_a_near_file_name_is_offered(cli: Cli, job: str) -> None:
    """A misspelt job file is offered by its real name."""
    assert suggested("job.yaml") in cli("submit", "jop.yaml").err


def test_a_near_file_is_offered_with_its_folder(
    cli: Cli, job: str, clean_environment: Path
) -> None:
    """The hint can be typed: it has the folder too; and a suffix in capitals is one."""
    (clean_environment / "jobs").mkdir()
    (clean_environment / job).rename(clean_environment / "jobs" / "digits.YAML")
    assert suggested("jobs/digits.YAML") in cli("submit", "jobs/digit.yaml").err
    assert cli("plan", "jobs/digits.YAML", "--set", "source_dir=..").code == 0


@pytest.mark.parametrize(
    ("typed", "meant"), [("jbo.yaml", "job.yaml"), ("x.yaml", "job.yaml"), ("tran.py", "train.py")]
)
def test_a_missing_file_has_a_neighbour(
    cli: Cli, clean_environment: Path, typed: str, meant: str
) -> None:
    """The hint names the files that a submit takes, and not the editor's schema that `init` writes beside them."""
    (clean_environment / "train.py").touch()
    assert cli("init").code == 0
    result = cli("submit", typed)
    assert result.code == 2
    assert f"`{meant}`" in result.err
    assert "schema" not in result.err


LONG = "a" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", f"{LONG}.yaml"],
        ["check", f"{LONG}/job.yaml"],
        ["plan", "job.yaml", "--set", f"source_dir={LONG}"],
        ["plan", "job.yaml", "--set", f"inputs.x.local={LONG}"],
        ["plan", "job.yaml", "--python", "~nobodyx/bin/python"],
        ["rehearse", f"{LONG}.yaml"],
        ["init", LONG],
        ["scripts", "copy", "digits_ddp", LONG],
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG, "LONG"),
)
def test_names_that_no_file_can_have(cli: Cli, job: str, arguments: list[str]) -> None:
    """A name that the disk refuses, or a home that nobody has, is a mistake with a code of its own: no defect."""
    result = cli(*arguments)
    assert result.code == 2
    assert "a defect" not in result.err
    assert "error" in result.out + result.err


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["ps"], ["plan", "{job}"], ["init"]], ids=" ".join
)
def test_a_deleted_working_directory(
    cli: Cli,
    job: str,
    clean_environment: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody deleted the folder that the shell is in: the user is told, and to go elsewhere."""
    gone = clean_environment / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = cli(*(word.format(job=clean_environment / job) for word in arguments))
    assert (result.code, result.out) == (2, "")
    assert (
        result.err
        == "error: the working directory has been deleted [CT906]\n\nhint: change to another folder, for example with `cd`\n"
    )


def test_flags_of_the_local_target_are_refused_elsewhere(cli: Cli, job: str) -> None:
    """`--instances` means simulated instances, so on a cloud it is an error rather than ignored."""
    result = cli("plan", job, "--target", "sagemaker", "--instances", "2")
    assert result.code == 2
    assert "`--instances` works only on the local target" in result.err
    assert "or change the job with `--set resources.instance_count=2`" in " ".join(
        result.err.split()
    )


def test_a_field_as_an_argument_is_told_how_it_is_set(cli: Cli, job: str) -> None:
    """As Hydra's users write it."""
    result = cli("plan", job, "hyperparameters.epochs=3", "name=x")
    assert result.code == 2
    assert result.err.endswith(
        "\nhint: to change a field, write `--set hyperparameters.epochs=3`\n"
    )


@pytest.mark.parametrize("command", ["status", "logs", "wait", "stop", "download"])
def test_unknown_run_is_exit_code_3(cli: Cli, command: str) -> None:
    """No such run: code 3, and what to do."""
    result = cli(command, "nothing-like-it")
    assert (result.code, result.out) == (3, "")
    message, _, hint = result.err.partition("\n\n")
    assert message.startswith("error: ")
    assert message.endswith("`nothing-like-it` [CT931]")
    assert hint.startswith("hint: ")


def test_a_refusing_target_is_exit_code_4(
    cli: Cli, scripted: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's refusal: code 4."""
    monkeypatch.setenv("FAKE_REFUSES", "1")
    result = cli("submit", job)
    assert result.code == 4
    assert "error: the service refuses" in result.err


def test_failed_checks_say_each_finding_once(cli: Cli, scripted: Path, job: str) -> None:
    """A check's error stops the submit: code 2, nothing sent, the finding with its place, how to accept it."""
    result = cli("submit", job, "--set", "entry_point=missing.py")
    assert result.code == 2
    assert result.err.count("[CT101]") == 1
    assert "cloudtrain explain CT101" in result.err
    assert list((scripted / "jobs").iterdir()) == []


class Broken(LocalTarget):
    """A target with a defect."""

    def account(self, *args: object, **kwargs: object) -> LocalAccount:
        raise ModuleNotFoundError("No module named 'tests.cli.no_such_module'")


def test_a_defect_is_one_message_and_a_way_to_report_it(
    cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that nobody foresaw: code 70, what it was, no traceback."""
    monkeypatch.setitem(targets.LOADED, "local", Broken())
    result = cli("plan", job)
    assert result.code == 70
    assert "a defect in cloudtrain" in result.err
    assert "ModuleNotFoundError" in result.err
    assert "`CLOUDTRAIN_DEBUG=1`" in result.err


def test_debug_shows_the_traceback(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CLOUDTRAIN_DEBUG=1 gives the traceback that a report needs."""
    from cloudtrain.cli.app import run_command

    monkeypatch.setenv("CLOUDTRAIN_DEBUG", "1")
    monkeypatch.setitem(targets.LOADED, "local", Broken())
    assert run_command(["plan", job]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_wrong_settings_file_is_exit_code_2(cli: Cli, job: str, clean_environment: Path) -> None:
    """A mistake in cloudtrain.toml names the file."""
    (clean_environment / "cloudtrain.toml").write_text("[lokal]\n")
    result = cli("plan", job)
    assert result.code == 2
    file = clean_environment / "cloudtrain.toml"
    assert (
        result.err
        == f"error: unknown table `lokal` [CT912]\n  {file}:1:2  lokal\n\nhint: {suggested('local')}\n"
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            "[local]\ngrace_period = 'soon'\n",
            "is not a duration [CT015]\n  {file}:2:16  local.grace_period",
        ),
        ("[local]\ncls = 1\n", "is not a field of `[local]` [CT010]\n  {file}:2:1  local.cls"),
        ("[local]\ninstance_count = " + "9" * 5000, "too many digits [CT014]\n  {file}:2:18"),
        ("[local]\na" + ".a" * 5000 + " = 1", "nested too deeply [CT006]\n  {file}:2:1"),
        ("target = 3\n", "`target` must be text, not `3` [CT012]\n  {file}:1:10  target"),
        ("target = 'x'\n", "`x` is not a target [CT913]\n  {file}:1:10  target"),
    ],
)
def test_a_mistake_in_the_settings_has_its_line(
    cli: Cli, job: str, clean_environment: Path, settings: str, said: str
) -> None:
    """Message, code and place, as in a job file."""
    file = clean_environment / "cloudtrain.toml"
    file.write_text(settings)
    result = cli("plan", job)
    assert (result.code, result.out) == (2, "")
    assert said.format(file=file) in result.err


@pytest.mark.parametrize(
    "name",
    ["job.yaml", "cloudtrain.toml", ".cloudtrainignore", ".cloudtraininclude", "instances.toml"],
)
@pytest.mark.parametrize("kind", ["pipe", "folder", "endless"])
def test_what_is_no_plain_file_is_an_error_at_once(
    cli: Cli, job: str, clean_environment: Path, name: str, kind: str
) -> None:
    """A named pipe, a folder or an endless device in the place of a file blocks nothing."""
    path = clean_environment / name
    path.unlink(missing_ok=True)
    {"pipe": os.mkfifo, "folder": Path.mkdir, "endless": lambda path: path.symlink_to("/dev/zero")}[
        kind
    ](path)
    result = cli(
        "plan", "job.yaml", "--target", "sagemaker", "--set", "resources.instance_type=ml.g5.xlarge"
    )
    assert (result.code, result.out) == (2, "")
    assert name in result.err
    assert "[CT" in result.err


@pytest.mark.parametrize(
    "name", ["job.yaml", "cloudtrain.toml", ".cloudtrainignore", "instances.toml"]
)
def test_a_file_of_2_gib(cli: Cli, job: str, clean_environment: Path, name: str) -> None:
    """It is not read to its end before it is refused."""
    if name == "instances.toml":  # as a part of the code, it would be hashed first
        (clean_environment / ".cloudtrainignore").write_text(f"{name}\n")
    with (clean_environment / name).open("wb") as file:
        file.truncate(2 << 30)
    code, out, err = cli(
        "plan", job, "--target", "sagemaker", "--set", "resources.instance_type=ml.g5.xlarge"
    )
    assert (code, out) == (2, "")
    assert name in err
    assert "[CT" in err


READING = [
    "plan x.yaml",
    "plan x.toml",
    "plan x.py",
    "plan x.py --gpu H100:8",
    "adopt x.json",
]


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="no file that looks plain and cannot be read"
)
@pytest.mark.parametrize("command", READING)
def test_a_file_that_only_looks_plain(cli: Cli, clean_environment: Path, command: str) -> None:
    """Its reading fails."""
    arguments = command.split()
    (clean_environment / arguments[1]).symlink_to("/proc/self/mem")
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert f"`{arguments[1]}` cannot be read: Input/output error" in result.err


@pytest.mark.parametrize("command", READING)
def test_a_file_that_looks_plain_and_waits(
    cli: Cli, clean_environment: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /proc/kmsg does for root while the kernel says nothing: its reading is given up at once."""
    arguments = command.split()
    (clean_environment / arguments[1]).write_text("")
    os.mkfifo(clean_environment / "waits")
    writer, really_open = os.open(clean_environment / "waits", os.O_RDWR), os.open

    def open_what_waits(path: Any, *rest: Any, **options: Any) -> int:
        return really_open("waits" if str(path) == arguments[1] else path, *rest, **options)

    monkeypatch.setattr("cloudtrain.documents.document._check", lambda *_: None)
    monkeypatch.setattr(os, "open", open_what_waits)
    try:
        result = cli(*arguments)
    finally:
        os.close(writer)
    assert (result.code, result.out) == (2, "")
    assert f"`{arguments[1]}` cannot be read: reading it has to wait" in result.err


DEEP = {"unary": f"x = {'-' * 200_000}1\n", "zero": "x = '\0'\n"}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
@pytest.mark.slow_after(2)
def test_a_script_that_python_cannot_parse(cli: Cli, clean_environment: Path, text: str) -> None:
    """Its parser gives up in several ways, all of which mean that it is not Python."""
    (clean_environment / "x.py").write_text(text)
    result = cli("plan", "x.py")
    assert (result.code, result.out) == (2, "")
    assert "`x.py` is not Python: " in result.err
    # A parser that gives up names no line.
    hint = "look at line 1" if "\0" in text else "name a Python script"
    assert f"hint: {hint}" in result.err
    assert cli("init", "job.yaml", "--script", "x.py").code == 0  # it only guesses


@pytest.mark.parametrize("columns", ["9" * 5000, "9" * 4000, "9" * 30, "-1", "0", "many", "²"])
def test_a_senseless_number_of_columns(
    cli: Cli, job: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as none."""
    monkeypatch.delenv("COLUMNS", raising=False)
    expected = cli("plan", job)
    monkeypatch.setenv("COLUMNS", columns)
    assert cli("plan", job) == expected


@pytest.mark.parametrize("form", ["python", "aws-cli", "request"])
def test_unknown_groups_are_named_in_every_form(cli: Cli, job: str, form: str) -> None:
    """A distribution over a group that the job does not have is no defect of the export."""
    group = "{name: a, instance_type: ml.p4d.24xlarge, instance_count: 1}"
    groups = f"resources={{instance_groups: [{group}], distribution_groups: [b]}}"
    sets = ("--set", groups, "--set", "distribution.type=torch", *REQUEST[:2])
    code, _, err = cli("plan", job, "--target", "sagemaker", "--format", form, *sets)
    assert (code, "SM212" in err) == (2, True)


def test_a_misspelt_size_offers_the_nearest(cli: Cli, job: str) -> None:
    """Where the number of processes depends on it, the size itself is the mistake, and not a missing number."""
    sets = ("resources.instance_type=Standard_ND96asr_v44", "distribution.type=torch", REQUEST[1])
    code, out, err = cli(
        "check",
        job,
        "--target",
        "azureml",
        "--offline",
        *(word for item in sets for word in ("--set", item)),
    )
    assert (code, out) == (2, "")
    assert f"resources.instance_type\n\nhint: {suggested('Standard_ND96asr_v4')}" in err


def test_a_line_of_the_list_of_includes_has_its_place(
    cli: Cli, job: str, clean_environment: Path
) -> None:
    """Message, code and line; a right line is a notice of the plan."""
    (clean_environment / "shared").mkdir()
    (clean_environment / "shared" / "net.py").touch()
    (clean_environment / ".cloudtraininclude").write_text("shared/net.py\nshared/nett.py\n")
    result = cli("plan", job)
    assert (result.code, result.out) == (2, "")
    assert (
        "error: `shared/nett.py` does not exist [CT055]\n  .cloudtraininclude:2:1  source_dir"
        in result.err
    )
    (clean_environment / ".cloudtraininclude").write_text("shared/net.py\n")
    done = cli("plan", job)
    assert done.code == 0
    assert "notice: `net.py` comes from elsewhere, as `.cloudtraininclude` says" in done.out


def test_many_mistakes_show_the_first_twenty(cli: Cli, job: str, clean_environment: Path) -> None:
    """And say how many there are."""
    text = (clean_environment / job).read_text() + "".join(
        f"k{number}: 1\n" for number in range(500)
    )
    (clean_environment / job).write_text(text)
    result = cli("plan", job)
    assert result.err.count("error: ") == 20
    assert result.err.endswith("500 errors in job.yaml; the first 20 are shown\n")


def test_the_code_of_an_error_is_explained_and_not_ignored(cli: Cli, job: str) -> None:
    """`explain` knows it in any case; `--ignore` says that it is no check."""
    assert cli("explain", "ct012").out.startswith("CT012 (error)\nA value has the wrong type.\n")
    result = cli("plan", job, "--ignore", "CT012")
    assert (result.code, result.out) == (2, "")
    assert "and errors cannot be ignored [CT930]\n\nhint: `cloudtrain explain CT012`" in result.err


REQUEST = ["--set", "environment={framework: pytorch, version: 2.8.0}", "--format", "python"]


@pytest.mark.parametrize(
    ("target", "overrides", "code", "said"),
    [
        ("azureml", ["azureml_overrides={queueSettings: x}"], 4, "cannot express `queueSettings`"),
        ("sagemaker", ["resources.instance_type=ml.g5.xlarge", "sagemaker_overrides={DebugHookConfig: {}}"], 4,
         "`DebugHookConfig.S3OutputPath left out`"),
    ],
)  # fmt: skip
def test_what_an_sdk_has_no_word_for_is_named(
    cli: Cli, job: str, target: str, overrides: list[str], code: int, said: str
) -> None:
    """An override that only the service can read is no defect of the export."""
    sets = [word for override in overrides for word in ("--set", override)]
    result = cli("plan", job, "--target", target, *sets, *REQUEST)
    assert result.code == code
    assert said in " ".join(result.err.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["explain", "--json"], ["--help"], ["--version"]], ids=" ".join
)
def test_a_reader_that_goes_away_is_silent(arguments: list[str]) -> None:
    """`cloudtrain explain | head -1`: no complaint, exit code 141."""
    with subprocess.Popen(
        [sys.executable, "-m", "cloudtrain", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_errors_as_json_are_no_data(cli: Cli) -> None:
    """With --json a failure prints `error`, so that a script cannot mistake it for data."""
    result = cli("status", "nothing", "--json")
    assert (result.code, result.err) == (3, "")
    assert json.loads(result.out).keys() == {"error"}


@pytest.mark.parametrize("text", ["x\0y", "\ud800"])
def test_what_is_no_whole_text_is_a_mistake_of_the_job(
    cli: Cli, clean_environment: Path, text: str
) -> None:
    """A NUL character or half of one, which no process could be given: told with its place."""
    job = {"name": "a", "entry_point": "t.py", "hyperparameters": {"a": text}}
    (clean_environment / "job.json").write_text(json.dumps(job, indent=1))
    (clean_environment / "t.py").write_text("")
    result = cli("plan", "job.json")
    assert (result.code, result.out) == (2, "")
    assert "job.json:5:8" in result.err


def test_half_of_a_character_is_a_mistake_like_any_other(cli: Cli, clean_environment: Path) -> None:
    """JSON can hold a lone surrogate; the hint, which is written as the file is, holds it too."""
    (clean_environment / "train.py").write_text("")
    (clean_environment / "job.json").write_text(
        '{"name": "a", "entry_point": "train.py", "outputs": {"model": "\\ud800"}}'
    )
    result = cli("check", "job.json")
    assert result.code == 2
    assert "`model` must be a mapping" in result.err
    job = {
        "name": "a",
        "entry_point": "train.py",
        "environment": {"variables": {"A": "${{outputs.\ud800}}"}},
    }
    (clean_environment / "job.json").write_text(json.dumps(job))
    result = cli("check", "job.json")
    assert (result.code, "half of a character" in result.err) == (2, True), result


@pytest.mark.slow
def test_a_pattern_that_python_warns_about_is_no_words_on_stderr(clean_environment: Path) -> None:
    """`[[` is a character class, whatever a Python to come makes of it."""
    (clean_environment / "train.py").write_text("")
    (clean_environment / "job.yaml").write_text(
        "name: a\nentry_point: train.py\nmetrics: {loss: '[[l]oss=(.*)'}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "cloudtrain", "plan", "job.yaml"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
