"""`ct.adopt`: from what was named to a proven job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cloudtrain.adoption.proof import Adoption, adopt_original
from cloudtrain.adoption.sources import STDIN, originals_of_document
from cloudtrain.core.adoption import Original
from cloudtrain.errors import UsageError, did_you_mean


def adopt(source: str | Path, *, job: str | None = None, folder: str | Path = ".") -> Adoption:
    """Return a job of another tool as a cloudtrain job, with its settings and the comparison of both requests.

    Args:
        source: a file with a request, an event, a description or a job of another tool, or `-` for stdin.
        job: which job, where the source has several.
        folder: where the job file will stand: relative places in it start there.

    Raises:
        UsageError: the source cannot be read, is nothing that can be adopted, or has several jobs.
    """
    return adopt_original(chosen(originals_of(str(source)), job), Path(folder))


def originals_of(source: str) -> list[Original]:
    """The jobs that a source holds.

    Raises:
        UsageError: it holds none, or does not exist.
    """
    if source == STDIN or os.path.exists(source):  # noqa: PTH110 - a Path raises where the name is too long
        return originals_of_document(source)
    hint = "name a file; `cloudtrain adopt --help` lists what can be adopted"
    raise UsageError(f"there is no file `{source}`", hint=hint, code="CT971")


def chosen(originals: Sequence[Original], name: str | None) -> Original:
    """The job of that name; the only one where none is named.

    Raises:
        UsageError: there are several and none is named, or none has the name.
    """
    names = [original.name for original in originals]
    if name is not None:
        found = [original for original in originals if original.name == name]
        if not found:
            raise UsageError(f"the source has no job `{name}`", hint=did_you_mean(name, names), code="CT971")
        return found[0]
    if len(originals) > 1:
        listed = ", ".join(f"`{one}`" for one in names[:20])
        hint = f"choose one of {listed} with `--job`"
        raise UsageError(f"the source has {len(originals)} jobs", hint=hint, code="CT971")
    return originals[0]
