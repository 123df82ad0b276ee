"""Every training image that SDK 2 can name has the same address here, in every region, and no other is made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import JobError
from cloudtrain.targets.sagemaker.catalogue.images import (
    Image,
    resolve_image,
    smp_versions,
    tables,
)

pytestmark = pytest.mark.parity(2)

REGIONS = (
    "us-west-2",
    "eu-west-1",
    "cn-north-1",
    "us-gov-west-1",
    "us-iso-east-1",
    "us-isof-south-1",
    "il-central-1",
)
INSTANCES = ("ml.g5.xlarge", "ml.m5.xlarge", "ml.p4d.24xlarge", "ml.p2.xlarge")
PLACES = [(instance, "us-west-2") for instance in INSTANCES] + [
    ("ml.g5.xlarge", region) for region in REGIONS[1:]
]
SMP2 = {
    "torch_distributed": {"enabled": True},
    "smdistributed": {"modelparallel": {"enabled": True}},
}


def versions(framework: str) -> Iterator[tuple[str, list[str], str]]:
    """Version, Pythons and base of everything in one of the SDK's tables."""
    import sagemaker

    folder = Path(sagemaker.__file__).parent / "image_uri_config"
    content = json.loads((folder / f"{framework}.json").read_text())
    for version, entry in content.get("training", content)["versions"].items():
        if "py_versions" in entry:
            yield version, entry["py_versions"], ""
        for key, inner in entry.items():
            if isinstance(inner, dict) and "registries" in inner:
                yield (
                    version,
                    inner.get("py_versions", [key]),
                    "" if "py_versions" not in inner else key,
                )


def of_sdk(
    framework: str, version: str, python: str, base: str, instance: str, region: str, **more: Any
) -> str | None:
    """The address that the SDK's estimators use; None where it finds none."""
    from sagemaker import image_uris

    split = {
        f"{name}_version": base.removeprefix(name)
        for name in ("pytorch", "tensorflow")
        if base.startswith(name)
    }
    try:
        uri = image_uris.get_training_image_uri(
            region=region, framework=framework, framework_version=version, py_version=python,
            instance_type=instance, **split, **more,
        )  # fmt: skip
    except (ValueError, UnboundLocalError):
        return None
    return str(uri)


def ours(
    framework: str, version: str, python: str, base: str, instance: str, region: str, **more: Any
) -> Image | None:
    """What the catalogue has for the same; None where it has none."""
    try:
        return resolve_image(
            framework,
            version,
            region=region,
            instance=instance,
            python=python,
            base=base or None,
            **more,
        )
    except JobError:
        return None


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK reads its tables and botocore's for each address; once will do."""
    from functools import cache

    from sagemaker import image_uris, utils

    monkeypatch.setattr(image_uris, "config_for_framework", cache(image_uris.config_for_framework))
    monkeypatch.setattr(utils, "_botocore_resolver", cache(utils._botocore_resolver))


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "huggingface"])
def test_every_address_is_the_sdks(framework: str) -> None:
    """Version, Python, base, device and region give the SDK's address; what it refuses, the catalogue refuses."""
    compared, different = 0, []
    for version, pythons, base in versions(framework):
        for python in set(pythons) - {"py2"}:
            for instance, region in PLACES:
                case = (framework, version, python, base, instance, region)
                image = ours(*case)
                found = image.uri if image else None
                compared += found is not None
                if found != of_sdk(*case):
                    different.append((case, found))
    assert different == []
    assert compared > 100


def test_every_address_of_trainium_is_the_sdks() -> None:
    """The images for Trainium, in every region of the first test."""
    for version, pythons, _ in versions("pytorch-neuron"):
        for region in REGIONS:
            case = ("pytorch", version, pythons[0], "", "ml.trn1.32xlarge", region)
            image = ours(*case)
            assert (image.uri if image else None) == of_sdk(*case)


def test_a_wrong_version_for_trainium_is_refused() -> None:
    """The SDK has one version for Trainium and gives it silently for any other; the catalogue does not."""
    case = ("pytorch", "1.9.0", "py38", "", "ml.trn1.32xlarge", "us-west-2")
    assert "pytorch-training-neuron:1.11.0-" in (of_sdk(*case) or "")
    assert ours(*case) is None


def test_the_newest_image_is_the_sdks_in_every_region() -> None:
    """All regions of all partitions that the SDK's table has, with their own accounts and domains."""
    from sagemaker import image_uris

    table = image_uris.config_for_framework("pytorch")["training"]["versions"]["2.3.0"][
        "registries"
    ]
    for region in table:
        case = ("pytorch", "2.3.0", "py311", "", "ml.g5.xlarge", region)
        image = ours(*case)
        assert image is not None
        assert image.uri == of_sdk(*case)
    assert len(table) == 42


@pytest.mark.parametrize(
    "instance",
    ["ml.p4d.24xlarge", "ml.p4de.24xlarge", "ml.p5.48xlarge", "ml.p5en.48xlarge", "ml.m5.xlarge"],
)
def test_every_address_of_smp_v2_is_the_sdks(instance: str) -> None:
    """The images of the model parallelism library v2, also for the versions that only the SDK takes for versions."""
    compared = 0
    for version in {
        *tables()["smp_aliases"],
        *(version for version, _, _ in versions("pytorch-smp")),
    }:
        if version.count(".") < 2:
            # a short version is the newest patch release here; the SDK puts it into the tag as it
            # is
            continue
        for python in ("py310", "py311", "py312"):
            for region in ("us-west-2", "eu-west-1", "cn-north-1"):
                case = ("pytorch", version, python, "", instance, region)
                image = ours(*case, smp2=True)
                found = of_sdk(*case, distribution=SMP2)
                assert (image.uri if image else None) == found, case
                assert image is None or (image.doubt is None) == (version in smp_versions())
                compared += found is not None
    assert compared == (0 if instance == "ml.m5.xlarge" else 20)


@pytest.mark.parametrize(
    ("framework", "version", "python"),
    [("tensorflow", "2.3.1", "py37"), ("pytorch", "1.6.0", "py36")],
)
def test_old_images_for_smdistributed_are_the_sdks(
    framework: str, version: str, python: str
) -> None:
    """Images of 2020 have another tag for jobs that use one of SageMaker's libraries."""
    case = (framework, version, python, "", "ml.p3.16xlarge", "us-west-2")
    image = ours(*case, smdistributed=True)
    assert image is not None
    assert image.uri.endswith("-cu110-ubuntu18.04")
    assert image.uri == of_sdk(
        *case, distribution={"smdistributed": {"dataparallel": {"enabled": True}}}
    )


def test_what_only_sdk_3_knows_sdk_2_refuses() -> None:
    """The catalogue says of each version which SDK is the oldest that knows it."""
    for version, python in (("2.9.0", "py312"), ("2.10.0", "py313"), ("2.13", "py312")):
        case = ("pytorch", version, python, "", "ml.g5.xlarge", "us-west-2")
        image = ours(*case)
        assert image is not None
        assert (image.sdk, of_sdk(*case)) == (3, None)
