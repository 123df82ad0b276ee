"""What a job requires is installed on the cluster by the submit: once, whole or not at all, and its script finds it."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.errors import TargetError
from cloudtrain.plans.states import RunState
from cloudtrain.system.processes import listening
from tests.programs import write_program
from tests.targets.slurm.site import Site, command, environ_of, find_cluster
from tests.wheels import write_wheel

NAMES = ("ct_one", "ct_two", "ct_three", "ct_four", "ct_five", "ct_six")
SETTINGS = ct.Slurm(shared_dir="/fsx/you/cloudtrain")

UV = """\
import os, subprocess, sys
arguments, base = sys.argv[1:], {python!r}
with open({log!r}, "a") as log:
    log.write(arguments[0] + " " + os.environ["UV_CACHE_DIR"] + "\\n")
if arguments[0] == "venv":
    sys.exit(subprocess.call([base, "-m", "venv", "--without-pip", arguments[3]]))
arguments = [word for word in arguments if word != "--compile-bytecode"]
sys.exit(subprocess.call([base, "-m", "pip", "--python", arguments[3], "install", *arguments[4:]]))
"""
"""As uv does, with venv and pip. It notes where its cache is."""


BACKEND = """import os, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(os.path.join(folder, "own-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("own.pth", os.getcwd() + "\\n")
        wheel.writestr("own-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: own\\nVersion: 1.0\\n")
        wheel.writestr("own-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("own-1.0.dist-info/RECORD", "")
    return "own-1.0-py3-none-any.whl"
build_wheel = build_editable
"""
"""Builds a package without setuptools, which a virtual environment may lack."""


@pytest.fixture
def wheels(clean_environment: Path) -> Path:
    """A folder with six packages, which is all that there is without a network."""
    folder = clean_environment / "wheels"
    for name in NAMES:
        write_wheel(folder, name, "1.0", code=f"WORD = {name[3:]!r}\n")
    return folder


@pytest.fixture
def project(clean_environment: Path) -> Path:
    """The working directory: a job that requires the six packages."""
    folder = clean_environment / "project"
    folder.mkdir()
    (folder / "train.py").write_text(
        f"import os, sys, pydantic\nimport {', '.join(NAMES)}\n"
        f"print(os.environ['SLURM_NODEID'], sys.prefix, {', '.join(f'{name}.WORD' for name in NAMES)})\n"
    )
    (folder / "requirements.txt").write_text("".join(f"{name}\n" for name in NAMES))
    write_job(folder)
    os.chdir(folder)
    return folder


def write_job(folder: Path, **fields: Any) -> None:
    job = {
        "name": "needs",
        "entry_point": "train.py",
        "environment": {"requirements": "requirements.txt"},
    }
    (folder / "job.json").write_text(json.dumps(job | fields))


def job() -> Any:
    return ct.load_job("job.json")


def folder_of(plan: ct.Plan) -> str:
    return str(plan.request["environment"]["folder"])


@pytest.fixture
def offline(wheels: Path) -> dict[str, Any]:
    """Settings whose `setup` lines name the packages' folder, and an interpreter of the user's own."""
    lines = (
        f"export PIP_NO_INDEX=1 PIP_FIND_LINKS='{wheels}'",
        f'export PATH="{Path(sys.executable).parent}:$PATH"',
    )
    return {"setup": lines, "python": "python3", "build_environment": True}


@pytest.fixture
def login_node(
    tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch, offline: dict[str, Any]
) -> Site:
    """A machine on which Slurm's commands are scripts, and `sent` exists once sbatch was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    sent = tmp_path / "sent"
    for name, text in {
        "squeue": "",
        "sacct": "",
        "sinfo": "",
        "sbatch": f"touch {sent}\necho 7",
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    site = Site(tmp_path, environ, offline)
    write_settings(site)
    return site


def write_settings(site: Site, **changes: Any) -> None:
    """Write `cloudtrain.toml` into the working directory."""
    settings = site.settings(**changes).model_dump(exclude_unset=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    Path("cloudtrain.toml").write_text("\n".join(["[slurm]", *lines]) + "\n")


def built_in(site: Site) -> list[str]:
    """Everything beside the links and their logs: the environments, and what a build should not leave."""
    return sorted(
        item.name for item in Path(site.shared, "environments").iterdir() if not item.is_symlink()
    )


# What the plan says. Pure.


def test_the_plan_names_the_interpreter(project: Path, state_dir: Path) -> None:
    """Ranks start with the environment's interpreter, which a command finds as `python`; a plan writes nothing."""
    plan = ct.plan(job(), SETTINGS)
    folder = folder_of(plan)
    assert folder.startswith("/fsx/you/cloudtrain/environments/")
    assert plan.processes[0].argv == (f"{folder}/bin/python", "-u", "train.py")
    assert f" {folder}/bin/python -u train.py &" in plan.request["script"]
    assert f'export PATH={folder}/bin:"$PATH"\n' in plan.request["script"]
    assert folder in plan.to_text()
    assert "-m cloudtrain.runtime.install requirements.txt" in plan.to_text()
    assert not state_dir.exists()
    two = ct.plan(
        ct.load_job("job.json", ["distribution.type=torch", "resources.instance_count=2"]), SETTINGS
    )
    assert f'"$agent" {folder}/bin/python --nnodes 2' in two.request["script"]


def test_one_content_has_one_key(project: Path) -> None:
    """Other packages, another interpreter and other lines of `setup` are another environment; other code, another name
    and another cluster partition are not."""

    def folder(**changes: Any) -> str:
        return folder_of(
            ct.plan(job(), SETTINGS.model_copy(update={"build_environment": True, **changes}))
        )

    first = folder()
    (project / "train.py").write_text("print(1)\n")
    write_job(project, name="other", hyperparameters={"lr": 1.0})
    assert {folder(), folder(partition="p5"), folder(build_environment=None)} == {first}
    others = [
        folder(python="/opt/python"),
        folder(setup=("module load a",)),
        folder(setup=("module load b",)),
    ]
    (project / "requirements.txt").write_text("ct_one\n")
    assert len({first, *others, folder()}) == 5


@pytest.mark.parametrize(
    ("settings", "image", "is_built"),
    [
        ({}, None, True),
        ({"build_environment": False}, None, False),
        ({"python": "/opt/python"}, None, False),
        ({"python": "/opt/python", "build_environment": True}, None, True),
        ({"setup": ("module load a",)}, None, False),
        ({"container": "pyxis"}, None, True),
        ({"container": "pyxis", "build_environment": True}, "image.sqsh", False),
    ],
)
def test_what_is_built(
    project: Path, settings: dict[str, Any], image: str | None, is_built: bool
) -> None:
    """By default, what the user has not arranged himself; never for a container."""
    if image:
        write_job(
            project, environment={"requirements": "requirements.txt", "image": {"slurm": image}}
        )
    plan = ct.plan(job(), SETTINGS.model_copy(update=settings))
    assert ("environment" in plan.request) is is_built
    assert ("/environments/" in plan.request["script"]) is is_built


def test_a_processing_job(project: Path) -> None:
    """It has its packages as a training job has."""
    write_job(project, kind="processing")
    plan = ct.plan(job(), SETTINGS)
    assert plan.processes[0].argv[0] == f"{folder_of(plan)}/bin/python"


def test_the_flag(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--build-environment` is the setting, for one command."""
    Path("cloudtrain.toml").write_text(
        '[slurm]\nshared_dir = "/fsx"\nsetup = ["module load cuda"]\n'
    )
    asked = ["plan", "job.json", "--target", "slurm", "--short"]
    assert run_command(asked) == 0
    assert "`build_environment = true` in `[slurm]` installs them" in capsys.readouterr().out
    assert run_command([*asked, "--build-environment"]) == 0
    assert "/fsx/environments/" in capsys.readouterr().out
    assert run_command([*asked, "--no-build-environment"]) == 0
    out = capsys.readouterr().out
    assert "SL205" not in out
    assert "/fsx/environments/" not in out


def test_only_the_installer_gets_the_variables_of_installers(project: Path) -> None:
    """The job's own index is the installer's too; other variables are not its business."""
    variables = {
        "PIP_EXTRA_INDEX_URL": "https://packages.example.org",
        "UV_HTTP_TIMEOUT": "60",
        "TOKEN": "x",
    }
    write_job(project, environment={"requirements": "requirements.txt", "variables": variables})
    script = ct.plan(job(), SETTINGS).request["environment"]["script"]
    assert (
        "export PIP_EXTRA_INDEX_URL=https://packages.example.org\nexport UV_HTTP_TIMEOUT=60\n"
        in script
    )
    assert "TOKEN" not in script


# On a login node.


def submit(site: Site, name: str = "needs", **changes: Any) -> list[str]:
    """Submit the job under a name. Return what is told meanwhile."""
    told: list[str] = []
    named = ct.load_job("job.json", [f"name={name}"])
    with listening(told.append):
        ct.submit(named, site.settings(**changes), online=False)
    return told


@pytest.mark.slow
@pytest.mark.lifecycle
def test_many_at_once_build_once(project: Path, login_node: Site) -> None:
    """Of several submits at the same time one builds, and the others wait; a later one has nothing to do."""
    names = ["first", "second", "third"]
    with ThreadPoolExecutor(len(names)) as pool:
        told = list(pool.map(lambda name: submit(login_node, name), names))
    assert (
        sorted(
            line.partition(" ")[0] for lines in told for line in lines if "built" not in line
        ).count("building")
        == 1
    )
    key = folder_of(ct.plan(job(), login_node.settings())).rpartition("/")[2]
    home, *others = built_in(login_node)
    assert home.startswith(f"{key}-")
    assert others == [f"{key}.{suffix}" for suffix in ("lock", "log", "setup", "sh")]
    assert os.access(f"{login_node.shared}/environments/{key}/bin/python", os.X_OK)
    assert len(list(Path(login_node.shared, "runs").iterdir())) == 3
    os.utime(Path(login_node.shared, "environments", home), (0, 0))
    assert submit(login_node, "later") == []
    assert Path(login_node.shared, "environments", home).stat().st_mtime > 0


@pytest.mark.slow
@pytest.mark.lifecycle
def test_uv_keeps_its_cache_beside_it(
    project: Path, login_node: Site, wheels: Path, tmp_path: Path
) -> None:
    """On the file system of the environments, so that uv can link files; unless the user has another place."""
    program, log = tmp_path / "bin" / "uv", tmp_path / "log"
    write_program(program, UV.format(python=sys.executable, log=str(log)))
    lines = (
        *login_node.options["setup"],
        f"export UV_FIND_LINKS='{wheels}' PATH=\"{program.parent}:$PATH\"",
    )
    assert "with uv" in submit(login_node, setup=lines)[0]
    cache = f"{login_node.shared}/environments/uv-cache"
    assert log.read_text().splitlines() == [f"venv {cache}", f"pip {cache}"]
    submit(login_node, setup=(*lines, "export UV_CACHE_DIR=/tmp/own"))
    assert log.read_text().splitlines()[2:] == ["venv /tmp/own", "pip /tmp/own"]


@pytest.mark.slow
@pytest.mark.lifecycle
def test_a_failed_build_sends_nothing(
    project: Path, login_node: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error has a code, the installer's reason, and the place of its output; no run is left, and mending helps."""
    (project / "requirements.txt").write_text("ct_one\nct_seven\n")
    (Path.home() / ".bash_profile").write_text("echo 'error: your quota is nearly reached'\n")
    assert run_command(["submit", "job.json", "--target", "slurm", "--detach", "--offline"]) == 4
    said = " ".join(capsys.readouterr().err.split())
    plan = ct.plan(job(), login_node.settings())
    assert re.search(
        r"environment cannot be built: `requirements.txt` cannot be installed: [^:]*ct_seven.* .CT953.",
        said,
    )
    assert "quota" not in said
    assert f"the installer's output is in `{folder_of(plan)}.log`" in said
    assert "ct_seven" in Path(f"{folder_of(plan)}.log").read_text()
    assert not (tmp_path / "sent").exists()
    assert not Path(login_node.shared, "runs").exists()
    assert [name for name in built_in(login_node) if "-" in name] == []
    assert run_command(["ps", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    (project / "requirements.txt").write_text("ct_one\n")
    submit(login_node)
    assert (tmp_path / "sent").exists()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "echo 'no module cuda' >&2; exit 3",
            "the lines of `setup` in [slurm] ended the script: no module cuda",
        ),
        ("export PATH=/nowhere", "command not found"),
    ],
)
def test_setup_that_fails(project: Path, login_node: Site, line: str, cause: str) -> None:
    """What the user's own lines do is said in their words."""
    with pytest.raises(TargetError) as caught:
        submit(login_node, setup=(line,))
    assert cause in caught.value.message
    assert caught.value.code == "CT953"
    assert not Path(login_node.shared, "runs").exists()


def test_behind_ssh(project: Path, login_node: Site, tmp_path: Path) -> None:
    """The login node of the settings builds it, and the error names that machine."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text('#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    with pytest.raises(TargetError, match="ended the script: no module") as caught:
        submit(login_node, host="me@login1", setup=("echo 'no module'; exit 3",))
    assert str(caught.value.hint).endswith(".log` on `me@login1`")


def test_code_of_an_older_version(project: Path, login_node: Site) -> None:
    """A bundle without the installer, as `rerun` may find it on the cluster, says so."""
    plan = ct.plan(job(), login_node.settings())
    place = Path(plan.uploads[0].destination)
    place.parent.mkdir(parents=True)
    with tarfile.open(place, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("train.py"), io.BytesIO())
    with pytest.raises(TargetError, match="sent by an older cloudtrain"):
        submit(login_node)


@pytest.mark.slow
@pytest.mark.lifecycle
def test_a_package_of_the_code_itself(project: Path, login_node: Site) -> None:
    """What is installed as editable is read from a copy of the code, which stays."""
    (project / "own").mkdir()
    (project / "own" / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    (project / "own" / "backend.py").write_text(BACKEND)
    (project / "own" / "own.py").write_text("WORD = 'own'\n")
    (project / "requirements.txt").write_text("-e ./own\n")
    submit(login_node)
    python = f"{folder_of(ct.plan(job(), login_node.settings()))}/bin/python"
    assert command({}, python, "-c", "import own; print(own.WORD)") == "own\n"


# On a real cluster.


@pytest.fixture
def cluster_site(
    tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch, offline: dict[str, Any]
) -> Iterator[Site]:
    environ = environ_of(find_cluster(), tmp_path)
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, environ[name])
    site = Site(tmp_path, environ, offline)
    yield site
    site.clean_up()


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.lifecycle
def test_installed_on_every_node(project: Path, cluster_site: Site) -> None:
    """The six packages are there on both nodes, and so is what the interpreter below has; the next job finds them."""
    two = ct.load_job("job.json", ["resources.instance_count=2"])
    run = ct.submit(two, cluster_site.settings(), online=False)
    assert run.wait().state is RunState.SUCCEEDED, run.last_status.reason
    folder = folder_of(ct.plan(two, cluster_site.settings()))
    words = " ".join(name[3:] for name in NAMES)
    lines = sorted(line.text for line in run.logs() if line.stream == "stdout")
    assert lines == [f"{node} {folder} {words}" for node in (0, 1)]
    inode = Path(folder, "pyvenv.cfg").stat().st_ino
    command_job = ct.load_job(
        "job.json",
        ["command=python -c 'import ct_six, sys; print(sys.prefix)'", "entry_point=null"],
    )
    again = ct.submit(command_job, cluster_site.settings(), online=False)
    assert again.wait().state is RunState.SUCCEEDED, again.last_status.reason
    assert [line.text for line in again.logs() if line.stream == "stdout"] == [folder]
    assert Path(folder, "pyvenv.cfg").stat().st_ino == inode
