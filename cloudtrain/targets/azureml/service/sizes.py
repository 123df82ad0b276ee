"""Refresh the catalogue for a workspace's region: sizes with prices, quota, and facts from Microsoft.Compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from cloudtrain.catalogue.instances import instance_named
from cloudtrain.catalogue.refreshed import Refreshed, write_refreshed
from cloudtrain.targets.azureml.catalogue.vm_sizes import overlay_of
from cloudtrain.targets.azureml.service.versions import COMPUTE, WORKSPACE
from cloudtrain.targets.common.provider_errors import Denied

SKUS = "2021-07-01"
"""The version of Microsoft.Compute's list of sizes that Azure's own SDKs send.

It has not been tested against the service.
"""


class Reader(Protocol):
    """The part of `client.Client` that this module needs.

    Paths are inside the workspace (empty for the workspace itself), or begin with `/subscriptions/`.
    """

    def get(self, path: str, *, api_version: str | None = None, query: Mapping[str, str] | None = None) -> Any:
        """Return the JSON data at a path."""
        ...

    def pages(
        self, path: str, *, api_version: str | None = None, query: Mapping[str, str] | None = None
    ) -> Iterator[list[Any]]:
        """Yield the items of a list, page by page."""
        ...


def refresh(reader: Reader, subscription_id: str, *, folder: Path, date: str) -> Refreshed:
    """Ask Azure about the workspace's region, and write corrections of the catalogue into `folder`.

    Data that the credentials may not read (often Microsoft.Compute, sometimes the quota) is left out, with a note.

    Args:
        folder: the user's configuration folder.
        date: today's ISO date, which becomes the date of the prices.

    Raises:
        TargetError: the workspace or its sizes cannot be read; nothing is written then.
        SettingsError: the file cannot be written.
    """
    location = str(reader.get("", api_version=WORKSPACE)["location"])
    provider = f"/subscriptions/{subscription_id}/providers/Microsoft.MachineLearningServices/locations/{location}"
    notes: list[str] = []

    def all_of(path: str, api_version: str, query: Mapping[str, str] | None = None) -> list[Any]:
        return [item for page in reader.pages(path, api_version=api_version, query=query) for item in page]

    def if_allowed(ask: Callable[[], list[Any]], without: str) -> list[Any] | None:
        try:
            return ask()
        except Denied as error:
            notes.append(f"{without}: {error.message}")
            return None

    sizes = all_of(f"{provider}/vmSizes", COMPUTE)
    usages = if_allowed(lambda: all_of(f"{provider}/usages", COMPUTE), "without the quota")
    skus_path = f"/subscriptions/{subscription_id}/providers/Microsoft.Compute/skus"
    here = {"$filter": f"location eq '{location}'"}
    skus = if_allowed(
        lambda: all_of(skus_path, SKUS, here), "the InfiniBand of sizes that are new is guessed from their names"
    )
    table = overlay_of(sizes, usages or (), skus, date=date, location=location)
    file = write_refreshed(folder, "azureml", table, about=f"Azure ML's VM sizes in {location}, asked on {date}")
    added = tuple(name for name in table if instance_named("azureml", name) is None)
    return Refreshed(file, location, len(table), added, tuple(notes))
