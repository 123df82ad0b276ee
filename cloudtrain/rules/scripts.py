"""Rules about what a training script shows by its syntax."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from shlex import quote

from cloudtrain.errors import dotted
from cloudtrain.machines.contents import ContentsReader
from cloudtrain.plans.plan import Level
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import Fault, Subject, ValuePath, rule
from cloudtrain.system.plugins import find_target, part


@rule("CT507", Level.WARNING)
def copies_of_one_training(subject: Subject) -> Iterator[Fault]:
    """Several processes would all train the same model.

    The distribution starts several processes, but the script uses no library that joins them and
    reads no rank. So each process runs the whole training, and all of them write the same files.
    The rule reads the script and the modules beside it that it imports. Join the processes in the
    script, for example with `runtime.init_process_group()` and DistributedDataParallel, or start
    one process.
    """
    kind, count = (
        subject.reading.distribution.type,
        sum(Processes.of(subject.plan.processes).ranks.values()),
    )
    if kind != "none" and count > 1 and subject.syntax.is_alone:
        message = (
            f"`{subject.job.entry_point}` joins no other process, so {count} processes "
            "would all train the same"
        )
        hint = "use `distribution: {type: none}` for one process, or join them in the script with "
        yield Fault(message, f"{hint}`torch.distributed`", ("distribution",))


@rule("CT508", Level.NOTICE)
def one_process(subject: Subject) -> Iterator[Fault]:
    """The job sets no distribution, and the script does not work with other processes.

    The script imports torch, but uses no library that joins processes and reads no rank. So one
    process runs it. If several shall train together, join them in the script, and set a
    `distribution`.
    """
    distribution = subject.reading.distribution.type
    if (
        distribution == "none"
        and "distribution" not in subject.job.model_fields_set
        and subject.syntax.is_alone
    ):
        message = f"one process runs `{subject.job.entry_point}`, because it joins no other process"
        yield Fault(
            message, "for several, join them in the script, and add `distribution: {type: torch}`"
        )


@rule("CT214", Level.ERROR)
def needs_a_person(subject: Subject) -> Iterator[Fault]:
    """The script certainly calls a function that only a notebook has, or waits for what a person
    types.

    A script that was exported from a notebook still has its magic commands: `%matplotlib inline`
    became `get_ipython().run_line_magic(...)`, and `!pip install` became
    `get_ipython().system(...)`. Python has no such name, and the script ends there. `display` is a
    name of notebooks, too. `input()` ends with an EOFError, because a run has no keyboard. Calls
    inside of `try`, or behind a condition, are left alone.
    """
    for name, hint in _ATTENDED.items():
        calls = [(file, line) for file, line, called in subject.syntax.attended if called == name]
        why = "and a run has no keyboard" if name == "input" else "which only a notebook has"
        for file in dict.fromkeys(file for file, _ in calls):
            lines = [str(line) for where, line in calls if where == file]
            where = (
                f"line{'s' if lines[1:] else ''} "
                f"{', '.join(lines[:5])}{', ...' if lines[5:] else ''} of `{file}`"
            )
            yield Fault(f"`{name}()` is called in {where}, {why}", hint, ("entry_point",))


_ATTENDED = {
    "get_ipython": (
        "delete the line, the rest of a `%` or `!` of the notebook; packages belong "
        "into `requirements.txt`"
    ),
    "display": "write `print`, or add `from IPython.display import display`",
    "input": "make the answer an option of the script, for example with `argparse`",
}
"""What to do about each function that needs a person or a notebook."""


@rule("CT405", Level.WARNING)
def folder_is_missing(subject: Subject) -> Iterator[Fault]:
    """The script writes a file into a folder that the run does not have.

    The run works in a copy of the code. The copy has neither empty folders nor those that are
    excluded, such as `outputs`, so a script may train to its end and then fail with a
    FileNotFoundError. The rule reads `open`, `torch.save`, `joblib.dump`, `np.save`, `savefig` and
    `to_csv` with relative paths that are constants, and is silent where the script makes folders.
    """
    saved, told = find_target(subject.reading.service).facts.saved_folders, set[str]()
    for file, line, folder in subject.syntax.written:
        is_there = any(entry.path.startswith(f"{folder}/") for entry in subject.tree.entries)
        if not is_there and folder not in (*saved, *told):
            told.add(folder)
            message = (
                f"line {line} of `{file}` writes into `{folder}`, a folder that the run "
                "does not have"
            )
            yield Fault(
                message, f"add `os.makedirs({folder!r}, exist_ok=True)` before it", ("entry_point",)
            )


@rule("CT404", Level.WARNING)
def model_is_lost(subject: Subject) -> Iterator[Fault]:
    """The script saves a model where the service does not keep it.

    SageMaker and Azure ML keep the job's outputs and checkpoint; Azure ML also `outputs` and `logs`
    in the working folder. The rule reads `torch.save`, `save_pretrained`, `save_model`,
    `save_file`, `joblib.dump`, `np.save`, Keras's `save` and `save_weights`, Lightning's
    `save_checkpoint` and `ModelCheckpoint`, and the `output_dir` of Hugging Face's trainers, with
    paths that are constants or options of the script.
    """
    facts, words = find_target(subject.reading.service).facts, given_options(subject)
    if not facts.is_paid:
        return
    told: set[str] = set()
    for save in subject.syntax.saves:
        start = (
            ""
            if save.option is None
            else str(words.get(save.option, subject.syntax.defaults[save.option]))
        )
        path = posixpath.normpath(f"{start}/{save.path}" if save.option else save.path)
        folder = path.partition("/")[0]
        is_elsewhere = (
            "://" in path
            or "${" in path
            or (path.startswith("/") and not path.startswith(_SCRATCH_FOLDERS))
        )
        if is_elsewhere or folder in facts.saved_folders or path in told:
            continue
        told.add(path)
        hint = f"pass `--{save.option} '${{{{outputs.model}}}}'`" if save.option else _SAVE_IN_MODEL
        message = (
            f"line {save.line} of `{save.file}` saves to `{path}`, and the service keeps "
            "only the job's outputs"
        )
        yield Fault(
            message,
            hint,
            ("hyperparameters", save.option) if save.option in words else ("entry_point",),
        )


_SCRATCH_FOLDERS = ("/tmp/", "/home/", "/root/")
"""Folders of a cloud's container in which nothing survives. Others may be mounts, so the rule
leaves them alone."""

_SAVE_IN_MODEL = "save in `runtime.model_dir()`, after `from cloudtrain import runtime`"


def given_options(subject: Subject) -> dict[str, object]:
    """Return the values that the job gives to the script's options."""
    typed = pairwise((*subject.job.arguments, ""))
    named = {
        name.lstrip("-").partition("=")[::2]: after for name, after in typed if name.startswith("-")
    }
    return {
        **{name: value or after for (name, value), after in named.items()},
        **subject.reading.parameters,
    }


@rule("CT213", Level.WARNING)
def package_is_missing(subject: Subject) -> Iterator[Fault]:
    """The script imports a package that neither its image nor its requirements have.

    The rule reads the imports at the top level of the script and of its own modules; those inside
    of `try`, `if` or a function do not count. It knows the packages of AWS's images for PyTorch
    2.11 and newer, from their public locks, and those of the job's own lock. A requirements file
    without hashes may install more than it lists, so the rule is silent then.
    """
    describe, script, job = part(subject.target, ContentsReader), subject.syntax, subject.job
    if not script.needs or describe is None or subject.tree.read_text("setup.py") is not None:
        return
    file = job.environment.requirements
    text = "" if file is None else subject.tree.read_text(os.path.normpath(file)) or "?"
    lines = [
        line
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip() and line[0] not in "#-"
    ]
    if any("--hash=" not in line for line in lines):
        return
    image = describe(job, subject.settings, subject.account).packages
    if image is None:
        return
    listed = {
        *image,
        *(re.split(r"[\s=@\[]", line.lower(), maxsplit=1)[0].replace("_", "-") for line in lines),
    }
    own = {
        part.removesuffix(".py") for entry in subject.tree.entries for part in entry.path.split("/")
    }
    for name, (path, line) in script.needs.items():
        package = _PACKAGES.get(name, name.lower().replace("_", "-"))
        stem = package.removeprefix("python-").removesuffix("-python")
        is_known = (
            name in own
            or name in sys.stdlib_module_names
            or name in _WITHOUT_PACKAGE
            or name.startswith("_")
        )
        if not is_known and not any(stem in each for each in listed):
            message = (
                f"line {line} of `{path}` imports `{name}`, which neither the image nor "
                "the requirements have"
            )
            yield Fault(
                message, f"add `{package}` to the requirements of the job", ("entry_point",)
            )


_PACKAGES = {
    "Crypto": "pycryptodome", "OpenSSL": "pyopenssl", "PIL": "pillow", "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python", "dateutil": "python-dateutil", "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf", "git": "gitpython", "google": "google-", "jwt": "pyjwt",
    "mpl_toolkits": "matplotlib",
    "multipart": "python-multipart", "pkg_resources": "setuptools", "rapidjson": "python-rapidjson",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "umap": "umap-learn", "yaml": "pyyaml",
}  # fmt: skip
"""Modules whose packages have other names."""

_WITHOUT_PACKAGE = frozenset(
    (
        "apex asynchat asyncore cgi distutils herring imp smdebug smdistributed smp telnetlib "
        "torch_xla"
    ).split()
)
"""Modules that an image may have without a package of a lock, and modules of the standard library
of older Pythons."""


@rule("CT212", Level.WARNING)
def path_of_this_machine(subject: Subject) -> Iterator[Fault]:
    """An option of the script names a path of this machine, which the run does not have.

    A cloud's machine has no files of this one. On every target, this one too, the script works in a
    copy of the code folder, so `../data` leads out of it. Name the data as an input: a cloud gets
    it by an upload, and the script its folder by `${{inputs.NAME}}`. The rule looks at paths that
    exist here: values of the job, defaults of options, and constants of the script that begin with
    `../`.
    """
    target, is_paid = subject.target.name, find_target(subject.reading.service).facts.is_paid
    for name, value in {**subject.syntax.defaults, **given_options(subject)}.items():
        path = value.rstrip("/") if isinstance(value, str) else ""
        is_own = (
            is_paid
            and path.startswith(("/", "~/"))
            and path != "/tmp"
            and not path.startswith(_EVERYWHERE)
        )
        if not (is_own or path == ".." or path.startswith("../")) or "\0" in path:
            continue
        here = _exists_here(subject, path)
        if here:
            key = re.sub(r"\W", "_", name)
            place: ValuePath = ("hyperparameters", name)
            new = f"${{{{inputs.{key}}}}}"
            words = f"--set {quote(f'inputs.{key}.{target}={here}')}"
            if name in subject.reading.parameters:
                hint = f"name it as an input: `{words} --set {quote(f'{dotted(place)}={new}')}`"
            else:
                place = ("arguments",) if subject.job.arguments else ("entry_point",)
                hint = f"name it as an input with `{words}`, and pass `--{name} '{new}'`"
            yield Fault(
                f"`--{name} {path}` is a path of this machine, which the run does not have",
                hint,
                place,
            )

    told: set[str] = set()
    for file, line, path in subject.syntax.outside:
        here = None if path in told else _exists_here(subject, path)
        told.add(path)
        if here:
            message = (
                f"line {line} of `{file}` names `{path}`, a path of this machine, which "
                "the run does not have"
            )
            link = (
                f"command: ln -sfn ${{{{inputs.data}}}} {quote(path)} && python "
                f"{quote(subject.script or '')}"
            )
            data = f"inputs: {{data: {{{target}: {quote(here)}}}}}"
            hint = f"name it as an input: `{data}`, `{link}`, `entry_point: null`"
            yield Fault(message, hint, ("entry_point",))


def _exists_here(subject: Subject, path: str) -> str | None:
    """Return the absolute path, if there is a file or folder. Relative paths start at the source
    folder."""
    here = os.path.normpath(os.path.join(subject.tree.root, os.path.expanduser(path)))
    return here if os.path.exists(here) else None


_EVERYWHERE = ("/opt/", "/usr/", "/dev/", "/proc/", "/etc/", "/bin/", "/var/")
