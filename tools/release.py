"""Make a release, and check one. docs/development/releasing.md says when to run which.

    python tools/release.py prepare 0.2.0      set the version, and give the changelog's newest section its name
    python tools/release.py build [FOLDER]     wheel, source distribution, SBOM and checksums, in dist/
    python tools/release.py verify [FOLDER]    compare checksums and SBOM, and try the wheel in an empty environment

`build` takes the commit that is checked out, and its time, so that everybody who builds it gets the same files. Nothing
is published: .github/workflows/release.yml does that, from a tag.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from email import message_from_bytes
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
VERSION_FILE = ROOT / "cloudtrain" / "version.py"
CHANGELOG = ROOT / "CHANGELOG.md"
UNRELEASED = "## Unreleased\n"
DYNAMIC = 'dynamic = ["readme", "version"]'
"""The line of pyproject.toml in whose place the SBOM's project has its version."""
SUMS = "SHA256SUMS"
SBOM = "cloudtrain-{version}.cdx.json"
EXTRAS = "sagemaker,azureml,sweeps"
"""What the SBOM lists beside the core: what people install for the two clouds. PyTorch is the job's own."""
TARGETS = ("local", "sagemaker", "azureml", "slurm")
SETTINGS = """\
[sagemaker]
region = "us-west-2"
role = "arn:aws:iam::111122223333:role/Training"

[azureml]
subscription_id = "00000000-0000-0000-0000-000000000000"
resource_group = "research"
workspace = "training"
compute = "gpu-cluster"

[slurm]
shared_dir = "/shared"
"""
"""An account on each target for the plans of `verify`, which asks no service."""


class ReleaseError(Exception):
    """Says what keeps a release from being made, or what is wrong with one."""


def prepare(version: str, today: str) -> None:
    """Set the version and name the changelog's newest section, in two files that are then to be committed."""
    try:
        new = Version(version)
    except InvalidVersion:
        raise ReleaseError(
            f"`{version}` is no version (PEP 440), such as 0.2.0 or 1.0rc1"
        ) from None
    old = Version(current_version())
    changes = CHANGELOG.read_text("utf-8")
    has_section = f"## {old} (" in changes
    if new < old or (new == old and has_section):
        raise ReleaseError(f"{version} does not come after {old}")
    before, heading, rest = changes.partition(UNRELEASED)
    section = rest.partition("\n## ")[0]
    if not heading or not section.strip():
        raise ReleaseError("CHANGELOG.md has nothing below `## Unreleased`")

    CHANGELOG.write_text(f"{before}{UNRELEASED}\n## {new} ({today})\n{rest}", "utf-8")
    text = VERSION_FILE.read_text("utf-8")
    VERSION_FILE.write_text(re.sub('__version__ = ".*"', f'__version__ = "{new}"', text), "utf-8")
    print(f"commit this as `Release {new}`, and tag it v{new}")


def current_version() -> str:
    found = re.search('__version__ = "(.*)"', VERSION_FILE.read_text("utf-8"))
    assert found
    return found[1]


def build(folder: Path) -> None:
    """Write the files of a release into `folder`, which is emptied first."""
    version = current_version()
    if _output("git", "status", "--porcelain"):
        raise ReleaseError("the checkout has changes that are not committed")
    if f"## {version} (" not in CHANGELOG.read_text("utf-8"):
        raise ReleaseError(f"CHANGELOG.md has no section for {version}: run `prepare` first")

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    variables = {"SOURCE_DATE_EPOCH": _output("git", "log", "-1", "--format=%ct")}
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, env=variables)
    archives = sorted(folder.iterdir())
    _run(sys.executable, "-m", "twine", "check", "--strict", *archives)
    wheel = _wheel_in(folder)
    with tempfile.TemporaryDirectory() as scratch:
        python = _install(wheel, Path(scratch), sys.executable, EXTRAS)
        project = Path(scratch, "pyproject.toml")
        text = (ROOT / "pyproject.toml").read_text("utf-8")
        project.write_text(text.replace(DYNAMIC, f'version = "{version}"'), "utf-8")
        _run(
            *(
                sys.executable,
                "-m",
                "cyclonedx_py",
                "environment",
                "--output-reproducible",
                "--validate",
            ),
            *("--pyproject", project, "--mc-type", "library"),
            *("--output-file", folder / SBOM.format(version=version), python),
            env=variables,
        )
    lines = [f"{_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir())]
    (folder / SUMS).write_text("".join(lines), "utf-8")
    print(f"{folder}: {len(lines)} files and {SUMS}")


def verify(folder: Path, pythons: Sequence[str], trains: bool) -> None:
    """Check the files of a release, and use its wheel as somebody who has nothing else."""
    wheel = _wheel_in(folder)
    for problem in (*_wrong_sums(folder), *_missing_in_sbom(folder, wheel)):
        raise ReleaseError(problem)
    print("checksums and SBOM are right")
    for python in pythons:
        with tempfile.TemporaryDirectory() as scratch:
            _try(wheel, Path(scratch), python, trains)
    program = shutil.which("uvx")
    if program is not None:
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            (place / "cloudtrain.toml").write_text(SETTINGS, "utf-8")
            plan = ("cloudtrain", "plan", "bundled:digits_ddp", "--target", "slurm", "--json")
            _run(program, "--from", wheel, *plan, cwd=place, shows=False)
        print("uvx --from WHEEL cloudtrain plan: plans")


def _wrong_sums(folder: Path) -> Iterator[str]:
    listed = {}
    for line in (folder / SUMS).read_text("utf-8").splitlines():
        digest, name = line.split("  ", 1)
        listed[name] = digest
    here = {file.name for file in folder.iterdir()} - {SUMS}
    for name in sorted(here - listed.keys()):
        yield f"{SUMS} does not name {name}"
    for name, digest in listed.items():
        if name not in here:
            yield f"{name} is missing"
        elif _sha256(folder / name) != digest:
            yield f"{name} is not the file whose checksum {SUMS} has"


def _missing_in_sbom(folder: Path, wheel: Path) -> Iterator[str]:
    metadata = _metadata(wheel)
    file = folder / SBOM.format(version=metadata["Version"])
    if not file.exists():
        yield f"{file.name} is missing"
        return
    sbom = json.loads(file.read_text("utf-8"))
    version = sbom["metadata"]["component"].get("version")
    if version != metadata["Version"]:
        yield f"{file.name} is of version {version}"
    components = sbom["components"]
    names = {canonicalize_name(component["name"]) for component in components}
    for text in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if canonicalize_name(requirement.name) not in names:
            yield f"{file.name} does not name {requirement.name}, which the wheel needs"


def _try(wheel: Path, scratch: Path, python: str, trains: bool) -> None:
    """Plan for every target, and train digits_ddp if asked, with nothing but the wheel and what it needs."""
    extras = "torch" if trains else ""
    installed = _install(wheel, scratch, python, extras)
    cloudtrain = installed.with_name("cloudtrain")
    (scratch / "cloudtrain.toml").write_text(SETTINGS, "utf-8")
    for target in TARGETS:
        options = ["--target", target, "--json"]
        if target == "local" and not trains:  # torchrun would start it, which is not installed
            options += ["--set", "distribution.type=none"]
        _run(cloudtrain, "plan", "bundled:digits_ddp", *options, cwd=scratch, shows=False)
    print(f"{python}: plans for {', '.join(TARGETS)}")
    if trains:
        options = ["--processes-per-instance", "2", "--set", "hyperparameters.epochs=2"]
        state = {"CLOUDTRAIN_STATE_DIR": str(scratch / "state")}
        _run(
            cloudtrain,
            "submit",
            "bundled:digits_ddp",
            *options,
            cwd=scratch,
            env=state,
            shows=False,
        )
        print(f"{python}: trains digits_ddp")


def _install(wheel: Path, folder: Path, python: str, extras: str) -> Path:
    """Install the wheel in a new environment in `folder`, and return its interpreter."""
    place = folder / "venv"
    if python == sys.executable:
        venv.create(place, with_pip=False)
    else:
        _run(python, "-m", "venv", "--without-pip", place)
    interpreter = place / "bin" / "python"
    requirement = f"cloudtrain[{extras}] @ {wheel.resolve().as_uri()}" if extras else str(wheel)
    pip = (sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet")
    _run(*pip, "--disable-pip-version-check", requirement)
    return interpreter


def _wheel_in(folder: Path) -> Path:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ReleaseError(f"{folder} holds {len(wheels)} wheels instead of one")
    return wheels[0]


def _metadata(wheel: Path) -> Any:
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(archive.read(name))


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _output(*command: str) -> str:
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _run(
    *command: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    shows: bool = True,
) -> None:
    """Run a program whose output is shown, or shown only if it fails."""
    variables = os.environ | dict(env or {})
    variables.pop("PYTHONPATH", None)
    output = None if shows else subprocess.PIPE
    answer = subprocess.run(
        command, cwd=cwd, env=variables, check=False, text=True, stdout=output, stderr=output
    )
    if answer.returncode == 0:
        return
    words = " ".join(map(str, command))
    details = "" if shows else f"\n{answer.stdout}{answer.stderr}"
    raise ReleaseError(f"`{words}` ended with {answer.returncode}{details}")


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("version")
    preparing.add_argument("--date", default=date.today().isoformat(), help="default: today")
    preparing.set_defaults(act=lambda given: prepare(given.version, given.date))
    building = commands.add_parser("build")
    building.set_defaults(act=lambda given: build(given.folder))
    verifying = commands.add_parser("verify")
    verifying.add_argument("--python", action="append", help="an interpreter to try; repeatable")
    verifying.add_argument("--train", action="store_true", help="install PyTorch and train, too")
    verifying.set_defaults(
        act=lambda given: verify(given.folder, given.python or [sys.executable], given.train)
    )
    for command in (building, verifying):
        command.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    act: Callable[[argparse.Namespace], None] = given.act
    try:
        act(given)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
