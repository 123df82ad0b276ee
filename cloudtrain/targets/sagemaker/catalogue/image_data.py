"""The two tables behind the image catalogue, read when first asked for.

`sagemaker_images.json` is generated from the SDKs; `sagemaker_image_facts.json` is written by hand, each fact with
its source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).with_name("data")

PUBLIC = "public.ecr.aws"
"""Amazon's public registry: no account, no region."""


class ImageEntry(NamedTuple):
    """One image as the SDKs list it, for all its Pythons, devices and regions."""

    version: str
    base: str
    repository: str
    pythons: tuple[str, ...]
    devices: tuple[str, ...]
    suffix: Mapping[str, str]
    """End of the tag, by device."""
    bare: bool
    """The tag says neither device nor Python, as all from PyTorch 2.11 on."""
    sdk: int
    registry: int

    @property
    def accounts(self) -> Mapping[str, str]:
        """Region to the account whose registry has the image."""
        return registries()[self.registry]


@cache
def tables() -> Mapping[str, Any]:
    """The generated tables."""
    content: dict[str, Any] = json.loads((DATA / "images.json").read_text(encoding="utf-8"))
    return content


@cache
def facts() -> Mapping[str, Any]:
    """The facts written by hand."""
    content: dict[str, Any] = json.loads((DATA / "image_facts.json").read_text(encoding="utf-8"))
    return content


@cache
def registries() -> tuple[Mapping[str, str], ...]:
    """Region to account, for each set of images that share their regions."""
    return tuple(
        {region: account for account, regions in table.items() for region in regions.split()}
        for table in tables()["registries"]
    )


@cache
def rows(framework: str) -> tuple[ImageEntry, ...]:
    """The images of a framework, oldest first. `pytorch-smp` has those of the model parallelism library v2."""
    listed = [
        ImageEntry(
            version=entry["version"],
            base=entry.get("base", ""),
            repository=entry["repository"],
            pythons=tuple(entry.get("python") or in_range("python", framework, entry["version"], "python")),
            devices=tuple(entry["devices"]),
            suffix=entry.get("suffix", {}),
            bare=entry.get("bare", False),
            sdk=entry["sdk"],
            registry=entry["registry"],
        )
        for entry in tables()["frameworks"][framework]
    ]
    by_hand = list(_neuronx_rows()) if framework == "pytorch" else []
    return tuple(sorted([*listed, *by_hand], key=lambda row: numbers(row.version))) if by_hand else tuple(listed)


def _neuronx_rows() -> Iterator[ImageEntry]:
    """PyTorch's images for Trainium that neither SDK knows."""
    hugging_face = [row for row in tables()["frameworks"]["huggingface"] if row["repository"].endswith("-neuronx")]
    for fact in facts()["neuronx"]:
        yield ImageEntry(
            version=fact["version"],
            base="",
            repository="pytorch-training-neuronx",
            pythons=(fact["python"],),
            devices=("neuron",),
            suffix={"neuron": fact["tail"]},
            bare=False,
            sdk=0,
            registry=hugging_face[-1]["registry"],
        )


def in_range(table: str, framework: str, version: str, field: str) -> list[str]:
    """The value of a fact that holds for ranges of versions, as a list of none or one."""
    return [
        fact[field]
        for fact in facts()[table]
        if fact["framework"] == framework
        and numbers(fact["from"]) <= numbers(version)
        and (not fact["to"] or numbers(version)[: len(numbers(fact["to"]))] <= numbers(fact["to"]))
    ][:1]


def registry_host(account: str, region: str) -> str:
    """`763104351884.dkr.ecr.us-west-2.amazonaws.com`; other partitions have other suffixes."""
    suffix = next((name for name, regions in tables()["suffixes"].items() if region in regions.split()), None)
    return f"{account}.dkr.ecr.{region}.{suffix or 'amazonaws.com'}"


def numbers(version: str) -> tuple[int, ...]:
    """`2.10.0` as (2, 10, 0), to compare."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def whole_version(version: str, known: Collection[str]) -> str | None:
    """The version itself, or the newest patch release of a short one."""
    if version in known:
        return version
    short = re.fullmatch(r"\d+\.\d+", version)
    return max((one for one in known if short and one.startswith(f"{version}.")), key=numbers, default=None)


def newest(versions: Iterable[str]) -> str:
    """The highest of some versions."""
    return max(versions, key=numbers)
