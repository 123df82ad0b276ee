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
  - libblas=*=*mkl
  - mkl 2023.*|2024.*
  - pytorch::pytorch=2.1.0=py3.10_cuda12.1_cudnn8.9.2_0
  - numpy[version="1.*"]
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
    "wheels for pip": ("dependencies:\n- pip:\n  - numpy\n  - --find-links ./x\n", 4),
    "a wheel for pip": ("dependencies:\n- pip:\n  - ./x-1-py3-none-any.whl\n", 3),
    "constraints for pip": ("dependencies:\n- pip:\n  - numpy\n  - -c x.txt\n", 4),
    "a number for pip": ("dependencies:\n- pip:\n  - 3.12\n", 3),
    "a list for pip": ("dependencies:\n- pip:\n  - [numpy]\n", 3),
    "nothing for pip": ("dependencies:\n- pip:\n  - numpy\n  -\n", 4),
    "two lines for pip": ('dependencies:\n- pip:\n  - "numpy\\n--pre"\n', 3),
    "a number of channels": ("channels: 5\ndependencies: [pip]\n", 1),
    "a text of channels": ("dependencies: [pip]\nchannels: conda-forge\n", 2),
    "a mapping as a channel": ("dependencies: [pip]\nchannels:\n- conda-forge\n- {x: y}\n", 4),
    "a channel with a space": ("dependencies: [pip]\nchannels:\n- conda forge\n", 3),
    "a name of two lines": ('name: "mine\\nevil: x"\ndependencies: [pip]\n', 1),
    "a name with a space": ("name: my own\ndependencies: [pip]\n", 1),
    "a number as a name": ("name: 5\ndependencies: [pip]\n", 1),
    "a list of variables": ("dependencies: [pip]\nvariables: [x]\n", 2),
    "a package of two lines": ('dependencies:\n- "numpy\\n"\n', 2),
    "an empty clause": ("dependencies:\n- pip\n- numpy==4.1,,<5\n", 3),
    "a clause without an end": ("dependencies:\n- numpy>=1,<2,\n", 2),
    "an operator of Python": ("dependencies:\n- numpy===1\n", 2),
    "a bracket without a value": ("dependencies:\n- numpy[x]\n", 2),
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
