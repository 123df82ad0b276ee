"""Lets uv choose versions for a file without pins, as the machine of a job needs them. A plan never
does so."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.code.tree import Tree
from cloudtrain.errors import MissingExtra, NotResolved, UsageError
from cloudtrain.job.pep508 import normal
from cloudtrain.job.pip_file import read_pip
from cloudtrain.job.processing import AnyJob
from cloudtrain.job.requirements import form_of
from cloudtrain.lifecycle.preparing.environment import contents_of, pinned_torch, reader_of
from cloudtrain.plans.plan import Bundle
from cloudtrain.runtime.install import find_uv
from cloudtrain.system.plugins import pip_line
from cloudtrain.targets.where import Where

_BLOCK = r"(?m)^(?!--|#)\S.*\n(?:[ \t].*\n)*"
"""A package in uv's output, with its hashes and the comments that say what needs it."""

_HELD = "cloudtrain-torch.txt"
"""The file that holds torch at the image's version. uv's comments name it."""
_OF_THE_IMAGE = "the image's PyTorch"
"""What the comments name instead, because the file is a temporary one."""
_LOGIN = r"(?<=//)[^/@\s]+@"
"""The user and password in an address."""


def lock(
    folder: Path, file: str, job: AnyJob, where: Where, python: str | None, command: str
) -> tuple[str, list[str]]:
    """Return a requirements file with versions and hashes for a file below `folder`, and facts
    about it. `python` is a version that differs from the machine's. The text names the `command`
    that writes it.

    Raises:
        JobError, UsageError: the file cannot be read, or is a lock, or the machine's Python is not
            known.
        MissingExtra: uv is not installed.
        NotResolved: uv found no versions, or did not reach the index.
    """
    environment = job.environment
    read_file = reader_of(Tree(folder, (), (), Bundle("", 0, 0)))
    texts = []

    def read(path: str) -> str:
        text = re.sub(_LOGIN, "", read_file(path) or "")
        texts.append(text)
        return text

    form = form_of(file, read(file))
    if form in ("uv", "pylock"):
        hint = f"name it in the job: `environment: {{requirements: {file}}}`"
        raise UsageError(f"`{file}` is a lock already", hint=hint, code="CT910")
    if form == "pip":
        read_pip(file, read, environment.extras, environment.groups)  # for its errors and `texts`

    contents = contents_of(job, where)
    version = python or contents.python or ""
    if re.fullmatch(r"3\.\d+(\.\d+\w*)?", version) is None:
        is_known = f"cannot be `{version}`" if version else "is not known"
        message = f"the version of Python on `{where.target.name}` {is_known}"
        raise UsageError(message, hint="write for example `--python 3.12`", code="CT902")

    options = []
    if form == "project":
        options += [f"--extra={name}" for name in environment.extras]
        options += [f"--group={name}" for name in environment.groups]
    if not contents.markers:
        options.append("--python-platform=x86_64-manylinux_2_28")
    options.append(f"--python-version={version}")
    held = pinned_torch(contents) if contents.is_image and contents.torch else None

    output = _run_uv(folder, file, options, held, where, command)
    output = _without_foreign_indexes(output, "\n".join(texts))
    return _finish(output, f"Python {version}", held)


def _run_uv(
    folder: Path, file: str, options: list[str], held: str | None, where: Where, command: str
) -> str:
    """Return the requirements that uv writes for a file. `held` is the constraint that keeps the
    image's torch."""
    uv = find_uv(where.here.environ.get("PATH"))
    if uv is None:
        raise MissingExtra("`uv` is not installed", hint=pip_line("uv"))

    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch, _HELD)
        constraints.write_text(f"{held or ''}\n", "utf-8")
        words = "pip compile --quiet --generate-hashes --emit-index-url --python".split()
        arguments = [uv, *words, sys.executable, *options]
        arguments += ["--constraints", str(constraints), "--", file]
        environ = {
            **where.here.environ,
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_CUSTOM_COMPILE_COMMAND": command,
            "NO_COLOR": "1",
        }
        answer = subprocess.run(
            arguments,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    if answer.returncode == 0:
        return re.sub(rf"-c \S*{_HELD}", _OF_THE_IMAGE, answer.stdout)

    complaint = answer.stderr.partition("\nhint:")[0]
    causes = re.split(r"(?m)^\s*(?:error:|cause:|×|╰─▶)\s", complaint)
    first_and_last = (*causes[2:3], causes[-1])
    lines = [" ".join(cause.split()).rstrip(" ^") for cause in first_and_last]
    reason = re.sub(_LOGIN, "", ": ".join(dict.fromkeys(lines)))
    hint = "correct the file; if it is right, see that uv reaches the index"
    if held is not None and "torch" in reason:
        hint = f"`{held}` is the image's; ask for versions that fit it, or take another image"
    raise NotResolved(f"uv cannot resolve `{file}`: {reason}", hint=hint)


def _without_foreign_indexes(output: str, source: str) -> str:
    """Leave out the indexes that the source does not name, because they are this machine's, and all
    credentials."""

    def if_named(match: re.Match[str]) -> str:
        address = re.sub(_LOGIN, "", match[2])
        return f"{match[1]}{address}\n" if address in source else ""

    return re.sub(r"(?m)^(--\S+ )(\S+)\n", if_named, output)


def _finish(output: str, python: str, held: str | None) -> tuple[str, list[str]]:
    """Leave out the packages that only the image's torch needs: pip finds them installed. torch
    itself stays in the list, so that a plan compares it with the image's."""
    blocks = {_package_in(block): block for block in re.findall(_BLOCK, output)}
    kept = _packages_to_keep(blocks, is_torch_held=held is not None)

    def if_kept(match: re.Match[str]) -> str:
        return match[0] if _package_in(match[0]) in kept else ""

    output = re.sub(_BLOCK, if_kept, output)

    facts = [f"{len(kept)} packages", python]
    torch = re.search(r"(?m)^torch==([^\s;]+)", output)
    if torch and held:
        count = len(blocks) - len(kept)
        facts.append(
            f"torch {torch[1]} of the image stays, without {count} packages that only torch needs"
        )
    elif torch:
        facts.append(f"torch {torch[1]} is the index's, because no image with torch is known")

    if not all("--hash=" in blocks[name] for name in kept):  # pip wants all or none
        output = re.sub(r" \\\n\s+--hash=\S+", "", output)
        facts.append("no hashes, because a package comes from a repository or a folder")
    return output, facts


def _packages_to_keep(blocks: Mapping[str, str], *, is_torch_held: bool) -> set[str]:
    """Return the packages that the file names, and those that they need. What only a held torch
    needs is left out."""
    kept = set[str]()
    needed_by = {}
    for name, block in blocks.items():
        comments = re.findall(r"(?m)^ +#(?: via)?(?: +(\S.*))?$", block)
        needed_by[name] = {*comments} - {"", _OF_THE_IMAGE}
        if not needed_by[name] or needed_by[name] - blocks.keys():  # by the file itself
            kept.add(name)

    new = set(kept)
    while new:
        if is_torch_held:
            new.discard("torch")
        rest = blocks.keys() - kept
        new = {name for name in rest if needed_by[name] & new}
        kept |= new
    return kept


def _package_in(block: str) -> str:
    return normal(re.split(r"[\s=@\[;]", block, maxsplit=1)[0])
