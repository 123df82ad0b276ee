"""`environment.requirements`: what a job installs is read, compared and sent as a list, before a machine is paid for."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain import api
from tests.cli.conftest import Cli
from tests.locks import LOCK, OWN, PROJECT, PYPI, SETTINGS, lock, package, write
from tests.wheels import write_wheel

JOB = """\
name: own
entry_point: train.py
environment: {{{environment}}}
resources: {{instance_type: {{sagemaker: ml.g5.2xlarge, azureml: Standard_NC4as_T4_v3}}}}
"""
TARGETS = ("local", "sagemaker", "azureml", "slurm")
SCRIPT = (
    '# /// script\n# requires-python = ">=3.10"\n# dependencies = ["tqdm"]\n# ///\nimport tqdm\n'
)


@pytest.fixture
def folder(clean_environment: Path) -> Path:
    """The working directory, with settings of all targets."""
    write(clean_environment, {"train.py": "print(1)\n", "cloudtrain.toml": SETTINGS})
    return clean_environment


def project(folder: Path, environment: str, **files: str) -> None:
    """Write a job and its files; two underscores in a name are a dot, and three a slash."""
    write(folder, {"job.yaml": JOB.format(environment=environment)})
    write(
        folder, {name.replace("___", "/").replace("__", "."): text for name, text in files.items()}
    )


STALE = OWN.replace('"tqdm"', '"tqdm>=5"')
NO_LINUX = lock(
    ['name = "tqdm"'],
    [
        package(
            "tqdm", "4.67.1", more="resolution-markers = [\n    \"sys_platform == 'win32'\",\n]\n"
        )
        * 2
    ],
)
OUTSIDE = lock(
    ['name = "mylib", editable = "../mylib"'],
    [package("mylib", "1", source='editable = "../mylib"', archives=False)],
)

BAD: dict[str, tuple[str, dict[str, str], str, str, str]] = {
    "stale": ("uv.lock", {"uv__lock": LOCK, "pyproject__toml": STALE}, "CT057",
              "`uv.lock` does not match `pyproject.toml`: `tqdm`", "run `uv lock`"),
    "stale, by the project": ("pyproject.toml", {"uv__lock": LOCK, "pyproject__toml": STALE}, "CT057",
              "`uv.lock` does not match `pyproject.toml`: `tqdm`", "run `uv lock`"),
    "one more dependency": ("uv.lock", {"uv__lock": LOCK, "pyproject__toml": OWN.replace('"numpy"', '"numpy", "rich"')}, "CT057",
              "`uv.lock` does not match `pyproject.toml`: `rich`", "run `uv lock`"),
    "one dependency less": ("uv.lock", {"uv__lock": LOCK, "pyproject__toml": OWN.replace(', "numpy"', "")}, "CT057",
              "`uv.lock` does not match `pyproject.toml`: `numpy`", "run `uv lock`"),
    "no lock": ("pyproject.toml", {"pyproject__toml": OWN}, "CT057",
              "`pyproject.toml` has no `uv.lock` beside it, so the versions are not decided", "run `uv lock`, or name"),
    "a lock of another project": ("sub/pyproject.toml", {"uv__lock": LOCK, "pyproject__toml": OWN, "sub___pyproject__toml": OWN}, "CT057",
              "`uv.lock` does not hold the project of `sub/pyproject.toml`", "run `uv lock`"),
    "poetry.lock": ("poetry.lock", {"poetry__lock": "[[package]]\nname = 'x'\n"}, "CT056",
              "`poetry.lock` is a lock of Poetry", "run `poetry export -o requirements.txt`"),
    "a project of Poetry": ("pyproject.toml", {"pyproject__toml": "[tool.poetry]\nname = 'x'\n"}, "CT056",
              "`pyproject.toml` is a project of Poetry", "run `poetry export -o requirements.txt`"),
    "Pipfile": ("Pipfile", {"Pipfile": "[packages]\nx = '*'\n"}, "CT056",
              "`Pipfile` is a file of Pipenv", "run `pipenv requirements > requirements.txt`"),
    "a conda file": ("environment.yml", {"environment__yml": "name: x\ndependencies:\n  - numpy\n"}, "CT056",
              "`environment.yml` is a conda file", "`conda_file: environment.yml`"),
    "setup.py": ("setup.py", {"setup__py": "from setuptools import setup\n"}, "CT056",
              "`setup.py` is a project of setuptools", "list the packages in `requirements.txt`"),
    "a script without a block": ("train.py", {}, "CT056",
              "`train.py` has no block with its dependencies", "add a block `# /// script`"),
    "a block for another Python": ("tool.py", {"tool__py": SCRIPT.replace("3.10", "3.99")}, "CT058",
              "the block of `tool.py` is for Python >=3.99", "or take an image with Python >=3.99"),
    "a block that is no TOML": ("tool.py", {"tool__py": SCRIPT.replace('["tqdm"]', '["tqdm"')}, "CT056",
              "the block of `tool.py` is not valid TOML", "correct it"),
    "a stale lock of a script": ("tool.py", {"tool__py": SCRIPT, "tool__py__lock": 'version = 1\nrevision = 5\n'}, "CT057",
              "`tool.py.lock` does not match `tool.py`: `tqdm`", "run `uv lock --script tool.py`"),
    "no Python in the lock": ("uv.lock", {"uv__lock": LOCK.replace(">=3.10", ">=3.99", 1)}, "CT058",
              "`uv.lock` is for Python >=3.99, and the machine has Python 3.1", "widen `requires-python`"),
    "no version for the platform": ("uv.lock", {"uv__lock": NO_LINUX}, "CT058",
              "`uv.lock` has no version of `tqdm` for Python 3.1", "run `uv lock`"),
    "a folder outside": ("uv.lock", {"uv__lock": OUTSIDE}, "CT058",
              "`mylib` comes from a folder outside the source folder: `../mylib`", "set `source_dir`"),
    "a lock that is no TOML": ("uv.lock", {"uv__lock": LOCK.replace("]\n", "\n", 1)}, "CT056",
              "`uv.lock` is not valid TOML", "or write it again with `uv lock`"),
    "a broken pip file": ("requirements.txt", {"requirements__txt": "tqdm\nnumpy=1.26\n"}, "CT056",
              "line 2 of `requirements.txt` is not a requirement: `numpy=1.26`", "write one package a line"),
    "a file with an impossible name": ("requirements.txt", {"requirements__txt": "tqdm\n-r ot\0her.txt\n"}, "CT056",
              "line 2 of `requirements.txt` is not a requirement: `-r ot\\x00her.txt`", "or remove the line"),
    "an included file that is not there": ("sub/needs.txt", {"sub___needs__txt": "-r more.txt\n"}, "CT056",
              "line 1 of `sub/needs.txt` includes `sub/more.txt`, and there is no such file", "correct the path"),
    "an unknown group": ("uv.lock, groups: [eval]", {"uv__lock": LOCK}, "CT056",
              "`uv.lock` has no group `eval`", "it has none; run `uv lock`"),
    "extras of a pip file": ("requirements.txt, extras: [plot]", {"requirements__txt": "tqdm\n"}, "CT056",
              "a requirements file of pip has no extras", "remove `extras`"),
}  # fmt: skip
"""What is named, the files, and the code, the message and the hint of the error."""


@pytest.mark.parametrize(
    ("case", "target"),
    [
        pytest.param(
            case,
            target,
            marks=[] if target == "sagemaker" or case == "stale" else [pytest.mark.slow],
        )
        for case in BAD
        for target in TARGETS
    ],
)
def test_a_bad_file_is_refused(cli: Cli, folder: Path, case: str, target: str) -> None:
    """By `check`, on every target, with a code and what to type."""
    named, files, code, message, hint = BAD[case]
    project(folder, f'python: "3.12", requirements: {named}', **files)
    result = cli("check", "job.yaml", "--target", target, "--json")
    assert result.code == 2
    assert code in result.out, result
    (problem,) = [item for item in json.loads(result.out) if item["code"] == code]
    assert problem["message"].startswith(message)
    assert hint in problem["hint"]


TORCH_IN = {"sagemaker": "2.13", "azureml": "2.10"}
"""The version of an image on each target that knows one."""
OTHER_TORCH = {
    "a pin": ("requirements.txt", {"requirements__txt": "timm\ntorch==2.12\n"}, "2.12"),
    "a range": ("requirements.txt", {"requirements__txt": "torch>=2.14\n"}, ">=2.14"),
    "a pin of an included file": ("requirements.txt", {"requirements__txt": "-r a.txt\n", "a__txt": "Torch == 2.12\n"}, "2.12"),
    "a pin with hashes": ("requirements.txt", {"requirements__txt": f"torch==2.12.0 --hash=sha256:{'0a' * 32}\n"}, "2.12.0"),
    "uv.lock": ("uv.lock", {"uv__lock": LOCK.replace("2.13.0", "2.12.0"), "pyproject__toml": OWN}, "2.12.0"),
    "pylock.toml": ("pylock.toml", {"pylock__toml": 'lock-version = "1.0"\n[[packages]]\nname = "torch"\nversion = "2.12.0"\n'}, "2.12.0"),
    "a block": ("tool.py", {"tool__py": SCRIPT.replace("tqdm", "torch==2.12")}, "2.12"),
}  # fmt: skip
"""What is named, the files, and the version of torch that they ask for."""


@pytest.mark.parametrize("target", TORCH_IN)
@pytest.mark.parametrize("case", OTHER_TORCH)
def test_another_torch_is_refused_in_every_form(
    cli: Cli, folder: Path, case: str, target: str
) -> None:
    """By `check`, with both versions and what to ask for."""
    named, files, version = OTHER_TORCH[case]
    has = TORCH_IN[target]
    project(
        folder,
        f'framework: pytorch, version: "{has}", python: "3.12", requirements: {named}',
        **files,
    )
    result = cli("check", "job.yaml", "--target", target, "--offline", "--json")
    assert result.code == 2
    (problem,) = [item for item in json.loads(result.out) if item["code"] == "CT058"]
    assert problem["message"].startswith(
        f"torch {version} is in `{named}`, and the image has {has}"
    )
    assert problem["hint"].startswith(f"ask for `torch=={has}.*`, or take the image with `version:")


@pytest.mark.parametrize("target", TORCH_IN)
def test_what_names_no_torch_keeps_the_images(cli: Cli, folder: Path, target: str) -> None:
    """`timm` is no mistake, although the newest torchvision pins another torch: the plan says what stays."""
    has = TORCH_IN[target]
    environment = (
        f'framework: pytorch, version: "{has}", python: "3.12", requirements: requirements.txt'
    )
    project(folder, environment, requirements__txt="timm\n")
    checked = cli("check", "job.yaml", "--target", target, "--offline", "--json")
    assert [item for item in json.loads(checked.out) if item["path"][:1] == ["environment"]] == []
    found = json.loads(cli("plan", "job.yaml", "--target", target, "--json").out)
    assert f"torch {has}" in found["summary"]["requirements"]
    assert "of the image stays" in found["summary"]["requirements"]
    assert (
        "the package in `requirements.txt` is not pinned: the machine decides the version"
        in found["notes"]
    )


def plan(cli: Cli, *words: str) -> dict[str, object]:
    """The plan as JSON data."""
    result = cli("plan", "job.yaml", "--target", "sagemaker", "--json", *words)
    assert result.code == 0, result.err
    found: dict[str, object] = json.loads(result.out)
    return found


IMAGE = 'framework: pytorch, version: "2.13"'


def test_a_lock_is_compared_with_the_image(cli: Cli, folder: Path) -> None:
    """The plan names the lock's hash, that torch stays, and what of the image is replaced; `--json` has the list."""
    project(folder, f"{IMAGE}, requirements: uv.lock", uv__lock=LOCK, pyproject__toml=OWN)
    found = plan(cli)
    listed = found["environment"]["requirements"]  # type: ignore[index]
    assert [
        (item["name"], item["version"], item.get("in_image")) for item in listed["packages"]
    ] == [
        ("numpy", "2.5.5", "2.4.3"),
        ("tqdm", "4.67.1", "4.67.3"),
    ]
    assert all(len(item["hashes"]) == 2 for item in listed["packages"])
    assert (
        found["summary"]["requirements"]
        == (  # type: ignore[index]
            f"2 packages from `uv.lock` ({listed['sha256'][:12]}, Python 3.12)\ntorch 2.13.0+cu130 of the image stays\n"
            "2 replace the image's: numpy 2.4.3 -> 2.5.5, tqdm 4.67.3 -> 4.67.1"
        )
    )


@pytest.mark.parametrize(
    ("named", "files"),
    [
        ("uv.lock", {"uv__lock": LOCK.replace("2.13.0", "2.14.1")}),
        ("requirements.txt", {"requirements__txt": "torch==2.14.1\n"}),
    ],
)
def test_another_torch_than_the_images_is_refused(
    cli: Cli, folder: Path, named: str, files: dict[str, str]
) -> None:
    """With both versions, before anything is sent."""
    project(folder, f"{IMAGE}, requirements: {named}", **files)
    result = cli("plan", "job.yaml", "--target", "sagemaker")
    assert result.code == 2
    assert f"torch 2.14.1 is in `{named}`, and the image has 2.13.0+cu130" in " ".join(
        result.err.split()
    )
    assert 'ask for `torch==2.13.*`, or take the image with `version: "2.14"`' in result.err


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("torch>=2.14", True),
        ("torch<2.13", True),
        ("torch>=2.4", False),
        ("torch==2.13.*", False),
        ("torch==2.13.0", False),
        ("torch==2.14.1; sys_platform == 'darwin'", False),
        ("torchvision==0.28.1", False),
        ("torchvision==0.1", True),
        ("torch==2.13.0+cu130", False),
        ("torch==2.13.0+cpu", True),
    ],
)
def test_versions_of_torch_in_a_pip_file(
    cli: Cli, folder: Path, line: str, is_refused: bool
) -> None:
    """A range that the image's version is not in is refused as well; a line for another system is not."""
    project(folder, f"{IMAGE}, requirements: requirements.txt", requirements__txt=f"{line}\n")
    result = cli("plan", "job.yaml", "--target", "sagemaker")
    assert (result.code == 2) is is_refused
    assert ("[CT058]" in result.err) is is_refused


def test_the_images_torch_is_kept(cli: Cli, folder: Path) -> None:
    """Where the machine decides versions, the file in the bundle begins with a constraint, and a run again has one."""
    text = "timm\nnumpy>=1.26\n"
    project(folder, f"{IMAGE}, requirements: needs/gpu.txt", needs___gpu__txt=text)
    assert "torch 2.13.0+cu130 of the image stays" in plan(cli)["summary"]["requirements"]  # type: ignore[index]
    assert not (folder / "state").exists()  # a plan writes nothing
    job = ct.load_job("job.yaml")
    api._prepare(job, api._where(job, "sagemaker", None), (), None).tree.write(
        folder / "code.tar.gz"
    )  # type: ignore[union-attr]
    with tarfile.open(folder / "code.tar.gz") as archive:
        kept = {
            item.name: archive.extractfile(item).read().decode()
            for item in archive
            if "needs" in item.name
        }  # type: ignore[union-attr]
    head = "# cloudtrain added the next line, so that the image's PyTorch stays.\n"
    assert kept == {
        "needs/cloudtrain-constraints.txt": "torch==2.13.0\n",
        "needs/gpu.txt": f"{head}-c cloudtrain-constraints.txt\n{text}",
    }


def test_an_unpinned_file_is_a_notice(cli: Cli, folder: Path) -> None:
    """The machine decides the versions; what is pinned and already in the image is compared."""
    project(folder, f"{IMAGE}, requirements: requirements.txt", requirements__txt="timm\nnumpy==2.5.5\n-r more.txt\n",
            more__txt="tqdm>=4\n")  # fmt: skip
    found = plan(cli)
    assert (
        "2 of 3 packages in `requirements.txt` are not pinned: the machine decides the version"
        in found["notes"]
    )  # type: ignore[operator]
    assert found["summary"]["requirements"] == (  # type: ignore[index]
        "3 packages from `requirements.txt`\ntorch 2.13.0+cu130 of the image stays\n1 replaces the image's: numpy 2.4.3 -> 2.5.5"
    )


def test_the_list_depends_on_the_content_alone(cli: Cli, folder: Path) -> None:
    """Not on comments, on the order, or on which of two files is named."""
    digests = set()
    for named, text in (
        ("uv.lock", LOCK),
        ("pyproject.toml", LOCK),
        ("uv.lock", f"# again\n{LOCK}"),
    ):
        project(folder, f"{IMAGE}, requirements: {named}", uv__lock=text, pyproject__toml=OWN)
        digests.add(plan(cli)["environment"]["requirements"]["sha256"])  # type: ignore[index]
    assert len(digests) == 1


@pytest.mark.slow
def test_the_bundle_has_the_list(cli: Cli, folder: Path) -> None:
    """One line a package, with its hashes, under the name that SageMaker's toolkit installs. The user's own file keeps
    its name."""
    project(
        folder,
        "requirements: uv.lock",
        uv__lock=LOCK.replace("torch", "tork"),
        pyproject__toml=OWN.replace("torch", "tork"),
    )
    (folder / "requirements.txt").write_text("other\n")
    assert cli("submit", "job.yaml", "--no-build-environment", "--ignore", "LO207").code == 0
    (archive,) = Path(os.environ["CLOUDTRAIN_STATE_DIR"]).rglob("*.tar.gz")
    with tarfile.open(archive) as bundle:
        text = bundle.extractfile("requirements.cloudtrain.txt").read().decode()  # type: ignore[union-attr]
        assert bundle.extractfile("requirements.txt").read() == b"other\n"  # type: ignore[union-attr]
    names = [line.partition("==")[0] for line in text.splitlines()[2:]]
    assert names == ["numpy", "sympy", "tork", "tqdm"]
    assert all(line.count("--hash=sha256:") == 2 for line in text.splitlines()[2:])


PRIVATE = package("own-tools", "1.0", source='registry = "https://host/simple"')


def test_indexes_and_repositories(cli: Cli, folder: Path) -> None:
    """The list names the index of a private package; one commit of a repository has no hash, so no line has one."""
    git = package(
        "tqdm", "4.67.1", source='git = "https://host/tqdm?rev=main#0123abcd"', archives=False
    )
    direct = [
        'name = "own-tools", index = "https://host/simple"',
        'name = "tqdm", git = "https://host/tqdm?rev=main"',
    ]
    sources = '\n[tool.uv.sources]\nown-tools = { index = "ours" }\ntqdm = { git = "https://host/tqdm", rev = "main" }\n'
    own = PROJECT.format(dependencies='"own-tools", "tqdm"') + sources
    project(
        folder,
        f"{IMAGE}, requirements: uv.lock",
        uv__lock=lock(direct, [PRIVATE, git]),
        pyproject__toml=own,
    )
    listed = plan(cli)["environment"]["requirements"]["packages"]  # type: ignore[index]
    assert listed[0]["index"] == "https://host/simple"
    assert listed[1]["url"] == "git+https://host/tqdm@0123abcd"


def test_the_python_of_an_own_image_is_asked_for(cli: Cli, folder: Path) -> None:
    """A lock depends on it; `python` says it."""
    project(folder, "image: {sagemaker: ghcr.io/me/train:1}, requirements: uv.lock", uv__lock=LOCK)
    result = cli("plan", "job.yaml", "--target", "sagemaker")
    assert result.code == 2
    assert (
        "`uv.lock` depends on the version of Python, and that of the machine is not known"
        in " ".join(result.err.split())
    )
    project(
        folder,
        'python: "3.12", image: {sagemaker: ghcr.io/me/train:1}, requirements: uv.lock',
        uv__lock=LOCK,
    )
    assert "what the image has is not known offline" in plan(cli)["summary"]["requirements"]  # type: ignore[index]


PYLOCK = f"""\
lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.10"

[[packages]]
name = "tqdm"
version = "4.67.1"
index = "https://pypi.org/simple"
wheels = [{{ url = "https://files/tqdm.whl", hashes = {{ sha256 = "{"0a" * 32}" }} }}]

[[packages]]
name = "nvidia-nccl-cu13"
version = "2.30"

[[packages]]
name = "colorama"
version = "0.4.6"
marker = "sys_platform == 'win32'"
"""


def test_other_forms(cli: Cli, folder: Path) -> None:
    """A pylock.toml; and a script's block, with and without a lock."""
    project(folder, f"{IMAGE}, requirements: pylock.toml", pylock__toml=PYLOCK)
    listed = plan(cli)["environment"]["requirements"]  # type: ignore[index]
    assert [(item["name"], item["hashes"]) for item in listed["packages"]] == [
        ("tqdm", [f"sha256:{'0a' * 32}"])
    ]
    project(folder, f"{IMAGE}, requirements: train.py", train__py=SCRIPT)
    assert (
        "the package in `train.py` is not pinned: the machine decides the version"
        in plan(cli)["notes"]
    )  # type: ignore[operator]
    locked = f'version = 1\nrevision = 5\n\n[manifest]\nrequirements = [{{ name = "tqdm" }}]\n\n{package("tqdm", "4.67.1")}'
    project(folder, f"{IMAGE}, requirements: train.py", train__py=SCRIPT, train__py__lock=locked)
    assert plan(cli)["environment"]["requirements"]["undecided"] == 0  # type: ignore[index]
    assert PYPI in locked


def test_groups_extras_and_members(cli: Cli, folder: Path) -> None:
    """They are read only on request; a member of the workspace is always installed, as a wheel."""
    own = (
        PROJECT.format(dependencies='"mylib"')
        + '[project.optional-dependencies]\nplot = ["numpy"]\n[dependency-groups]\neval = ["tqdm"]\n'
        + "[tool.uv.sources]\nmylib = { workspace = true }\n[tool.uv.workspace]\nmembers = ['libs/*']\n"
    )
    direct = [
        'name = "mylib", editable = "libs/mylib"',
        'name = "numpy", marker = "extra == \'plot\'"',
    ]
    text = lock(
        direct[:1],
        [TQDM, NUMPY, package("mylib", "1", source='editable = "libs/mylib"', archives=False)],
    )
    more = '[package.optional-dependencies]\nplot = [{ name = "numpy" }]\n\n[package.dev-dependencies]\neval = [{ name = "tqdm" }]\n\n'
    text = (
        text.replace("[package.metadata]", f"{more}[package.metadata]")
        .replace("requires-dist = [\n", f"requires-dist = [\n    {{ {direct[1]} }},\n")
        .replace(
            "]\n\n[[package]]",
            ']\n[package.metadata.requires-dev]\neval = [{ name = "tqdm" }]\n\n[[package]]',
            1,
        )
    )
    member = '[project]\nname = "mylib"\nversion = "1"\n[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    write(folder, {"libs/mylib/pyproject.toml": member, "libs/mylib/mylib/__init__.py": ""})
    for words, names in (("", []), (", extras: [plot]", ["numpy"]), (", groups: [eval]", ["tqdm"])):
        project(
            folder, f"{IMAGE}, requirements: uv.lock{words}", uv__lock=text, pyproject__toml=own
        )
        found = plan(cli)
        assert [item["name"] for item in found["environment"]["requirements"]["packages"]] == [
            *names,
            "mylib",
        ]  # type: ignore[index]
        assert "\n1 package of your own as a wheel: mylib 1" in found["summary"]["requirements"]  # type: ignore[index]


TQDM, NUMPY = package("tqdm", "4.67.1"), package("numpy", "2.5.5")


PYTORCH = IMAGE
BESIDE: dict[str, tuple[dict[str, str], str]] = {
    "requirements.txt": (
        {"requirements__txt": "numpy==2.5.5\n"},
        "1 package from `requirements.txt`, found in the code",
    ),
    "uv.lock": (
        {"uv__lock": LOCK, "pyproject__toml": OWN, "requirements__txt": "x\n"},
        "2 packages from `uv.lock`, found in",
    ),
    "a block": (
        {"uv__lock": LOCK, "pyproject__toml": OWN, "train__py": SCRIPT},
        "1 package from `train.py`, found in",
    ),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_lies_beside_the_script_is_installed(cli: Cli, folder: Path, case: str) -> None:
    """A job that names nothing installs it, and the plan says so; `none` says no."""
    files, line = BESIDE[case]
    project(folder, PYTORCH, **files)
    assert plan(cli)["summary"]["requirements"].startswith(line)  # type: ignore[index]
    project(folder, f"{PYTORCH}, requirements: none", **files)
    assert "requirements" not in plan(cli)["summary"]  # type: ignore[operator]


def test_a_file_that_nobody_named_stops_nothing(cli: Cli, folder: Path) -> None:
    """A lock that does not fit is a notice, and an own image has its packages."""
    project(folder, PYTORCH, uv__lock=LOCK, pyproject__toml=STALE)
    found = plan(cli)
    assert "requirements" not in found["summary"]  # type: ignore[operator]
    assert any(
        "`uv.lock` is not installed, because `uv.lock` does not match" in note
        for note in found["notes"]
    )  # type: ignore[attr-defined]
    project(folder, "image: {sagemaker: ghcr.io/me/train:1}")
    assert "requirements" not in plan(cli)["summary"]  # type: ignore[operator]


@pytest.mark.slow
def test_a_script_alone_is_run_with_what_lies_beside_it(cli: Cli, folder: Path) -> None:
    """`submit train.py` too; a package that this interpreter has needs no installation."""
    write(
        folder,
        {"train.py": "import pydantic\nprint('trained')\n", "requirements.txt": "pydantic\n"},
    )
    planned = cli("plan", "train.py")
    assert "1 package from `requirements.txt`, found in the code" in " ".join(planned.out.split())
    assert "LO207" not in planned.out
    assert cli("submit", "train.py").code == 0


IMPORTS = """\
import os, torch, yaml, PIL.Image, sklearn.metrics, google.auth, dateutil.tz
import timm
from typing import TYPE_CHECKING
import parts, tools.more
from cloudtrain import runtime
try:
    import apex_of_mine
except ImportError:
    apex_of_mine = None
if TYPE_CHECKING:
    import pandas_stubs
def later():
    import only_sometimes
"""


def missing(cli: Cli) -> list[str]:
    """What CT213 says."""
    found = json.loads(cli("check", "job.yaml", "--target", "sagemaker", "--offline", "--json").out)
    return [f"{item['message']}; {item['hint']}" for item in found if item["code"] == "CT213"]


def test_an_import_without_a_package_is_found(cli: Cli, folder: Path) -> None:
    """With its line and the likely package, in the script and in its own modules."""
    project(
        folder,
        IMAGE,
        train__py=IMPORTS,
        parts__py="\nimport bitsandbytes_of_mine\n",
        tools___more__py="",
    )
    neither = "which the run does not have"
    assert missing(cli) == [
        f"line 2 of `train.py` imports `timm`, {neither}; add `timm` to the requirements of the job",
        f"line 2 of `parts.py` imports `bitsandbytes_of_mine`, {neither}; "
        "add `bitsandbytes-of-mine` to the requirements of the job",
    ]


@pytest.mark.parametrize(
    ("environment", "files"),
    [
        (
            f"{IMAGE}, requirements: uv.lock",
            {"uv__lock": lock(['name = "timm"'], [package("timm", "1.0")])},
        ),
        (f"{IMAGE}, requirements: requirements.txt", {"requirements__txt": "something\n"}),
        ('framework: pytorch, version: "2.8"', {}),
        ("image: {sagemaker: ghcr.io/me/train:1}", {}),
        (IMAGE, {"lib___timm___layers__py": ""}),
        (IMAGE, {"setup__py": ""}),
    ],
)
def test_what_is_not_known_is_left_alone(
    cli: Cli, folder: Path, environment: str, files: dict[str, str]
) -> None:
    """A package of the lock; a file that may install more than it lists; an image without a public lock; own code."""
    project(folder, environment, train__py="import timm\n", **files)
    assert missing(cli) == []


@pytest.mark.slow
@pytest.mark.usefixtures("without_uv")
def test_a_lock_is_installed_here(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip checks the hashes of the list; the same content under another name is the same environment."""
    wheels = folder / "wheels"
    digest = write_wheel(wheels, "ct-greeting", "1.0", code="WORD = 'hello'\n")
    greeting = package("ct-greeting", "1.0").replace("36" * 32, digest)
    assert digest in greeting
    text = lock(['name = "ct-greeting"'], [greeting])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    script = "import ct_greeting\nprint(ct_greeting.WORD)\n"
    own = PROJECT.format(dependencies='"ct-greeting"')
    for named in ("uv.lock", "pyproject.toml"):
        project(
            folder, f"requirements: {named}", uv__lock=text, pyproject__toml=own, train__py=script
        )
        submitted = cli("submit", "job.yaml")
        assert submitted.code == 0, submitted
    assert (
        len([item for item in (folder / "state" / "environments").iterdir() if item.is_symlink()])
        == 1
    )
    project(folder, "requirements: uv.lock", uv__lock=text.replace(digest, "0a" * 32))
    refused = cli("submit", "job.yaml")
    assert refused.code == 4
    assert "DO NOT MATCH THE HASHES" in " ".join(refused.err.split())
    assert "CT953" in refused.err


BROKEN = {
    "a package without a name": LOCK.replace('name = "numpy"\nversion', "version"),
    "a package that is no table": "version = 1\nrevision = 5\npackage = 3\n[manifest]\nmembers = []\n",
    "a dependency that is a text": LOCK.replace('{ name = "sympy" }', '"sympy"'),
    "a marker that is none": LOCK.replace(
        '{ name = "sympy" }', '{ name = "sympy", marker = "python ~ 3" }'
    ),
    "a marker that is a number": LOCK.replace(
        '{ name = "sympy" }', '{ name = "sympy", marker = 3 }'
    ),
    "a version that is none": LOCK.replace('specifier = ">=2.4"', 'specifier = "two"'),
    "a source that is a text": LOCK.replace('source = { virtual = "." }', 'source = "."'),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_lock_is_an_error(cli: Cli, folder: Path, case: str) -> None:
    """Not a traceback."""
    image = IMAGE.replace("pytorch", "tensorflow").replace("2.13", "2.19")
    project(folder, f"{image}, requirements: uv.lock", uv__lock=BROKEN[case], pyproject__toml=OWN)
    result = cli("check", "job.yaml", "--target", "sagemaker", "--offline", "--json")
    assert result.code == 2
    assert [item["code"] for item in json.loads(result.out) if item["level"] == "error"] in (
        ["CT056"],
        ["CT057"],
        ["CT058"],
    )
