"""Lets uv choose versions for a file without pins, as the machine of a job needs them. A plan never
does so."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from cloudtrain.code.tree import Tree
from cloudtrain.errors import MissingExtra, NotResolved, UsageError
from cloudtrain.job.processing import AnyJob
from cloudtrain.job.requirements import form_of, normal, read_pip
from cloudtrain.lifecycle.environment import pinned_torch, reader_of
from cloudtrain.machines.contents import Contents, ContentsReader
from cloudtrain.plans.plan import Bundle
from cloudtrain.runtime.install import find_uv
from cloudtrain.system.plugins import part, pip_line
from cloudtrain.targets.where import Where

_BLOCK = re.compile(r"(?m)^(?!--|#)\S.*\n(?:[ \t].*\n)*")
"""A package in uv's output, with its hashes and the comments that say what needs it."""

_HELD, _OF_THE_IMAGE = "cloudtrain-torch.txt", "the image's PyTorch"
_LOGIN = re.compile(r"(?<=//)[^/@\s]+@")


def lock(
    folder: Path, file: str, job: AnyJob, where: Where, python: str | None, command: str
) -> tuple[str, list[str]]:
    """Return a requirements file with versions and hashes for a file below `folder`, and facts
    about it. `python` is a version that differs from the machine's. The text names the `command`
    that writes it.

    Raises:
        JobError, UsageError: the file cannot be read, or is a lock, or the machine's Python is not
        known. MissingExtra: uv is not installed. NotResolved: uv found no versions, or did not
        reach the index.
    """
    texts, read_file = list[str](), reader_of(Tree(folder, (), (), Bundle("", 0, 0)))

    def read(path: str) -> str | None:
        texts.append(_LOGIN.sub("", read_file(path) or ""))
        return texts[-1]

    form, environment = form_of(file, read(file) or ""), job.environment
    if form in ("uv", "pylock"):
        hint = f"name it in the job: `environment: {{requirements: {file}}}`"
        raise UsageError(f"`{file}` is a lock already", hint=hint)
    if form == "pip":
        read_pip(file, read, environment.extras, environment.groups)
    extras = [f"--extra={name}" for name in environment.extras] + [
        f"--group={name}" for name in environment.groups
    ]
    describe = part(where.target, ContentsReader)
    contents = (
        describe(job.view, where.settings, where.account)
        if describe
        else Contents(environment.python)
    )
    version = python or contents.python or ""
    if re.fullmatch(r"3\.\d+(\.\d+\w*)?", version) is None:
        is_known = f"cannot be `{version}`" if version else "is not known"
        hint = "write for example `--python 3.12`"
        raise UsageError(
            f"the version of Python on `{where.target.name}` {is_known}", hint=hint, code="CT902"
        )
    held = pinned_torch(contents) if contents.is_image and contents.torch else None
    platform = [] if contents.markers else ["--python-platform=x86_64-manylinux_2_28"]
    options = [*(extras if form == "project" else ()), *platform, f"--python-version={version}"]
    output = _without_foreign_indexes(
        _run_uv(folder, file, options, held, where, command), "\n".join(texts)
    )
    return _finished(output, f"Python {version}", held)


def _run_uv(
    folder: Path, file: str, options: list[str], held: str | None, where: Where, command: str
) -> str:
    uv = find_uv(where.here.environ.get("PATH"))
    if uv is None:
        raise MissingExtra("`uv` is not installed", hint=pip_line("uv"))
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch, _HELD)
        constraints.write_text(f"{held or ''}\n", "utf-8")
        words = "pip compile --quiet --generate-hashes --emit-index-url --python".split()
        more = {
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_CUSTOM_COMPILE_COMMAND": command,
            "NO_COLOR": "1",
        }
        answer = subprocess.run(
            [uv, *words, sys.executable, *options, "--constraints", str(constraints), "--", file],
            cwd=folder, env={**where.here.environ, **more}, stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8", errors="replace", check=False,
        )  # fmt: skip
    if answer.returncode == 0:
        return re.sub(rf"-c \S*{_HELD}", _OF_THE_IMAGE, answer.stdout)
    causes = re.split(r"(?m)^\s*(?:error:|cause:|×|╰─▶)\s", answer.stderr.partition("\nhint:")[0])
    # first and last
    told = dict.fromkeys(
        " ".join(cause.split()).rstrip(" ^") for cause in (*causes[2:3], causes[-1])
    )
    reason = _LOGIN.sub("", ": ".join(told))
    hint = "correct the file; if it is right, see that uv reaches the index"
    if held is not None and "torch" in reason:
        hint = f"`{held}` is the image's; ask for versions that fit it, or take another image"
    raise NotResolved(f"uv cannot resolve `{file}`: {reason}", hint=hint)


def _without_foreign_indexes(output: str, source: str) -> str:
    """Leave out the indexes that the source does not name, because they are this machine's, and all
    credentials."""
    output = re.sub(
        r"(?m)^--(?:extra-)?index-url .*\n", lambda match: _LOGIN.sub("", match[0]), output
    )
    return re.sub(
        r"(?m)^--\S+ (\S+)\n", lambda match: match[0] if match[1] in source else "", output
    )


def _finished(output: str, python: str, held: str | None) -> tuple[str, list[str]]:
    """Leave out the packages that only the image's torch needs: pip finds them installed. torch
    itself stays in the list, so that a plan compares it with the image's."""
    blocks = {_name(block): block for block in _BLOCK.findall(output)}
    comments = {
        name: re.findall(r"(?m)^ +#(?: via)?(?: +(\S.*))?$", block)
        for name, block in blocks.items()
    }
    needed_by = {name: {*words} - {"", _OF_THE_IMAGE} for name, words in comments.items()}
    # by the file itself
    kept = {name for name, above in needed_by.items() if not above or above - blocks.keys()}
    own = set[str]() if held is None else {"torch"}
    while more := {name for name in blocks.keys() - kept if needed_by[name] & (kept - own)}:
        kept |= more
    output = _BLOCK.sub(lambda match: match[0] if _name(match[0]) in kept else "", output)
    facts, torch = [f"{len(kept)} packages", python], re.search(r"(?m)^torch==([^\s;]+)", output)
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


def _name(block: str) -> str:
    return normal(re.split(r"[\s=@\[;]", block, maxsplit=1)[0])
