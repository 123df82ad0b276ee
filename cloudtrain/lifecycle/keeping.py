"""What the store keeps of a submission: the job, its plan and its code's commit, with every secret hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.core.fields import fields_of, kind_of_job
from cloudtrain.core.hiding import HIDDEN, hide
from cloudtrain.core.job import BUNDLED
from cloudtrain.core.plan import Plan
from cloudtrain.errors import CloudtrainError, dotted
from cloudtrain.lifecycle.planning import PreparedJob
from cloudtrain.store.history import Kept, KeptFile
from cloudtrain.system.git import Commit, Differences, commit_of, git_timeout
from cloudtrain.targets.registry import target_of
from cloudtrain.targets.settings import TargetSettings

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.jobfile import JobFile
    from cloudtrain.store.store import Store

Path_ = tuple[str | int, ...]

_SIGNATURE = re.compile(
    r"[?&](?:sig|signature|token|x-amz-(?:signature|credential|security-token))=(?P<query>[^&\s\"']{4,})|"
    r"://[^/\s:@\"']*:(?P<password>[^@/\s\"']+)@",
    re.IGNORECASE,
)
"""Keys in an address: signatures of Azure's and Amazon's storage, and passwords."""


class Keeper:
    """Collects what is kept of one submission, while the submission goes on."""

    def __init__(self, prepared: PreparedJob, job: AnyJob, file: JobFile | None) -> None:
        self._prepared = prepared
        self.job = job
        self._file = file
        is_bundled = (job.source_dir or "").startswith(BUNDLED)
        self._commit = (None if is_bundled else commit_of(prepared.tree.root)) or Commit(None, None)
        self._differences = Differences(prepared.tree.root) if self._commit.commit else None

    def kept_of(self, plan: Plan) -> Kept:
        """What is kept of a plan; whether the code differs from its commit is known later."""
        file = self._file
        return keep_plan(
            self._prepared,
            self.job,
            plan,
            self._commit,
            file=None if file is None else str(Path(file.file).absolute()),
            text=None if file is None else file.text,
            overrides=() if file is None else file.overrides,
        )

    def finish(self, store: Store, name: str) -> None:
        """Add whether the code differs, if git says so in time."""
        found = None if self._differences is None else self._differences.close(git_timeout())
        if found is not None:
            store.keep_difference(name, found)


def keep_plan(
    prepared: PreparedJob,
    job: AnyJob,
    plan: Plan,
    commit: Commit,
    *,
    file: str | None,
    text: str | None,
    overrides: Sequence[str],
) -> Kept:
    """What is kept of a plan of a job: no value of it is a secret."""
    import cloudtrain

    fields, compiled = fields_of(job), fields_of(prepared.job)
    settings = settings_fields(prepared.target)
    content = replace(plan, processes=()).to_dict()
    del content["processes"]
    raw = {"job": fields, "prepared": compiled, "settings": settings, "request": plan.request}
    written = _Written(file, text, overrides)
    secrets = tuple(dict.fromkeys((*plan.hidden, *_signatures(raw), *written.overridden_secrets())))
    return Kept(
        version=cloudtrain.__version__,
        job=hide(fields, secrets),
        prepared=hide(compiled, secrets) if compiled != fields else None,
        kind=kind_of_job(job),
        file=file,
        text=written.hidden_text(secrets),
        overrides=tuple(hide(list(overrides), secrets)),
        settings=hide(settings, secrets),
        plan=hide(content, secrets),
        bundle=prepared.tree.sha256,
        files=tuple(KeptFile(*entry[:5]) for entry in prepared.tree.entries),
        commit=commit.commit,
        branch=commit.branch,
        dirty=commit.dirty,
        difference=commit.difference,
        hidden=tuple(dict.fromkeys(_hidden_ways(raw, secrets))),
        hourly=prepared.hourly_price(plan),
    )


def shown_fields(job: AnyJob, hidden: Sequence[str]) -> dict[str, Any]:
    """A job's fields as the store keeps them; `hidden` are its secrets."""
    fields = fields_of(job)
    return hide(fields, (*hidden, *_signatures(fields)))


def settings_fields(target: TargetSettings) -> dict[str, Any]:
    """A target's settings as they were given: JSON data."""
    return {"type": target.type, **target.model_dump(mode="json", exclude_unset=True)}


def settings_of(kept: Kept) -> TargetSettings | None:
    """The settings of the target that a run was sent with; None where a value of them is hidden."""
    if "settings" in kept.hidden:
        return None
    model = target_of(kept.settings["type"]).settings_model
    return model(**{name: value for name, value in kept.settings.items() if name != "type"})


def _hidden_ways(raw: Mapping[str, Any], secrets: tuple[str, ...]) -> Iterator[str]:
    """The ways to values that are hidden: those of the job as `--set` takes them; others as they are called here."""
    if not secrets:
        return
    for part, value in raw.items():
        for path, text in texts_of(value):
            if hide(text, secrets) != text:
                yield dotted(path) if part in ("job", "prepared") else part
                if part not in ("job", "prepared"):
                    break


def texts_of(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, str]]:
    """Every text in JSON data, with the way to it; keys too."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield (*path, key), str(key)
            yield from texts_of(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from texts_of(inner, (*path, number))


def _signatures(value: Any) -> Iterator[str]:
    for _, text in texts_of(value):
        for match in _SIGNATURE.finditer(text) if "://" in text else ():
            yield match["query"] or match["password"]


class _Written(NamedTuple):
    """A job as it was written."""

    file: str | None
    text: str | None
    overrides: Sequence[str]

    def overridden_secrets(self) -> Iterator[str]:
        """Secrets that stand in the job's file where an override says something else, or in an override that another
        one takes back."""
        if not self.overrides:
            return
        from cloudtrain.rules.portable.value import secret_texts

        for override in self.overrides:
            way, _, text = override.partition("=")
            yield from secret_texts([((way.rpartition(".")[2].strip("\"'] "),), text)])
        values = [(path, text) for path, text in texts_of(self._data()) if path]
        yield from secret_texts([item for item in values if any(isinstance(part, str) for part in item[0])])

    def hidden_text(self, secrets: tuple[str, ...]) -> str | None:
        """The text of the job's file without its secrets, those in its comments too. None where a secret is written
        there in a way that cannot be found, as with escapes or over several lines."""
        if self.text is None:
            return None
        secrets = (*secrets, *_secrets_in_file(self.text))
        if not secrets:
            return self.text
        text = hide(self.text, secrets)
        left = [value for _, value in texts_of(self._replace(text=text)._data())]
        return None if not left or any(secret in value for secret in secrets for value in left) else text

    def _data(self) -> Any:
        """What stands in the job's file; None where it cannot be read."""
        from cloudtrain.documents.document import Unreadable, read_document
        from cloudtrain.jobfile.files import SUFFIXES

        if self.text is None:
            return None
        with suppress(Unreadable, CloudtrainError):
            return read_document(self.text, SUFFIXES.get(Path(self.file or "").suffix.lower(), "yaml")).data
        return None


def _secrets_in_file(text: str) -> Iterator[str]:
    """What the rules about the content of files find in the text of a job's file."""
    from cloudtrain.bundle.secrets.suspects import suspects

    content, name = text.encode("utf-8", "replace"), "job.yaml"
    spans = suspects(content, name)
    if spans:
        from cloudtrain.bundle.secrets.search import matches

        for match in matches(content, spans, name):
            found = content[match.start : match.end].decode("utf-8", "replace")
            if found.strip():
                yield found


def is_hidden(value: Any) -> bool:
    """Whether something in JSON data is hidden."""
    return any(HIDDEN in text for _, text in texts_of(value))
