"""A line of a requirements file is refused if pip refuses it. The installed pip is the judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.errors import JobError
from cloudtrain.job.pip_file import PipFile
from cloudtrain.lifecycle.preparing.environment import check_lines
from cloudtrain.machines.contents import Contents

HASH = "0a" * 32

FILES = {
    "pyproject.toml": '[project]\nname = "own"\nversion = "1"\n',
    "pkg/pyproject.toml": '[project]\nname = "pkg"\nversion = "1"\n',
    "other.txt": "numpy\n",
    "links/x-1-py3-none-any.whl": "",
    "x-1-py3-none-any.whl": "",
    "x.whl": "",
    "x-1.tar.gz": "",
    "x-1.egg": "",
}

TAKEN = """\
tqdm
tqdm>=4,<5
tqdm (==1)
tqdm[x, y] >= 4 ; os_name == 'posix'
tqdm==1.*
tqdm==1;os_name=='x'
tqdm@https://h/x.zip
tqdm @ git+https://${TOKEN}@h/x.git@main ; os_name == 'x'
tqdm @ https://h/x.zip; os_name == 'x'
tqdm@https://h/x.zip;\tos_name == 'x'
tqdm[x] @ git+https://h/x.git@main;  os_name == 'x'
tqdm @ file:///abs/x; os_name == 'x'
tqdm @ git+ssh://git@h/x.git
tqdm @ file:///abs/x
tqdm # a comment
https://h/x-1-py3-none-any.whl#sha256=aa
https://${TOKEN}@h/x-1%2Bcu1-py3-none-any.whl
https://h/x-1.tar.gz#egg=x
https://h/x.zip; os_name == 'x'
git+https://h/x.git@v1#subdirectory=y
hg+https://h/x
./pkg
./pkg[x] ; os_name == 'x'
./x-1.tar.gz
x-1-py3-none-any.whl
.
-e .
-e pkg
-e ./pkg[x]
-e git+https://h/x.git@main#egg=x&subdirectory=y
-e git+https://${TOKEN}@h/x.git#egg=x
-r other.txt
-rother.txt
--requirement=other.txt
-r 'other.txt' # a comment
-c other.txt
-i https://h/simple
--index-url=https://h/simple --trusted-host h
--extra-index-url https://${USER}:${PASSWORD}@h/simple
--pypi-url https://h/simple
-f ./links
--find-links=https://h/links
--pre --prefer-binary
--no-index
--no-binary :all:
--only-binary=tqdm,numpy --no-binary x
--use-feature fast-deps
--use-feature=truststore
tqdm==1 --hash=sha256:HASH --hash "sha256:HASH"
tqdm --config-settings x=y -C z=1
tqdm -Cx=y
tqdm --config-settings "--build-option=--x --y"
""".replace("HASH", HASH).splitlines()

REFUSED = """\
${ garbage
${X} garbage
${X}==1
tqdm==4.1,,<5
tqdm ,==1
tqdm (==1
tqdm=4
tqdm_
tqdm_>=4
tqdm_; os_name == 'x'
tqdm[x_]
tqdm_ @ https://h/x.zip
tqdm @ https://h/x.zip; evil
tqdm @ https://h/x.zip;a; os_name == 'x'
tqdm 4.1
tqdm>=4 <5
tqdm[x
tqdm[,x]
tqdm | numpy
tqdm; evil == 'x'
tqdm; os_name == 'posix' and
tqdm; os_name=='x -y'
tqdm @
tqdm @ https://h/x.zip evil
tqdm @ ${ evil
https://h/x.whl
https://${TOKEN}@h/x.whl
https://h/x.zip ; evil
file:x.whl
file://abs/x-1.tar.gz
x1-p3-none-any.whl[e]
./pkg[x
.[x(]
tqdm @ https://h/x.zip;os_name=='x'(
git://h/x.git
git+evil://h/x
evil+https://h/x
./missing
./x.whl
./x-1.egg
x.whl
../pkg
links/
-e https://h/x.whl
-e https://h/x.zip#egg=x
-e git+https://h/x.git
-e ssh://git@h/x.git#egg=x
-e tqdm
-e tqdm==1.0
-e "./pkg; os_name == 'x'"
-e x-1.tar.gz
-e ./x-1-py3-none-any.whl
-e x @ git+https://h/x.git
-e ${X}
-e
-r $x
-r ${X}/other.txt
-r=other.txt
-r missing.txt
-r ttps://h/r.txt
-r 'other.txt
-c ''
--requirement= other.txt
--use-feature bogus
--use-feature
--no-binary=-x
--index-url
--pre=1
--evil
--timeout 5
--no-deps
-x
tqdm -x
tqdm --no-deps
tqdm -C x
tqdm --config-settings x
tqdm==1 --hash=sha256
tqdm==1 --hash=SHA256:HASH
tqdm==1 --hash=md5:HASH
tqdm==1\t--hash=sha256:HASH
[packages]
name = "x"
import tqdm
"tqdm"
<<<<<<< HEAD
""".replace("HASH", HASH).splitlines()

DROPPED = """\
tqdm --pre
tqdm -r other.txt
tqdm --index-url https://h/simple
tqdm==1 --hash=sha256:HASH evil
-r other.txt tqdm
-r other.txt -i https://h/simple
-f links -f pkg
-e ./pkg --hash=sha256:HASH
--pre tqdm
--hash=sha256:HASH
- tqdm
tqdm==1 --hash=sha256:evil
--index-url h/simple
""".replace("HASH", HASH).splitlines()
"""Lines that pip takes, and of which it leaves a word out or fails later."""

LATER = """\
tqdm==evil!
tqdm --global-option=x
https://h/x-1.tar.gz#egg=x[y]
tqdm==${VERSION}
--use-feature inprocess-build-deps
--all-releases :all:
tqdm @ ./pkg
-e "x @ git+https://h/x.git"
-e x@git+https://h/x.git
""".splitlines()
"""Lines that one version of pip takes, and another one does not."""

PIP = """\
import contextlib, io, json, logging, sys
from pip._internal.commands import create_command
from pip._internal.network.session import PipSession
from pip._internal.req.constructors import install_req_from_parsed_requirement
from pip._internal.req.req_file import parse_requirements

logging.disable(logging.CRITICAL)
command = create_command("install")
refused = []
for line in json.load(sys.stdin):
    with open("r.txt", "w") as file:
        file.write(line + "\\n")
    options, _ = command.parse_args(["-r", "r.txt"])
    session = PipSession()
    finder = command._build_package_finder(options, session)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            for item in parse_requirements("r.txt", session, finder, options):
                install_req_from_parsed_requirement(item)
    except Exception:
        refused.append(line)
print(json.dumps(refused))
"""
"""Prints which lines pip refuses before it looks for a package."""


def is_refused(text: str, **more: str) -> bool:
    """Whether cloudtrain refuses a requirements file."""
    files = {**FILES, **more, "r.txt": f"{text}\n"}
    found = PipFile("r.txt", files.get)
    try:
        check_lines(found, files, files.get, Contents("3.12"))
    except JobError:
        return True
    return bool(found.problems)


def test_lines_of_pip() -> None:
    """What pip takes is taken, and what it refuses or reads in part is refused."""
    assert [line for line in TAKEN if is_refused(line)] == []
    assert [line for line in REFUSED + DROPPED + LATER if not is_refused(line)] == []


@pytest.mark.slow
def test_the_installed_pip_agrees(tmp_path: Path) -> None:
    """The tables above are its judgement."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    unset = ("X", "TOKEN", "USER", "PASSWORD")
    environ = {name: value for name, value in os.environ.items() if name not in unset}
    answer = subprocess.run(
        [sys.executable, "-c", PIP],
        input=json.dumps([*TAKEN, *REFUSED, *DROPPED]),
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.stdout) == REFUSED


CONSTRAINTS = {
    "an editable package": "-e ./pkg",
    "extras": "numpy[x]==2",
    "a folder": "./pkg",
    "an address without a name": "git+https://h/x.git",
}


@pytest.mark.parametrize("case", CONSTRAINTS)
def test_a_constraint_is_a_name_with_versions(case: str) -> None:
    """pip stops at others when it resolves."""
    assert is_refused("-c c.txt", **{"c.txt": CONSTRAINTS[case]})
    assert not is_refused("-c c.txt", **{"c.txt": "numpy==2\nhttps://h/x-1-py3-none-any.whl"})


def test_files_below_each_other() -> None:
    """Only a file that includes itself does so again."""
    chain = {f"{number}.txt": f"-r {number + 1}.txt" for number in range(300)}
    assert not is_refused("-r 0.txt", **chain, **{"300.txt": "tqdm"})
    assert not is_refused("-r 0.txt\n-r 0.txt\n-c 1.txt", **chain, **{"300.txt": "tqdm"})
    for looped in ("-c 298.txt", "-r 0.txt", "-r 300.txt"):
        (loop,) = PipFile("0.txt", {**chain, "300.txt": looped}.get).problems
        assert "includes it again" in loop.message
        assert loop.message.startswith("line 1 of `300.txt`")
    (missing,) = PipFile("0.txt", chain.get).problems
    assert "no such file" in missing.message
