"""Download a job's results: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or all of them.

The service packs `/opt/ml/model` into `model.tar.gz` and `/opt/ml/output/data` into `output.tar.gz`. With
`compress_output: false` it keeps both as files under `output/model/` and `output/data/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cloudtrain.core.states import LogLine
from cloudtrain.errors import TargetError, UsageError, did_you_mean
from cloudtrain.system.staging import Staging, safe_name
from cloudtrain.targets.common.landing import landing
from cloudtrain.targets.common.provider_errors import NotThere
from cloudtrain.targets.sagemaker.outputs import Places
from cloudtrain.targets.sagemaker.s3_uri import S3Uri
from cloudtrain.targets.sagemaker.service.archive import names_in, stage
from cloudtrain.targets.sagemaker.service.clients import Clients

LOGS = "logs"


def download(
    clients: Clients,
    places: Places,
    path: str,
    destination: Path,
    lines: Callable[[], Iterable[LogLine]],
) -> list[Path]:
    """Download the results under `path` into `destination`, and return the written files. Creates `destination`.

    `path` is a folder, such as `model`, or a file, such as `model/weights.pt`. The content of a folder goes directly
    into `destination`. If `path` is empty, all results are downloaded, each into a subfolder, such as `model/`. `lines`
    returns the log lines of the job.

    Raises:
        UsageError: the run has no location with this name; the hint suggests a similar one.
        TargetError: the run wrote no files to `path`, or an archive is damaged or unsafe.
    """
    wanted = path.strip("/")
    if not wanted:
        with landing(destination) as staging:
            for name in places:
                _stage(clients, places, name, "", staging, f"{name}/")
            _stage_logs(lines(), "", staging, f"{LOGS}/")
            return staging.move()
    name, rest = _find(wanted, places)
    with landing(destination) as staging:
        if name == LOGS:
            _stage_logs(lines(), rest, staging, "")
        else:
            _stage(clients, places, name, rest, staging, "")
        files = staging.move()
    if not files:
        hint = f"a run writes to {', '.join(f'`{known}/`' for known in (*places, LOGS))}"
        raise TargetError(f"the run wrote nothing to `{wanted}`", hint=hint, code="CT935")
    return files


def _find(wanted: str, places: Places) -> tuple[str, str]:
    """Split the wanted path into the name of a location, such as `model`, and the path below this location."""
    known = (*places, LOGS)
    for name in known:
        rest = wanted.removeprefix(name)
        if rest != wanted and rest[:1] in ("", "/") and ".." not in rest.split("/"):
            return name, rest.strip("/")
    raise UsageError(f"`{wanted}` is not a result of the run", hint=did_you_mean(wanted, known), code="CT935")


def _stage(clients: Clients, places: Places, name: str, rest: str, staging: Staging, prefix: str) -> None:
    """Write the files of the location `name` into the staging folder.

    If `rest` is not empty, only files under this path in the location are written. `prefix` is put before each file
    name.
    """
    where = places[name]
    if where.key.endswith(".tar.gz"):
        _stage_archive(clients, where, rest, staging, prefix, may_hold_more=name == "outputs")
    else:
        _stage_folder(clients, where, rest, staging, prefix)


def _stage_archive(
    clients: Clients, where: S3Uri, rest: str, staging: Staging, prefix: str, *, may_hold_more: bool
) -> None:  # fmt: skip
    """Download an archive into the staging folder, and unpack the files under the path `rest`.

    `may_hold_more` tells whether the archive may hold the whole `/opt/ml/output` (see `_is_output_folder`). `prefix` is
    put before each file name.
    """
    archive = staging.scratch(Path(where.key).name)
    try:
        fetch(clients, where.bucket, where.key, archive)
    except NotThere:
        return
    inner = "data/" if may_hold_more and _is_output_folder(names_in(archive), rest) else ""

    def rename(name: str) -> str | None:
        below = _below(name, inner, rest)
        return None if below is None else f"{prefix}{below}"

    stage(archive, staging, rename)
    archive.unlink()


def _is_output_folder(names: list[str], rest: str) -> bool:
    """Return whether an archive holds the whole folder `/opt/ml/output`, and not only its subfolder `data`.

    The archive then contains files under `data/`, and otherwise only `success` or `failure`. Returns False if `names`
    contain `rest`, the path that the user wants.
    """
    others = {name for name in names if not name.startswith("data/")}
    named = rest and any(_below(name, "", rest) is not None for name in names)
    return bool(others) and others <= {"success", "failure"} and len(others) < len(names) and not named


def _below(name: str, inner: str, rest: str) -> str | None:
    """Return the path of the file `name` relative to the folder `inner` and its subfolder `rest`.

    Returns the last part of `name` if `rest` is the file itself, and None if the file is outside of the folder.
    """
    if not name.startswith(inner):
        return None
    name = name.removeprefix(inner)
    if not rest:
        return name
    if name == rest:
        return name.rpartition("/")[2]
    return name.removeprefix(f"{rest}/") if name.startswith(f"{rest}/") else None


def _stage_folder(clients: Clients, where: S3Uri, rest: str, staging: Staging, prefix: str) -> None:
    """Download the objects under the path `rest` in an S3 folder. All names are checked before the first download."""
    pages = clients.pages(
        "s3",
        "list_objects_v2",
        token="ContinuationToken",
        next_token="NextContinuationToken",
        Bucket=where.bucket,
        Prefix=f"{where.folder}{rest}",
    )
    found = []
    for page in pages:
        for item in page.get("Contents", ()):
            name = _below(item["Key"].removeprefix(where.folder), "", rest)
            if name and not name.endswith("/"):
                safe_name(name)
                found.append((item["Key"], staging.place(f"{prefix}{name}")))
    for key, place in found:
        fetch(clients, where.bucket, key, place)


def fetch(clients: Clients, bucket: str, key: str, target: Path) -> None:
    """Download one S3 object to the file `target`."""

    def fetch(client: Any) -> None:
        with target.open("wb") as file:
            client.download_fileobj(bucket, key, file)

    clients.attempt("s3", "get_object", {"Bucket": f"{bucket}/{key}"}, fetch)


def _stage_logs(lines: Iterable[LogLine], rest: str, staging: Staging, prefix: str) -> None:
    """Write one file for each instance, such as `algo-1.log`, or only the file `rest`.

    A line whose rank is known begins with `[rank N]`.
    """
    texts: dict[str, list[str]] = {}
    for line in lines:
        tag = f"[rank {line.rank}] " if line.rank is not None else ""
        texts.setdefault(f"algo-{line.instance + 1}.log", []).append(f"{tag}{line.text}\n")
    for name in sorted(texts):
        if rest in ("", name):
            staging.place(f"{prefix}{name}").write_text("".join(texts[name]), encoding="utf-8")
