"""A refresh of the catalogue: what is asked, what may be missing, what is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import TargetError
from cloudtrain.machines.overlay import apply_overlay, load_overlays
from cloudtrain.machines.table import instance_types
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.online import refresh
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.services import Denied, NotThere

SUBSCRIPTION = "/subscriptions/00000000-0000-0000-0000-000000000000"
LOCATION = f"{SUBSCRIPTION}/providers/Microsoft.MachineLearningServices/locations/westeurope"
SKUS = f"{SUBSCRIPTION}/providers/Microsoft.Compute/skus"

PRICES = {
    "billingCurrency": "USD",
    "unitOfMeasure": "OneHour",
    "values": [{"retailPrice": 4.25, "osType": "Linux", "vmTier": "Standard"}],
}

ANSWERS: dict[str, Any] = {
    "": {"location": "westeurope"},
    f"{LOCATION}/vmSizes": [
        {"name": "STANDARD_NC24ADS_A100_V4", "family": "standardNCADSA100v4Family", "estimatedVMPrices": PRICES},
        {"name": "Standard_NX9rs_v9", "vCPUs": 9, "memoryGB": 5, "gpus": 0},
    ],
    f"{LOCATION}/usages": [{"name": {"value": "standardNCADSA100v4Family"}, "limit": 48}],
    SKUS: [{"name": "Standard_NX9rs_v9", "resourceType": "virtualMachines",
            "capabilities": [{"name": "RdmaEnabled", "value": "False"}]}],
}  # fmt: skip


class Service(Client):
    """Answers from a table; an answer that is an error is raised. Lists come in pages of one item."""

    def __init__(self, **changed: Any) -> None:
        super().__init__(AzureMLAccount(SUBSCRIPTION.rpartition("/")[2], "rg", "ws"), {})
        self.answers = ANSWERS | changed
        self.asked: list[tuple[str, str | None, Mapping[str, str] | None]] = []

    def get(
        self, path: str, *, api_version: str | None = None, query: Mapping[str, str] | None = None
    ) -> Any:
        self.asked.append((path, api_version, query))
        if isinstance(self.answers[path], Exception):
            raise self.answers[path]
        return self.answers[path]

    def pages(
        self, path: str, *, api_version: str | None = None, query: Mapping[str, str] | None = None
    ) -> Iterator[list[Any]]:
        for item in self.get(path, api_version=api_version, query=query):
            yield [item]


def refreshed(service: Service, folder: Path) -> Any:
    """One refresh."""
    return refresh(service, folder=folder, date="2026-11-22")


def rows(folder: Path) -> dict[str, Any]:
    """The catalogue afterwards."""
    overlay = load_overlays(folder, folder, "azureml")
    return {row.name: row for row in apply_overlay(instance_types("azureml"), overlay)}


def test_the_workspaces_region_is_asked(tmp_path: Path) -> None:
    """Sizes, quota and skus of the workspace's own region, each in its API version, every page of them."""
    service = Service()
    done = refreshed(service, tmp_path)
    assert service.asked == [
        ("", "2024-10-01-preview", None),
        (f"{LOCATION}/vmSizes", "2023-08-01-preview", None),
        (f"{LOCATION}/usages", "2023-08-01-preview", None),
        (SKUS, "2021-07-01", {"$filter": "location eq 'westeurope'"}),
    ]
    assert (done.location, done.types, done.new_types, done.notes) == (
        "westeurope",
        2,
        ("Standard_NX9rs_v9",),
        (),
    )
    found = rows(tmp_path)
    known, new = found["Standard_NC24ads_A100_v4"], found["Standard_NX9rs_v9"]
    assert (known.price, known.price_date, known.quota_vcpus, known.gpu) == (
        4.25,
        "2026-11-22",
        48,
        "A100-80GB",
    )
    assert (new.vcpus, new.interconnect) == (9, "ethernet")
    assert (
        json.loads(done.file.read_text())["about"]
        == "Azure ML's VM sizes in westeurope, asked on 2026-11-22"
    )


def test_what_may_not_be_read_is_left_out_and_noted(tmp_path: Path) -> None:
    """Without Microsoft.Compute the name decides on InfiniBand, without usages there is no quota; both are said."""
    denied = Denied("the credentials may not do `Microsoft.Compute/skus/read`")
    done = refreshed(Service(**{SKUS: denied, f"{LOCATION}/usages": denied}), tmp_path)
    found = rows(tmp_path)
    assert found["Standard_NC24ads_A100_v4"].quota_vcpus is None
    assert found["Standard_NX9rs_v9"].interconnect == "rdma"
    assert "that is a guess" in found["Standard_NX9rs_v9"].source
    assert [note.partition(": ")[0] for note in done.notes] == [
        "without the quota", "the InfiniBand of sizes that are new is guessed from their names",
    ]  # fmt: skip
    assert all(note.endswith("may not do `Microsoft.Compute/skus/read`") for note in done.notes)


@pytest.mark.parametrize("path", ["", f"{LOCATION}/vmSizes"])
@pytest.mark.parametrize("error", [Denied("no"), NotThere("none"), TargetError("broken")])
def test_without_workspace_or_sizes_nothing_is_written(
    tmp_path: Path, path: str, error: TargetError
) -> None:
    """The error comes through, and the last refresh stays as it was."""
    refreshed(Service(), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(type(error)):
        refreshed(Service(**{path: error}), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_another_refusal_of_the_skus_is_an_error(tmp_path: Path) -> None:
    """Only what the credentials may not do is left out: a service that does not answer is not a smaller table."""
    with pytest.raises(TargetError, match="busy"):
        refreshed(Service(**{SKUS: TargetError("busy")}), tmp_path)
    assert list(tmp_path.iterdir()) == []
