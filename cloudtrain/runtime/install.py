"""Install a job's requirements on the machine that runs the job. Run it in the folder of the code:

    python -m cloudtrain.runtime.install FILE
    python -m cloudtrain.runtime.install FILE --into FOLDER [--base PYTHON]

The first form installs FILE into the interpreter that runs it, as in a container. The processes of
one machine take turns, and only the first installs.

The second form builds an environment on top of PYTHON (default: the interpreter that runs it),
once: if FOLDER exists, nothing is done. It can import the packages of PYTHON, but those of FILE
take precedence. Editable packages lead to the folder of the code, which must stay.

    FOLDER               a link to the environment, created once the build is complete;
                         FOLDER/bin/python runs it
    FOLDER-RANDOM/env/   the environment itself; an interrupted build leaves a folder without a link
    FOLDER.lock          held while the environment is built; other processes wait for it
    FOLDER.log           output of the last build

Both print to stderr and exit with 0, or with 1 after a last message `error: ...` and perhaps `hint:
...`.

uv installs if it is on the PATH or beside the interpreter, unless only pip's settings name the
index; otherwise pip does. A complete list of cloudtrain is installed as it is, with hashes if it
has any. Any other file gets constraints, so that PyTorch stays. Afterwards PyTorch is imported
once, so that a job with a wrong one ends after seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

from cloudtrain.runtime.errors import SetupError, tell
from cloudtrain.runtime.secret_values import VARIABLE, forms_of, masked, references, resolved

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    Tell = Callable[[str], object]
    Unpack = Callable[[Path], object]
    Texts = Mapping[str, str]

_WRITTEN = "# Written by cloudtrain "
_COMPLETE = "# Complete: "
"""The beginnings of the first and the second line of a list that holds the dependencies of its
packages too."""

_EXPECTED = re.compile(r"(?m)^(?:# Expects torch |torch==)([^\s;]+)")
"""The version of PyTorch that a list expects on the machine, or that it brings."""

_FAMILY = ("torch", "torchvision", "torchaudio", "triton")

_ASK = f"""\
import importlib.metadata, json, os, sys, sysconfig
versions = {{}}
for name in {_FAMILY!r}:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
ends = ("site-packages", "dist-packages")
folders = [path for path in sys.path if path.rstrip("/").endswith(ends)]
print(json.dumps([versions, folders, os.access(sysconfig.get_paths()["purelib"], os.W_OK)]))
"""
"""Prints the versions of PyTorch's packages, the folders of all packages, and whether packages can
be added."""

_NOT_PASSED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__")
"""Variables of the shell that would lead an installer to another environment."""

_IN_CONTAINER = {
    "PIP_NO_INPUT": "1",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "UV_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
"""The container is deleted after the job, so the installer may overwrite packages of the operating
system."""

_INDEX_OF_UV = (
    "UV_INDEX",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX",
    "UV_FIND_LINKS",
    "UV_OFFLINE",
    "UV_CONFIG_FILE",
)
_INDEX_OF_PIP = re.compile(r"(?m)(?:index-url|find-links|no-index|proxy|cert|trusted-host)=")
"""Settings without which a package does not come from where it should. uv does not read those of
pip."""

_NEWS = (
    "Collecting ",
    "Downloading ",
    "Building ",
    "Installing collected",
    "Resolved ",
    "Prepared ",
    "Installed ",
)
"""Beginnings of the lines in which pip and uv report progress."""

_PAUSE = 5.0
"""Least number of seconds between two lines of progress. An installer prints hundreds in a minute;
the log has all."""

_ASIDES = ("[notice]", "WARNING:", "warning:", "hint:")
_ERRORS = ("ERROR: ", "error: ", "× ")
"""The beginnings of output lines that do not explain a failure, and of those that do."""

_CAUSES = ("cause: ", "╰─▶ ")
"""The beginnings of lines in which uv gives the cause of an error."""

_LOGIN = re.compile(r"//([^/:@\s]+):([^/@\s]+)@([^/:\s]+)")
"""User, password and host in an address."""

_NAMES_TORCH = re.compile(r"(?mi)^\s*torch(?![\w.-])")

_INCLUDES = r"(?m)^\s*(?:-r|--requirement|-c|--constraint)[\s=]*(\S+)"


def install(file: str, folder: Path, environ: Texts, *, python: str = sys.executable) -> None:
    """Install the requirements file into the interpreter. `folder` is that of the code, in which
    the installer runs. Raises SetupError, and then the job must not go on."""
    if not (folder / file).is_file():
        raise SetupError(f"the code has no file `{file}`")
    environ = {**_IN_CONTAINER, **environ}
    key = hashlib.sha256(python.encode()).hexdigest()[:16]
    lock = Path(tempfile.gettempdir(), f"cloudtrain-install-{os.getuid()}-{key}")
    with _turn(lock, tell) as descriptor:
        before, places, can_write = _ask(python, environ)
        if os.pread(descriptor, 4096, 0).decode() == _stamp(folder / file, places):
            return

        secrets = _credentials(environ)
        logins = _LOGIN.findall(" ".join(secrets.values()))
        passwords = {host: unquote(word) for _, word, host in logins}
        hidden = forms_of({**secrets, **passwords})

        def show(line: str) -> None:
            sys.stderr.write(masked(line, hidden))

        uv = None
        if can_write:  # pip has a place for users as well
            uv = _find_uv(python, {**environ, **secrets})
        tell(f"installing `{file}` with {'uv' if uv else 'pip'}")
        with tempfile.TemporaryDirectory() as scratch:
            # Both look there for the password of an index that the list names, whatever other index
            # is in a variable.
            netrc = Path(scratch, "netrc")
            lines = [
                f"machine {host} login {unquote(user)} password {unquote(word)}\n"
                for user, word, host in logins
            ]
            netrc.write_text("".join(lines), encoding="utf-8")
            environ.update(secrets)
            if logins:
                environ["NETRC"] = str(netrc)
            try:
                _install(file, folder, environ, python, uv, before, show, on_top=False)
            except SetupError as error:
                raise SetupError(masked(error.message, hidden), hint=error.hint) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _stamp(folder / file, places).encode(), 0)


def build(
    link: Path, file: str, base: str, environ: Texts, unpack: Unpack | None = None, say: Tell = tell
) -> None:
    """Build the environment `link` from the requirements file on top of the interpreter `base`,
    unless it exists. `unpack` writes the code into a folder of the environment; default: the code
    is in the current folder. Raises SetupError if it cannot be built."""
    if _is_whole(link):
        return
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _turn(Path(f"{link}.lock"), say):
        if _is_whole(link):
            return
        began = time.monotonic()
        home = Path(tempfile.mkdtemp(prefix=f"{link.name}-", dir=str(link.parent)))
        try:
            own = {name: value for name, value in environ.items() if name not in _NOT_PASSED}
            _build(home, link, file, base, own, unpack, say)
            (home / "link").symlink_to(home / "env")
            (home / "link").replace(link)  # in one atomic step
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        say(f"built in {time.monotonic() - began:.0f} s")


def _is_whole(link: Path) -> bool:
    """Return whether the environment is complete. If so, update its time of last use."""
    if not (link / "bin" / "python").exists():
        return False
    with contextlib.suppress(OSError):  # another user's
        os.utime(link.resolve().parent)
    return True


def _build(
    home: Path, link: Path, file: str, base: str, environ: Texts, unpack: Unpack | None, say: Tell
) -> None:
    uv = _find_uv(base, environ)
    told = time.monotonic()
    say(
        f"building an environment from `{file}` with {'uv' if uv else 'pip'}, once for all runs "
        "with these requirements"
    )
    source = home / "source"
    place = home / "env"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(f"{link}.log", flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as log:

        def show(line: str) -> None:
            nonlocal told
            log.write(line)
            if line.strip().startswith(_NEWS) and time.monotonic() - told > _PAUSE:
                told = time.monotonic()
                say(line.strip())

        folder = Path.cwd()
        if unpack:
            unpack(source)
            folder = source
        before, places, _ = _ask(base, environ)

        create = [base, "-m", "venv", str(place)]
        hint: str | None = f"install uv: `{base} -m pip install uv`"
        if uv:
            create = [uv, "venv", "--python", base, str(place)]
            hint = None
        reason = _run(create, folder, environ, show)
        if reason is not None:
            raise SetupError(f"the environment of `{file}` cannot be made: {reason}", hint=hint)

        copies = _layer(places, place, for_uv=bool(uv))
        python = str(place / "bin" / "python")
        _install(file, folder, environ, python, uv, before, show, on_top=True)
        for copy in copies:
            shutil.rmtree(copy, ignore_errors=True)
    if unpack and not _leads_to(source, place):
        shutil.rmtree(source)


def _leads_to(source: Path, place: Path) -> bool:
    """Return whether a package in the environment `place` points into the unpacked code in
    `source`, as it does after `pip install -e .`."""
    for pattern in ("*.pth", "__editable__*"):
        for file in place.glob(f"lib/python*/site-packages/{pattern}"):
            if file.is_file() and str(source) in file.read_text("utf-8", "replace"):
                return True
    return False


def _layer(places: Sequence[str], environment: Path, *, for_uv: bool) -> list[Path]:
    """Make the packages in `places` importable in the environment. uv looks only into the
    environment. So it gets a copy of what says that a package is installed; return these folders,
    which are to be removed after the installation."""
    (packages,) = environment.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in places]
    (packages / "cloudtrain_base.pth").write_text("".join(lines), encoding="utf-8")
    if not for_uv:
        return []

    metadata: dict[str, Path] = {}
    for path in places:
        for file in Path(path).glob("*.dist-info/METADATA"):
            name = file.parent.name.partition("-")[0].lower()
            metadata.setdefault(name, file)  # Python imports the first one
    copies = []
    for file in metadata.values():
        copy = packages / file.parent.name
        copy.mkdir()
        shutil.copyfile(str(file), str(copy / "METADATA"))
        record = f"{copy.name}/METADATA,,\n{copy.name}/RECORD,,\n"
        (copy / "RECORD").write_text(record, encoding="utf-8")
        copies.append(copy)
    return copies


# Install with uv or pip, and look at PyTorch afterwards.


def _install(
    file: str,
    folder: Path,
    environ: Texts,
    python: str,
    uv: str | None,
    before: Texts,
    show: Tell,
    *,
    on_top: bool,
) -> None:
    text = (folder / file).read_text("utf-8", "replace")
    is_complete = text.startswith(_WRITTEN) and f"\n{_COMPLETE}" in text
    # An environment on top leaves the interpreter below as it is, so a file that names torch may
    # have another one.
    is_free = on_top and not is_complete and _NAMES_TORCH.search(text) is not None

    if uv:
        argv = [uv, "pip", "install", "--python", python]
        if on_top:
            argv.append("--compile-bytecode")
    else:
        argv = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    stays = False
    with tempfile.TemporaryDirectory() as temporary:
        if is_complete:
            argv.append("--no-deps")
            if " --hash=" in text:
                argv.append("--require-hashes")
        elif before and not is_free:
            stays = True
            constraints = Path(temporary, "constraints.txt")
            lines = map("==".join, before.items())
            constraints.write_text("\n".join(lines), "utf-8")
            argv += ["-c", str(constraints)]
        reason = _run([*argv, "-r", file], folder, environ, show)
    if reason is not None:
        hint = None
        if stays and "torch" in reason and "torch" in before:
            hint = f"torch {before['torch']} of this machine stays: ask for that version"
        raise SetupError(f"`{file}` cannot be installed: {reason}", hint=hint)

    versions, *_ = _ask(python, environ)
    after = versions.get("torch")
    if not is_free:
        expected = _EXPECTED.search(text) if is_complete else None
        _compare(before.get("torch"), after, expected and expected[1])
    if after is not None:
        # another process may hold the accelerators
        own = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environ}
        _, cause = _answer([python, "-c", "import torch; torch.__version__"], own)
        if cause is not None:
            raise SetupError(f"torch cannot be imported after the installation: {cause}")


def _compare(before: str | None, after: str | None, expected: str | None) -> None:
    """Raise SetupError if the installation has replaced PyTorch, or if it is not the version that
    the list expects. Local parts such as `+cu130` do not count."""
    if expected is not None and (after or "").partition("+")[0] == expected.partition("+")[0]:
        return
    if before is not None and after != before:
        raise SetupError(
            f"the installation replaced torch {before} by {after}",
            hint="pin the packages that need another torch to versions for this one",
        )
    if expected is not None:
        there = after or "none"
        raise SetupError(
            f"the requirements are for torch {expected}, and this machine has {there}",
            hint="take an image with that version, or lock the version of the image",
        )


def _ask(python: str, environ: Texts) -> Any:
    """Return what `_ASK` prints for the interpreter."""
    output, cause = _answer([python, "-c", _ASK], environ)
    if cause is not None:
        raise SetupError(
            f"`{python}` failed: {cause}", hint="name another interpreter: `--python PATH`"
        )
    return json.loads(output)


def _credentials(environ: Texts) -> dict[str, str]:
    """Look up the job's secrets that are settings of an installer, such as the address of an index
    with a password. The others are not read yet, because that may need a package of the list."""
    own = references(environ)
    for name in tuple(own):
        if not name.startswith(("PIP_", "UV_")):
            del own[name]
    return resolved({**environ, VARIABLE: json.dumps(own)})


def find_uv(path: str | None = None) -> str | None:
    """Return the program uv: the first in the folders of `path` (default: PATH), or else that of
    the installed package `uv`. None if there is none."""
    try:
        return shutil.which("uv", path=path) or str(import_module("uv").find_uv_bin())
    except (ImportError, AttributeError, OSError):
        return None


def _find_uv(python: str, environ: Texts) -> str | None:
    """Return the path of uv; None if there is none, or if only pip's settings say where packages
    come from."""
    folders = (environ.get("PATH", ""), str(Path(python).parent))
    uv = find_uv(os.pathsep.join(folders))
    if uv is None or any(name.startswith(_INDEX_OF_UV) for name in environ):
        return uv
    settings, _ = _answer([python, "-m", "pip", "config", "list"], environ)
    return None if _INDEX_OF_PIP.search(settings) else uv


def _answer(argv: Sequence[str], environ: Texts) -> tuple[str, str | None]:
    """Return what a command prints, and the last line about its failure; None if it succeeds."""
    try:
        done = subprocess.run(
            argv, cwd="/", env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True
        )
    except OSError as error:
        return "", error.strerror or str(error)
    output = done.stdout.decode("utf-8", "replace")
    if not done.returncode:
        return output, None
    told = done.stderr.decode("utf-8", "replace").strip().split("\n")
    cause = told[-1] or f"exit code {done.returncode}"
    return output, cause


def _run(argv: Sequence[str], folder: Path, environ: Texts, show: Tell) -> str | None:
    """Run an installer. Return None if it succeeds, or else the reason of its failure."""
    lines: list[str] = []
    with subprocess.Popen(
        argv, cwd=str(folder), env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                show(line)
                if line.strip() and not line.startswith(_ASIDES):
                    lines.append(line.strip())
        except BaseException:
            process.terminate()
            raise
    if not process.returncode:
        return None
    told = []
    for beginnings in (_ERRORS, _CAUSES):
        found = [line for line in lines if line.startswith(beginnings)]
        told += [line.partition(" ")[2] for line in found[:1]]
    told = told or lines[-1:]
    return ": ".join(told) or f"exit code {process.returncode}"


# Processes take turns, and see what the one before has done.


@contextlib.contextmanager
def _turn(path: Path, say: Tell) -> Iterator[int]:
    """Hold an exclusive lock on a file, whose descriptor is the result. The kernel releases it when
    this process dies. Without locks in the file system the body runs too, because an environment is
    published in one step."""
    while True:
        descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting: another process installs the packages of this job")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                say("the file system has no locks, so several processes may install at once")
            # it was not removed meanwhile
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _stamp(file: Path, places: Sequence[str]) -> str:
    """Return what an installation leaves in the lock's file: a hash of the requirements file and of
    those that it includes, and the times at which a package was last added to the interpreter or
    removed from it."""
    waiting = [file]
    texts: dict[Path, str] = {}
    while waiting:
        place = waiting.pop()
        if place in texts or not place.is_file():
            continue
        texts[place] = place.read_text("utf-8", "replace")
        names = re.findall(_INCLUDES, texts[place])
        waiting += [place.parent / name for name in names]
    digest = hashlib.sha256("\0".join(texts.values()).encode())
    folders = filter(os.path.isdir, places)
    times = [os.stat(folder).st_mtime_ns for folder in folders]
    return json.dumps([digest.hexdigest(), times])


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m cloudtrain.runtime.install", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("file", help="the requirements file, relative to the current folder")
    parser.add_argument("--into", metavar="FOLDER", help="build an environment there instead")
    parser.add_argument(
        "--base", metavar="PYTHON", default=sys.executable, help="the interpreter below it"
    )
    options = parser.parse_args(arguments)
    try:
        if options.into is None:
            install(options.file, Path.cwd(), os.environ)
        else:
            base = str(Path.cwd() / options.base) if os.sep in options.base else options.base
            build(Path.cwd() / options.into, options.file, base, os.environ)
    except SetupError as error:
        error.tell()
        return 1
    except OSError as error:
        SetupError(str(error)).tell()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
