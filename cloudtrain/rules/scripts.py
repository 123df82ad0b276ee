"""Rules about what a training script shows by its syntax."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from cloudtrain.errors import dotted, join_names
from cloudtrain.machines.contents import Contents, ContentsReader
from cloudtrain.plans.plan import Level
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import Fault, Subject, ValuePath, rule
from cloudtrain.rules.facts import read_requirements
from cloudtrain.runtime.torchrun_words import is_module
from cloudtrain.system.plugins import find_target, part


@rule("CT507", Level.WARNING)
def copies_of_one_training(subject: Subject) -> Iterator[Fault]:
    """Several processes would all train the same model.

    The distribution starts several processes, but the script uses no library that joins them and
    reads no rank, or it starts its processes itself (`mp.spawn`). So each process runs the whole
    training, and all of them write the same files. The rule reads the script and the modules beside
    it that it imports. Join the processes in the script, for example with
    `runtime.init_process_group()` and DistributedDataParallel, or start one process.
    """
    kind = subject.reading.distribution.type
    count = Processes.of(subject.plan.processes).ranks.total()
    why = subject.syntax.why_alone
    if kind != "none" and count > 1 and why:
        message = (
            f"`{subject.job.entry_point}` {why}, so {count} processes would all train the same"
        )
        hint = "use `distribution: {type: none}` for one process, or join them in the script with "
        yield Fault(message, f"{hint}`torch.distributed`", ("distribution",))


@rule("CT508", Level.NOTICE)
def one_process(subject: Subject) -> Iterator[Fault]:
    """The job sets no distribution, and the script does not work with other processes.

    The script imports torch, but uses no library that joins processes and reads no rank, or it
    starts its processes itself (`mp.spawn`). So one process runs it. If several shall train
    together, join them in the script, and set a `distribution`.
    """
    if "distribution" in subject.job.model_fields_set:
        return
    why = subject.syntax.why_alone
    if subject.reading.distribution.type == "none" and why:
        yield Fault(
            f"one process runs `{subject.job.entry_point}`, because it {why}",
            "for several, join them in the script, and add `distribution: {type: torch}`",
        )


@rule("CT215", Level.ERROR)
def text_that_python_cannot_read(subject: Subject) -> Iterator[Fault]:
    """Python cannot read the script, or a module that it imports at its start.

    It has a syntax that no Python knows, such as the `print` of Python 2, the marks of a conflict,
    or a mixture of tabs and spaces. What may be the syntax of a newer Python than the one on this
    machine is not reported. Or it has another encoding than Python expects: UTF-8, unless a comment
    in its first two lines names another one, as in `# -*- coding: latin-1 -*-`. The run would end
    with a SyntaxError before the first line.
    """
    for file, line, reason in subject.syntax.unreadable:
        message = f"Python cannot read line {line} of `{file}`: {reason}"
        hint = f"correct the line; `python -m py_compile {quote(file)}` tries it"
        yield Fault(message, hint, ("entry_point",), (f"{file}:{line}",))


@rule("CT220", Level.ERROR)
def relative_import_of_a_file(subject: Subject) -> Iterator[Fault]:
    """The script imports relative to its package, and runs as a file.

    Python knows the package of a module that is imported, or started by `python -m`, but not that
    of a file. So `from . import util` ends with an ImportError. Start the script as a module, with
    `entry_point: -m package.train` and the folder above the package as `source_dir`, or import the
    module by its own name.
    """
    line = subject.syntax.relative
    script = subject.job.entry_point
    if line is None or script is None or is_module(script):
        return
    message = f"`{script}` imports relative to its package in line {line}, and runs as a file"
    hint = "import the module by its own name: `import util` instead of `from . import util`"
    folder, name = posixpath.split(script)
    if folder:
        module = f"{folder}/{name.removesuffix('.py')}".replace("/", ".")
        hint = f"start it as a module: `entry_point: -m {module}`"
    yield Fault(message, hint, ("entry_point",), (f"{script}:{line}",))


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
    lines: dict[tuple[str, str], list[str]] = {}
    for file, line, name in subject.syntax.attended:
        lines.setdefault((name, file), []).append(str(line))
    for (name, file), numbers in lines.items():
        why = "and a run has no keyboard" if name == "input" else "which only a notebook has"
        words = "line" if len(numbers) == 1 else "lines"
        listed = ", ".join(numbers[:5])
        if len(numbers) > 5:
            listed += ", ..."
        message = f"`{name}()` is called in {words} {listed} of `{file}`, {why}"
        yield Fault(message, _ATTENDED[name], ("entry_point",))


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
    # The folders that the service saves need no report, and no other needs a second one.
    done = set(find_target(subject.reading.service).facts.saved_folders)
    paths = sorted(subject.tree.by_path)
    for file, line, folder in subject.syntax.written:
        start = f"{folder}/"
        at = bisect_left(paths, start)
        next_path = "".join(paths[at : at + 1])
        if next_path.startswith(start) or folder in done:
            continue
        done.add(folder)
        where = f"`{folder}`, a folder that the run does not have"
        message = f"line {line} of `{file}` writes into {where}"
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
    facts = find_target(subject.reading.service).facts
    if not facts.is_paid:
        return
    words = given_options(subject)
    reported: set[str] = set()
    for save in subject.syntax.saves:
        path = save.path
        hint = _SAVE_IN_MODEL
        place: ValuePath = ("entry_point",)
        if save.option:
            start = words.get(save.option, subject.syntax.defaults[save.option])
            path = f"{start}/{path}"
            hint = f"pass `--{save.option} '${{{{outputs.model}}}}'`"
            if save.option in words:
                place = ("hyperparameters", save.option)

        path = posixpath.normpath(path)
        if "://" in path or "${" in path or path in reported:
            continue

        is_kept = path.partition("/")[0] in facts.saved_folders
        may_be_mount = path.startswith("/") and not path.startswith(_SCRATCH_FOLDERS)
        if is_kept or may_be_mount:
            continue

        reported.add(path)
        where = f"`{path}`, and the service keeps only the job's outputs"
        message = f"line {save.line} of `{save.file}` saves to {where}"
        yield Fault(message, hint, place)


_SCRATCH_FOLDERS = ("/tmp/", "/home/", "/root/")
"""Folders of a cloud's container in which nothing survives. Others may be mounts, so the rule
leaves them alone."""

_SAVE_IN_MODEL = "save in `runtime.model_dir()`, after `from cloudtrain import runtime`"


def given_options(subject: Subject) -> dict[str, object]:
    """Return the values that the job gives to the script's options."""
    options: dict[str, object] = {}
    for word, following in pairwise((*subject.job.arguments, "")):
        if word.startswith("-"):
            name, _, value = word.lstrip("-").partition("=")
            options[name] = value or following
    return {**options, **subject.reading.parameters}


@rule("CT213", Level.WARNING)
def package_is_missing(subject: Subject) -> Iterator[Fault]:
    """The script imports a package that the run does not have.

    The rule reads the imports at the top level of the script and of its own modules; those inside
    of `try`, `if` or a function do not count. On this machine it looks for each import. It knows
    the packages of AWS's images for PyTorch 2.11 and newer, from their public locks, and those of
    the job's own list. What it does not know is in the notice CT219.
    """
    for name, (path, line) in _absent(subject).certain.items():
        message = f"line {line} of `{path}` imports `{name}`, which the run does not have"
        yield Fault(message, _how_to_have(subject, name), ("entry_point",))


@rule("CT219", Level.NOTICE)
def package_is_unknown(subject: Subject) -> Iterator[Fault]:
    """cloudtrain does not know whether the run has all packages that the script imports.

    The packages of an image are known only if its maker publishes them: those of AWS's images for
    PyTorch 2.11 and newer. A requirements file without hashes may install more than it lists. The
    message names the imports; the rule CT213 reports those that are certainly missing.
    """
    absent = _absent(subject)
    if absent.unknown:
        names = join_names(list(absent.unknown))
        message = f"cloudtrain does not know whether the run has {names}, because {absent.why}"
        yield Fault(
            message, "add those that it may lack to the requirements of the job", ("entry_point",)
        )


def _how_to_have(subject: Subject, name: str) -> str:
    """Return the hint for a module that the run does not have."""
    package = _package_of(name)
    places = (f"src/{name}/", f"src/{name}.py")
    if any(path.startswith(places) for path in subject.tree.by_path):
        return "it is in `src`: add `environment: {variables: {PYTHONPATH: src}}`"
    if f'"{package}' in (subject.tree.read_text("pyproject.toml") or ""):
        return "`pyproject.toml` lists it: add `environment: {requirements: pyproject.toml}`"
    beside = Path(subject.tree.root).parent
    if any([*beside.glob(f"{name}.py"), *beside.glob(f"{name}/*.py")]):
        return f"it is in `{beside}`: start cloudtrain there, or set `source_dir` to it"
    return f"add `{package}` to the requirements of the job"


class _Absent(NamedTuple):
    """The imports that are not found, each with its file and line, and why some are unknown."""

    certain: dict[str, tuple[str, int]]
    unknown: dict[str, tuple[str, int]]
    why: str


@lru_cache(maxsize=1)  # for both rules
def _absent(subject: Subject) -> _Absent:
    """Look for the packages that the script needs in the image or on this machine, and in the job's
    requirements."""
    needs = _foreign(subject)
    if not needs:
        return _Absent({}, {}, "")

    contents = Contents(is_image=False)
    describe = part(subject.target, ContentsReader)
    if describe is not None and subject.reading.has_image:
        contents = describe(subject.job, subject.settings, subject.account)
    listed, brings_more = _required(subject)
    # the job's framework is there, or other rules say that it is not
    frameworks = (subject.reading.framework, subject.reading.distribution.type)
    installed = "\n".join([*(contents.packages or ()), *listed])

    whose = "image" if contents.is_image else "interpreter"
    absent = _Absent({}, {}, brings_more or f"the packages of its {whose} are not known")
    for name, place in needs.items():
        stem = _package_of(name).removeprefix("python-").removesuffix("-python")
        is_here = subject.reading.can_import(name, subject.settings)
        is_framework = name in frameworks or f"py{name}" in frameworks  # such as pytorch
        if is_here is None and not subject.reading.has_image:
            is_framework = False  # no rule has looked for it in another interpreter
        if stem in installed or is_framework or is_here:
            continue
        is_certain = is_here is False or contents.packages is not None
        kind = absent.certain if is_certain and not brings_more else absent.unknown
        kind[name] = place
    return absent


def _foreign(subject: Subject) -> dict[str, tuple[str, int]]:
    """Return the imports of the script that neither Python nor the bundle has."""
    known = {*sys.stdlib_module_names, *_WITHOUT_PACKAGE, "cloudtrain"}
    # the runtime has modules for Hydra and others, which are not their packages
    unseen = ["cloudtrain/", "src/"]
    python_path = subject.job.environment.variables.get("PYTHONPATH", "")
    if "src" in python_path.split(":") or str(subject.script).startswith("src/"):
        del unseen[1]
    for path in subject.tree.by_path:
        known.add(path.partition("/")[0])
        if not path.startswith(tuple(unseen)):
            known.update(part.removesuffix(".py") for part in path.split("/"))
    needs = subject.syntax.needs.items()
    return {name: place for name, place in needs if name not in known and name[0] != "_"}


def _package_of(name: str) -> str:
    """Return the package that has the module `name`, as far as is known."""
    return _PACKAGES.get(name, name.lower().replace("_", "-"))


def _required(subject: Subject) -> tuple[list[str], str]:
    """Return the packages of the job's own list, and why it may install more than these; an empty
    text if it does not."""
    if subject.tree.read_text("setup.py") is not None:
        return [], "`setup.py` may install more packages"
    file = subject.job.environment.requirements
    if file is None:
        return [], ""
    found = read_requirements(subject.tree, file)
    names = [package.name for package in found.requirements.packages]
    # pip then installs what a package needs as well
    if found.problems or not all(line.hashes for line in found.asked):
        return names, f"`{file}` may install more than it lists"
    return names, ""


_PACKAGES = {
    "Crypto": "pycryptodome", "OpenSSL": "pyopenssl", "PIL": "pillow", "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python", "dateutil": "python-dateutil", "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf", "git": "gitpython", "google": "google-", "jwt": "pyjwt",
    "hydra": "hydra-core",
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
    yield from _options_with_paths(subject)
    yield from _constants_with_paths(subject)


def _options_with_paths(subject: Subject) -> Iterator[Fault]:
    """Yield the options whose values are paths of this machine: those outside the source folder,
    and on a paid target absolute ones."""
    is_paid = find_target(subject.reading.service).facts.is_paid
    for name, value in {**subject.syntax.defaults, **given_options(subject)}.items():
        path = value.rstrip("/") if isinstance(value, str) else ""
        is_outside = path == ".." or path.startswith("../")
        if is_paid and path.startswith(("/", "~/")) and not path.startswith(_EVERYWHERE):
            is_outside = path != "/tmp"
        if not is_outside or "\0" in path:
            continue
        existing = _exists_here(subject, path)
        if existing is None:
            continue

        key = re.sub(r"\W", "_", name)
        new = f"${{{{inputs.{key}}}}}"
        data = quote(f"inputs.{key}.{subject.target.name}={existing}")
        place: ValuePath = ("hyperparameters", name)
        if name in subject.reading.parameters:
            value_of_option = quote(f"{dotted(place)}={new}")
            hint = f"name it as an input: `--set {data} --set {value_of_option}`"
        else:
            place = ("arguments",) if subject.job.arguments else ("entry_point",)
            hint = f"name it as an input with `--set {data}`, and pass `--{name} '{new}'`"
        yield Fault(
            f"`--{name} {path}` is a path of this machine, which the run does not have", hint, place
        )


def _constants_with_paths(subject: Subject) -> Iterator[Fault]:
    """Yield the constants of the script that are paths of this machine, one for each folder."""
    seen: set[str] = set()
    for file, line, path in subject.syntax.outside:
        # the folder beside the code: a run has neither it nor what is in it
        steps = posixpath.normpath(path).split("/")
        folder = "/".join(steps[: steps.count("..") + 1])
        existing = _exists_here(subject, folder)
        if folder in seen or existing is None or _exists_here(subject, path) is None:
            continue

        seen.add(folder)
        what = "a path of this machine, which the run does not have"
        message = f"line {line} of `{file}` names `{path}`, {what}"
        script = quote(subject.script or "")
        link = f"command: ln -sfn ${{{{inputs.data}}}} {quote(folder)} && python {script}"
        data = f"inputs: {{data: {{{subject.target.name}: {quote(existing)}}}}}"
        hint = f"name it as an input: `{data}`, `{link}`, `entry_point: null`"
        yield Fault(message, hint, ("entry_point",))


def _exists_here(subject: Subject, path: str) -> str | None:
    """Return the absolute path, if there is a file or folder. Relative paths start at the source
    folder."""
    place = os.path.join(subject.tree.root, os.path.expanduser(path))
    normal = os.path.normpath(place)
    return normal if os.path.exists(normal) else None


_EVERYWHERE = ("/opt/", "/usr/", "/dev/", "/proc/", "/etc/", "/bin/", "/var/")
"""Folders that every machine has, so a path in them may be one of the cloud's."""
