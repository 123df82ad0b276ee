"""Commands for a first job: init, scripts, schema, explain, doctor."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.cli.conftest import Cli
from tests.hints import suggested


def test_init_writes_a_job_that_plans(cli: Cli, clean_environment: Path) -> None:
    """The file loads, names the next commands, and loads with its commented fields in use too."""
    (clean_environment / "src").mkdir()
    (clean_environment / "src" / "train.py").write_text("print(1)\n")
    result = cli("init")
    assert (result.code, result.out) == (0, "job.yaml\njob.schema.json\nsrc/.cloudtrainignore\n")
    assert "`cloudtrain submit job.yaml`" in result.err
    job = ct.load_job("job.yaml")
    assert (job.entry_point, Path(job.source_dir).name, job.name) == (
        "train.py",
        "src",
        clean_environment.name,
    )
    text = (clean_environment / "job.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=job.schema.json\n")
    assert json.loads((clean_environment / "job.schema.json").read_text()) == json.loads(
        cli("schema").out
    )
    used = re.sub(
        r"^# ?(?=hyper|inputs|environment|checkpoint|max_runtime|  \w)",
        "",
        text,
        flags=re.MULTILINE,
    )
    (clean_environment / "job.yaml").write_text(used)
    job = ct.load_job("job.yaml")
    assert job.hyperparameters == {"epochs": 3, "learning_rate": 0.01}
    assert set(job.environment.secrets) == {"HF_TOKEN"}
    assert (set(job.inputs), job.max_runtime, job.checkpoint is not None) == ({"train"}, 7200, True)


@pytest.mark.parametrize(
    "folder", ["my project", "1st_try", "日本", "a" * 60, "--", "2024", "true", "null", "1e3"]
)
@pytest.mark.parametrize("script", ["train.py", "my script.py", "tr:ain #1.py", "12"])
@pytest.mark.slow_after(4)
def test_init_takes_any_names(cli: Cli, clean_environment: Path, folder: str, script: str) -> None:
    """Folders and scripts with blanks, colons or no letters still give a job file that loads."""
    here = clean_environment / folder
    here.mkdir()
    (here / script).write_text("print(1)\n")
    assert cli("init", str(here / "job.yaml"), "--script", str(here / script)).code == 0
    job = ct.load_job(here / "job.yaml")
    assert job.entry_point == script
    assert job.name == folder or folder not in ("2024", "true", "null", "1e3")
    assert Path(job.source_dir) == here or (here / job.source_dir).resolve() == here


def test_init_finds_the_only_script(cli: Cli, clean_environment: Path) -> None:
    """A folder with one Python file needs no --script; an empty one gets a job for the `train.py` to come."""
    assert "write `train.py`, then" in cli("init", "first.yaml").err
    (clean_environment / "fit.py").write_text("")
    cli("init", "second.yaml")
    assert ct.load_job("second.yaml").entry_point == "fit.py"


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("import torch.distributed\n", "torch"),
        ("import torch\n", "none"),
        ("import os\n", "none"),
        ("import deepspeed\n", "deepspeed"),
        ("def (\n", "torch"),
    ],
)
def test_init_looks_at_the_imports(
    cli: Cli, clean_environment: Path, text: str, distribution: str
) -> None:
    """The job starts the script's processes as its imports ask for."""
    (clean_environment / "train.py").write_text(text)
    assert cli("init").code == 0
    assert ct.load_job("job.yaml").distribution.type == distribution


def test_init_never_overwrites(cli: Cli, clean_environment: Path) -> None:
    """An existing file stays as it is without --force."""
    file = clean_environment / "job.yaml"
    file.write_text("mine")
    result = cli("init")
    assert result.code == 2
    assert "--force" in result.err
    assert file.read_text() == "mine"
    ignored = clean_environment / ".cloudtrainignore"
    ignored.write_text("mine")
    assert cli("init", "--force").code == 0
    assert (file.read_text() != "mine", ignored.read_text()) == (True, "mine")


def test_init_keeps_a_name_that_looks_like_a_number(cli: Cli) -> None:
    """`--name 2024` is text in the file."""
    assert cli("init", "--name", "2024").code == 0
    assert ct.load_job("job.yaml").name == "2024"


@pytest.mark.parametrize(
    ("file", "better"), [("job.toml", "job.yaml"), ("big", "big.yaml"), ("jobs", "jobs/job.yaml")]
)
@pytest.mark.slow_after(1)
def test_init_writes_yaml(cli: Cli, clean_environment: Path, file: str, better: str) -> None:
    """Any other file could not be read as a job afterwards; the hint does what it says."""
    (clean_environment / "jobs").mkdir()
    result = cli("init", file, "--force")
    assert (result.code, result.out) == (2, "")
    assert f"`cloudtrain init {better}`" in result.err
    assert cli("init", better).code == 0
    assert ct.load_job(better)


def test_init_says_what_is_wrong_with_a_name(cli: Cli) -> None:
    """A name that no job may have is refused before the file is written."""
    result = cli("init", "--name", "not a name!")
    assert result.code == 2
    assert not Path("job.yaml").exists()


def test_scripts_list_show_copy(cli: Cli, clean_environment: Path) -> None:
    """Each bundled script is listed with what it does, shown, and copied whole; the copy's job loads."""
    listed = json.loads(cli("scripts", "list", "--json").out)
    assert "digits_ddp" in {item["name"] for item in listed}
    assert all(item["summary"] for item in listed)
    table = cli("scripts", "list").out
    # A wrapped summary is indented.
    rows = [line for line in table.splitlines()[1:] if not line.startswith(" ")]
    assert [row.split()[0] for row in rows] == [item["name"] for item in listed]
    shown = cli("scripts", "show", "digits_ddp").out
    assert cli("scripts", "copy", "digits_ddp", "mine").out == "mine\n"
    assert (clean_environment / "mine" / "train.py").read_text() == shown
    assert ct.load_job("mine/job.yaml").entry_point == "train.py"


def test_a_file_that_two_scripts_share_is_in_both(cli: Cli, clean_environment: Path) -> None:
    """It is shown and copied with either; the copy's plan needs nothing else."""
    assert cli("scripts", "copy", "gpt_fsdp").out == "gpt_fsdp\n"
    shown = cli("scripts", "show", "gpt_fsdp", "--file", "gpt.py").out
    assert shown == cli("scripts", "show", "pipeline_gpt", "--file", "gpt.py").out
    assert (clean_environment / "gpt_fsdp" / "gpt.py").read_text() == shown
    missing = cli("scripts", "show", "gpt_fsdp", "--file", "gtp.py")
    assert (missing.code, missing.out) == (2, "")
    assert suggested("gpt.py") in missing.err


def test_scripts_copy_never_overwrites(cli: Cli, clean_environment: Path) -> None:
    """A folder with something in it is left alone."""
    (clean_environment / "mine").mkdir()
    (clean_environment / "mine" / "x").write_text("x")
    result = cli("scripts", "copy", "digits_ddp", "mine")
    assert result.code == 2
    assert "`mine` already exists" in result.err
    assert [path.name for path in (clean_environment / "mine").iterdir()] == ["x"]


@pytest.mark.slow
def test_explain_every_rule(cli: Cli) -> None:
    """Each rule and each error can be explained, at 80 columns, in any case."""
    rules = json.loads(cli("explain", "--json").out)
    assert rules
    for rule in rules:
        text = cli("explain", rule["code"].lower())
        assert text.code == 0
        assert text.out.startswith(f"{rule['code']} ({rule['level']})\n")
        assert (f"--ignore {rule['code']}" in text.out) is rule["can_be_ignored"]
        assert max(map(len, text.out.splitlines())) <= 80


def test_schema_accepts_a_job_and_refuses_a_typo(cli: Cli) -> None:
    """What is printed is a JSON Schema under which a real job is valid and a misspelt field is not."""
    import jsonschema

    schema = json.loads(cli("schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"name": "a", "entry_point": "train.py"})
    assert not validator.is_valid({"name": "a", "entry_pont": "train.py"})


@pytest.mark.torch
def test_doctor(cli: Cli, state_dir: Path) -> None:
    """Looks at everything, writes nothing, and says the same in JSON."""
    result = cli("doctor")
    assert result.code == 0, result.out
    assert max(len(line) for line in result.out.splitlines() if "/" not in line) <= 80
    found = {item["subject"]: item for item in json.loads(cli("doctor", "--json").out)}
    assert {"python", "torch", "machine", "mpirun", "state folder", "disk", "settings"} <= set(
        found
    )
    assert found["state folder"]["message"] == str(state_dir)
    absent = [item for item in found.values() if item["message"].startswith("not installed")]
    assert {item["level"] for item in absent} <= {"optional"}
    assert not state_dir.exists()


@pytest.mark.usefixtures("_torch_is_known")
def test_doctor_finds_a_broken_settings_file(cli: Cli, clean_environment: Path) -> None:
    """What would break every command is an error of the doctor, with a hint, and code 2."""
    (clean_environment / "cloudtrain.toml").write_text("target = ")
    result = cli("doctor")
    assert result.code == 2
    assert "cloudtrain.toml:1:" in result.out
    assert "not valid TOML" in " ".join(result.out.split())
    assert result.out.count("error: ") == 1  # although it stops several examinations


@pytest.mark.usefixtures("_torch_is_known")
def test_doctor_finds_a_state_folder_that_cannot_be_made(
    cli: Cli, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state folder below a file cannot exist: an error that names the variable."""
    (clean_environment / "file").write_text("")
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(clean_environment / "file" / "state"))
    result = cli("doctor")
    assert result.code == 2
    assert "CLOUDTRAIN_STATE_DIR" in result.out


def test_init_finds_the_only_program(cli: Cli, clean_environment: Path) -> None:
    """Of several files, the one that runs as a program is the script; of several programs, `init` names all."""
    for name in ("model.py", "data.py"):
        (clean_environment / name).write_text("X = 1\n")
    main = "if __name__ == '__main__':\n    print(1)\n"
    (clean_environment / "finetune.py").write_text(main)
    assert cli("init", "one.yaml").code == 0
    assert ct.load_job("one.yaml").entry_point == "finetune.py"
    for name in ("evaluate.py", "pretrain.py"):
        (clean_environment / name).write_text(main)
    several = cli("init", "two.yaml")
    said = " ".join(several.err.split())
    assert several.code == 2
    assert (
        "several scripts could train: `evaluate.py`, `finetune.py`, `pretrain.py` [CT903]" in said
    )
    assert "`cloudtrain init two.yaml --script evaluate.py`" in said
    assert not Path("two.yaml").exists()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("target", "machine"), [("sagemaker", "ml.g5.xlarge"), ("azureml", "Standard_NC24ads_A100_v4")]
)
def test_the_template_has_what_a_cloud_asks_for(
    cli: Cli, clean_environment: Path, target: str, machine: str
) -> None:
    """With the commented environment in use, only the machine is to be named."""
    (clean_environment / "train.py").write_text("print(1)\n")
    (clean_environment / "cloudtrain.toml").write_text(
        "[sagemaker]\nregion = 'eu-west-1'\nrole = 'arn:aws:iam::123456789012:role/R'\nbucket = 'bucket'\n"
        "[azureml]\nsubscription_id = '00000000-0000-0000-0000-000000000000'\nresource_group = 'rg'\nworkspace = 'ws'\n"
    )
    assert cli("init").code == 0
    text = Path("job.yaml").read_text()
    used = re.sub(
        r"^# (?=environment:)|^# ?(?=  (?:framework|version):)", "", text, flags=re.MULTILINE
    )
    Path("job.yaml").write_text(used)
    planned = cli(
        "plan",
        "job.yaml",
        "--target",
        target,
        "--set",
        f"resources.instance_type.{target}={machine}",
    )
    assert planned.code == 0, planned.out + planned.err


ARGPARSE = """\
import argparse
def options():
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("training")
    group.add_argument("-e", "--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--schedule", default="1e-3")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--sizes", nargs="+", default=[1])
    parser.add_argument("--seed", type=int)
    return parser.parse_args()
options()
"""
NO_OPTIONS = {
    "hydra": "import hydra\n@hydra.main(config_path='.')\ndef main(c): pass\nmain()\n",
    "click": "import click\n@click.command()\n@click.option('--epochs', default=3)\ndef main(epochs): pass\n",
    "nothing": "lr = 0.1\n",
    "no Python": "print 1\n",
}


def test_init_takes_the_script_and_its_options(cli: Cli, clean_environment: Path) -> None:
    """Each option with a default that is a number or a text becomes a hyperparameter; flags do not."""
    (clean_environment / "train.py").write_text(ARGPARSE)
    result = cli("init", "train.py")
    assert (result.code, result.out.split()[0]) == (0, "job.yaml")
    job = ct.load_job("job.yaml")
    assert (job.entry_point, job.source_dir) == ("train.py", str(clean_environment))
    assert job.hyperparameters == {
        "epochs": 3, "learning-rate": 0.001, "schedule": "1e-3"
    }  # fmt: skip
    assert cli("check", "job.yaml").code == 0


def test_init_leaves_what_the_script_requires_to_the_check(
    cli: Cli, clean_environment: Path
) -> None:
    """Only the user knows the value. The script may be in a folder of its own."""
    (clean_environment / "src").mkdir()
    (clean_environment / "src" / "fit.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\n"
    )
    assert cli("init", "src/fit.py").code == 0
    assert "source_dir: src" in (clean_environment / "job.yaml").read_text()
    checked = cli("check", "job.yaml", "--json")
    assert "CT209" in {item["code"] for item in json.loads(checked.out)}


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("a.ipynb", "jupyter nbconvert --to script a.ipynb"),
        ("a.ipynb", "cloudtrain init a.py"),
        ("run.sh", "cloudtrain adopt run.sh"),
        ("job.toml", "cloudtrain init job.yaml"),
    ],
)
def test_init_names_the_command_for_another_file(cli: Cli, file: str, command: str) -> None:
    """It writes YAML for Python scripts; a notebook or a shell script goes another way."""
    refused = cli("init", file)
    assert refused.code == 2
    assert f"`{command}`" in " ".join(refused.err.split())


def test_init_takes_the_whole_project(cli: Cli, clean_environment: Path) -> None:
    """A script of a project may import its packages, so the code is the project's folder."""
    for folder in ("scripts", "src/mypkg"):
        (clean_environment / folder).mkdir(parents=True)
    (clean_environment / "pyproject.toml").write_text("[project]\nname = 'mypkg'\n")
    (clean_environment / "src/mypkg/__init__.py").write_text("")
    (clean_environment / "scripts/fit.py").write_text("import mypkg\n")
    assert cli("init", "scripts/fit.py").code == 0
    job = ct.load_job("job.yaml")
    assert (job.source_dir, job.entry_point) == (str(clean_environment), "scripts/fit.py")
    hints = [item["hint"] for item in json.loads(cli("check", "job.yaml", "--json").out)]
    assert any("PYTHONPATH: src" in (hint or "") for hint in hints)


@pytest.mark.parametrize("case", NO_OPTIONS)
def test_init_of_a_script_without_such_options(
    cli: Cli, clean_environment: Path, case: str
) -> None:
    """The file shows how hyperparameters are written, and has none."""
    (clean_environment / "train.py").write_text(NO_OPTIONS[case])
    assert cli("init", "train.py").code == 0
    assert dict(ct.load_job("job.yaml").hyperparameters) == {}
    assert "#   epochs: 3" in (clean_environment / "job.yaml").read_text()
    again = cli("init", "train.py")
    assert again.code == 2
    assert "--force --script train.py" in " ".join(again.err.split())
