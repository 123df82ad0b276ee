"""Upload the bundle to the shared folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from cloudtrain.core.plan import Plan
from cloudtrain.targets.base import BundleWriter, ByteProgress
from cloudtrain.targets.slurm.service import scripts
from cloudtrain.targets.slurm.service.runner import Runner

_CHUNK = 2**20


def upload(runner: Runner, plan: Plan, bundle: BundleWriter, on_bytes: ByteProgress | None) -> bool:
    """Upload the archive to the path in the plan, in one atomic step. Return False if the path already exists."""
    place = plan.uploads[0].destination
    if runner.run(scripts.EXISTS, place).strip():
        return False
    with TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive = Path(folder, "sourcedir.tar.gz")
        bundle.write(archive)
        size, sent = archive.stat().st_size, 0

        def count(length: int) -> None:
            nonlocal sent
            sent += length
            if on_bytes is not None:
                on_bytes(sent, size)

        runner.send(scripts.UPLOAD, place, str(size), chunks=_chunks(archive), on_sent=count)
    return True


def _chunks(archive: Path) -> Iterator[bytes]:
    with archive.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
