"""The file of a refresh: below what the user wrote, replaced whole, never in the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.errors import SettingsError
from cloudtrain.machines.overlay import (
    apply_overlay,
    load_overlay,
    load_overlays,
    read_refreshed,
    type_named,
    write_refreshed,
)
from cloudtrain.machines.table import instance_types

TYPES = instance_types("azureml")

NAME = "Standard_ND96asr_v4"


def refreshed(folder: Path, price: float) -> Path:
    """A refresh that found a price and a new size."""
    new = {
        "vcpus": 9,
        "memory_gib": 5,
        "gpus": 1,
        "gpu": "X900",
        "gpu_memory_gib": 0,
        "source": "asked",
    }
    table = {NAME: {"price": price, "price_date": "2026-11-22"}, "Standard_NX9s_v9": new}
    return write_refreshed(folder, "azureml", table, about="a test")


def prices(folder: Path, project: Path, target: str | None = "azureml") -> dict[str, float | None]:
    """What every size costs."""
    overlay = load_overlays(folder, project, target)
    return {row.name: row.price for row in apply_overlay(TYPES, overlay, "azureml")}


def test_a_refresh_lies_below_what_the_user_wrote(tmp_path: Path) -> None:
    """Found, then overridden by `instances.toml` in any case of letters, which no refresh touches."""
    user, project = tmp_path / "config", tmp_path / "project"
    project.mkdir()
    refreshed(user, 30.5)
    assert prices(user, project)[NAME] == 30.5
    own = user / "instances.toml"
    own.write_text(f"[azureml.{NAME.upper()}]\nprice = 20\n[azureml.Standard_NX9s_v9]\nprice = 1\n")
    refreshed(user, 31.5)
    found = prices(user, project)
    assert (found[NAME], found["Standard_NX9s_v9"]) == (20, 1)
    assert own.read_text().startswith("[azureml.STANDARD_ND96ASR_V4]")
    assert len(found) == len(TYPES) + 1


def test_only_its_own_target_reads_it(tmp_path: Path) -> None:
    """Plans for another target do not pay for it, and do not trip over it."""
    file = refreshed(tmp_path, 30.5)
    file.write_text("{")
    assert load_overlays(tmp_path, tmp_path / "nowhere") == ()
    assert load_overlays(tmp_path, tmp_path / "nowhere", "sagemaker") == ()


def test_a_new_refresh_replaces_the_last_one(tmp_path: Path) -> None:
    """Nothing of the old one stays, and nothing else is left in the folder."""
    refreshed(tmp_path, 30.5)
    file = write_refreshed(tmp_path, "azureml", {"Standard_NC6": {"price": 1}}, about="another")
    assert read_refreshed(tmp_path, "azureml") == {"Standard_NC6": {"price": 1}}
    assert list(tmp_path.iterdir()) == [file]
    assert json.loads(file.read_text())["about"] == "another"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"azureml": 3}', '"azureml"', "\x80"])
def test_a_broken_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    """Its name, and the two ways out."""
    file = refreshed(tmp_path, 30.5)
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError) as caught:
        load_overlays(tmp_path, tmp_path, "azureml")
    assert (
        caught.value.message
        == f"`{file}` is not a price table from `cloudtrain instances --refresh`"
    )
    assert "`cloudtrain instances --refresh --target azureml`" in (caught.value.hint or "")


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "config").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        refreshed(tmp_path / "config", 1)


def test_one_type_with_its_corrections(tmp_path: Path) -> None:
    """`type_named` is the row of the whole corrected table, for known, corrected, added and unknown names."""
    refreshed(tmp_path, 30.5)
    overlay = load_overlays(tmp_path, tmp_path / "nowhere", "azureml")
    rows = {row.name: row for row in apply_overlay(TYPES, overlay)}
    for name in ("Standard_NC6", NAME, "Standard_NX9s_v9"):
        assert (
            type_named("azureml", name, overlay)
            == type_named("azureml", name.lower(), overlay)
            == rows[name]
        )
    assert type_named("azureml", NAME, None) == next(row for row in TYPES if row.name == NAME)
    assert type_named("azureml", "Standard_Nope", overlay) is None
    assert type_named("sagemaker", NAME, overlay) is None


def test_a_hand_written_azure_type(tmp_path: Path) -> None:
    """`instances.toml` adds a size; RDMA is InfiniBand there, and a GPU needs its memory."""
    file = tmp_path / "instances.toml"
    file.write_text('[azureml.Standard_NX9rs_v9]\nvcpus = 9\nmemory_gib = 5\ngpus = 1\ngpu = "X900-9GB"\n'
                    'interconnect = "rdma"\n')  # fmt: skip
    row = apply_overlay(TYPES, load_overlay(file))[-1]
    assert (row.name, row.fabric, row.gpu_memory_gib, row.family) == (
        "Standard_NX9rs_v9",
        "infiniband",
        9,
        "NX9rs_v9",
    )
    file.write_text(file.read_text().replace("-9GB", ""))
    with pytest.raises(SettingsError, match="together"):
        apply_overlay(TYPES, load_overlay(file))
