"""`cloudtrain environments`: lists and removes what cloudtrain has built, and lets uv decide versions for an image."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.system.plugins import pip_line
from tests.cli.conftest import Cli
from tests.cli.test_completion import complete
from tests.hints import suggested
from tests.locks import LOCK, write
from tests.wheels import write_wheel

SETTINGS = """\
[sagemaker]
role = "arn:aws:iam::123456789012:role/R"
bucket = "my-bucket"
region = "eu-west-1"
"""
JOB = """\
name: own
entry_point: train.py
environment: {{framework: pytorch, version: "2.13", requirements: {requirements}}}
resources: {{instance_type: {{sagemaker: ml.g5.2xlarge}}}}
"""
SCRIPT = '# /// script\n# dependencies = ["timm"]\n# ///\n'
PROJECT = """\
[project]
name = "own"
version = "0.1"
dependencies = ["timm"]
[project.optional-dependencies]
plot = ["numpy"]
[dependency-groups]
eval = ["sympy"]
"""


@pytest.fixture
def project(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job without pins, and a folder of packages as the only index. The newest torchvision needs the newest torch."""
    wheels = clean_environment / "wheels"
    for torch in ("2.13.0", "2.14.1"):
        write_wheel(wheels, "torch", torch, ["sympy", "nvidia-nccl-cu13"])
    for vision, torch in (("0.28.0", "2.13.0"), ("0.29.1", "2.14.1")):
        write_wheel(wheels, "torchvision", vision, [f"torch=={torch}", "numpy"])
    write_wheel(wheels, "timm", "1.0", ["torchvision"])
    for name in ("sympy", "nvidia-nccl-cu13", "numpy"):
        write_wheel(wheels, name, "1.0", ["mpmath"] if name == "sympy" else [])
    write_wheel(wheels, "mpmath", "1.0", ["sympy"])  # a circle below torch
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    monkeypatch.setenv("UV_CACHE_DIR", str(clean_environment / "cache"))
    folder = clean_environment / "project"
    write(folder, {"cloudtrain.toml": SETTINGS, "train.py": "print(1)\n", "requirements.txt": "timm\n",
                   "job.yaml": JOB.format(requirements="requirements.txt")})  # fmt: skip
    os.chdir(folder)
    return folder


def pins(file: Path) -> list[str]:
    """The lines of packages, without hashes."""
    return [
        line.removesuffix(" \\") for line in file.read_text().splitlines() if line[:1].isalpha()
    ]


HELD = ["numpy==1.0", "timm==1.0", "torch==2.13.0", "torchvision==0.28.0"]


def test_the_images_torch_decides(cli: Cli, project: Path) -> None:
    """torch has the image's version, what only torch needs is left out, and a plan reads the file as a closed list."""
    result = cli("environments", "lock", "job.yaml", "--target", "sagemaker")
    assert (result.code, result.out) == (0, "requirements.lock.txt\n"), result.err
    said = " ".join(result.err.split())
    assert (
        "4 packages; Python 3.12; torch 2.13.0 of the image stays, without 3 packages that only torch needs"
        in said
    )
    assert "in the job: `environment: {requirements: requirements.lock.txt}`" in said
    lock = project / "requirements.lock.txt"
    assert pins(lock) == HELD
    assert "cloudtrain environments lock job.yaml --target sagemaker" in lock.read_text()
    assert str(project.parent) not in lock.read_text()
    (project / "job.yaml").write_text(JOB.format(requirements="requirements.lock.txt"))
    plan = json.loads(cli("plan", "job.yaml", "--target", "sagemaker", "--json").out)
    listed = plan["environment"]["requirements"]
    assert listed["undecided"] == 0
    assert all(len(item["hashes"]) == 1 for item in listed["packages"])
    assert not any("pinned" in note for note in plan["notes"])
    assert "torch 2.13.0+cu130 ->" not in plan["summary"]["requirements"]


def test_a_plan_resolves_nothing(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan, check or dry run of an unpinned file starts uv."""
    asked = project.parent / "asked"
    write(project.parent / "bin", {"uv": f"#!/bin/sh\ntouch {asked}\nexit 1\n"})
    (project.parent / "bin" / "uv").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{project.parent / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for words in (
        ["plan", "job.yaml"],
        ["check", "job.yaml", "--offline"],
        ["submit", "job.yaml", "--dry-run"],
    ):
        assert cli(*words, "--target", "sagemaker").code == 0
    assert not asked.exists()
    assert cli("environments", "lock", "job.yaml").code == 1
    assert asked.exists()


@pytest.mark.parametrize(
    ("file", "more", "expected"),
    [
        ("requirements.txt", ["--python", "3.12"], HELD),
        ("train.py", [], HELD),
        (
            "pyproject.toml, extras: [plot], groups: [eval]",
            [],
            ["mpmath==1.0", *HELD, "sympy==1.0"],
        ),
        ("needs/gpu.txt", [], HELD),
    ],
)
def test_every_form_is_resolved(
    cli: Cli, project: Path, file: str, more: list[str], expected: list[str]
) -> None:
    """A file of pip with an included one, a script's block, a project with an extra and a group: what is asked for
    stays, also if torch needs it too. The list is beside the file."""
    write(project, {"train.py": SCRIPT, "pyproject.toml": PROJECT, "needs/gpu.txt": "-r more.txt\n",
                    "needs/more.txt": "timm\n", "job.yaml": JOB.format(requirements=file)})  # fmt: skip
    result = cli("environments", "lock", "job.yaml", "--target", "sagemaker", *more)
    assert result.code == 0, result.err
    assert sorted(pins(project / result.out.strip())) == sorted(expected)
    folder = Path(file).parent.as_posix()
    assert result.out == f"{'' if folder == '.' else f'{folder}/'}requirements.lock.txt\n"
    assert f"{{requirements: {result.out.strip()}}}" in " ".join(result.err.split())


def test_without_an_image_the_index_decides(cli: Cli, project: Path) -> None:
    """On this machine, and where the image is not known; a target whose Python is not known is told it."""
    result = cli("environments", "lock", "requirements.txt", "-o", "here.txt")
    assert result.code == 0, result.err
    assert "torch 2.14.1 is the index's, because no image with torch is known" in " ".join(
        result.err.split()
    )
    assert {"torch==2.14.1", "nvidia-nccl-cu13==1.0"} <= {*pins(project / "here.txt")}
    refused = cli("environments", "lock", "requirements.txt", "--target", "slurm")
    assert refused.code == 2
    assert "the version of Python on `slurm` is not known [CT902]" in refused.err
    assert (
        cli(
            "environments", "lock", "requirements.txt", "--target", "slurm", "--python", "3.12"
        ).code
        == 0
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "torch==2.12\n",
            "torch==2.12 and torch==2.13.0, we can conclude that your requirements are unsatisfiable",
        ),
        ("no-such-package\n", "Because no-such-package was not found"),
    ],
)
def test_what_uv_cannot_resolve_is_told(cli: Cli, project: Path, text: str, reason: str) -> None:
    """Exit code 1, uv's reason, what is held, and nothing is written."""
    (project / "requirements.txt").write_text(text)
    result = cli("environments", "lock", "job.yaml", "--target", "sagemaker")
    assert (result.code, result.out) == (1, "")
    said = " ".join(result.err.split())
    assert said.startswith("error: uv cannot resolve `requirements.txt`: ")
    assert reason in said
    assert "[CT059]" in said
    assert ("`torch==2.13.0` is the image's" in said) is ("torch" in text)
    assert not (project / "requirements.lock.txt").exists()


def test_without_uv_the_extra_is_named(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv is neither on the PATH nor installed beside cloudtrain."""
    monkeypatch.setenv("PATH", str(project))
    monkeypatch.setitem(sys.modules, "uv", None)
    result = cli("environments", "lock", "requirements.txt")
    assert result.code == 2
    assert (
        result.err.split() == f"error: `uv` is not installed [CT921] hint: {pip_line('uv')}".split()
    )


def test_a_file_is_replaced_on_request(cli: Cli, project: Path) -> None:
    """As by `init`: the hint is the whole command."""
    (project / "requirements.lock.txt").write_text("mine\n")
    refused = cli("environments", "lock", "job.yaml", "--target", "sagemaker", "--python", "3.12")
    assert refused.code == 2
    again = "`cloudtrain environments lock job.yaml --target sagemaker --python 3.12 --force` replaces it"
    assert again in " ".join(refused.err.split())
    assert (project / "requirements.lock.txt").read_text() == "mine\n"
    assert cli("environments", "lock", "job.yaml", "--target", "sagemaker", "--force").code == 0
    assert pins(project / "requirements.lock.txt") == HELD


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.txt"], "there is no file `nowhere.txt`"),
        (["uv.lock"], "`uv.lock` is a lock already"),
        (["broken.txt"], "line 1 of `broken.txt` is not a requirement: `numpy=1.26`"),
        (["environment.yml.txt"], "`environment.yml.txt` is a conda file"),
        (
            ["requirements.txt", "--python", "three"],
            "the version of Python on `local` cannot be `three`",
        ),
        (["requirements.txt", "-o", "no/such/folder.txt"], "cannot write `no/such/folder.txt`"),
        (["empty.yaml"], "there is no file"),
    ],
)
def test_mistakes_are_told(cli: Cli, project: Path, words: list[str], message: str) -> None:
    """Before uv is asked, or at least before anything is written."""
    before = {path.name for path in project.iterdir()}
    files = {"uv.lock": LOCK, "broken.txt": "numpy=1.26\n", "environment.yml.txt": "dependencies:\n  - numpy\n",
             "empty.yaml": "name: own\nsource_dir: nothing\nentry_point: train.py\n"}  # fmt: skip
    write(project, files)
    (project / "nothing").mkdir()
    result = cli("environments", "lock", *words)
    assert result.code == 2
    assert f"error: {message}" in " ".join(result.err.split())
    assert {path.name for path in project.iterdir()} == before | {*files, "nothing"}


def test_indexes_are_those_of_the_file(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without credentials; an index that only this machine knows is not another machine's."""
    (project / "requirements.txt").write_text(
        "timm\n--extra-index-url https://me:pa55@ours.invalid/simple\n"
    )
    monkeypatch.setenv("UV_INDEX", "https://you:w0rd@mirror.invalid/simple")
    result = cli("environments", "lock", "job.yaml", "--target", "sagemaker")
    assert result.code == 0, result.err
    text = (project / "requirements.lock.txt").read_text()
    assert [line for line in text.splitlines() if line.startswith("--")] == [
        "--extra-index-url https://ours.invalid/simple"
    ]
    assert not any(word in text + result.err for word in ("pa55", "w0rd", "mirror"))


def test_a_repository_has_no_hash(cli: Cli, project: Path) -> None:
    """Then no package has one, because pip wants all or none; the commit is decided."""
    library = project.parent / "library"
    write(
        library,
        {
            "pyproject.toml": '[project]\nname = "library"\nversion = "1"\ndependencies = ["numpy"]\n'
        },
    )
    git = ["git", "-C", str(library), "-c", "user.email=me@here", "-c", "user.name=me"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    (project / "requirements.txt").write_text(f"library @ git+file://{library}\n")
    result = cli("environments", "lock", "job.yaml", "--target", "sagemaker")
    assert result.code == 0, result.err
    assert "no hashes, because a package comes from a repository or a folder" in " ".join(
        result.err.split()
    )
    lock = project / "requirements.lock.txt"
    first, second = pins(lock)
    assert first.startswith(f"library @ git+file://{library}@")
    assert (second, "--hash" in lock.read_text()) == ("numpy==1.0", False)


# Environments on this machine.

KEY = "3f9a7c21d04e5b68"


def made(state_dir: Path, key: str = KEY) -> Path:
    """An environment as a build leaves it, and its folder."""
    home = state_dir / "environments" / f"{key}-x1"
    write(
        home, {"env/bin/python": "", "env/pyvenv.cfg": "home = /usr/bin\nversion_info = 3.11.7\n"}
    )
    link = state_dir / "environments" / key
    link.symlink_to(home / "env")
    for ending in ("log", "lock"):
        link.with_name(f"{key}.{ending}").touch()
    return home


def test_an_environment_without_runs(cli: Cli, state_dir: Path) -> None:
    """Its key, size, age and Python are known; a key is completed; all is removed, or nothing."""
    assert "cloudtrain has built no environment" in cli("environments").err
    home, other = made(state_dir), made(state_dir, "0123456789abcdef")
    os.utime(home, (1_000_000_000, 1_000_000_000))
    assert json.loads(cli("environments", "--json").out)[1] == {
        "key": KEY, "folder": str(home), "size": 38, "used": 1_000_000_000, "python": "3.11.7", "requirements": None,
        "packages": None, "runs": [],
    }  # fmt: skip
    assert complete(f"cloudtrain environments remove {KEY[:3]}") == [KEY]
    refused = cli("environments", "remove", "0123456789abcdef", KEY.replace("68", "69"))
    assert refused.code == 2
    assert suggested(KEY) in refused.err
    assert other.exists()
    assert cli("environments", "remove", KEY) == (0, f"{KEY}\n", "")
    assert {
        path.name for path in (state_dir / "environments").iterdir() if KEY in path.name
    } == set()
    assert other.exists()
    assert (
        "`--json` has no effect with `remove`" in cli("environments", "--json", "remove", KEY).out
    )


def test_a_link_that_leads_elsewhere_loses_nothing(
    cli: Cli, state_dir: Path, clean_environment: Path
) -> None:
    """Only folders of `environments` are removed."""
    write(clean_environment / "mine", {"env/bin/python": "", "env/pyvenv.cfg": ""})
    (state_dir / "environments").mkdir(parents=True)
    (state_dir / "environments" / KEY).symlink_to(clean_environment / "mine" / "env")
    assert cli("environments", "remove", KEY).code == 0
    assert (clean_environment / "mine" / "env" / "bin" / "python").exists()
    assert not (state_dir / "environments" / KEY).is_symlink()


@pytest.mark.slow
@pytest.mark.lifecycle
def test_an_environment_in_use_stays(cli: Cli, project: Path, state_dir: Path) -> None:
    """The list names its file and its runs; it is removed when the run has ended, and the next submit builds it again."""
    write(project, {"requirements.txt": "numpy\n", "train.py": "import numpy, pathlib, time\nprint('in')\n"
                    "while not pathlib.Path('../go').exists():\n    time.sleep(0.05)\n"})  # fmt: skip
    (project / "train.py").write_text(
        (project / "train.py").read_text().replace("../go", str(project / "go"))
    )
    (project / "job.yaml").write_text(
        "name: own\nentry_point: train.py\nenvironment: {requirements: requirements.txt}\n"
    )
    (project / ".cloudtrainignore").write_text("go\n")
    submitted = cli("submit", "job.yaml", "--build-environment", "--detach")
    assert submitted.code == 0, submitted.err
    name = submitted.out.strip()
    (found,) = json.loads(cli("environments", "--json").out)
    assert (found["requirements"], found["packages"], found["runs"]) == (
        "requirements.txt",
        1,
        [name],
    )
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    # the key has a line of its own where the row is wider than the terminal
    assert f"requirements.txt (1)  {name}" in cli("environments").out
    refused = cli("environments", "remove", found["key"])
    assert refused.code == 2
    said = " ".join(refused.err.split())
    assert f"in `{found['key']}` [CT954]" in said
    assert f"`cloudtrain wait {name}`" in said
    assert f"`cloudtrain stop {name}`" in said
    assert Path(found["folder"]).exists()
    (project / "go").touch()
    assert cli("wait", name).code == 0
    assert cli("environments", "remove", found["key"]) == (0, f"{found['key']}\n", "")
    assert list((state_dir / "environments").iterdir()) == []
    assert "built in" in cli("submit", "job.yaml", "--build-environment").err
    assert len(json.loads(cli("environments", "--json").out)[0]["runs"]) == 2
