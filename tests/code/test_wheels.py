"""Wheels of the user's own packages hold what their build backends put into them, and are made without running one."""

from __future__ import annotations

import base64
import email
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from cloudtrain.code.tree import scan
from cloudtrain.code.wheels import with_wheels
from cloudtrain.errors import JobError
from cloudtrain.job.locks import read_lock
from cloudtrain.job.requirements import Platform, Requirements
from tests.locks import write

LOCK = """\
version = 1
revision = 5
requires-python = ">=3.10"

[manifest]
members = ["{name}"]

[[package]]
name = "{name}"
version = "1"
source = {{ {kind} = "libs/my-lib" }}
"""
FIELDS = """\
[project]
name = "my-lib"
version = "1.0.0-beta1"
requires-python = ">=3.10"
"""


def project(requires: str, backend: str, more: str = "", *, fields: str = FIELDS) -> str:
    """A pyproject.toml."""
    return (
        f'{fields}{more}\n[build-system]\nrequires = ["{requires}"]\nbuild-backend = "{backend}"\n'
    )


UV, HATCH, SETUPTOOLS, FLIT, POETRY = (
    ("uv_build", "uv_build"),
    ("hatchling", "hatchling.build"),
    ("setuptools", "setuptools.build_meta"),
    ("flit_core", "flit_core.buildapi"),
    ("poetry-core", "poetry.core.masonry.api"),
)
MODULE = {
    "__init__.py": "",
    "deep/__init__.py": "WORD = 1\n",
    "data/words.txt": "a\n",
    "py.typed": "",
}


def below(folder: str, files: Mapping[str, str] = MODULE) -> dict[str, str]:
    """The files in a folder."""
    return {f"{folder}/{name}": text for name, text in files.items()}


NEEDS = """\
dependencies = ["NumPy>=1.26,<3", "rich[jupyter] ; python_version < '3.13'", "tool @ https://host/tool.zip"]
[project.optional-dependencies]
Plot_It = ["matplotlib", "pillow ; sys_platform == 'linux' or sys_platform == 'darwin'"]
[project.scripts]
my-lib = "my_lib.deep:main"
[project.entry-points."my.plugins"]
one = "my_lib"
"""
DIRECT = "\n[tool.hatch.metadata]\nallow-direct-references = true\n"
DYNAMIC = FIELDS.replace('version = "1.0.0-beta1"', 'dynamic = ["version"]')
VERSION = {**MODULE, "__init__.py": '"""Words."""\n\n__version__ = "3.2"\n'}
DATA = '\n[tool.setuptools.package-data]\n"*" = ["*.txt", "py.typed"]\n'

TWINS: dict[str, tuple[str, dict[str, str]]] = {
    "uv": (project(*UV, NEEDS), below("src/my_lib")),
    "uv, settings": (
        project(*UV, '[tool.uv.build-backend]\nmodule-name = "my_lib"\nmodule-root = "src"\nsource-include = ["x"]\n'),
        {**below("src/my_lib"), **below("src/other")},
    ),
    "uv, flat": (project(*UV, '[tool.uv.build-backend]\nmodule-root = ""\n'), below("my_lib")),
    "hatchling": (project(*HATCH, NEEDS + DIRECT), {**below("src/my_lib"), "train.py": ""}),
    "hatchling, flat": (project(*HATCH), {**below("my_lib"), **below("tests")}),
    "hatchling, settings": (
        project(*HATCH, '[tool.hatch.build.targets.wheel]\npackages = ["src/my_lib"]\n[tool.hatch.envs.test]\nextra = 1\n'),
        {**below("src/my_lib"), **below("two")},
    ),
    "hatchling, a version in another file": (
        project(*HATCH, '[tool.hatch.version]\npath = "src/my_lib/__about__.py"\n', fields=DYNAMIC),
        below("src/my_lib", {**MODULE, "__about__.py": "__version__ = '3.2'  # ours\n"}),
    ),
    "hatchling, a dynamic version": (
        project(*HATCH, '[tool.hatch.version]\npath = "src/my_lib/__init__.py"\n', fields=DYNAMIC),
        below("src/my_lib", VERSION),
    ),
    "setuptools": (project(*SETUPTOOLS, NEEDS + DATA), below("src/my_lib")),
    "setuptools, settings": (
        project(*SETUPTOOLS, f'[tool.setuptools]\nzip-safe = false\npackage-dir = {{ "" = "src" }}\n'
                             f'[tool.setuptools.packages.find]\nwhere = ["src"]\n{DATA}'),
        below("src/my_lib"),
    ),
    "setuptools, flat": (project(*SETUPTOOLS, DATA), {**below("my_lib"), **below("tests"), "train.py": ""}),
    "setuptools, a dynamic version": (
        project(*SETUPTOOLS, f'[tool.setuptools.dynamic]\nversion = {{ attr = "my_lib.__version__" }}\n{DATA}', fields=DYNAMIC),
        below("src/my_lib", VERSION),
    ),
    "no backend": (FIELDS + DATA, below("my_lib")),
    "flit": (project(*FLIT, NEEDS, fields=f'{FIELDS}description = "Words"\n'), below("my_lib")),
    "flit, src": (
        project(*FLIT, '[tool.flit.module]\nname = "my_lib"\n', fields=f'{FIELDS}description = "Words"\n'),
        below("src/my_lib"),
    ),
    "flit, a dynamic version": (
        project(*FLIT, fields=DYNAMIC.replace('["version"]', '["version", "description"]')),
        below("my_lib", VERSION),
    ),
    "poetry": (project(*POETRY, NEEDS), below("src/my_lib")),
    "poetry, settings": (
        project(*POETRY, '[[tool.poetry.packages]]\ninclude = "my_lib"\nfrom = "src"\n'
                         '[tool.poetry.group.dev.dependencies]\npytest = "*"\n'),
        below("src/my_lib"),
    ),
    "poetry, a package in the top folder": (project(*POETRY, '[tool.poetry]\npackages = [{include = "my_lib"}]\n'), below("my_lib")),
    "poetry, flat": (project(*POETRY), {**below("my_lib"), **below("tests")}),
}  # fmt: skip
"""A pyproject.toml, and the other files of a project."""


def member(folder: Path, files: Mapping[str, str]) -> Path:
    """Write the only member of a workspace, and return its folder."""
    write(folder, below("libs/my-lib", files))
    return folder / "libs" / "my-lib"


def read(folder: Path, *, kind: str = "editable") -> Requirements:
    """What the lock of a workspace installs."""
    write(folder, {"uv.lock": LOCK.format(kind=kind, name="my-lib")})
    tree = scan(folder)

    def text(path: str) -> str | None:
        return (folder / path).read_text() if (folder / path).is_file() else None

    return with_wheels(tree, read_lock("uv.lock", text, Platform("3.12")))


def applying(item: Requirement) -> list[str]:
    """Where a dependency applies. Each backend writes the marker of an extra in its own order."""
    machines = [
        (python, system, extra)
        for python in ("3.12", "3.13")
        for system in ("linux", "darwin", "win32")
        for extra in ("", "plot-it")
    ]
    return [
        f"{python} {system} {extra}" for python, system, extra in machines
        if item.marker is None or item.marker.evaluate({"python_version": python, "python_full_version": f"{python}.0",
                                                        "sys_platform": system, "extra": extra})
    ]  # fmt: skip


def content(wheel: bytes | Path) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """A wheel's modules and data; and of its metadata what an installer reads, with its entry points."""
    with zipfile.ZipFile(BytesIO(wheel) if isinstance(wheel, bytes) else wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    (info,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    fields = email.message_from_bytes(files[f"{info}/METADATA"])
    metadata = {key: fields.get_all(key, []) for key in ("Name", "Requires-Python")}
    metadata["Version"] = [str(Version(fields["Version"]))]
    metadata["Provides-Extra"] = sorted(fields.get_all("Provides-Extra", []))
    wanted = [Requirement(text) for text in fields.get_all("Requires-Dist", [])]
    metadata["Requires-Dist"] = sorted(
        f"{item.name.lower()} {sorted(item.extras)} {item.specifier} {item.url} {applying(item)}"
        for item in wanted
    )
    points = files.get(f"{info}/entry_points.txt", b"").decode().split()
    metadata["points"] = sorted("".join(points).replace("[", "\n[").splitlines())
    metadata["points"] = [line for line in metadata["points"] if line and not line.endswith("]")]
    return {name: text for name, text in files.items() if not name.startswith(f"{info}/")}, metadata


def only_wheel(wanted: Requirements) -> tuple[str, bytes]:
    ((path, wheel),) = wanted.wheels.items()
    return path, wheel


BACKEND = {"uv": "uv_build", "hatchling": "hatchling", "setuptools": "setuptools", "no": "setuptools", "flit": "flit_core",
           "poetry": "poetry.core"}  # fmt: skip


def is_installed(module: str) -> bool:
    """Whether this Python has a build backend. Older versions of setuptools, such as that of a new environment of Python
    3.10, need another package for wheels."""
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
    return found and (
        module != "setuptools" or Version(importlib.metadata.version(module)) >= Version("70.1")
    )


FIRST = ("uv", "hatchling", "setuptools", "flit", "poetry")


@pytest.mark.slow_after(len(FIRST))
@pytest.mark.parametrize("case", [*FIRST, *(case for case in TWINS if case not in FIRST)])
def test_a_wheel_is_that_of_its_backend(tmp_path: Path, case: str) -> None:
    """The same files, and the same name, version, dependencies, extras and entry points."""
    module = BACKEND[case.replace(",", "").split()[0]]
    pyproject, files = TWINS[case]
    folder = member(tmp_path, {"pyproject.toml": pyproject, **files})
    path, ours = only_wheel(read(tmp_path))
    if not is_installed(module):
        pytest.skip(f"{module} is not installed")
    hook = "import sys; from importlib import import_module as get; get(sys.argv[1]).build_wheel(sys.argv[2])"
    name = {"poetry.core": "poetry.core.masonry.api", "flit_core": "flit_core.buildapi", "hatchling": "hatchling.build",
            "setuptools": "setuptools.build_meta", "uv_build": "uv_build"}[module]  # fmt: skip
    place = tmp_path / "built"
    place.mkdir()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", hook, name, str(place)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = place.glob("*.whl")
    theirs = content(built)
    assert content(ours) == theirs
    assert Path(path).name == built.name.replace("py2.py3", "py3")


def test_every_file_is_recorded(tmp_path: Path) -> None:
    """With its hash and its size, so that an installer can check and remove it."""
    member(
        tmp_path, {"pyproject.toml": TWINS["uv"][0], **TWINS["uv"][1], 'src/my_lib/a,"b.txt': "x"}
    )
    _, wheel = only_wheel(read(tmp_path))
    with zipfile.ZipFile(BytesIO(wheel)) as archive:
        names = archive.namelist()
        record = archive.read("my_lib-1.0.0b1.dist-info/RECORD").decode()
        for name in names[:-1]:
            body = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
            quoted = name.replace('"', '""')
            assert f'"{quoted}",sha256={digest},{len(body)}\n' in record
    assert len(record.splitlines()) == len(names)


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    """Whatever the times, the order of creation, and what is ignored; another content gives others."""
    pyproject, files = TWINS["hatchling"]
    first, second = tmp_path / "first", tmp_path / "second"
    one = member(first, {"pyproject.toml": pyproject, **files})
    two = member(second, {**dict(reversed(files.items())), "pyproject.toml": pyproject, "src/my_lib/large.bin": "x",
                          "src/my_lib/__pycache__/x.pyc": "x", ".cloudtrainignore": "*.bin\n"})  # fmt: skip
    os.utime(two / "pyproject.toml", (1, 1))
    lists = [read(folder) for folder in (first, second)]
    assert only_wheel(lists[0]) == only_wheel(lists[1])
    assert lists[0].digest == lists[1].digest
    (two / "src/my_lib/py.typed").write_text("partial\n")
    assert read(second).digest != lists[0].digest
    (one / "src/my_lib/py.typed").chmod(0o755)
    with zipfile.ZipFile(BytesIO(only_wheel(read(first))[1])) as archive:
        modes = {item.filename: item.external_attr >> 16 for item in archive.infolist()}
        assert {item.date_time for item in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert {name for name, mode in modes.items() if mode == 0o100755} == {"my_lib/py.typed"}
    assert {*modes.values()} == {0o100755, 0o100644}


def test_a_virtual_project_is_not_installed(tmp_path: Path) -> None:
    """uv does not install it either."""
    member(tmp_path, {"pyproject.toml": FIELDS, "train.py": ""})
    assert read(tmp_path, kind="virtual").wheels == {}


APPLY = "only its build backend can apply "
REFUSED: dict[str, tuple[str, dict[str, str], str]] = {
    "another backend": (project("maturin", "maturin"), below("my_lib"), f"{APPLY}`maturin`"),
    "a compiler": (project('setuptools", "Cython', SETUPTOOLS[1]), below("my_lib"), f"{APPLY}`cython`"),
    "versions of a repository": (project('hatchling", "hatch-vcs', HATCH[1]), below("my_lib"), f"{APPLY}`hatch-vcs`"),
    "code in setup.py": (project(*SETUPTOOLS), {**below("my_lib"), "setup.py": "from setuptools import setup\nsetup(name='x')\n"},
                         f"{APPLY}`setup.py`"),
    "setup.cfg": (project(*SETUPTOOLS), {**below("my_lib"), "setup.cfg": "[options]\npackages = find:\n"}, f"{APPLY}`setup.cfg`"),
    "extension modules": (project(*SETUPTOOLS, '[[tool.setuptools.ext-modules]]\nname = "x"\n'), below("my_lib"),
                          f"{APPLY}`tool.setuptools.ext-modules`"),
    "other folders": (project(*SETUPTOOLS, '[tool.setuptools.packages.find]\nwhere = ["lib"]\n'), below("my_lib"),
                      f"{APPLY}`tool.setuptools.packages.find.where`"),
    "what hatch leaves out": (project(*HATCH, '[tool.hatch.build]\nexclude = ["*.txt"]\n'), below("my_lib"),
                              f"{APPLY}`tool.hatch.build.exclude`"),
    "what uv leaves out": (project(*UV, '[tool.uv.build-backend]\nwheel-exclude = ["*.txt"]\n'), below("src/my_lib"),
                           f"{APPLY}`tool.uv.build-backend.wheel-exclude`"),
    "what poetry takes": (project(*POETRY, '[[tool.poetry.packages]]\ninclude = "x"\n'), below("my_lib"), f"{APPLY}`tool.poetry.packages`"),
    "dynamic dependencies": (project(*SETUPTOOLS, fields=FIELDS + 'dynamic = ["dependencies"]\n'), below("my_lib"),
                             f"{APPLY}`dynamic dependencies`"),
    "a backend of its own": (FIELDS + '[build-system]\nrequires = []\nbuild-backend = "flit_core.buildapi"\nbackend-path = ["."]\n',
                             below("my_lib"), f"{APPLY}`flit_core.buildapi`"),
    "a computed version": (project(*FLIT, fields=DYNAMIC), below("my_lib", {"__init__.py": "__version__ = str(3)\n"}),
                           "its `version` is dynamic, and not in one line `__version__ = \"1.0\"`"),
    "two versions": (project(*FLIT, fields=DYNAMIC), below("my_lib", {"__init__.py": "__version__ = '1'\n__version__ = '2'\n"}),
                     "its `version` is dynamic"),
    "no version at all": (project(*UV, fields='[project]\nname = "my-lib"\n'), below("src/my_lib"), "its `version` is dynamic"),
    "a version that is none": (project(*UV, fields='[project]\nname = "my-lib"\nversion = "next"\n'), below("src/my_lib"), "Invalid version: 'next'"),
    "a namespace": (project(*UV), below("src/ours/my_lib"), "it needs a package in either `src/my_lib` or `my_lib`"),
    "a package in each place": (project(*HATCH), {**below("src/my_lib"), **below("my_lib")}, "it needs a package in either `src/my_lib` or `my_lib`"),
    "a module": (project(*FLIT), {"my_lib.py": ""}, "it needs a package in either `src/my_lib` or `my_lib`"),
    "another package": (project(*UV, '[tool.uv.build-backend]\nmodule-name = "my_lib.deep"\n'), below("src/my_lib"),
                        f"{APPLY}`tool.uv.build-backend.module-name`"),
    "another package beside it": (project(*SETUPTOOLS), {**below("src/my_lib"), **below("src/tools")},
                                  f"{APPLY}`src/tools/__init__.py`, `src/tools/deep/__init__.py`"),
    "a namespace of setuptools": (project(*SETUPTOOLS), {**below("src/ours/lib"), **below("src/two")}, "it needs a package in either `src/my_lib` or `my_lib`"),
    "several modules": (project(*SETUPTOOLS), {**below("one"), **below("two")}, "it needs a package in either `src/my_lib` or `my_lib`"),
    "no module": (project(*HATCH), {"train.py": ""}, "it needs a package in either `src/my_lib` or `my_lib`"),
    "a compiled module": (project(*HATCH), {**below("my_lib"), "my_lib/fast.cpython-312-x86_64-linux-gnu.so": ""},
                          "`my_lib/fast.cpython-312-x86_64-linux-gnu.so` is a link, or not pure Python"),
    "no project": ("[tool.poetry]\nname = 'my-lib'\n", below("my_lib"),  "in the bundle it has no 'project'"),
    "no TOML": ("[project\n", below("my_lib"), "Expected ']'"),
    "a dependency that is none": (project(*HATCH, 'dependencies = ["numpy=1"]\n'), below("my_lib"), "Expected"),
    "a text for a table": ("project = 3\n", below("my_lib"), "'int'"),
}  # fmt: skip
"""A pyproject.toml, the other files, and the reason."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_only_a_backend_can_build_is_refused(tmp_path: Path, case: str) -> None:
    """With a reason, and with what to type."""
    pyproject, files, reason = REFUSED[case]
    member(tmp_path, {"pyproject.toml": pyproject, **files})
    with pytest.raises(JobError) as caught:
        read(tmp_path)
    (problem,) = caught.value.problems
    head = "cloudtrain cannot make a wheel of `my-lib` in the folder `libs/my-lib`: "
    assert problem.message.startswith(head + reason)
    assert problem.code == "CT058"
    assert problem.hint == (
        'build it: `uv build --wheel libs/my-lib --out-dir vendor`, and set `my-lib = { path = "vendor/WHEEL" }` in `[tool.uv.sources]`; '
        "then run `uv lock`"
    )


def test_a_link_is_refused(tmp_path: Path) -> None:
    """A wheel cannot hold one."""
    folder = member(
        tmp_path, {"pyproject.toml": project(*HATCH), **below("my_lib"), "words.txt": ""}
    )
    (folder / "my_lib" / "more.txt").symlink_to("../words.txt")
    with pytest.raises(JobError, match=r"`my_lib/more\.txt` is a link, or not pure Python"):
        read(tmp_path)
