"""Portable rules about the user's files: the bundle must contain all required files, but no secrets or large data."""

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

    `entry_point` is a path inside `source_dir`. Without the file, or if an ignore rule excludes it from the bundle, the
    container would fail with "No such file".
    """
    entry_point = subject.job.entry_point
    if entry_point is not None:
        yield from _missing(subject, entry_point, ("entry_point",), suffixes=(".py", ".sh"))


@rule("CT102", Level.ERROR)
def environment_files_in_bundle(subject: Subject) -> Iterator[Fault]:
    """A requirements or conda file is not in the source folder.

    `environment.requirements` is a path inside `source_dir`. `environment.conda_file` is a path relative to
    `source_dir`.
    """
    environment = subject.job.environment
    for field, suffixes in (("requirements", (".txt",)), ("conda_file", (".yml", ".yaml"))):
        file = getattr(environment, field)
        if file is not None:
            yield from _missing(subject, file, ("environment", field), suffixes=suffixes)


@rule("CT301", Level.ERROR)
def secret_in_bundle(subject: Subject) -> Iterable[Fault]:
    """A file in the bundle holds a secret.

    A private key, a token or an account key in a file would be uploaded, stored with the job, and readable by everyone
    who may read the job. cloudtrain checks files of every type for the patterns of such values: the rules of gitleaks,
    and its own for keys, cloud accounts and machine learning services. The message names the rule and the line, never
    the value. Exclude the file with `.cloudtrainignore`, and read secrets at run time from a secret store. To allow a
    value that is not secret, such as one in a test, write `gitleaks:allow` into its line.
    """
    return _faults(secret_findings(subject.tree), "CT301")


@rule("CT302", Level.ERROR)
def bundle_too_large(subject: Subject) -> Iterable[Fault]:
    """The bundle is larger than the services accept.

    Azure ML documents a limit of 300 MB for a job's code. Put data and checkpoints into inputs and outputs.
    """
    return _faults(size_findings(subject.tree), "CT302")


@rule("CT303", Level.WARNING)
def bundle_large(subject: Subject) -> Iterable[Fault]:
    """The bundle is unusually large for code.

    After every change, the bundle is uploaded again, and every instance downloads it. The usual cause is a data set, a
    model or a virtual environment in the source folder. Exclude it with `.cloudtrainignore`.
    """
    return _faults(size_findings(subject.tree), "CT303")


@rule("CT304", Level.WARNING)
def possible_secret_in_bundle(subject: Subject) -> Iterable[Fault]:
    """A file in the bundle, or in data that is uploaded, may hold a secret.

    Either the file has a typical name of a credentials file and an ignore file includes it, or the file assigns a
    random-looking value to a name such as password, token or key. Files with typical names of credentials files
    (`.env`, `*.pem`, `.aws`) are excluded unless a `!` rule names them. Exclude other files with `.cloudtrainignore`,
    or write `gitleaks:allow` into a line that holds no secret. In data that is uploaded from this machine, only the
    file names are checked.
    """
    yield from _faults(secret_findings(subject.tree), "CT304")
    for upload in subject.plan.uploads:
        if upload.source is not None:
            yield from _credentials(upload.source)


@rule("CT306", Level.ERROR)
def name_that_cannot_be_sent(subject: Subject) -> Iterable[Fault]:
    """A file has a name that the target does not support.

    On this machine and on SageMaker a bundle is an archive, which supports every file name. Only the length of the path
    is limited, because the archive is unpacked into another folder. On Azure ML each file is a blob. The name of a blob
    is Unicode text of at most 1,024 characters without control characters, and no part of it ends with a dot.
    """
    return _faults(name_findings(subject.tree, subject.plan.target, subject.where.refuse_path), "CT306")


def _credentials(source: str) -> Iterator[Fault]:
    from cloudtrain.bundle.data import UnreadableData, read_data
    from cloudtrain.bundle.secrets.names import secret_path

    try:
        files = read_data(source).files
    except UnreadableData:
        return  # the file has just disappeared; the upload reports it
    found = [f"{escape_path(file.path)}: {what}" for file in files if (what := secret_path(file.path)) is not None]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        hint = "remove it from the folder, or accept it with `--ignore CT304`"
        yield Fault(
            f"the data in `{source}` contains a credentials file ({found[0]}){more}", hint, ("inputs",), (*found,)
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
            f"`{file}` is excluded from the bundle by `{ignored.rule}`", f"add `!{name}` to `.cloudtrainignore`", path
        )
        return
    candidates = [found for found in files if found.endswith(suffixes) and not found.startswith("cloudtrain/")]
    hint = did_you_mean(name, candidates[:50]) or "check `source_dir`: it has no file with a similar name"
    yield Fault(f"there is no file `{file}` in the source folder", hint, path)


def _faults(findings: Iterable[Finding], code: str) -> Iterator[Fault]:
    for finding in findings:
        if finding.code == code:
            yield Fault(finding.message, finding.hint, finding.path, finding.details)
