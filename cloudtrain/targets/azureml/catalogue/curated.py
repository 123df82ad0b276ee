"""Azure ML's curated environments by framework and version: images that Microsoft maintains in its public registry."""

from __future__ import annotations

from typing import NamedTuple


class Curated(NamedTuple):
    """An environment of the registry `azureml`; `source` is the document that names it."""

    framework: str
    version: str
    name: str
    source: str

    @property
    def id(self) -> str:
        """Return the id of the environment's newest build. It stays valid when Microsoft removes old builds."""
        return f"azureml://registries/azureml/environments/{self.name}/labels/latest"


_EXAMPLES = "Azure/azureml-examples @ 085cd6ea (2026-07-31)"

CURATED = (
    Curated("pytorch", "2.8", "acpt-pytorch-2.8-cuda12.6", _EXAMPLES),
    Curated("tensorflow", "2.16", "tensorflow-2.16-cuda12", _EXAMPLES),
)
"""The known curated environments, the newest of each framework first.

Only environments seen in use are listed; use the id of any other.
"""


def curated_environment(framework: str, version: str | None) -> Curated | None:
    """Return the environment of a framework's version, such as `2.8` or `2.8.0`; None if none is known.

    If the version is None, the framework's newest environment is returned.
    """
    for row in CURATED:
        if row.framework == framework and (version is None or f"{version}.".startswith(f"{row.version}.")):
            return row
    return None
