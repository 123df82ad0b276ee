"""Where runs are: the login node and the shared folder. A reference holds both, so cloudtrain finds a run without
settings: `slurm://login1:fsx:cloudtrain/digits-1f3a9c2b-1`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from cloudtrain.errors import RunNotFound
from cloudtrain.targets.slurm.settings import Slurm

PLACEHOLDER = "/SHARED_DIR"
"""Stands for a shared folder that is not configured. A rule stops the submit and says what to type."""


@dataclass(frozen=True)
class SlurmAccount:
    """The Slurm target's account settings."""

    host: str | None
    """Return the login node; None where the commands of this machine are used."""
    shared_dir: str
    missing: tuple[str, ...] = ()
    """Return the names of missing settings. A placeholder stands in for each."""

    @property
    def place(self) -> str:
        """Return `HOST:FOLDER:FOLDER`. The host is empty where it is this machine."""
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
        """Read the account from a reference.

        Raises:
            RunNotFound: the place cannot hold a run of this target.
        """
        host, colon, folders = place.partition(":")
        if not colon or not folders:
            hint = "a reference looks like `slurm://login1:fsx:cloudtrain/NAME`"
            raise RunNotFound(f"`{place}` does not name a Slurm cluster", hint=hint, code="CT933")
        return cls(unquote(host) or None, "/" + "/".join(unquote(folder) for folder in folders.split(":")))
