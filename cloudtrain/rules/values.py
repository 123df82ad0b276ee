"""Portable rules about values: secrets in them, and the files, images and locations of data that
they name."""

from __future__ import annotations

import os
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from posixpath import normpath
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cloudtrain.code.data import UnreadableData, read_data
from cloudtrain.code.files import escape_path
from cloudtrain.code.ignore import IGNORE_FILE, ignore_line
from cloudtrain.code.secret_names import credentials_in
from cloudtrain.code.suspects import suspects
from cloudtrain.code.tree import LIMIT, NOTABLE, Tree, largest_files, size_hint
from cloudtrain.errors import InPlace, did_you_mean, shortened
from cloudtrain.job.data import texts_in
from cloudtrain.job.model import OVERRIDES, format_size
from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import Fault, Nature, Subject, ValuePath, plural, rule
from cloudtrain.rules.facts import DataPlace
from cloudtrain.runtime.secret_values import VARIABLE
from cloudtrain.system.plugins import ability, part, target_names

if TYPE_CHECKING:
    from cloudtrain.job.training import TrainingJob


# Secrets in the values of a job: variables, hyperparameters, tags, command and overrides.

_AS_FILE = "job.env"
"""The values are searched like a settings file: `NAME="value"`, line by line."""

_SECRET_NAME = (
    r"(?i)(?:^|[a-z0-9_.-])(?P<word>passw(?:or)?d|passphrase|pwd|secret|"
    r"secret[_-]?(?:access[_-]?)?key|token|api[_-]?key|"
    r"access[_-]?key|private[_-]?key|credentials?)$"
)
"""Names of values that are secrets. The last word decides, so `MAX_TOKENS` and `HF_TOKEN_FILE` are
not matched."""

_SPECIAL_TOKEN = (
    r"(?i)(?:^|[_.-])(?:pad|eos|bos|unk|cls|sep|mask|image|special|stop|start|end|sos|blank|"
    r"null|extra|next|prompt|system)"
    r"[_.-]?token$"
)
"""Tokens of a tokenizer."""

_NO_SECRET = (
    r"(?i)(?:arn:|[a-z][a-z0-9+]*://|[./~])|(?:[-+0-9.e]*|none|null|true|false|auto|yes|no)$|"
    r".*(?:\$\{|\{\{|x{3,}|\*{3,}|<[^>]*>|\[[^\]]*\]|example|placeholder|changeme|fill-in|your[-_])"
)
"""Values that are not secrets: the location of a secret, a number, a switch, or a placeholder of an
example."""

_OPTION = (
    r"(?i)--?[\w-]*?(?P<name>passw(?:or)?d|passphrase|secret|token|"
    r"(?:api|access|private)[_-]?key|key)[ =]+[\"']?(?P<value>[^\s\"'$<{-][^\s\"']{5,})"
)
"""`--db-password VALUE` in a text."""

_SETTING = (
    r"(?i)(?<![\w.-])(?P<setting>[\w.-]*?(?P<name>passw(?:or)?d|passphrase|pwd|secret|token|"
    r"(?:api|access|account|private)[_-]?key|key|authorization))"
    r"[\"']?[ ]?(?P<sign>[:=])[ ]?[\"']?(?:(?:basic|bearer)[ ]+)?"
    r"(?P<value>[^\s\"'$<{;&,-][^\s\"';&,]{5,})"
)
"""`Password=VALUE` in a text, such as an address of a database; `"api_key": "VALUE"`."""

_STORAGE_KEY = r"(?<![\w+/-])[A-Za-z0-9+/]{86}==(?![\w=])"
"""The key of an Azure storage account, and other 64 bytes in base64."""


class SecretValue(NamedTuple):
    """A secret in a value of the job. `value` is stored only to hide the secret; no message may
    contain it."""

    path: ValuePath
    rule: str
    certain: bool
    value: str


@rule("CT305", Level.ERROR)
def secret_in_value(subject: Subject) -> Iterator[Fault]:
    """A value of the job holds a secret.

    Variables, hyperparameters, tags, the command, the description and overrides are part of the
    request. The services store them and show them to everyone who may read the job. Instead, write
    the location of the secret into `environment.secrets`: AWS Secrets Manager, Azure Key Vault, a
    file, or a variable of your shell. In text, HTML and JSON, the plan shows `***` in place of the
    value.
    """
    return _secret_faults(subject, certain=True)


@rule("CT205", Level.WARNING)
def possible_secret(subject: Subject) -> Iterator[Fault]:
    """A value of the job may be a secret.

    The value has a name typical of secrets, such as `HF_TOKEN`, or looks random and follows a word
    such as `key`. Values of a job are part of its request. The services store them and show them to
    everyone who may read the job. Instead, write the location of the secret into
    `environment.secrets`.
    """
    return _secret_faults(subject, certain=False)


def _secret_faults(subject: Subject, *, certain: bool) -> Iterator[Fault]:
    """Yield a fault for each secret in the job's values, the certain ones or the possible ones."""
    words = "holds a secret" if certain else "looks like a secret"
    reason = "and the request shows it to everyone who may read the job"
    for secret in secret_values(subject.job):
        if secret.certain is certain:
            message = f"`{secret.path[-1]}` {words} ({secret.rule}), {reason}"
            yield Fault(message, _secret_hint(subject, secret.path), secret.path)


def _secret_hint(subject: Subject, path: ValuePath) -> str:
    """Return how to keep a secret out of the value at `path`: with the first kind of secret that
    the target can look up."""
    more = "`cloudtrain explain CT305` explains why"
    places = subject.target.facts.secrets
    if not places:
        return f"remove it, and let the script read it itself; {more}"

    name = "NAME"
    if path[:2] == ("environment", "variables"):
        name = str(path[-1])
    example = next(iter(places.values())).replace("NAME", name)
    place = f'`environment.secrets: {{{name}: {{{subject.target.name}: "{example}"}}}}`'
    return f"let the job look it up with {place}; {more}"


def secret_values(job: TrainingJob) -> list[SecretValue]:
    """Return the secrets in a job's values, at most one per value. Those that are certainly secrets
    precede possible ones."""
    return secrets_in(list(_values(job)))


def secrets_in(values: Sequence[tuple[ValuePath, str]]) -> list[SecretValue]:
    """Return the secrets in `values`, which are pairs of path and text, as `secret_values` does.
    The paths of command lines are `("command",)` and `("arguments",)`."""
    found = [*_by_rules(values), *_by_name(values)]
    found.sort(key=lambda secret: not secret.certain)
    secrets: dict[ValuePath, SecretValue] = {}
    for secret in found:
        secrets.setdefault(secret.path, secret)
    return list(secrets.values())


def values_to_hide(job: TrainingJob) -> tuple[str, ...]:
    """Return the secrets to hide in every rendering of the job's plan: values that are certainly
    secrets, and values that look random.

    A value that does not look random is not hidden, even if its name is typical of secrets:
    `password: hunter2`.
    """
    return tuple(dict.fromkeys(secret_texts(list(_values(job)))))


def named_secrets(job: TrainingJob) -> list[tuple[str, str]]:
    """Return name and value of each value that has a name typical of secrets but does not look
    random: `("password", "hunter2")`."""
    secrets = []
    for item in _by_name(list(_values(job))):
        if not _is_hidden(item):
            secrets.append((_last_name(item.path), item.value))
    return secrets


def secret_texts(values: Sequence[tuple[ValuePath, str]]) -> list[str]:
    """Return the secrets to hide in `values`, which are pairs of path and text, by the same
    conditions as `values_to_hide`."""
    secrets = (*_by_rules(values), *_by_name(values))
    return [secret.value for secret in secrets if _is_hidden(secret)]


def _is_hidden(secret: SecretValue) -> bool:
    """Return whether a plan shows `***` in place of the secret."""
    return secret.certain or _is_random(secret.value)


def _values(job: TrainingJob) -> Iterator[tuple[ValuePath, str]]:
    """Yield path and text of every value that becomes part of the request, except the locations of
    data."""
    for field in ("command", "description"):
        text = getattr(job, field)
        if text is not None:
            yield (field,), text
    if job.arguments:
        yield ("arguments",), shlex.join(job.arguments)
    overrides = [name + OVERRIDES for name in target_names()]
    for field in ("hyperparameters", "tags", *overrides):
        yield from texts_in(getattr(job, field), (field,))

    variables = dict(job.environment.variables)
    variables.pop(VARIABLE, None)
    yield from texts_in(variables, ("environment", "variables"))
    for name, item in job.inputs.items():
        yield from texts_in(item.value, ("inputs", name, "value"))


def _by_rules(values: Sequence[tuple[ValuePath, str]]) -> Iterator[SecretValue]:
    """Yield the secrets that the rules for files find, each with the whole word around it. All
    values are searched together, a line each."""
    lines = [_encoded(f'{_last_name(path)}="{value}"\n') for path, value in values]
    content = b"".join(lines)
    spans = suspects(content, _AS_FILE)
    if not spans:
        return

    from cloudtrain.code.secrets import matches

    # Each match becomes a value and offsets in it.
    starts = list(accumulate(map(len, lines), initial=0))
    for match in matches(content, spans, _AS_FILE):
        number = bisect_right(starts, match.start) - 1
        path, value = values[number]
        value_start = starts[number] + len(_encoded(f'{_last_name(path)}="'))
        start = match.start - value_start
        end = match.end - value_start
        text = _encoded(value)[max(start, 0) : end].decode("utf-8", "replace")
        if start >= 0 and text:  # otherwise the match is in the name
            secret = value if "\n" in value else _whole_word(value, text)
            yield SecretValue(path, match.rule.id, match.rule.certain, secret)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _last_name(path: ValuePath) -> str:
    """Return the last key in a path. Numbers of list items do not name a value."""
    return next(str(part) for part in reversed(path) if isinstance(part, str))


def _whole_word(value: str, secret: str) -> str:
    """Return the whole word that contains the secret, so that no part of the secret is shown."""
    start = value.find(secret)
    if start < 0:
        return value

    end = start + len(secret)
    before: list[str] = re.findall(r"[\w+/.~-]*\Z", value[:start])
    behind: list[str] = re.findall(r"\A[\w+/.~=-]*", value[end:])
    return before[0] + secret + behind[0]


def _by_name(values: Sequence[tuple[ValuePath, str]]) -> Iterator[SecretValue]:
    """Yield values whose name is typical of secrets, including options and settings in a text:
    `--password hunter2`, `Password=hunter2`."""
    for path, value in values:
        yield from _in_text(path, value)
        if path in (("command",), ("arguments",)):
            continue
        name = _last_name(path)
        is_secret = re.search(_SECRET_NAME, name) and not re.search(_SPECIAL_TOKEN, name)
        if is_secret and value and not re.match(_NO_SECRET, value):
            yield SecretValue(path, "by its name", _is_random(value), value)


def _in_text(path: ValuePath, text: str) -> Iterator[SecretValue]:
    """Yield the secrets in options and settings of a text, which is the value at `path`, and those
    that only their form shows."""
    for option in re.finditer(_OPTION, text):
        name = option["name"].lower()
        is_plain = name == "key"  # as in `--sort-key column`
        yield from _named(path, f"the option for a {name}", option["value"], is_plain=is_plain)

    for setting in re.finditer(_SETTING, text):
        name = setting["name"].lower()
        is_plain = name == "key" or setting["sign"] == ":"  # as in `the secret: patience`
        if not re.search(_SPECIAL_TOKEN, setting["setting"]):
            yield from _named(path, f"the value of a {name}", setting["value"], is_plain=is_plain)

    keys = re.finditer(_STORAGE_KEY, text) if "==" in text else ()
    for match in keys:
        if _is_random(match[0]):
            yield SecretValue(path, "the form of a storage key", True, match[0])


def _named(path: ValuePath, rule: str, value: str, *, is_plain: bool) -> Iterator[SecretValue]:
    """Yield the value of an option or a setting with the name of a secret. `is_plain`: values that
    do not look random are none."""
    is_random = _is_random(value)
    if (is_random or not is_plain) and not re.match(_NO_SECRET, value):
        yield SecretValue(path, rule, is_random, value)


def _is_random(value: str) -> bool:
    """Return whether a value with a name typical of secrets looks random, unlike a word or a switch
    such as `true`."""
    from cloudtrain.code.secrets import bits_per_letter, looks_random

    text = _encoded(value)
    if len(text) < 8 or not looks_random(text):
        return False
    return bits_per_letter(text) > 2.75


# Portable rules about the user's files: the bundle must contain all required files, but no secrets
# or large data.


@rule("CT101", Level.ERROR, Nature.FACT)
def entry_point_in_bundle(subject: Subject) -> Iterator[Fault]:
    """The entry point is not in the source folder.

    `entry_point` is a path inside `source_dir`, or `-m package.module`. Without the file, or if an
    ignore rule excludes it from the bundle, the container would fail with "No such file". A module
    in a folder such as `src` is found if the variable PYTHONPATH names the folder.
    """
    entry_point = subject.job.entry_point
    if subject.script is not None:
        yield from _missing(subject, subject.script, ("entry_point",), suffixes=(".py", ".sh"))
    elif entry_point is not None:
        modules = []
        for entry in subject.tree.user_files:
            if entry.path.endswith(".py"):
                module = entry.path.removesuffix(".py").replace("/", ".")
                modules.append(f"-m {module}")
        near = did_you_mean(entry_point, modules[:50])
        message = f"there is no module `{entry_point.removeprefix('-m ')}` in the source folder"
        hint = f"for an installed module, write `command: python {entry_point}` in its place"
        yield Fault(message, near or hint, ("entry_point",))


@rule("CT102", Level.ERROR, Nature.FACT)
def environment_files_in_bundle(subject: Subject) -> Iterator[Fault]:
    """A requirements or conda file is not in the source folder.

    `environment.requirements` is a path inside `source_dir`. `environment.conda_file` is a path
    relative to `source_dir`.
    """
    for field, suffixes in (("requirements", (".txt",)), ("conda_file", (".yml", ".yaml"))):
        file = getattr(subject.job.environment, field)
        if file is not None:
            yield from _missing(subject, file, ("environment", field), suffixes=suffixes)


@rule("CT301", Level.ERROR)
def secret_in_bundle(subject: Subject) -> Iterable[Fault]:
    """A file in the bundle holds a secret.

    A private key, a token or an account key in a file would be uploaded, stored with the job, and
    readable by everyone who may read the job. cloudtrain checks files of every type for the
    patterns of such values: the rules of gitleaks, and its own for keys, cloud accounts and machine
    learning services; of many megabytes of data, it checks a sample. The message names the rule and
    the line, never the value. Exclude the file with `.cloudtrainignore`, and read secrets at run
    time from a secret store. To allow a value that is not secret, such as one in a test, write
    `gitleaks:allow` into its line.
    """
    return bundled_secrets(subject.tree, certain=True)


@rule("CT302", Level.ERROR)
def bundle_too_large(subject: Subject) -> Iterable[Fault]:
    """The bundle is larger than the services accept.

    Azure ML documents a limit of 300 MB for a job's code. Put data and checkpoints into inputs and
    outputs.
    """
    if subject.tree.identity.size > LIMIT:
        yield _size_fault(subject.tree, f"; the limit is {format_size(LIMIT)}")


@rule("CT303", Level.WARNING)
def bundle_large(subject: Subject) -> Iterable[Fault]:
    """The bundle is unusually large for code.

    After every change, the bundle is uploaded again, and every instance downloads it. The usual
    cause is a data set, a model or a virtual environment in the source folder. Exclude it with
    `.cloudtrainignore`.
    """
    if NOTABLE <= subject.tree.identity.size <= LIMIT:
        yield _size_fault(subject.tree, ", all sent again after every change")


@rule("CT304", Level.WARNING)
def possible_secret_in_bundle(subject: Subject) -> Iterable[Fault]:
    """A file in the bundle, or in data that is uploaded, may hold a secret.

    Either the file has a typical name of a credentials file and an ignore file includes it, or the
    file assigns a random-looking value to a name such as password, token or key. Files with typical
    names of credentials files (`.env`, `*.pem`, `.aws`) are excluded unless a `!` rule names them.
    Exclude other files with `.cloudtrainignore`, or write `gitleaks:allow` into a line that holds
    no secret. In data that is uploaded from this machine, only the file names are checked.
    """
    yield from bundled_secrets(subject.tree, certain=False)
    for upload in subject.plan.uploads:
        if upload.source is not None:
            yield from _credentials(upload.source)


@ability("path")
class PathCheck(Protocol):
    """The part of a target that knows which files a bundle can have there. By default, the limits
    of archives apply."""

    def __call__(self, path: str, /) -> str | None:
        """Return why the target does not accept this file in a bundle, as a clause such as `whose
        path is too long`; None if it does."""


@rule("CT306", Level.ERROR)
def name_that_cannot_be_sent(subject: Subject) -> Iterable[Fault]:
    """A file has a name that the target does not support.

    On this machine and on SageMaker a bundle is an archive, which supports every file name. Only
    the length of the path is limited, because the archive is unpacked into another folder. On Azure
    ML each file is a blob. The name of a blob is Unicode text of at most 1,024 characters without
    control characters, and no part of it ends with a dot.
    """
    refuse = part(subject.target, PathCheck) or refuse_archive_path
    faults: dict[str, str] = {}
    for path in subject.tree.by_path:
        what = refuse(path)
        if what is not None:
            shown = shortened(escape_path(path), 200)
            faults[path] = f"`{shown}`, {what}"

    if faults:
        path = next(iter(faults))
        others = _more_files(len(faults) - 1)
        message = f"`{subject.plan.target}` does not support {faults[path]}{others}"
        line = shortened(ignore_line(path), 200)
        hint = f"rename it, or add the line `{line}` to `{IGNORE_FILE}` in `source_dir`"
        details = [*faults.values()][:_MOST_PLACES]
        yield Fault(message, hint, ("source_dir",), tuple(details))


_MOST_PLACES = 40
"""Maximum number of positions in the details of a finding."""

_BY_NAME = ", by its name"

_LONGEST_PATH = 3800
"""In bytes. Linux allows 4,096, and the path of the folder into which a bundle is unpacked needs
some of them."""


def bundled_secrets(tree: Tree, *, certain: bool) -> Iterator[Fault]:
    """Yield a fault for the secrets in a bundle: the certain ones, or the possible ones, judged by
    content and by file name. Its details list every position. The secrets themselves are never
    shown."""
    credentials = {} if certain else credentials_in(tree.by_path)
    places: list[tuple[str, str, str]] = []  # `a.py`, `a.py:3`, `github-pat`
    for entry in tree.entries:
        if entry.path in credentials and not any(secret.certain for secret in entry.secrets):
            what = f"{credentials[entry.path]}{_BY_NAME}"
            places.append((entry.path, escape_path(entry.path), what))
        for secret in entry.secrets:
            if secret.certain is certain:
                place = f"{escape_path(entry.path)}:{secret.line}"
                places.append((entry.path, place, secret.rule))
    if not places:
        return

    details = [f"{place}: {what}" for _, place, what in places[:_MOST_PLACES]]
    if len(places) > _MOST_PLACES:
        details.append(f"and {len(places) - _MOST_PLACES} more")

    path, place, what = places[0]
    contains = "contains" if certain else "may contain"
    files = {path for path, _, _ in places}
    others = _more_files(len(files) - 1)
    message = f"the bundle {contains} a secret ({what}): `{place}`{others}"

    accept = "write `gitleaks:allow` into a comment in that line"
    if any(what.endswith(_BY_NAME) for _, _, what in places):
        accept = "accept it with `--ignore CT304`"
    hint = (
        f"add the line `{ignore_line(path)}` to `{IGNORE_FILE}` in `source_dir`, and let the "
        f"script read secrets from the service's secret store; if it is not a secret, {accept}"
    )
    yield Fault(message, hint, ("source_dir",), tuple(details))


def _more_files(count: int) -> str:
    """Return the end of a list of files: `, and 3 more files`; empty for 0."""
    return f", and {plural(count, 'more file')}" if count else ""


def _size_fault(tree: Tree, why: str) -> Fault:
    """Return the fault of a large bundle. Sizes are before compression."""
    sizes = {entry.path: entry.size for entry in tree.user_files or tree.entries}
    total = format_size(tree.identity.size)
    message = f"the bundle holds {total} in {tree.identity.file_count} files{why}"
    return Fault(message, size_hint(sizes), ("source_dir",), tuple(largest_files(sizes, 10)))


def refuse_archive_path(path: str) -> str | None:
    """Return why an archive that contains this path could not be unpacked; None if it could."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        return "whose path is too long"
    return None


def _credentials(source: str) -> Iterator[Fault]:
    """Yield a fault for the files of local data whose names are those of credentials files."""
    try:
        files = read_data(source).files
    except UnreadableData:
        return  # the file has just disappeared; the upload reports it
    lines = []
    for path, what in credentials_in([file.path for file in files]).items():
        lines.append(f"{escape_path(path)}: {what}")

    if lines:
        others = _more_files(len(lines) - 1)
        message = f"the data in `{source}` contains a credentials file ({lines[0]}){others}"
        yield Fault(
            message,
            "remove it from the folder, or accept it with `--ignore CT304`",
            ("inputs",),
            tuple(lines),
        )


def _missing(
    subject: Subject, file: str, path: tuple[str, ...], *, suffixes: tuple[str, ...]
) -> Iterator[Fault]:
    """Yield a fault if a file is not in the bundle. `path` is that of the job's field with its
    name. The hint suggests only files with one of the suffixes."""
    name = normpath(file)
    if name in subject.tree.by_path:
        return

    for item in subject.tree.ignored:
        if name == item.path or name.startswith(f"{item.path}/"):
            message = f"`{file}` is excluded from the bundle by `{item.rule}`"
            yield Fault(message, f"add `!{name}` to `.cloudtrainignore`", path)
            return

    candidates = []
    for candidate in subject.tree.by_path:
        if candidate.endswith(suffixes) and not candidate.startswith("cloudtrain/"):
            candidates.append(candidate)
    near = did_you_mean(name, candidates[:50])
    hint = near or "check `source_dir`: it has no file with a similar name"
    yield Fault(f"there is no file `{file}` in the source folder", hint, path)


# Portable rules about the address of a container image.

_HOST = r"[a-zA-Z0-9]+(?:-+[a-zA-Z0-9]+)*(?:\.[a-zA-Z0-9]+(?:-+[a-zA-Z0-9]+)*)*"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = (
    rf"(?P<name>(?:(?:{_HOST}|\[[a-fA-F0-9:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*)"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
"""registry/repository:tag@digest, according to the OCI distribution specification and its reference
implementation."""

_LONGEST_NAME = 255


@rule("CT207", Level.ERROR)
def image_reference(subject: Subject) -> Iterator[Fault]:
    """The image is not a valid image address.

    An address is `REGISTRY/REPOSITORY:TAG`, or `...@sha256:DIGEST`: a host with an optional port;
    names in lower-case letters, digits, dots, hyphens and underscores between slashes; and a tag of
    at most 128 letters, digits and `_.-` (OCI distribution specification). With any other text, the
    instances start but cannot pull the image.
    """
    for reference, path in subject.reading.images:
        # a cluster's containers may also be files
        if not is_reference(reference) and not re.fullmatch(r"/\S+\.(sqsh|sif)", reference):
            better = _corrected_reference(reference)
            hint = "write it as `REGISTRY/REPOSITORY:TAG`"
            if is_reference(better):
                hint = InPlace(f"write `{better}`")
            yield Fault(f"`{reference}` is not the address of an image", hint, path)


def is_reference(text: str) -> bool:
    """Return whether the text has the form of an image address that can be pulled."""
    match = re.fullmatch(_REFERENCE, text)
    return match is not None and len(match["name"]) <= _LONGEST_NAME


def _corrected_reference(text: str) -> str:
    """Return the text without scheme and spaces, and with the name, but not the tag, in lower
    case."""
    bare = re.sub(r"^[a-z+]+://", "", text.strip())
    tag = re.search(r"(?::[^:/@]*)?(?:@.*)?$", bare)
    assert tag, "an empty tag matches, too"
    return bare[: tag.start()].lower() + tag[0]


# Portable rules about data locations: a job's output must not replace its input or another of its
# outputs.


@rule("CT505", Level.ERROR)
def places_overwrite(subject: Subject) -> Iterator[Fault]:
    """Two outputs, an output and the checkpoint, or an output and an input have the same location.

    Files with the same name would overwrite each other. Everything in the checkpoint's location is
    copied into a new container before it starts, so a resumed run would treat another output's
    files as checkpoints. An output at the location of an input would overwrite the job's own input
    data. An output inside another output causes the same problems.
    """
    for first, second in _related_places(subject):
        both_written = first.is_written and second.is_written
        if first.parts != second.parts:
            for outer, inner in ((first, second), (second, first)):
                if both_written and outer.holds(inner):
                    yield _own_folder(outer, inner)
        elif both_written:
            message = f"{first.name} and {second.name} are both written to `{second.address}`"
            hint = f"write `{first.folder}/{first.word}` and `{first.folder}/{second.word}`"
            yield Fault(message, hint, second.path or first.path)
        else:
            source, output = _source_and_output(first, second)
            where = f"where {source.name} is read from"
            message = f"{output.name} is written to `{output.address}`, {where}"
            hint = InPlace(f"write `{_beside(source, output)}`")
            yield Fault(message, hint, output.path or source.path)


@rule("CT506", Level.WARNING)
def places_nested(subject: Subject) -> Iterator[Fault]:
    """The job writes into the location of an input, or reads from the location of an output or
    checkpoint.

    An input includes everything inside its location, so the next run of the same job would also
    read this run's output. Input data inside an output or checkpoint location is copied each time
    the output or checkpoint is copied.
    """
    for first, second in _related_places(subject):
        if first.is_written == second.is_written or first.parts == second.parts:
            continue
        source, output = _source_and_output(first, second)
        if source.holds(output):
            hint = f"read a folder: `{source.folder}/PATH`"
            if output.path:
                hint = InPlace(f"write `{_beside(source, output)}`")
            yield Fault(_inside(output, source), hint, output.path or source.path)
        elif output.holds(source):
            yield _own_folder(output, source)


def _inside(inner: DataPlace, outer: DataPlace) -> str:
    """Return the message for a location inside another."""
    verb = "written to" if inner.is_written else "read from"
    return f"{inner.name} is {verb} `{inner.address}`, inside of {outer.name}: `{outer.address}`"


def _source_and_output(first: DataPlace, second: DataPlace) -> tuple[DataPlace, DataPlace]:
    """Return two locations, of which one is written, with the one that is read first."""
    return (second, first) if first.is_written else (first, second)


def _related_places(subject: Subject) -> list[tuple[DataPlace, DataPlace]]:
    """Return the pairs of locations of which one holds the other and at least one is written, in
    the order of the job. Other rules report invalid addresses."""
    if not subject.plan.request:
        return []
    places = [place for place in subject.reading.places if len(place.parts) > 1]
    numbers: dict[tuple[str, ...], list[int]] = {}
    written: dict[tuple[str, ...], list[int]] = {}
    for number, place in enumerate(places):
        numbers.setdefault(place.parts, []).append(number)
        if place.is_written:
            written.setdefault(place.parts, []).append(number)

    pairs: set[tuple[int, int]] = set()
    for number, place in enumerate(places):
        outer = numbers if place.is_written else written
        for length in range(len(place.parts) + 1):
            for other in outer.get(place.parts[:length], ()):
                if other != number:
                    pairs.add((min(number, other), max(number, other)))
    return [(places[first], places[second]) for first, second in sorted(pairs)]


def _beside(source: DataPlace, output: DataPlace) -> str:
    """Return the location to suggest for `output`: next to the input `source`, or if that is a
    whole bucket, a folder inside it."""
    mark = "/" if source.is_root else "-"
    return f"{source.folder}{mark}{output.word}"


def _own_folder(outer: DataPlace, inner: DataPlace) -> Fault:
    """Return the fault of an outer location, to be moved to a folder that does not contain the
    inner location."""
    word = outer.word
    if inner.parts[len(outer.parts)] == word:
        word += "-only"
    hint = f"give {outer.name} a folder of its own: `{outer.folder}/{word}`"
    return Fault(_inside(inner, outer), hint, outer.path or inner.path)
