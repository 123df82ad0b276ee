"""The login node and the shared folder of a run. A run's reference holds both, so cloudtrain finds the run without
settings: `slurm://login1:fsx:cloudtrain/digits-1f3a9c2b-1`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from cloudtrain.errors import RunNotFound
from cloudtrain.targets.slurm.settings import Slurm

PLACEHOLDER = "/SHARED_DIR"
"""The path used while `shared_dir` is not configured. The rule SL101 then refuses to submit the job."""


@dataclass(frozen=True)
class SlurmAccount:
    """The cluster that a run belongs to: its login node and its shared folder."""

    host: str | None
    """The login node, as ssh knows it; None if Slurm's commands run on this machine."""
    shared_dir: str
    missing: tuple[str, ...] = ()
    """The names of missing settings, such as `shared_dir`. Each has a placeholder as its value."""

    @property
    def place(self) -> str:
        """Return the login node and the shared folder as text: `login1:fsx:data` for the folder `/fsx/data`.

        The host is empty if Slurm's commands run on this machine.
        """
        folders = self.shared_dir.strip("/").split("/")
        return ":".join([quote(self.host or "", safe="@"), *(quote(folder, safe="") for folder in folders)])

    @classmethod
    def of(cls, settings: Slurm) -> SlurmAccount:
        """Read the account from the settings."""
        if settings.shared_dir is None:
            return cls(settings.host, PLACEHOLDER, ("shared_dir",))
        return cls(settings.host, "/" + "/".join(part for part in settings.shared_dir.split("/") if part))

    @classmethod
    def parse(cls, place: str) -> SlurmAccount:
        """Parse `place`, the part of a run's reference that names the cluster.

        Raises:
            RunNotFound: `place` is not of the form `HOST:FOLDER:FOLDER`.
        """
        host, colon, folders = place.partition(":")
        if not colon or not folders:
            hint = "write the reference as in `slurm://login1:fsx:cloudtrain/NAME`"
            raise RunNotFound(f"`{place}` does not name a Slurm cluster", hint=hint, code="CT933")
        return cls(unquote(host) or None, "/" + "/".join(unquote(folder) for folder in folders.split(":")))
