"""Ask the registry for the newest packages, and compare them with what the project pins.

    python tools/versions.py               print each exact pin, the newest version, and where the pin stands
    python tools/versions.py NAME ...      write the packages of these environments into build/NAME.txt

An environment of the newest has what the pinned one of the same kind has, each package in the newest version of its
major one: version 3 of SageMaker's SDK is another package than version 2.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from environments import NEWEST, PYTHONS, ROOT, find_uv, newest_list

PARITY = "tests/parity/requirements-{}.txt"
FILES = {
    "newest-sagemaker-v2": (PARITY.format("v2"),),
    "newest-sagemaker-v3": (PARITY.format("v3"),),
    "newest-azureml": (PARITY.format("azureml"),),
    "newest-torch": ("constraints.txt", "tests/training_scripts/requirements-torch.txt"),
}
"""The requirements of each environment, beside the extra `test`, which PyTorch's does without."""

PINNED = ("pyproject.toml", *dict.fromkeys(file for files in FILES.values() for file in files))
_PIN = re.compile(r"^\s*\"?([a-zA-Z][\w.-]*)(\[\w+\])?==([\d.]+)", re.MULTILINE)


def loosened(requirements: str) -> str:
    """Replace exact pins by ranges: at least this version, and the same major one."""

    def widen(pin: re.Match[str]) -> str:
        major = pin[3].partition(".")[0]
        return f"{pin[1]}{pin[2] or ''}>={pin[3]},=={major}.*"

    return _PIN.sub(widen, requirements)


def resolve(requirements: str, *, python: str, extra: str = "") -> str:
    """Return the newest versions that fit together, as requirements. Exit where the registry does not answer."""
    uv = find_uv()
    if uv is None:
        raise SystemExit("uv cannot be had here, which asks for the newest versions")
    command = [uv, "pip", "compile", "-q", "--no-header", "--no-annotate", "--upgrade"]
    command += ["--python-version", python, "-"]
    if extra:
        command += ["pyproject.toml", "--extra", extra]
    answer = subprocess.run(
        command, cwd=ROOT, input=requirements, capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise SystemExit(f"the registry names no newest versions:\n{answer.stderr}")
    return answer.stdout


def write(name: str) -> str:
    """Write the list of packages of an environment, and return it."""
    files = FILES.get(name, ())
    requirements = "\n".join(loosened((ROOT / file).read_text()) for file in files)
    found = resolve(
        requirements,
        python=NEWEST[name] or PYTHONS[0],
        extra="" if name == "newest-torch" else "test",
    )
    file = ROOT / newest_list(name)
    file.parent.mkdir(exist_ok=True)
    file.write_text(found)
    return found


def pins() -> dict[tuple[str, str], list[str]]:
    """Return the files of each pin, by name and version."""
    found: dict[tuple[str, str], list[str]] = {}
    for file in PINNED:
        for name, _, version in _PIN.findall((ROOT / file).read_text()):
            found.setdefault((name, version), []).append(file)
    return found


def newest(name: str, version: str) -> str:
    """Return the newest version of a package within the major one, without asking what else fits to it."""
    wanted = loosened(f"{name}=={version}\n")
    line = next(
        line
        for line in resolve(wanted, python=PYTHONS[0]).splitlines()
        if line.startswith(f"{name.lower()}==")
    )
    return line.partition("==")[2].split()[0]


def main(arguments: Sequence[str]) -> int:
    """Write lists, or print the table."""
    for name in arguments:
        if name not in NEWEST:
            raise SystemExit(f"`{name}` is none of {', '.join(NEWEST)}")
        write(name)
        print(newest_list(name))
    if not arguments:
        for (name, version), files in sorted(pins().items()):
            print(f"{name:20} {version:10} {newest(name, version):10} {', '.join(files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
