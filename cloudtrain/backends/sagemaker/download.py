"""Copies of what a job wrote: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or everything.

The service packs `/opt/ml/model` into `model.tar.gz` and `/opt/ml/output/data` into `output.tar.gz`, or with
`compress_output: false` keeps both as files under `output/model/` and `output/data/`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cloudtrain.backends.sagemaker.archive import extract, names_in
from cloudtrain.backends.sagemaker.clients import Clients
from cloudtrain.backends.sagemaker.jobs import TRAINING, JobKind
from cloudtrain.backends.sagemaker.places import S3Uri
from cloudtrain.backends.sagemaker.refusals import NotThere
from cloudtrain.errors import TargetError, UsageError, did_you_mean
from cloudtrain.states import LogLine

LOGS = "logs"

Places = Mapping[str, S3Uri]
"""`model`, `outputs`, `outputs/NAME`, `checkpoint` to a folder, or to an archive (`.tar.gz`)."""


def places_of(description: Mapping[str, Any], kind: JobKind) -> Places:
    """Where a described job's results are: the places that the service documents for such a job."""
    if kind is not TRAINING:
        outputs = description.get("ProcessingOutputConfig", {}).get("Outputs", ())
        named = {item["OutputName"]: item.get("S3Output", {}).get("S3Uri") for item in outputs}
        return {f"outputs/{name}": S3Uri.parse(uri) for name, uri in named.items() if uri}
    config = description["OutputDataConfig"]
    root = f"{config['S3OutputPath'].rstrip('/')}/{description[kind.name]}/output"
    packed = config.get("CompressionType", "GZIP") != "NONE"
    model = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
    checkpoint = description.get("CheckpointConfig", {}).get("S3Uri")
    places = {
        "model": model or f"{root}/model{'.tar.gz' if packed else '/'}",
        "outputs": f"{root}/{'output.tar.gz' if packed else 'data/'}",
        "checkpoint": checkpoint,
    }
    return {name: S3Uri.parse(uri) for name, uri in places.items() if uri}


def download(
    clients: Clients,
    places: Places,
    path: str,
    destination: Path,
    lines: Callable[[], Iterable[LogLine]],
) -> list[Path]:
    """Copy what is under `path` into `destination`, which is made, and return the files written.

    A folder's content comes directly into `destination`; with an empty path every place gets a folder of its own
    there. `model/weights.pt` is one file.

    Raises:
        UsageError: there is no such place; the hint names those that exist.
        TargetError: the run has written nothing there, or an archive must not be unpacked.
    """
    wanted = path.strip("/")
    if not wanted:
        copied = [_copy(clients, places, name, "", destination / name) for name in places]
        return [file for files in (*copied, _write_logs(lines(), "", destination / LOGS)) for file in files]
    name, rest = _find(wanted, places)
    if name == LOGS:
        files = _write_logs(lines(), rest, destination)
    else:
        files = _copy(clients, places, name, rest, destination)
    if not files:
        hint = f"what a run writes: {', '.join(f'`{known}/`' for known in (*places, LOGS))}"
        raise TargetError(f"the run has written no `{wanted}`", hint=hint)
    return files


def _find(wanted: str, places: Places) -> tuple[str, str]:
    """The place that is meant, and what is wanted below it."""
    known = (*places, LOGS)
    for name in known:
        rest = wanted.removeprefix(name)
        if rest != wanted and rest[:1] in ("", "/") and ".." not in rest.split("/"):
            return name, rest.strip("/")
    raise UsageError(f"a run has no `{wanted}`", hint=did_you_mean(wanted, known))


def _copy(clients: Clients, places: Places, name: str, rest: str, destination: Path) -> list[Path]:
    where = places[name]
    if where.key.endswith(".tar.gz"):
        return _from_archive(clients, where, rest, destination, may_hold_more=name == "outputs")
    return _from_folder(clients, where, rest, destination)


def _from_archive(
    clients: Clients, where: S3Uri, rest: str, destination: Path, *, may_hold_more: bool
) -> list[Path]:  # fmt: skip
    """Through a file beside the results: an archive may be larger than the disk of temporary files."""
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination, prefix=".cloudtrain-") as folder:
        archive = Path(folder, Path(where.key).name)
        try:
            _fetch(clients, where.bucket, where.key, archive)
        except NotThere:
            return []
        inner = "data/" if may_hold_more and _is_output_folder(names_in(archive), rest) else ""
        return extract(archive, destination, lambda name: _below(name, inner, rest))


def _is_output_folder(names: list[str], rest: str) -> bool:
    """Whether the archive holds the whole `/opt/ml/output`, of which `data/` is the script's: beside it lies the word
    on how the job ended. Not where what is wanted is there as it is named.
    """
    others = {name for name in names if not name.startswith("data/")}
    named = rest and any(_below(name, "", rest) is not None for name in names)
    return bool(others) and others <= {"success", "failure"} and len(others) < len(names) and not named


def _below(name: str, inner: str, rest: str) -> str | None:
    """The part of a name that comes after the wanted folder; a wanted file keeps its own name."""
    if not name.startswith(inner):
        return None
    name = name.removeprefix(inner)
    if not rest:
        return name
    if name == rest:
        return name.rpartition("/")[2]
    return name.removeprefix(f"{rest}/") if name.startswith(f"{rest}/") else None


def _from_folder(clients: Clients, where: S3Uri, rest: str, destination: Path) -> list[Path]:
    written = []
    pages = clients.pages(
        "s3",
        "list_objects_v2",
        token="ContinuationToken",
        next_token="NextContinuationToken",
        Bucket=where.bucket,
        Prefix=f"{where.folder}{rest}",
    )
    for page in pages:
        for item in page.get("Contents", ()):
            name = _below(item["Key"].removeprefix(where.folder), "", rest)
            if name and not name.endswith("/"):
                written.append(_fetch(clients, where.bucket, item["Key"], _inside(destination, name)))
    return written


def _inside(destination: Path, name: str) -> Path:
    """A place below `destination`: an object's key may hold anything, `..` and a leading slash too.

    Raises:
        TargetError: the key would leave the folder.
    """
    target = destination / name
    target.parent.mkdir(parents=True, exist_ok=True)
    leaves = name.startswith("/") or ".." in name.split("/")
    if leaves or not target.parent.resolve().is_relative_to(destination.resolve()):
        raise TargetError(f"the object `{name}` would be written outside of `{destination}`", hint="copy it by hand")
    return target


def _fetch(clients: Clients, bucket: str, key: str, target: Path) -> Path:
    """Download one object; the file appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")

    def fetch(client: Any) -> None:
        with temporary.open("wb") as file:
            client.download_fileobj(bucket, key, file)

    try:
        clients.attempt("s3", "get_object", {"Bucket": f"{bucket}/{key}"}, fetch)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _write_logs(lines: Iterable[LogLine], rest: str, destination: Path) -> list[Path]:
    """One file for each instance, `algo-1.log`, as its container wrote it."""
    texts: dict[str, list[str]] = {}
    for line in lines:
        tag = f"[rank {line.rank}] " if line.rank is not None else ""
        texts.setdefault(f"algo-{line.instance + 1}.log", []).append(f"{tag}{line.text}\n")
    written = []
    for name in sorted(texts):
        if rest in ("", name):
            destination.mkdir(parents=True, exist_ok=True)
            temporary = destination / f".{name}.{os.getpid()}"
            temporary.write_text("".join(texts[name]), encoding="utf-8")
            written.append(temporary.replace(destination / name))
    return written
