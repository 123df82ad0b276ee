"""Portable rules about the user's files: what a job names must be in the bundle, and what it must not carry is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from posixpath import normpath

from cloudtrain.bundle.entries import escape_path
from cloudtrain.bundle.findings import name_findings, secret_findings, size_findings
from cloudtrain.core.plan import Finding, Level
from cloudtrain.errors import did_you_mean
from cloudtrain.rules.rule import Fault, Subject, rule


@rule("CT101", Level.ERROR)
def entry_point_in_bundle(subject: Subject) -> Iterator[Fault]:
    """The entry point is not in the source folder.

    `entry_point` is a path inside `source_dir`. A file that an ignore rule leaves out is not in the bundle either,
    and the container would fail with "No such file".
    """
    entry_point = subject.job.entry_point
    if entry_point is not None:
        yield from _missing(subject, entry_point, ("entry_point",), suffixes=(".py", ".sh"))


@rule("CT102", Level.ERROR)
def environment_files_in_bundle(subject: Subject) -> Iterator[Fault]:
    """A requirements or conda file is not in the source folder.

    `environment.requirements` is a path inside `source_dir`, and `environment.conda_file` one from there.
    """
    environment = subject.job.environment
    for field, suffixes in (("requirements", (".txt",)), ("conda_file", (".yml", ".yaml"))):
        file = getattr(environment, field)
        if file is not None:
            yield from _missing(subject, file, ("environment", field), suffixes=suffixes)


@rule("CT301", Level.ERROR)
def secret_in_bundle(subject: Subject) -> Iterable[Fault]:
    """A file in the bundle holds a secret.

    A private key, a token or an account key in a file would be uploaded, stored with the job and readable by everyone
    who may read it. cloudtrain knows such values by their form (the rules of gitleaks, and its own for keys, cloud
    accounts and the services of machine learning), in files of any kind, and names the rule and the line, never the
    value. Leave the file out with `.cloudtrainignore`, and read secrets at run time from a secret store. A value that
    is no secret, such as one of a test, is left alone where its line says `gitleaks:allow`.
    """
    return _faults(secret_findings(subject.tree), "CT301")


@rule("CT302", Level.ERROR)
def bundle_too_large(subject: Subject) -> Iterable[Fault]:
    """The bundle is larger than the services take.

    Azure ML documents a limit of 300 MB for a job's code. Data and checkpoints belong into inputs and outputs.
    """
    return _faults(size_findings(subject.tree), "CT302")


@rule("CT303", Level.WARNING)
def bundle_large(subject: Subject) -> Iterable[Fault]:
    """The bundle is large for code.

    Every submission uploads it when it changed, and every instance downloads it. Usually a data set, a model or a
    virtual environment is in the source folder.
    """
    return _faults(size_findings(subject.tree), "CT303")


@rule("CT304", Level.WARNING)
def possible_secret_in_bundle(subject: Subject) -> Iterable[Fault]:
    """A file in the bundle, or in data that is uploaded, may hold a secret.

    Its name is one that credentials have, and an ignore file brings it back, or something in it is called a password, a
    token or a key and looks random. Files whose names say that they hold credentials (`.env`, `*.pem`, `.aws`) are left
    out unless a `!` rule names them. Leave the others out with `.cloudtrainignore`, or write `gitleaks:allow` into the
    line that holds no secret. Data of this machine is uploaded whole, and its files count by their names.
    """
    yield from _faults(secret_findings(subject.tree), "CT304")
    for upload in subject.plan.uploads:
        if upload.source is not None:
            yield from _credentials(upload.source)


@rule("CT306", Level.ERROR)
def name_that_cannot_be_sent(subject: Subject) -> Iterable[Fault]:
    """A file's name is one that the target cannot carry.

    On this machine and on SageMaker a bundle is an archive, which has any name that a file can have, as long as its
    path leaves room for the folder that it is unpacked into. Azure ML gets each file as a blob, whose name is Unicode
    text without control characters, of at most 1,024 characters, and no part of it ends with a dot.
    """
    return _faults(name_findings(subject.tree, subject.plan.target, subject.where.refuse_path), "CT306")


def _credentials(source: str) -> Iterator[Fault]:
    from cloudtrain.bundle.data import UnreadableData, read_data
    from cloudtrain.bundle.secrets.names import secret_path

    try:
        files = read_data(source).files
    except UnreadableData:
        return  # it was there a moment ago; the upload says so
    found = [f"{escape_path(file.path)}: {what}" for file in files if (what := secret_path(file.path)) is not None]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        hint = "take it out of the folder, or accept it with `--ignore CT304`"
        yield Fault(
            f"the data in `{source}` has a file of credentials ({found[0]}){more}", hint, ("inputs",), (*found,)
        )


def _missing(subject: Subject, file: str, path: tuple[str, ...], *, suffixes: tuple[str, ...]) -> Iterator[Fault]:
    files = [entry.path for entry in subject.tree.entries]
    name = normpath(file)
    if name in files:
        return
    ignored = next(
        (item for item in subject.tree.ignored if name == item.path or name.startswith(item.path + "/")), None
    )
    if ignored is not None:
        yield Fault(
            f"`{file}` is left out of the bundle by `{ignored.rule}`", f"add `!{name}` to `.cloudtrainignore`", path
        )
        return
    candidates = [found for found in files if found.endswith(suffixes) and not found.startswith("cloudtrain/")]
    hint = did_you_mean(name, candidates[:50]) or "check `source_dir`: nothing like it is there"
    yield Fault(f"there is no file `{file}` in the source folder", hint, path)


def _faults(findings: Iterable[Finding], code: str) -> Iterator[Fault]:
    for finding in findings:
        if finding.code == code:
            yield Fault(finding.message, finding.hint, finding.path, finding.details)
