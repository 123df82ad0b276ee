"""Small locks and projects, as uv 0.13.9 writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

PYPI = 'registry = "https://pypi.org/simple"'

PROJECT = """\
[project]
name = "own"
version = "0.1"
requires-python = ">=3.10"
dependencies = [{dependencies}]
"""

SETTINGS = """\
[sagemaker]
role = "arn:aws:iam::123456789012:role/R"
bucket = "my-bucket"
region = "eu-west-1"

[azureml]
subscription_id = "99999999-2222-3333-4444-555555555555"
resource_group = "group"
workspace = "ws"
compute = "cluster"

[slurm]
host = "login"
"""
"""Settings for every target that a lock can be planned for."""


def package(
    name: str,
    version: str,
    *,
    needs: str = "",
    source: str = PYPI,
    more: str = "",
    archives: bool = True,
) -> str:
    """One package of a lock, with two archives whose hashes follow from its name."""
    letter = f"{ord(name[0]):x}"
    files = (
        f'sdist = {{ url = "https://files/{name}.tar.gz", hash = "sha256:{letter * 32}", size = 1 }}\n'
        f'wheels = [\n    {{ url = "https://files/{name}.whl", hash = "sha256:{letter[::-1] * 32}", size = 1 }},\n]\n'
    )
    dependencies = f"dependencies = [\n{needs}]\n" if needs else ""
    head = f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ {source} }}\n'
    return f"{head}{more}{dependencies}{files if archives else ''}\n"


def lock(
    direct: Sequence[str],
    packages: Sequence[str],
    *,
    requires_python: str = ">=3.10",
    root: str = 'virtual = "."',
) -> str:
    """A uv.lock of the project `own`. `direct` are its dependencies, as tables: `name = "tqdm", specifier = ">=4"`."""
    named = "".join(f"    {{ {item.partition(',')[0]} }},\n" for item in direct)
    wanted = "".join(f"    {{ {item} }},\n" for item in direct)
    own = package("own", "0.1", needs=named, source=root, archives=False)
    metadata = f"[package.metadata]\nrequires-dist = [\n{wanted}]\n\n"
    return f'version = 1\nrevision = 5\nrequires-python = "{requires_python}"\n\n{own}{metadata}{"".join(packages)}'


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a project."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


TORCH = (
    package("torch", "2.13.0", needs='    { name = "sympy" },\n')
    + package("sympy", "1.14.0")
    + package("tqdm", "4.67.1")
    + package("numpy", "2.5.5")
)
LOCK = lock(['name = "numpy"', 'name = "torch", specifier = ">=2.4"', 'name = "tqdm"'], [TORCH])
OWN = PROJECT.format(dependencies='"torch>=2.4", "tqdm", "numpy"')
"""A project that needs torch 2.13.0, and its lock."""
