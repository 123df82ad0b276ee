"""`environment.conda_file`: what conda cannot read is found before the service builds it."""

from __future__ import annotations

import pytest

from cloudtrain.errors import JobError
from cloudtrain.job.conda import check_conda

GOOD = """\
name: mine
channels: [conda-forge, nodefaults]
dependencies:
  - python=3.12
  - conda-forge::numpy>=1.26,<3
  - cudatoolkit 11.3
  - _libgcc_mutex=0.1=main
  - pip:
    - torch==2.0 ; python_version < '3.13'
    - --extra-index-url https://host.example/simple
"""
BAD = {
    "no YAML": ("dependencies: [\n", 2),
    "deep nesting": (f"dependencies: {'[' * 3000}{']' * 3000}\n", 1),
    "nothing": ("", 1),
    "a list": ("- numpy\n", 1),
    "no dependencies": ("name: mine\n", 1),
    "a mapping of dependencies": ("dependencies: {numpy: 1}\n", 1),
    "an unknown key": ("dependencies: [pip]\nchanels: [x]\n", 2),
    "an option": ("dependencies:\n- numpy\n- --evil x\n", 3),
    "a number": ("dependencies:\n- 3.12\n", 2),
    "another section": ("dependencies:\n- npm: [x]\n", 2),
    "a pin of conda for pip": ("dependencies:\n- pip:\n  - numpy=1\n", 3),
    "a file for pip": ("dependencies:\n- pip:\n  - numpy\n  - -r requirements.txt\n", 4),
    "a folder for pip": ("dependencies:\n- pip: [-e .]\n", 2),
}


def test_a_conda_file_is_read() -> None:
    """Packages with channels, versions and builds, and lines of pip."""
    check_conda("conda.yml", GOOD)


@pytest.mark.parametrize("name", BAD)
def test_what_conda_cannot_read_is_refused(name: str) -> None:
    """With its line."""
    text, line = BAD[name]
    with pytest.raises(JobError) as caught:
        check_conda("conda.yml", text)
    (problem,) = caught.value.problems
    assert problem.code == "CT056"
    assert problem.path == ("environment", "conda_file")
    assert problem.message.startswith(f"line {line} of `conda.yml`")
