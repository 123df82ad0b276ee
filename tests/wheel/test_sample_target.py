"""A target in a package of its own: built as a wheel, installed beside cloudtrain's, and used by its name.

The package is `tests/sample_target/`, which `docs/development/adding-a-target.md` walks through.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import jsonschema
import psutil  # noqa: TID253 - the test kills processes
import pytest
import yaml

from tests.deadlines import DEADLINE
from tests.hints import suggested
from tests.targets.places import eventually
from tests.wheel.conftest import ROOT, build, run

pytestmark = pytest.mark.wheel

PACKAGE = ROOT / "tests" / "sample_target"

TRAIN = """
import os, sys
from pathlib import Path
print("argv", *sys.argv[1:])
print("read", Path(os.environ["CLOUDTRAIN_INPUT_TRAIN"], "digits.txt").read_text())
print("nice", os.nice(0), os.environ["COLOR"])
Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "weights.txt").write_text("trained")
"""

JOB = """
name: tiny
source_dir: src
entry_point: train.py
hyperparameters: {epochs: 2}
distribution: {type: none}
resources: {instance_type: {folder: background, sagemaker: ml.m5.large}}
inputs: {train: {folder: data/digits, local: digits}}
folder_overrides: {env: {COLOR: blue}}
"""

SECOND = """
name: second
source_dir: src
command: "trap 'exit 3' TERM; cat ${{inputs.train}}/weights.txt; echo; while true; do sleep 0.05; done"
distribution: {type: none}
inputs: {train: {folder: "run:tiny/model"}}
"""


class Project:
    """A user's folder with jobs and a `cloudtrain.toml`, and the command line in it."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self._binaries = binaries
        self.env = {
            "CLOUDTRAIN_STATE_DIR": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        (folder / "src").mkdir()
        (folder / "src" / "train.py").write_text(TRAIN)
        (folder / "queue" / "data" / "digits").mkdir(parents=True)
        (folder / "queue" / "data" / "digits" / "digits.txt").write_text("0123456789")
        (folder / "job.yaml").write_text(JOB)
        (folder / "second.yaml").write_text(SECOND)
        self.configure(
            'target = "folder"\n[folder]\nroot = "queue"\n[profiles.other.folder]\nroot = "elsewhere"\n'
        )

    def configure(self, text: str) -> None:
        """Write `cloudtrain.toml`."""
        (self.folder / "cloudtrain.toml").write_text(text)

    def __call__(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `cloudtrain`."""
        return run(
            str(self._binaries / "cloudtrain"), *argv, cwd=self.folder, check=check, env=self.env
        )

    def fails(self, *argv: str, code: int = 2) -> str:
        """What a command says that must fail with this exit code."""
        result = self(*argv, check=False)
        assert result.returncode == code, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return result.stderr

    def python(self, script: str) -> str:
        """What a script prints that uses the package."""
        return run(
            str(self._binaries / "python"), "-c", script, cwd=self.folder, env=self.env
        ).stdout


@pytest.fixture(scope="module")
def with_target(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The clean environment with the sample's wheel too, as long as these tests last."""
    folder = tmp_path_factory.mktemp("sample")
    pip = [str(installed / "python"), "-m", "pip"]
    run(*pip, "install", "-q", "--no-deps", str(build(PACKAGE, folder)), cwd=folder)
    yield installed
    run(*pip, "uninstall", "-q", "-y", "cloudtrain-folder", cwd=folder)


@pytest.fixture
def project(with_target: Path, tmp_path: Path) -> Project:
    """A project of a user who has the package."""
    return Project(tmp_path, with_target)


def test_it_is_small() -> None:
    """The whole package has fewer than 300 lines."""
    files = [file for file in PACKAGE.rglob("*") if file.suffix in (".py", ".toml")]
    assert len(files) == 6
    assert sum(len(file.read_text().splitlines()) for file in files) < 300


def test_a_run_from_its_plan_to_its_model(project: Project) -> None:
    """`submit` starts what `plan` has shown; `status`, `logs`, `ps`, `wait` and `download` find it by its name."""
    plan = json.loads(project("plan", "job.yaml", "--json").stdout)
    assert plan["target"] == "folder"
    assert plan["request"]["argv"][:3] == ["nice", "-n", "10"]
    assert plan["request"]["env"]["COLOR"] == "blue"
    assert not list(project.folder.glob("queue/runs"))
    project("submit", "job.yaml", "--target", "folder")
    sent = project.folder / "queue" / "runs" / plan["run_name"] / "request.json"
    assert json.loads(sent.read_text()) == plan["request"]
    status = json.loads(project("status", "last", "--json").stdout)
    assert (status["name"], status["state"]) == (plan["run_name"], "succeeded")
    said = [line.removeprefix("[rank 0] ") for line in project("logs", "last").stdout.splitlines()]
    assert said == ["argv --epochs 2", "read 0123456789", f"nice {min(19, os.nice(0) + 10)} blue"]
    listed = json.loads(project("ps", "--target", "folder", "--json").stdout)
    assert [item["name"] for item in listed] == [plan["run_name"]]
    assert project("wait", "last").returncode == 0
    project("download", "last", "model/", "--to", "got")
    assert (project.folder / "got" / "weights.txt").read_text() == "trained"


def test_a_later_run_reads_from_an_earlier_one_and_is_stopped(project: Project) -> None:
    """`run:tiny/model` is the folder of the earlier run; `stop` ends a run that goes on, and twice is once."""
    project("submit", "job.yaml")
    name = project("submit", "second.yaml", "--detach").stdout.strip()
    eventually(lambda: "trained" in project("logs", name).stdout)
    assert json.loads(project("status", name, "--json").stdout)["state"] == "running"
    project("stop", name)
    project("stop", name)
    assert project("wait", name, check=False).returncode == 1
    assert json.loads(project("status", name, "--json").stdout)["state"] == "stopped"


def test_a_second_submit_is_a_second_run(project: Project) -> None:
    """The same job again has a name of its own, and both runs are there."""
    first, second = (project("submit", "job.yaml", "--detach").stdout.strip() for _ in range(2))
    assert (first[:-2], first[-2:], second[-2:]) == (second[:-2], "-1", "-2")
    assert {path.name for path in project.folder.glob("queue/runs/*")} == {first, second}


def test_a_script_that_fails(project: Project) -> None:
    """A failed run says why, and `submit` has the exit code of a run that did not succeed."""
    (project.folder / "src" / "train.py").write_text("raise ValueError('bad thing')")
    assert "ValueError: bad thing" in project.fails("submit", "job.yaml", code=1)
    assert "ValueError: bad thing" in project("status", "last").stdout


def test_from_python(project: Project) -> None:
    """The target's name works wherever Python takes one, and its places are fields of the job."""
    said = project.python(
        "import cloudtrain as ct\n"
        "job = ct.TrainingJob(name='py', source_dir='src', entry_point='train.py', distribution=ct.NoDistribution(),\n"
        "    inputs={'train': ct.Input(folder='data/digits')}, folder_overrides={'env': {'COLOR': 'red'}})\n"
        "print(ct.plan(job, 'folder').request['env']['COLOR'])\n"
        "run = ct.submit(job, 'folder')\n"
        "print(run.wait().state, run.ref.target, job.inputs['train'].folder)\n"
    )
    assert said.split() == ["red", "succeeded", "folder", "data/digits"]


def test_settings(project: Project) -> None:
    """A profile overrides the target's table; the plan names the file; a wrong field or table is placed in it."""
    other = json.loads(project("plan", "job.yaml", "--profile", "other", "--json").stdout)
    assert other["request"]["archive"].startswith(str(project.folder / "elsewhere"))
    assert other["settings"] == [str(project.folder / "cloudtrain.toml")]
    project.configure('[folder]\nrot = "queue"\n')
    said = project.fails("plan", "job.yaml", "--target", "folder")
    assert "cloudtrain.toml:2:1" in said
    assert suggested("root") in said
    project.configure('[foldr]\nroot = "queue"\n')
    said = project.fails("plan", "job.yaml", "--target", "folder")
    assert "unknown table `foldr`" in said
    assert suggested("folder") in said


def test_its_own_rule(project: Project) -> None:
    """`FO101` stops a submit, is explained, and cannot be ignored."""
    project.configure("")
    said = project.fails("submit", "job.yaml", "--target", "folder")
    assert "[FO101]" in said
    assert 'add `root = "PATH"` to `[folder]` in cloudtrain.toml' in said
    said = project.fails("check", "job.yaml", "--target", "folder", "--ignore", "FO101")
    assert "`FO101` cannot be ignored" in said
    told = project("explain", "FO101").stdout
    assert "No folder is named for the runs." in told
    assert "which the settings name" in told
    assert "FO101" in project("explain").stdout


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        ("inputs.train.foldr=x", suggested("folder")),
        ("folder_override.env.COLOR=x", suggested("folder_overrides")),
        ("resources.instance_type.foldr=normal", suggested("folder")),
        ("resources.instance_type.folder=backgroud", suggested("background")),
        ("distribution.type=torch", "write `distribution: {type: none}`"),
    ],
)
def test_mistakes_in_a_job(project: Project, changed: str, hint: str) -> None:
    """A name that is nearly the target's, and what the target refuses, are errors with a hint."""
    assert hint in project.fails("plan", "job.yaml", "--set", changed)


def test_a_name_that_is_nearly_the_targets(project: Project) -> None:
    """A target that nobody has is an error that names the nearest one."""
    assert suggested("folder") in project.fails("plan", "job.yaml", "--target", "foldr")


def test_the_schema_has_its_fields(project: Project) -> None:
    """The JSON Schema takes the job with the target's values, says what a place is, and refuses another name."""
    schema = json.loads(project("schema").stdout)
    job = yaml.safe_load(JOB)
    jsonschema.validate(job, schema)
    assert "A path below the root, or an absolute one." in json.dumps(schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job | {"inputs": {"train": {"foldr": "x"}}}, schema)


def test_the_shell_completes_its_name(project: Project) -> None:
    """TAB after `--target` offers it, and after `explain` its rule."""
    for line, word in (
        ("cloudtrain submit --target fo", "folder"),
        ("cloudtrain explain FO", "FO101"),
    ):
        words = {
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
            "_CLOUDTRAIN_COMPLETE": "complete_bash",
        }
        project.env |= words
        assert project(check=False).stdout.split() == [word]


def test_the_doctor_looks_at_it(project: Project) -> None:
    """`doctor` says what the target says about its account."""
    assert f"runs in {project.folder / 'queue'}" in project("doctor", check=False).stdout


def test_a_run_whose_processes_were_killed_is_lost(project: Project) -> None:
    """After a reboot of the machine, say: the run is lost, and nobody runs it again."""
    project("submit", "job.yaml")
    name = project("submit", "second.yaml", "--detach").stdout.strip()
    eventually(lambda: "trained" in project("logs", name).stdout)
    found = [
        one
        for one in psutil.process_iter(["cmdline"])
        if any(name in word for word in one.info["cmdline"] or ())
    ]
    killed = [child for one in found for child in (one, *_children(one))]
    for process in killed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    # a killed process is there until the kernel has ended it
    psutil.wait_procs(killed, timeout=DEADLINE)
    assert json.loads(project("status", name, "--json").stdout)["state"] == "lost"
    assert project("logs", name).stdout.count("trained") == 1


def _children(process: psutil.Process) -> list[psutil.Process]:
    """Those below a process; none where it has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []
