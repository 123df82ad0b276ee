"""Packages of the user's own that a lock names travel as wheels, and what lies beside a script in a subfolder is found."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain import api
from tests.cli.conftest import Cli
from tests.fakes.unpacking import unpack
from tests.locks import PROJECT, SETTINGS, lock, package, write

JOB = """\
name: own
entry_point: {script}
environment: {{{environment}}}
resources: {{instance_type: {{sagemaker: ml.g5.2xlarge, azureml: Standard_NC4as_T4_v3}}}}
"""
IMAGE = 'framework: pytorch, version: "2.13"'
BACKEND = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
MEMBER = '[project]\nname = "my-lib"\nversion = "0.3.0"\ndependencies = ["given"]\n' + BACKEND
SOURCES = """\
[tool.uv.sources]
my-lib = { workspace = true }
idle = { workspace = true }
given = { path = "vendor/given-2-py3-none-any.whl" }
[tool.uv.workspace]
members = ["libs/*"]
"""
OWN = PROJECT.format(dependencies='"my-lib", "idle", "given"') + BACKEND + SOURCES
DIRECT = [
    'name = "my-lib", editable = "libs/my-lib"',
    'name = "idle", virtual = "libs/idle"',
    'name = "given", path = "vendor/given-2-py3-none-any.whl"',
]
SCRIPT = """\
import importlib.resources, given, my_lib, own
print(given.WORD, importlib.resources.files("my_lib").joinpath("words.txt").read_text().strip(), own.__file__)
"""


@pytest.fixture
def folder(clean_environment: Path) -> Path:
    """A workspace: its root is a package, and it has a member, one that is never installed, and a wheel."""
    wheel = clean_environment / "vendor" / "given-2-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("given.py", "WORD = 'given'\n")
        archive.writestr(
            "given-2.dist-info/METADATA", "Metadata-Version: 2.1\nName: given\nVersion: 2\n"
        )
        archive.writestr(
            "given-2.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("given-2.dist-info/RECORD", "")
    hashed = (
        f'wheels = [\n    {{ filename = "{wheel.name}", hash = "sha256:{digest(wheel)}" }},\n]\n'
    )
    packages = [
        package(
            "my-lib",
            "0.3.0",
            source='editable = "libs/my-lib"',
            needs='    { name = "given" },\n',
            archives=False,
        ),
        package("idle", "1", source='virtual = "libs/idle"', archives=False),
        package("given", "2", source=f'path = "vendor/{wheel.name}"', more=hashed, archives=False),
    ]
    write(
        clean_environment,
        {
            "cloudtrain.toml": SETTINGS
            + 'shared_dir = "/shared"\n[local]\nbuild_environment = false\n',
            "train.py": SCRIPT,
            "pyproject.toml": OWN,
            "uv.lock": lock(DIRECT, packages, root='editable = "."'),
            "src/own/__init__.py": "",
            "libs/my-lib/pyproject.toml": MEMBER,
            "libs/my-lib/src/my_lib/__init__.py": "",
            "libs/my-lib/src/my_lib/words.txt": "word\n",
            "libs/idle/pyproject.toml": '[project]\nname = "idle"\nversion = "1"\n[tool.uv]\npackage = false\n',
        },
    )
    job(clean_environment, "requirements: uv.lock")
    return clean_environment


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def job(folder: Path, environment: str, script: str = "train.py") -> None:
    write(folder, {"job.yaml": JOB.format(environment=environment, script=script)})


def plan(cli: Cli, *words: str, target: str = "sagemaker") -> dict[str, Any]:
    """The plan as JSON data."""
    result = cli("plan", "job.yaml", "--target", target, "--json", *words)
    assert result.code == 0, result
    found: dict[str, Any] = json.loads(result.out)
    return found


def unpacked(folder: Path, target: str = "sagemaker") -> Path:
    """The code as it arrives on the machine."""
    work = ct.load_job("job.yaml")
    api._prepare(work, api._where(work, target, None), (), None).tree.write(folder / "code.tar.gz")  # type: ignore[union-attr]
    place = folder / f"code-{target}"
    unpack((folder / "code.tar.gz").read_bytes(), place)
    return place


def test_the_plan_names_them(cli: Cli, folder: Path) -> None:
    """In its summary and, with where they come from and their hashes, in `--json`; nothing is written."""
    job(folder, f"{IMAGE}, requirements: uv.lock")
    found = plan(cli)
    listed = found["environment"]["requirements"]
    assert found["summary"]["requirements"].splitlines()[:2] == [
        f"1 package from `uv.lock` ({listed['sha256'][:12]}, Python 3.12)",
        "2 packages of your own as wheels: my-lib 0.3.0, own 0.1",
    ]
    assert listed["folders"] == {"idle": "", "my-lib": "libs/my-lib", "own": "."}
    urls = {item["name"]: item["url"] for item in listed["packages"]}
    assert urls == {
        "given": "./vendor/given-2-py3-none-any.whl",
        "my-lib": "./cloudtrain-wheels/my_lib-0.3.0-py3-none-any.whl",
        "own": "./cloudtrain-wheels/own-0.1-py3-none-any.whl",
    }
    assert not (folder / "cloudtrain-wheels").exists()
    write(folder, {"libs/my-lib/src/my_lib/words.txt": "others\n"})
    assert plan(cli)["environment"]["requirements"]["sha256"] != listed["sha256"]


def test_an_interpreter_that_lacks_them_is_found(cli: Cli, folder: Path) -> None:
    """On this machine, by name and version; the hint names no package of an index. What the interpreter has is not."""
    (message,) = [
        item["message"] for item in plan(cli, target="local")["findings"] if item["code"] == "LO207"
    ]
    assert (
        "`./cloudtrain-wheels/my_lib-0.3.0-py3-none-any.whl`, `./cloudtrain-wheels/own-0.1-py3-none-any.whl`"
        in message
    )
    version = importlib.metadata.version("pydantic")
    write(
        folder,
        {
            "r.txt": f"./vendor/pydantic-{version}-py3-none-any.whl ; python_version > '3'\n",
            f"vendor/pydantic-{version}-py3-none-any.whl": "",
        },
    )
    job(folder, "requirements: r.txt")
    assert not any(item["code"] == "LO207" for item in plan(cli, target="local")["findings"])


def test_a_wheel_of_another_torch_is_refused(cli: Cli, folder: Path) -> None:
    """As a line of an index is."""
    wheel = "vendor/torch-2.14.1-cp312-cp312-linux_x86_64.whl"
    write(folder, {"r.txt": f"./{wheel}\n", wheel: ""})
    job(folder, f"{IMAGE}, requirements: r.txt")
    result = cli("plan", "job.yaml", "--target", "sagemaker")
    assert result.code == 2
    assert "torch 2.14.1 is in `r.txt`, and the image has 2.13.0+cu130" in " ".join(
        result.err.split()
    )


def install(code: Path, tool: list[str]) -> subprocess.CompletedProcess[str]:
    """Install the code's list with pip or uv, without an index."""
    place = code.parent / "site"
    shutil.rmtree(place, ignore_errors=True)
    words = (
        *(("--python", sys.executable) if tool[0] == "uv" else ()),
        "--no-deps",
        "--no-index",
        "--require-hashes",
        "--target",
        str(place),
        "-r",
        "requirements.txt",
    )
    return subprocess.run(
        [*tool, "install", *words], cwd=code, capture_output=True, text=True, check=False
    )


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_installers_take_the_list(folder: Path, tool: str) -> None:
    """In the code folder, with hashes, from no index: pip and uv read `./` from the working directory."""
    if tool == "uv" and shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    code = unpacked(folder)
    lines = [
        line for line in (code / "requirements.txt").read_text().splitlines() if line[0] != "#"
    ]
    assert [line.split(" --hash=sha256:") for line in lines] == [
        [f"./{name}", digest(code / name)]
        for name in ("cloudtrain-wheels/my_lib-0.3.0-py3-none-any.whl", "cloudtrain-wheels/own-0.1-py3-none-any.whl",
                     "vendor/given-2-py3-none-any.whl")
    ]  # fmt: skip
    command = PIP if tool == "pip" else ["uv", "pip", "--offline", "-q"]
    done = install(code, command)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT],
        env={"PYTHONPATH": str(folder / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == f"given word {folder}/site/own/__init__.py\n"
    wheel = code / "cloudtrain-wheels" / "own-0.1-py3-none-any.whl"
    write(code, {"requirements.txt": "\n".join(lines).replace(digest(wheel), "0" * 64)})
    refused = install(code, command)
    assert refused.returncode != 0
    assert re.search("(?i)hash", refused.stderr)


@pytest.mark.slow
def test_a_local_run_imports_them(cli: Cli, folder: Path) -> None:
    """`--build-environment` installs them; equal content is one environment, a changed word another one."""
    for word, count in (("word", 1), ("word", 1), ("other", 2)):
        write(
            folder,
            {
                "libs/my-lib/src/my_lib/words.txt": f"{word}\n",
                "train.py": f"{SCRIPT}print({word!r})\n",
            },
        )
        submitted = cli("submit", "job.yaml", "--build-environment")
        assert submitted.code == 0, submitted
        (name,) = {*re.findall(r"own-\w+-\d", submitted.err)}
        assert f"given {word} " in cli("logs", name).out
        assert (
            len(
                [
                    item
                    for item in (folder / "state" / "environments").iterdir()
                    if item.is_symlink()
                ]
            )
            == count
        )


def test_a_list_with_a_repository_has_no_hashes(cli: Cli, folder: Path) -> None:
    """pip cannot check them, but the list still differs by the content."""
    git = package("tool", "1", source='git = "https://host/tool?rev=main#0123abcd"', archives=False)
    text = (
        (folder / "uv.lock")
        .read_text()
        .replace('{ name = "idle" },', '{ name = "idle" },\n    { name = "tool" },', 1)
    )
    text = text.replace(
        "requires-dist = [\n",
        'requires-dist = [\n    { name = "tool", git = "https://host/tool?rev=main" },\n',
    )
    write(folder, {"uv.lock": text + git, "pyproject.toml": OWN.replace('"given"]', '"given", "tool"]')
                   .replace("[tool.uv.workspace]", 'tool = { git = "https://host/tool" }\n[tool.uv.workspace]')})  # fmt: skip
    lines = (unpacked(folder) / "requirements.txt").read_text().splitlines()
    wheel = unpacked(folder) / "cloudtrain-wheels" / "own-0.1-py3-none-any.whl"
    assert f"./cloudtrain-wheels/own-0.1-py3-none-any.whl  # sha256:{digest(wheel)}" in lines
    assert "tool @ git+https://host/tool@0123abcd" in lines
    assert not any("--hash" in line for line in lines)


BAD: dict[str, tuple[dict[str, str], str, str]] = {
    "a wheel that is another one": (
        {"vendor/given-2-py3-none-any.whl": "other"},
        "the bundle has no file `./vendor/given-2-py3-none-any.whl` with the content that `uv.lock` locks",
        "run `uv lock`",
    ),
    "a wheel that is ignored": (
        {".cloudtrainignore": "*.whl\n"},
        "the bundle has no file `./vendor/given-2-py3-none-any.whl` with the content that `uv.lock` locks",
        "add `!vendor/given-2-py3-none-any.whl` to `.cloudtrainignore`",
    ),
    "a member that is ignored": (
        {".cloudtrainignore": "libs/my-lib/\n"},
        "cloudtrain cannot make a wheel of `my-lib` in the folder `libs/my-lib`: in the bundle it has no 'pyproject.toml'",
        "build it: `uv build --wheel libs/my-lib --out-dir vendor`",
    ),
    "a root with code of its own": (
        {"pyproject.toml": f'{OWN}[tool.hatch.build.hooks.custom]\npath = "x.py"\n'},
        "cloudtrain cannot make a wheel of `own` in the folder `.`: only its build backend can apply "
        "`tool.hatch.build.hooks.custom.path`",
        "set `package = false` in `[tool.uv]`; then run `uv lock`",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_travel_is_refused(cli: Cli, folder: Path, case: str) -> None:
    """Before anything is sent; a job that does not name the lock gets a notice."""
    files, message, hint = BAD[case]
    write(folder, files)
    result = cli("check", "job.yaml", "--target", "sagemaker", "--offline", "--json")
    assert result.code == 2
    (problem,) = [item for item in json.loads(result.out) if item["code"] == "CT058"]
    assert problem["message"].startswith(message)
    assert hint in problem["hint"]
    job(folder, IMAGE)
    assert any(
        note.startswith(f"`uv.lock` is not installed, because {message}")
        for note in plan(cli)["notes"]
    )


PYLOCK = """\
lock-version = "1.0"
created-by = "uv"

[[packages]]
name = "my-lib"
directory = { path = "libs/my-lib", editable = true }

[[packages]]
name = "given"
version = "2"
archive = { path = "vendor/given-2-py3-none-any.whl", hashes = { sha256 = "HASH" } }
"""


def test_a_pylock_names_them_too(cli: Cli, folder: Path) -> None:
    """As uv exports it."""
    write(
        folder,
        {
            "pylock.toml": PYLOCK.replace(
                "HASH", digest(folder / "vendor" / "given-2-py3-none-any.whl")
            )
        },
    )
    job(folder, f"{IMAGE}, requirements: pylock.toml")
    urls = [item["url"] for item in plan(cli)["environment"]["requirements"]["packages"]]
    assert urls == [
        "./vendor/given-2-py3-none-any.whl",
        "./cloudtrain-wheels/my_lib-0.3.0-py3-none-any.whl",
    ]


@pytest.mark.slow
def test_a_run_again_has_the_same_wheels(cli: Cli, folder: Path) -> None:
    """The code of the first run holds them."""
    write(folder, {"train.py": "print(1)\n"})
    job(folder, "requirements: uv.lock")
    assert cli("submit", "job.yaml", "--ignore", "LO207").code == 0
    shutil.rmtree(folder / "libs")
    again = cli("rerun", "own", "--ignore", "LO207")
    assert again.code == 0, again


ISOLATED = SETTINGS.replace("[azureml]", "network_isolation = true\n\n[azureml]")
WITHOUT_NETWORK: dict[str, tuple[str, dict[str, str], bool]] = {
    "wheels of your own": (f"{IMAGE}, requirements: uv.lock", {}, True),
    "a package of an index": (f"{IMAGE}, requirements: r.txt", {"r.txt": "./vendor/given-2-py3-none-any.whl\ntqdm\n"}, False),
    "wheels in the code": (f"{IMAGE}, requirements: r.txt", {"r.txt": "# ours\n./vendor/given-2-py3-none-any.whl\nlib-1-py3-none-any.whl ; python_version > '3'\n", "lib-1-py3-none-any.whl": ""}, True),
    "wheels of a file that is included": (f"{IMAGE}, requirements: r.txt", {"r.txt": "-r s.txt\n", "s.txt": f"./x-1-py3-none-any.whl --hash=sha256:{'0' * 64}\n", "x-1-py3-none-any.whl": ""}, True),
    "an address": (f"{IMAGE}, requirements: r.txt", {"r.txt": "https://host/x-1-py3-none-any.whl\n"}, False),
    "a folder that is built": (f"{IMAGE}, requirements: r.txt", {"r.txt": "-e ./libs/my-lib\n"}, False),
    "no index": (f"{IMAGE}, requirements: r.txt", {"r.txt": "--no-index\ntqdm\n"}, True),
}  # fmt: skip


@pytest.mark.parametrize("case", WITHOUT_NETWORK)
def test_a_container_without_network_installs_wheels(cli: Cli, folder: Path, case: str) -> None:
    """Wheels of the bundle need none; anything else is refused (SM702)."""
    environment, files, is_fine = WITHOUT_NETWORK[case]
    write(folder, {"cloudtrain.toml": ISOLATED, **files})
    job(folder, environment)
    result = cli("check", "job.yaml", "--target", "sagemaker", "--offline", "--json")
    codes = {item["code"] for item in json.loads(result.out)}
    assert ("SM702" not in codes) is is_fine, result.out
    assert (result.code == 0) is is_fine


BOTH = 'framework: pytorch, version: "2.8"'
"""A version that SageMaker and Azure ML have."""
NO_PROJECT = ("pyproject.toml", "uv.lock")


@pytest.fixture
def nested(folder: Path) -> Path:
    """A folder without packages at its top, and a script in a subfolder."""
    for name in NO_PROJECT:
        (folder / name).unlink()
    write(
        folder,
        {
            "src/train.py": "print(1)\n",
            "src/requirements.txt": "timm\n-r more.txt\n",
            "src/more.txt": "numpy>=1.26\n",
        },
    )
    job(folder, BOTH, "src/train.py")
    return folder


@pytest.mark.parametrize("target", ["local", "sagemaker", "azureml", "slurm"])
def test_what_lies_beside_a_script_in_a_subfolder_is_installed(
    cli: Cli, nested: Path, target: str
) -> None:
    """The plan says so, and the code has a list in its top folder, which every way to start the script installs."""
    words = ("--ignore", "LO207") if target == "local" else ()
    assert plan(cli, *words, target=target)["summary"]["requirements"].startswith(
        "2 packages from `src/requirements.txt`, found in the code"
    )
    code = unpacked(nested, target)
    assert (code / "requirements.txt").read_text().endswith("\n-r src/requirements.txt\n")
    assert (code / "src" / "requirements.txt").read_text() == "timm\n-r more.txt\n"
    job(nested, f"{BOTH}, requirements: none", "src/train.py")
    assert "requirements" not in plan(cli, target=target)["summary"]


def test_the_toolkit_installs_it(cli: Cli, nested: Path) -> None:
    """SageMaker's toolkit installs only `requirements.txt` in the top folder. The image's torch is kept."""
    write(
        nested,
        {
            "cloudtrain.toml": SETTINGS
            + 'shared_dir = "/shared"\n[local]\nbuild_environment = false\n'.replace(
                "[azureml]", 'launch = "toolkit"\n\n[azureml]'
            )
        },
    )
    job(nested, IMAGE, "src/train.py")
    assert "found in the code" in plan(cli)["summary"]["requirements"]
    code = unpacked(nested)
    assert (code / "requirements.txt").read_text().splitlines()[2:] == [
        "-c cloudtrain-constraints.txt",
        "-r src/requirements.txt",
    ]
    assert (code / "cloudtrain-constraints.txt").read_text() == "torch==2.13.0\n"


def test_the_top_folder_comes_first(cli: Cli, nested: Path) -> None:
    """Its file is installed, and nothing is added; a lock beside the script is read as one."""
    write(nested, {"requirements.txt": "tqdm\n"})
    assert (
        "1 package from `requirements.txt`, found in the code"
        in plan(cli)["summary"]["requirements"]
    )
    (nested / "requirements.txt").unlink()
    write(
        nested,
        {
            "src/pyproject.toml": PROJECT.format(dependencies='"tqdm"'),
            "src/uv.lock": lock(['name = "tqdm"'], [package("tqdm", "4.67.1")]),
        },
    )
    assert "1 package from `src/uv.lock`" in plan(cli)["summary"]["requirements"]
    assert "tqdm==4.67.1" in (unpacked(nested) / "requirements.txt").read_text()


@pytest.mark.slow
def test_pip_reads_the_list_of_a_subfolder(nested: Path) -> None:
    """With the files that it includes."""
    write(
        nested,
        {
            "src/requirements.txt": "-r more.txt\n",
            "src/more.txt": "./vendor/given-2-py3-none-any.whl\n",
        },
    )
    done = subprocess.run([*PIP, "install", "--no-index", "--no-deps", "--target", str(nested / "site"), "-r", "requirements.txt"],
                          cwd=unpacked(nested), capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (nested / "site" / "given.py").exists()


@pytest.mark.slow
def test_the_code_of_a_run_has_them(cli: Cli, folder: Path) -> None:
    """`code` writes them like the other files, and `diff` says that they differ."""
    names = []
    for word in ("one", "two"):
        write(folder, {"train.py": "print(1)\n", "libs/my-lib/src/my_lib/words.txt": word})
        submitted = cli("submit", "job.yaml", "--ignore", "LO207")
        assert submitted.code == 0, submitted
        names += {*re.findall(r"own-\w+-\d", submitted.err)}
    compared = cli("diff", *names)
    assert compared.code == 1
    assert re.search(r"cloudtrain-wheels/my_lib-0\.3\.0-py3-none-any\.whl +changed", compared.out)
    assert re.search(r"cloudtrain-wheels/own\S+ +changed", compared.out) is None
    assert cli("code", names[0], "old").code == 0
    with zipfile.ZipFile(
        folder / "old" / "cloudtrain-wheels" / "my_lib-0.3.0-py3-none-any.whl"
    ) as archive:
        assert archive.read("my_lib/words.txt") == b"one"
