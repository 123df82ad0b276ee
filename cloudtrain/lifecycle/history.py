"""What was sent for a run, in a readable form: the job, the plan, and the git commit of the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtrain.core.fields import SWEEP
from cloudtrain.core.states import RunRef
from cloudtrain.errors import RunNotFound
from cloudtrain.store.history import Kept
from cloudtrain.store.store import RunRecord, Store

if TYPE_CHECKING:
    from cloudtrain.render.document import Block, Document


@dataclass(frozen=True)
class Sent:
    """What was sent for a run: the job, the plan, and the git commit of the code. Secrets are replaced by `***`.

    Attributes:
        name: the name of the run.
        ref: the run's reference.
        created: when the run was submitted, in seconds since the epoch.
        kept: all data of the submission in the store.
    """

    name: str
    ref: RunRef
    created: float
    kept: Kept

    @property
    def job(self) -> dict[str, Any]:
        """The job's fields, with absolute paths."""
        return dict(self.kept.job)

    @property
    def plan(self) -> dict[str, Any]:
        """The plan as JSON data: request, uploads, findings, and other parts except the processes."""
        return dict(self.kept.plan)

    def to_job_file(self) -> str:
        """Return a job file in YAML that can be submitted from any folder. Fill in the values of secrets yourself."""
        from cloudtrain.jobfile.script import yaml_text
        from cloudtrain.render.escape import on_one_line

        lines = [f"The job of the run {self.name}, sent by cloudtrain {self.kept.version}", *self._source()]
        lines += [f"fill in {way}: it looked like a secret, and is not kept" for way in self._hidden_ways()]
        return "".join(f"# {on_one_line(' '.join(line.split()))}\n" for line in lines) + yaml_text(self.job)

    def to_dict(self) -> dict[str, Any]:
        """Return the job, the plan and the commit as JSON data."""
        kept = self.kept
        return {
            "name": self.name,
            "ref": str(self.ref),
            "target": self.ref.target,
            "created": self.created,
            "cloudtrain": kept.version,
            "job": self.job,
            "written": {"file": kept.file, "text": kept.text, "overrides": list(kept.overrides)},
            "settings": dict(kept.settings),
            "plan": self.plan,
            "git": None
            if kept.branch is None and kept.commit is None
            else {
                "commit": kept.commit,
                "branch": kept.branch,
                "dirty": kept.dirty,
                "difference": kept.difference,
            },
            "bundle": {"sha256": kept.bundle, "files": [file._asdict() for file in kept.files]},
            "hidden": list(kept.hidden),
            "rerun_of": kept.rerun_of,
        }

    def document(self) -> Document:
        """Return the job, the plan and the commit as a document."""
        from cloudtrain.core.plan import request_blocks
        from cloudtrain.jobfile.script import yaml_text
        from cloudtrain.render.document import Document, Heading, Lines, Notice, Pairs, Section

        blocks: list[Block] = [Heading(str(self.ref)), Pairs(list(self._pairs()))]
        blocks.append(Section("Job", [Lines(yaml_text(self.job).splitlines())]))
        request = list(request_blocks(self.kept.plan["request"]))
        blocks.append(Section(f"Request (plan {self.kept.plan['sha256'][:12]})", request))
        blocks += [Notice("notice", f"`{way}` looked like a secret, and is not kept") for way in self._hidden_ways()]
        return Document(blocks)

    def to_text(self, *, width: int | None = 80, color: bool = False) -> str:
        """Return the job, the plan and the commit as text."""
        from cloudtrain.render.text import to_text

        return to_text(self.document(), width=width, color=color)

    def _repr_html_(self) -> str:
        from cloudtrain.render.html import to_html

        return to_html(self.document())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.to_text(), "text/html": self._repr_html_()}

    def _pairs(self) -> Iterator[tuple[str, str]]:
        from datetime import datetime

        kept = self.kept
        yield "submitted", datetime.fromtimestamp(self.created).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
        yield "cloudtrain", kept.version
        yield "job file", kept.file or "none: the job was written in Python"
        if kept.overrides:
            yield "overrides", "\n".join(kept.overrides)
        if kept.rerun_of:
            yield "repeats" if kept.kind != SWEEP else "continues", kept.rerun_of
        settings = {key: value for key, value in kept.settings.items() if key != "type"}
        yield "target", self.ref.target + (f", with {json.dumps(settings, ensure_ascii=False)}" if settings else "")
        yield "source", "\n".join(self._source()) or "in no git repository"
        size = sum(not file.path.startswith("cloudtrain/") for file in kept.files)
        runtime = " and cloudtrain's runtime" if size < len(kept.files) else ""
        yield "code", f"{size:,} {'file' if size == 1 else 'files'}{runtime}, bundle {kept.bundle}"

    def _source(self) -> Iterator[str]:
        kept = self.kept
        if kept.branch is None and kept.commit is None:
            return
        branch = f" of branch {kept.branch}" if kept.branch else ""
        yield f"commit {kept.commit or 'none yet'}{branch}"
        if kept.difference:
            yield f"with changes that are not committed; hash of the difference {kept.difference}"
        elif kept.dirty:
            yield "with files that git does not track"
        elif kept.dirty is None and kept.commit is not None:
            yield "git did not report whether the code differs from this commit"

    def _hidden_ways(self) -> list[str]:
        names = {"settings": "a value of the target's settings", "request": "a value of the request"}
        ways = [way for way in self.kept.hidden if way not in names]
        return ways or [names[way] for way in self.kept.hidden]


def sent_of(store: Store | None, row: RunRecord) -> Sent:
    """Return what was sent for a run.

    Raises:
        RunNotFound: the store has no record of the submission (CT971).
    """
    kept = None if store is None else store.kept(row.name)
    if kept is None:
        raise RunNotFound(
            f"this machine has no record of what was sent for `{row.name}`",
            hint="it was submitted from another machine, or by an older cloudtrain",
            code="CT971",
        )
    return Sent(row.name, row.ref, row.created, kept)
