"""Files of packages that somebody else has written: each is refused with its line, or nothing of it enters a list that it
should not enter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import cloudtrain as ct
from cloudtrain import api
from cloudtrain.errors import JobError
from tests.locks import LOCK, OWN, PROJECT, SETTINGS, lock, package

HASH = "0a" * 32
EVIL = "--index-url https://evil.example/simple"


class Case(NamedTuple):
    """The file that the job names, the files of the code, and the code and the place of the error; no code if the file
    is harmless."""

    named: str
    files: dict[str, str | bytes]
    code: str = ""
    place: str = ""


def pip(text: str | bytes, code: str = "", line: int = 1, **files: str) -> Case:
    """A requirements file; two underscores in the name of another file are a dot, and three a slash."""
    more = {name.replace("___", "/").replace("__", "."): other for name, other in files.items()}
    place = f"line {line} of `r.txt`" if code else ""
    return Case("r.txt", {"r.txt": text, **more}, code, place)


def uv(code: str = "CT056", place: str = "line ", **changes: str) -> Case:
    """A uv.lock of one package in which texts are changed: `version="..."`."""
    text = lock(['name = "tqdm"'], [package("tqdm", "4.67.1", **changes)])
    own = PROJECT.format(dependencies='"tqdm"')
    return Case("uv.lock", {"uv.lock": text, "pyproject.toml": own}, code, place)


def changed(before: str, after: str, code: str = "CT056", place: str = "line ") -> Case:
    """The same with another text in the place of one."""
    files = uv().files
    assert before in str(files["uv.lock"])
    text = str(files["uv.lock"]).replace(before, after)
    return Case("uv.lock", {**files, "uv.lock": text}, code, place)


def block(dependency: str, code: str = "CT056", place: str = "`train.py`") -> Case:
    """A script with a block of dependencies (PEP 723)."""
    text = f"# /// script\n# dependencies = [{dependency}]\n# ///\n"
    return Case("train.py", {"train.py": text}, code, place)


def pylock(entry: str, code: str = "CT056", place: str = "line ") -> Case:
    """A pylock.toml (PEP 751) of one package."""
    text = f'lock-version = "1.0"\n[[packages]]\n{entry}\n'
    return Case("pylock.toml", {"pylock.toml": text}, code, place)


DEEP = f"deep = {'[' * 3000}{']' * 3000}\n"
SDIST = "74" * 32
"""The hash of tqdm's archive in a lock of `tests.locks`."""

CASES: dict[str, Case] = {
    # lines of pip
    "an option that pip does not have": pip("tqdm\n--evil x\n", "CT056", 2),
    "an item of a YAML list": pip("- tqdm\n", "CT056"),
    "an option behind a package": pip(f"tqdm {EVIL}\n", "CT056"),
    "options without an end": pip(f"tqdm {'-C=x' * 40} y\n", "CT056"),
    "an option behind a hash": pip(f"tqdm==1 --hash=sha256:{HASH} {EVIL}\n", "CT056"),
    "an abbreviated option": pip("--index https://evil.example\n", "CT056"),
    "an option without its value": pip("tqdm\n-r\n", "CT056", 2),
    "an index that is no address": pip("--index-url evil\n", "CT056"),
    "a quotation mark that is not closed": pip("-r 'a.txt\n", "CT056", a__txt=""),
    "a hash that is too short": pip("tqdm==1 --hash=sha256:evil\n", "CT056"),
    "a hash of another algorithm": pip(f"tqdm==1 --hash=md5:{'0' * 32}\n", "CT056"),
    "a name with other letters": pip("numpу\n", "CT056"),  # the last letter is Cyrillic
    "a version that is none": pip("tqdm==evil!\n", "CT056"),
    "an operator that is none": pip("tqdm=>1\n", "CT056"),
    "a local version in a range": pip("tqdm>=1+cu1\n", "CT056"),
    "a marker that is none": pip("tqdm; evil == 'x'\n", "CT056"),
    "a marker that is not closed": pip("tqdm; (os_name == 'posix'\n", "CT056"),
    "a marker without an answer": pip("tqdm\nnumpy; os_name ~= 'x'\n", "CT056", 2),
    "a marker of locks": pip("tqdm; 'x' in extras\n"),
    "a null byte": pip("tqdm\nx\0\n", "CT056", 2),
    "a line separator": pip(f"tqdm\u2028{EVIL}\n", "CT056"),
    "a form feed": pip(f"tqdm\f{EVIL}\n", "CT056"),
    "a next line of ISO 6429": pip(f"# a\x85{EVIL}\ntqdm\x85\n", "CT056", 2),
    "a vertical tab": pip(f"tqdm\x0b{EVIL}\n", "CT056"),
    "UTF-16": pip("tqdm\n".encode("utf-16"))._replace(code="CT054", place="not UTF-8"),
    "Latin-1": pip("# é\ntqdm\n".encode("latin-1"))._replace(code="CT054", place="not UTF-8"),
    "a mark of UTF-8": pip("tqdm\n".encode("utf-8-sig")),
    "a comment that ends with a backslash": pip("# a \\\n--evil\n", "CT056", 2),
    "a loop": pip("-r r.txt\n", "CT056"),
    "a loop of two": pip("-r s.txt\n", "CT056", s__txt="-r r.txt\n")._replace(place="`s.txt`"),
    "a constraint that is not there": pip("tqdm\n-c evil.txt\n", "CT056", 2),
    "a file outside": pip("-r ../evil.txt\n", "CT056"),
    "a drive": pip("C:\\evil\\x-1-py3-none-any.whl\n", "CT056"),
    "an archive that is not there": pip("./x-1.tar.gz\n", "CT058"),
    "a wheel without a version": pip("./x.whl\n", "CT056", x__whl=""),
    "a wheel outside": pip("../x-1-py3-none-any.whl\n", "CT058"),
    "a folder outside": pip("tqdm\n-e ../evil\n", "CT058", 2),
    "a folder that is no package": pip("-e ./evil\n", "CT058", evil___x__py=""),
    "a package for another Python": pip("-e .\n", "CT058", pyproject__toml='[project]\nname = "a"\nrequires-python = ">=3.99"\n'),
    "a package that needs another one": pip("numpy==1\n-e .\n", "CT058", 2, pyproject__toml='[project]\nname = "a"\ndependencies = ["numpy>=2"]\n'),
    "wheels that are not there": pip("--find-links evil\ntqdm\n", "CT058"),
    "a wheel of Windows": pip("./x-1-cp312-cp312-win_amd64.whl\n", "CT058", **{"x-1-cp312-cp312-win_amd64__whl": ""}),
    "a wheel of another Python": pip("https://h/x-1-cp39-cp39-manylinux_2_28_x86_64.whl\n", "CT058"),
    "two versions": pip("tqdm==1\ntqdm==2\n", "CT058", 2),
    "a range without a version": pip("tqdm>=2\nTQDM<2\n", "CT058", 2),
    "a constraint that excludes it": pip("tqdm==1\n-c c.txt\n", "CT058", c__txt="tqdm==2\n")._replace(place="`c.txt`"),
    "a hash in one of two lines": pip(f"tqdm==1 --hash=sha256:{HASH}\nnumpy==1\n", "CT058", 2),
    "a torchvision for another torch": pip("torchvision==0.15.2\n", "CT058"),
    "versions for two systems": pip("tqdm==1; sys_platform == 'win32'\ntqdm==2; sys_platform != 'win32'\n"),
    "a password": pip("https://me:evil@h.example/x.zip\nx=1\n", "CT056", 2),
    # locks of uv
    "a version with an option": changed('version = "4.67.1"', f'version = "4.67.1\\n{EVIL}"'),
    "a name with an option": changed('name = "tqdm"\nversion', f'name = "tqdm\\n{EVIL}"\nversion', "CT058", "tqdm"),
    "a hash with an option": changed(f"sha256:{'74' * 16}", f"sha256:{'74' * 16}\\n{EVIL}"),
    "an index with an option": uv(source=f'registry = "https://h/simple\\n{EVIL}"'),
    "an index in a folder": uv(source='registry = "../evil"'),
    "an address with a space": uv(source=f'url = "https://h/x.zip {EVIL}"'),
    "an address with a tab": uv(source=f'url = "https://h/x.zip\\t{EVIL}"'),
    "an address of a file": uv(source='url = "file:///evil"'),
    "an archive above the code": uv(source='path = "../evil-1-py3-none-any.whl"'),
    "a commit that is none": uv(source=f'git = "https://h/x#main\\n{EVIL}"', archives=False),
    "a program for git": uv(source="git = 'ext::sh -c evil#0123abcd'", archives=False),
    "a folder of a repository": uv(source="git = 'https://h/x?subdirectory=a%20evil#0123abcd'", archives=False),
    "a version of the format": changed("version = 1\n", "version = 9\n", place="version 9"),
    "deep nesting": changed("version = 1\n", f"version = 1\n{DEEP}", place="`uv.lock`"),
    "a project that is nested": Case("uv.lock", {"uv.lock": LOCK, "pyproject.toml": OWN + DEEP}, "CT056", "`pyproject.toml`"),
    "a source that nobody knows": uv(place="`tqdm`", source='oci = "https://h/x"'),
    # blocks of scripts
    "a text of dependencies": Case("train.py", {"train.py": '# /// script\n# dependencies = "tqdm"\n# ///\n'}, "CT056", "`train.py`"),
    "an index of uv in a block": Case(
        "train.py",
        {"train.py": '# /// script\n# dependencies = ["tqdm"]\n# [[tool.uv.index]]\n# url = "https://h/simple"\n# ///\n'},
        "CT057", "`train.py`",
    ),
    "a line in a block": block(f'"tqdm @ https://h/x\\n{EVIL}"'),
    "an option in a block": block(f'"tqdm {EVIL}"'),
    "a line in a marker": block(f"\"tqdm; os_name != 'a\\n{EVIL}'\""),
    "a block that is nested": block(f'"tqdm"]\n# {DEEP}# x = ["a"', place="`train.py`"),
    # pylock.toml
    "a version of a pylock.toml": pylock(f'name = "x"\nversion = "1\\n{EVIL}"'),
    "a hash of a pylock.toml": pylock(f'name = "x"\nversion = "1"\nwheels = [{{hashes = {{sha256 = "{EVIL}"}}}}]'),
    "a repository of a pylock.toml": pylock(f'name = "x"\nvcs = {{type = "git", url = "https://h/x {EVIL}", commit-id = "0123abcd"}}'),
    "another program of a pylock.toml": pylock('name = "x"\nvcs = {type = "evil", url = "https://h/x", commit-id = "0123abcd"}'),
    "a later pylock.toml": Case("pylock.toml", {"pylock.toml": 'lock-version = "2.0"\n'}, "CT056", "version 2.0"),
    # files of other tools
    "a conda file": Case("environment.yml", {"environment.yml": "- tqdm\n"}, "CT056", "conda"),
    "a conda file of another name": Case("env.txt", {"env.txt": "dependencies: [tqdm]\n"}, "CT056", "conda"),
}  # fmt: skip

LINE = re.compile(
    r"#.*|--(?:extra-)?index-url https://\S+|-[cr] [\w./-]+|[\w.-]+==[\w.+]+(?: --hash=sha256:[0-9a-f]{64})*"
)
"""A line of a list that cloudtrain writes."""


@pytest.mark.parametrize("name", CASES)
def test_no_foreign_text_enters_a_list(clean_environment: Path, name: str) -> None:
    """A file is refused with its code and place and without the word that is hidden in it, or it is harmless."""
    case = CASES[name]
    folder = clean_environment
    for path, text in {"train.py": "", "cloudtrain.toml": SETTINGS, **case.files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode() if isinstance(text, str) else text)
    environment = ct.Environment(framework="pytorch", version="2.13", requirements=case.named)
    machine = ct.Resources(instance_type={"sagemaker": "ml.g5.2xlarge"})
    job = ct.TrainingJob(
        name="own", entry_point="train.py", environment=environment, resources=machine
    )
    where = api._where(job, "sagemaker", None)
    problems = []
    written = {}
    try:
        written = api._prepare(job, where, (), None).tree.own_files
    except JobError as error:
        problems = error.problems
    assert [problem.code for problem in problems][:1] == ([case.code] if case.code else [])
    for problem in problems:
        assert case.place in problem.message
        assert "me:evil" not in problem.message
    for path, content in written.items():
        if path.endswith(".txt") and isinstance(content, bytes) and path != case.named:
            for line in content.decode().splitlines():
                assert LINE.fullmatch(line), line
