"""The two tables behind the image catalogue. Each is read on first use.

`sagemaker_images.json` is generated from the SDKs; `sagemaker_image_facts.json` is written by hand, each fact with its
source.
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
"""Amazon's public registry, which has neither account nor region in its address."""


class ImageEntry(NamedTuple):
    """One image of the SDKs' lists, with all its Python versions, devices and regions."""

    version: str
    base: str
    repository: str
    pythons: tuple[str, ...]
    devices: tuple[str, ...]
    suffix: Mapping[str, str]
    """The end of the tag, by device."""
    bare: bool
    """Whether the tag leaves out device and Python, as all tags from PyTorch 2.11 on do."""
    sdk: int
    registry: int

    @property
    def accounts(self) -> Mapping[str, str]:
        """Map each region to the account whose registry has the image."""
        return registries()[self.registry]


@cache
def tables() -> Mapping[str, Any]:
    """Return the generated tables."""
    content: dict[str, Any] = json.loads((DATA / "images.json").read_text(encoding="utf-8"))
    return content


@cache
def facts() -> Mapping[str, Any]:
    """Return the facts written by hand."""
    content: dict[str, Any] = json.loads((DATA / "image_facts.json").read_text(encoding="utf-8"))
    return content


@cache
def registries() -> tuple[Mapping[str, str], ...]:
    """Return tables that map regions to accounts. Images of the same accounts and regions share a table."""
    return tuple(
        {region: account for account, regions in table.items() for region in regions.split()}
        for table in tables()["registries"]
    )


@cache
def rows(framework: str) -> tuple[ImageEntry, ...]:
    """Return a framework's images, oldest first.

    The framework `pytorch-smp` stands for PyTorch with model parallelism library v2, which has separate images.
    """
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
    """Yield the PyTorch images for Trainium that neither version 2 nor version 3 of the SDK lists."""
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
    """Return one fact about a framework's version: `field` of the row in `table` whose range contains the version.

    The result is a list with one item, or empty if no row's range contains the version.
    """
    return [
        fact[field]
        for fact in facts()[table]
        if fact["framework"] == framework
        and numbers(fact["from"]) <= numbers(version)
        and (not fact["to"] or numbers(version)[: len(numbers(fact["to"]))] <= numbers(fact["to"]))
    ][:1]


def registry_host(account: str, region: str) -> str:
    """Return a registry's host, such as `763104351884.dkr.ecr.us-west-2.amazonaws.com`.

    Its domain depends on the AWS partition, for example `amazonaws.com.cn` in China.
    """
    suffix = next((name for name, regions in tables()["suffixes"].items() if region in regions.split()), None)
    return f"{account}.dkr.ecr.{region}.{suffix or 'amazonaws.com'}"


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version, for comparisons: (2, 10, 0) for `2.10.0`."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


def whole_version(version: str, known: Collection[str]) -> str | None:
    """Return `version` if it is in `known`; for `2.8`, its newest patch release in `known`; otherwise None."""
    if version in known:
        return version
    short = re.fullmatch(r"\d+\.\d+", version)
    return max((one for one in known if short and one.startswith(f"{version}.")), key=numbers, default=None)


def newest(versions: Iterable[str]) -> str:
    """Return the highest of some versions."""
    return max(versions, key=numbers)
