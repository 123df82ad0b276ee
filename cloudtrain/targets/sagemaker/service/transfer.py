"""Upload the bundle and local data to S3. Existing content is skipped, because addresses contain
the content's hash.

S3 stores an object completely or not at all, and checks the SHA-256 of each part on arrival. An
existing object counts as cloudtrain's and complete if three values are right: the content's hash in
its metadata, its size, and S3's own checksum.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from cloudtrain.code.data import DataFile
from cloudtrain.errors import TargetError, did_you_mean
from cloudtrain.plans.plan import Upload
from cloudtrain.plans.progress import LogLine
from cloudtrain.system.plugins import require
from cloudtrain.system.processes import tell
from cloudtrain.system.staging import Staging, Unsafe, safe_name, safe_target
from cloudtrain.targets.common.archives import below, landing, no_result, nothing_written
from cloudtrain.targets.common.services import Denied, NotThere
from cloudtrain.targets.common.transfers import Report, Storage, send_data
from cloudtrain.targets.contract import BundleWriter, ByteProgress
from cloudtrain.targets.sagemaker.plan import Places, S3Uri
from cloudtrain.targets.sagemaker.request import JsonObject
from cloudtrain.targets.sagemaker.service.clients import Clients

_PART = 16 << 20
"""Size of one part in bytes; larger files are uploaded in several parts at once."""

_MARK = "cloudtrain-sha256"
_SIZE = "cloudtrain-bytes"
_CHECKSUM = "cloudtrain-checksum"
"""Metadata of an uploaded bundle: the hash of its content, and size and checksum of the archive."""


def upload(
    clients: Clients,
    item: Upload,
    bundle: BundleWriter,
    *,
    owner: str | None,
    kms_key: str | None,
    on_bytes: ByteProgress | None,
) -> bool:
    """Upload the bundle, or local data, to `item.destination`; return False if all of it is already
    there.

    Args:
        owner: the account that must own the bucket. A bucket of another account is refused.
        kms_key: the KMS key that encrypts the object. Default: the bucket's key.
    """
    where = S3Uri.parse(item.destination)
    bucket = {"Bucket": where.bucket}
    extras: JsonObject = {"ChecksumAlgorithm": "SHA256"}  # boto3's `ExtraArgs`
    if owner is not None:
        bucket["ExpectedBucketOwner"] = owner
        extras["ExpectedBucketOwner"] = owner
    if kms_key is not None:
        extras |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}
    if item.kind == "data":
        return _upload_data(clients, item, bucket, extras, on_bytes)

    place = {**bucket, "Key": where.key}
    if _is_there(clients, place, item.sha256):
        return False

    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive = Path(folder, "sourcedir.tar.gz")
        bundle.write(archive)
        size = archive.stat().st_size
        extras["Metadata"] = {
            _MARK: item.sha256,
            _SIZE: str(size),
            _CHECKSUM: _checksum(archive),
        }
        extras["ContentType"] = "application/gzip"
        count = None if on_bytes is None else _counting(size, on_bytes)
        _send(clients, archive, place, extras, count)
    return True


def _upload_data(
    clients: Clients,
    item: Upload,
    bucket: dict[str, str],
    extras: JsonObject,
    on_bytes: ByteProgress | None,
) -> bool:
    """Upload local data. Return False if all of it is already there."""
    where = S3Uri.parse(item.destination)

    def sizes() -> dict[str, int]:
        objects = clients.objects(Prefix=where.folder, **bucket)
        return below(where.key, {item["Key"]: item["Size"] for item in objects})

    def send(file: DataFile, report: Report) -> None:
        count = _counting(file.size, lambda byte_count, _: report(byte_count))
        place = {**bucket, "Key": where.folder + file.path}
        _send(clients, file.place, place, extras, count)

    def remove(name: str) -> None:
        clients.call("s3", "delete_object", Key=where.folder + name, **bucket)

    return send_data(item, Storage(sizes, send, remove), on_bytes)


def _is_there(clients: Clients, place: dict[str, str], sha256: str) -> bool:
    """Return whether S3 already has a complete object with the content's hash `sha256`.

    Returns False if the credentials do not allow reading from the bucket. If S3 does not report the
    checksum of an encrypted object, because the credentials cannot use its KMS key, hash and size
    suffice.
    """
    # without permission for the KMS key, S3 refuses a request that asks for the checksum
    answer = None
    for options in ({"ChecksumMode": "ENABLED"}, {}):
        try:
            answer = clients.call("s3", "head_object", **place, **options)
            break
        except NotThere:
            return False
        except Denied:
            continue
    if answer is None:
        return False

    metadata = answer["Metadata"]
    size = str(answer["ContentLength"])
    if metadata.get(_MARK) != sha256 or metadata.get(_SIZE) != size:
        return False
    checksum = answer.get("ChecksumSHA256")
    if checksum:
        checksum = checksum.partition("-")[0]  # the number of parts may follow it
    return checksum is None or checksum == metadata.get(_CHECKSUM)


def _checksum(archive: Path) -> str:
    """Return the SHA-256 that S3 reports for the archive: for an upload in parts, the hash of the
    parts' hashes."""
    with archive.open("rb") as file:
        parts = iter(partial(file.read, _PART), b"")
        digests = [hashlib.sha256(part).digest() for part in parts]
    digest = b"".join(digests) or hashlib.sha256().digest()
    if archive.stat().st_size >= _PART:
        digest = hashlib.sha256(digest).digest()
    return b64encode(digest).decode()


def _send(
    clients: Clients,
    archive: Path,
    place: dict[str, str],
    extras: JsonObject,
    count: Callable[[int], None] | None,
) -> None:
    """Upload a file to `place`. `count` is called with the bytes of each part that has arrived."""
    transfer = require("boto3.s3.transfer", extra="sagemaker")
    config = transfer.TransferConfig(multipart_threshold=_PART, multipart_chunksize=_PART)
    bucket = place["Bucket"]

    def send(client: Any) -> None:
        with archive.open("rb") as file:
            client.upload_fileobj(
                file, bucket, place["Key"], ExtraArgs=extras, Callback=count, Config=config
            )

    clients.attempt("s3", "put_object", {"Bucket": bucket}, send)


def _counting(total: int, on_bytes: ByteProgress) -> Callable[[int], None]:
    """Return a function that adds up bytes, and calls `on_bytes` with the sum and the total."""
    byte_count = 0
    lock = Lock()

    def count(amount: int) -> None:
        nonlocal byte_count
        with lock:  # parts go up in several threads
            # a repeated part first counts backwards
            byte_count = min(total, max(0, byte_count + amount))
            on_bytes(byte_count, total)

    return count


# Unpack the service's archives (`model.tar.gz`, `output.tar.gz`) safely, only inside the
# destination.
#
# Anybody who can write to the bucket can change an archive, so cloudtrain trusts nothing in it.
# `cloudtrain.system.staging` checks names and links. This module refuses devices and pipes, and
# writes nothing from a damaged or hostile archive.

_COPY = 1 << 20

Rename = Callable[[str], str | None]
"""Turns a name in the archive into a name on disk, or into None to skip the member."""


def stage(archive: Path, staging: Staging, rename: Rename) -> None:
    """Write the members that `rename` selects into the staging folder. Links out of the archive are
    left, and named."""
    with _open(archive) as tar:
        for member in tar:
            if member.isdir():
                continue
            # members that are not wanted are checked too: a hostile archive is refused whole
            path = safe_name(member.name)
            name = rename(path)
            if member.issym():
                try:
                    safe_target(path, member.linkname)
                except Unsafe as error:  # the script's own link, such as one to an input
                    if name is not None:
                        tell(f"{error}, so it is not copied")
                    continue
            elif not (member.isreg() or member.islnk()):
                raise Unsafe(member.name, "is neither a file nor a link")
            if name is None:
                continue
            if member.issym():
                staging.link(name, member.linkname)
            else:
                _write(tar, member, staging.place(name))
        staging.make_links()


def names_in(archive: Path) -> list[str]:
    """Return the names of all archive members except folders, without a leading `./`."""
    with _open(archive) as tar:
        return [safe_name(member.name) for member in tar if not member.isdir()]


@contextmanager
def _open(archive: Path) -> Iterator[tarfile.TarFile]:
    """Refuse a damaged or hostile archive. An error of the system, such as a full disk, stays an
    OSError."""
    try:
        with tarfile.open(archive, "r:*") as tar:
            yield tar
    except Unsafe as error:
        raise _refusal(archive, f"cannot be unpacked: {error}") from None
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise _refusal(archive, f"is damaged: {error}") from error


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    """Write a regular file. A hard link becomes a copy of the file that it links to."""
    try:
        source = tar.extractfile(member)
    # a missing member; circular links, which tarfile follows forever
    except (KeyError, RecursionError):
        source = None
    if source is None:
        raise Unsafe(member.name, "is a link to nothing")
    with source, place.open("wb") as file:
        shutil.copyfileobj(source, file, _COPY)
    place.chmod(0o755 if member.mode & 0o100 else 0o644)


def _refusal(archive: Path, what: str) -> TargetError:
    return TargetError(
        f"the archive `{archive.name}` {what}; no files were unpacked",
        hint="download the archive and inspect it",
        code="CT964",
    )


# Download a job's results: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or all of them.
#
# The service packs `/opt/ml/model` into `model.tar.gz` and `/opt/ml/output/data` into
# `output.tar.gz`. With `compress_output: false` it keeps both as files under `output/model/` and
# `output/data/`.

LOGS = "logs"


def download(
    clients: Clients,
    places: Places,
    path: str,
    destination: Path,
    lines: Callable[[], Iterable[LogLine]],
) -> list[Path]:
    """Download the results under `path` into `destination`, and return the written files. Creates
    `destination`.

    `path` is a folder, such as `model`, or a file, such as `model/weights.pt`. The content of a
    folder goes directly into `destination`. If `path` is empty, all results are downloaded, each
    into a subfolder, such as `model/`. `lines` returns the log lines of the job.
    """
    place = path.strip("/")
    all_names = (*places, LOGS)
    wanted = [(name, "", f"{name}/") for name in all_names]
    if place:
        wanted = [(*_find(place, all_names), "")]

    with landing(destination) as staging:
        for name, rest, prefix in wanted:
            if name == LOGS:
                _stage_logs(lines(), rest, staging, prefix)
                continue
            where = places[name]
            if where.key.endswith(".tar.gz"):
                is_output = name == "outputs"
                _stage_archive(clients, where, rest, staging, prefix, may_hold_more=is_output)
            else:
                _stage_folder(clients, where, rest, staging, prefix)
        files = staging.move()

    if place and not files:
        raise nothing_written(place, all_names)
    return files


def _find(place: str, names: Sequence[str]) -> tuple[str, str]:
    """Split the wanted path into the name of a location, such as `model`, and the path below this
    location."""
    for name in names:
        if place != name and not place.startswith(f"{name}/"):
            continue
        rest = place.removeprefix(name)
        if ".." not in rest.split("/"):
            return name, rest.strip("/")
    raise no_result(place, did_you_mean(place, names))


def _stage_archive(
    clients: Clients, where: S3Uri, rest: str, staging: Staging, prefix: str, *, may_hold_more: bool
) -> None:  # fmt: skip
    """Write the files of an archive, or those below its path `rest`, under `prefix` in the staging
    folder.

    `may_hold_more`: whether the archive may hold the whole `/opt/ml/output` (see
    `_is_output_folder`).
    """
    archive = staging.scratch(Path(where.key).name)
    try:
        fetch(clients, where.bucket, where.key, archive)
    except NotThere:
        return
    inner = ""
    if may_hold_more and _is_output_folder(names_in(archive), rest):
        inner = "data/"

    def rename(name: str) -> str | None:
        below = _below(name, inner, rest)
        return None if below is None else f"{prefix}{below}"

    stage(archive, staging, rename)
    archive.unlink()


def _is_output_folder(names: list[str], rest: str) -> bool:
    """Return whether an archive holds the whole folder `/opt/ml/output`, and not only its subfolder
    `data`.

    The archive then contains files under `data/`, and otherwise only `success` or `failure`.
    Returns False if `names` contain `rest`, the path that the user wants.
    """
    if rest and any(_below(name, "", rest) is not None for name in names):
        return False
    others = {name for name in names if not name.startswith("data/")}
    has_data = len(others) < len(names)
    return has_data and bool(others) and others <= {"success", "failure"}


def _below(name: str, inner: str, rest: str) -> str | None:
    """Return the path of the file `name` relative to the folder `inner` and its subfolder `rest`.

    Returns the last part of `name` if `rest` is the file itself, and None if the file is outside of
    the folder.
    """
    if not name.startswith(inner):
        return None
    name = name.removeprefix(inner)
    if not rest:
        return name
    if name == rest:
        return name.rpartition("/")[2]
    folder = f"{rest}/"
    return name.removeprefix(folder) if name.startswith(folder) else None


def _stage_folder(clients: Clients, where: S3Uri, rest: str, staging: Staging, prefix: str) -> None:
    """Download the objects under the path `rest` in an S3 folder. All names are checked before the
    first download."""
    objects: list[tuple[str, Path]] = []
    for item in clients.objects(Bucket=where.bucket, Prefix=f"{where.folder}{rest}"):
        key = item["Key"]
        name = _below(key.removeprefix(where.folder), "", rest)
        if name and not name.endswith("/"):
            safe_name(name)
            objects.append((key, staging.place(f"{prefix}{name}")))
    for key, place in objects:
        fetch(clients, where.bucket, key, place)


def fetch(clients: Clients, bucket: str, key: str, target: Path) -> None:
    """Download an object into the file `target`. Raises `NotThere`."""

    def download_object(client: Any) -> None:
        with target.open("wb") as file:
            client.download_fileobj(bucket, key, file)

    clients.attempt("s3", "get_object", {"Bucket": f"{bucket}/{key}"}, download_object)


def _stage_logs(lines: Iterable[LogLine], rest: str, staging: Staging, prefix: str) -> None:
    """Write one file for each instance, such as `algo-1.log`, or only the file `rest`. Lines begin
    with their rank."""
    texts: dict[str, list[str]] = {}
    for line in lines:
        text = f"{line.text}\n"
        if line.rank is not None:
            text = f"[rank {line.rank}] {text}"
        name = f"algo-{line.instance + 1}.log"
        texts.setdefault(name, []).append(text)
    for name in sorted(texts):
        if rest in ("", name):
            place = staging.place(f"{prefix}{name}")
            place.write_text("".join(texts[name]), encoding="utf-8")
