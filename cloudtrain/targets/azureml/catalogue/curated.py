"""Azure ML's curated environments by framework and version: images that Microsoft maintains in its public registry."""

from __future__ import annotations

from typing import NamedTuple


class Curated(NamedTuple):
    """One environment of the registry `azureml`, and where its name was seen."""

    framework: str
    version: str
    name: str
    source: str

    @property
    def id(self) -> str:
        """The newest build: Microsoft publishes one about every month, and removes old ones."""
        return f"azureml://registries/azureml/environments/{self.name}/labels/latest"


_EXAMPLES = "Azure/azureml-examples @ 085cd6ea (2026-07-31)"

CURATED = (
    Curated("pytorch", "2.8", "acpt-pytorch-2.8-cuda12.6", _EXAMPLES),
    Curated("tensorflow", "2.16", "tensorflow-2.16-cuda12", _EXAMPLES),
)
"""The newest of each framework first. Others exist, and go by their id: only these were seen in use."""


def curated_environment(framework: str, version: str | None) -> Curated | None:
    """The environment of a framework's version, `2.8` or `2.8.0`; the newest without one; None where none is known."""
    for row in CURATED:
        if row.framework == framework and (version is None or f"{version}.".startswith(f"{row.version}.")):
            return row
    return None
